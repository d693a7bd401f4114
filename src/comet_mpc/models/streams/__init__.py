"""Pre-normalised blocks, and models made of them."""
