"""Tokenizers that a client may run on its texts: which parts they may have, and texts to tokens."""
