"""Rates of the ring kernels."""

from comet_mpc import kernels

if __name__ == "__main__":
    print("instruction sets:", ", ".join(kernels.isa_names()))
