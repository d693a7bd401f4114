"""`comet query` and `comet gateway`: texts in, answers out."""
