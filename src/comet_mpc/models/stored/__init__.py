"""The files that a model is in."""
