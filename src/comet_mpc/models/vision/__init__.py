"""Vision Transformers: how they are computed in private, and read from Hugging Face's files."""
