"""Ctrl-C: a command that is stopped says what it has kept, and how to go on. Its exit code is 130."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

STOPPED = 130
AGAIN = "Run the command again to start over."
RESUME = "Run the same command to resume: what is in its directory is kept."


@contextlib.contextmanager
def if_stopped(advice: str | Callable[[], str]) -> Iterator[None]:
    """What to tell whoever stops this block. Of nested blocks, the innermost one knows best."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.add_note(advice if isinstance(advice, str) else advice())
        raise


def advice_of(stop: KeyboardInterrupt) -> str:
    return next(iter(getattr(stop, "__notes__", ())), AGAIN)
