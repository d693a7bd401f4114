"""Servers and clients on the machines of a Ray cluster. The only package that imports ray (extra `[cluster]`)."""
