"""The C++ kernels agree with numpy, and with each other, bit for bit."""

from comet_mpc import kernels


def test_the_portable_kernels_are_always_available() -> None:
    assert kernels.isa_names()[0] == "portable"
