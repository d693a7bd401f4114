"""The command `comet-lab`."""
