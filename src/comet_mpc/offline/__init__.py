"""Correlated randomness: kept in a store, made by a dealer or by the two parties themselves."""
