"""The command `comet`."""
