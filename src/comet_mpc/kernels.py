"""Arithmetic in Z_2^64 on arrays of shares: typed front of the C++ kernels."""

from comet_mpc import _native


def isa_names() -> list[str]:
    """Instruction sets this machine can run, best last."""
    return _native.isa_names()
