"""A Transformer classifier: its program on shares, its files, what its weights prove, what is served."""
