"""Homomorphic encryption (RLWE): parameters and noise, matrix products, sums of products in slots."""
