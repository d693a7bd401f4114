"""Processes that end with the one that started them, however that ends: nothing is left that holds a port or a lock."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Call it first in a process that `parent` has forked: the kernel kills it when its parent is gone."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)
