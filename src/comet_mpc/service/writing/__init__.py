"""Texts that are written privately: a client and a server use one bundle for some positions at a time."""
