"""Settings shared by all tests."""

from hypothesis import settings

# Kernels and protocols share cores with other work: a deadline would only measure the machine.
settings.register_profile("comet", deadline=None, print_blob=True)
settings.load_profile("comet")
