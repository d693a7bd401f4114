"""Waiting for what another thread or process does soon, and a clock that goes as a test says."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PATIENCE", "Clock", "blocked_in", "eventually", "once_blocked_in", "within"]

Found = TypeVar("Found")

PATIENCE = float(os.environ.get("COMET_TEST_PATIENCE", "240"))
"""Seconds in which something must happen that takes moments on an idle machine. Only a failure ever takes them."""


def within(seconds: float, condition: Callable[[], Found]) -> Found:
    """The first value of `condition` that is true, asked again and again; the last one if there is none in time."""
    until, pause = time.monotonic() + seconds, threading.Event()
    while not (found := condition()) and time.monotonic() < until:
        pause.wait(0.01)
    return found


def eventually(condition: Callable[[], Found], what: str = "it did not happen") -> Found:
    """The first value of `condition` that is true. There must be one."""
    found = within(PATIENCE, condition)
    assert found, what
    return found


def blocked_in(thread: threading.Thread, function: str) -> bool:
    """Whether a function of that name is what the thread is in."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def once_blocked_in(function: str, action: Callable[[], object]) -> threading.Thread:
    """Does something in another thread as soon as the one that calls this is in that function."""
    caller = threading.current_thread()

    def work() -> None:
        eventually(lambda: blocked_in(caller, function), f"{function} was not called")
        action()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.readings = 0

    def monotonic(self) -> float:
        self.readings += 1
        return self.now

    perf_counter = process_time = monotonic

    def was_read(self, times: int) -> bool:
        return self.readings >= times
