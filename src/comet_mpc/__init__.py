"""Two-party private Transformer inference on additive shares in Z_2^64."""

from importlib.metadata import version

__version__ = version("comet-mpc")
