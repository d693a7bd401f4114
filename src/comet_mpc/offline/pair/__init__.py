"""Randomness that the two parties make between themselves: how, what it costs, how it gets into both stores."""
