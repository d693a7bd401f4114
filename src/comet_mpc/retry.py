"""Try something again: after which errors, how often, and for how long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def retry(
    action: Callable[[], T],
    on: type[Exception],
    *,
    tries: float = math.inf,
    seconds: float = math.inf,
    pause: float = 0.0,
    unless: Callable[[], bool] = lambda: False,
) -> T:
    """What the action returns. After an error of the type `on` it is tried again; the last error is raised.

    tries    of the action, at most
    seconds  from now on in which another try may begin
    pause    seconds before another try
    unless   whether another try is of no use, asked after each error
    """
    until, left = time.monotonic() + seconds, tries
    while True:
        try:
            return action()
        except on:
            left -= 1
            if left <= 0 or time.monotonic() >= until or unless():
                raise
        time.sleep(pause)
