"""Memory that was freed goes back to the operating system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    """Of the C library, if it is glibc: others do it by themselves."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Gives back pages that hold nothing. It takes a few milliseconds.

    glibc gives back the end of its heap only. Where large arrays come and go among small ones that stay, such as what
    a preparation has made, a fifth of a process's memory can be pages that hold nothing.
    """
    if (trim := _trim()) is not None:
        trim(0)
