"""A watcher that remembers what it was told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from comet_mpc.progress import Tick, Watcher


class Heard(Watcher):
    """stages: what began, with all that its tick was told. then: is called with every line"""

    def __init__(self, then: Callable[[str], None] = lambda line: None) -> None:
        self.lines: list[str] = []
        self.stages: list[tuple[str, list[tuple[int, int]]]] = []
        self._then = then

    def say(self, line: str) -> None:
        self.lines.append(line)
        self._then(line)

    def stage(self, what: str) -> contextlib.AbstractContextManager[Tick]:
        told: list[tuple[int, int]] = []
        self.stages.append((what, told))

        def tick(done: int, total: int, note: str = "") -> None:
            told.append((done, total))

        return contextlib.nullcontext(tick)

    def told(self, what: str) -> list[tuple[int, int]]:
        """What the first stage of this name was told."""
        return next(told for name, told in self.stages if name == what)
