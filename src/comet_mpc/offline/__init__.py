"""Correlated randomness: kept in a store, made by a dealer or by the two parties themselves."""

from comet_mpc.offline import kinds as kinds  # what can be prepared, whichever module is imported
