"""Settings shared by all tests."""

import os

from hypothesis import settings

# Kernels and protocols share cores with other work: a deadline would only measure the machine.
# A change is judged by the same examples every time; elsewhere new ones are tried in every run.
settings.register_profile("comet", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("comet")
