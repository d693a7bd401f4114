"""Randomness from a third party: what it computes, which programs it takes, both sides of the conversation."""
