"""Images: how a client reads them, and the vision Transformers that they are for."""
