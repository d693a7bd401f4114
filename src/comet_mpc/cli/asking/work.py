"""How much of the work of `comet query` is done, and so how long the whole file will take, not one bundle alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate

from comet_mpc.progress import Tick
from comet_mpc.service.prediction import Cost
from comet_mpc.units import human_bytes

Sizes = Mapping[tuple[int, int], int]
"""How many runs of each size, batch and bucket, in their order."""

_PREPARING = 0.8
"""The part of a run's work that is preparation, until a run has told."""


class Shown:
    """One bar for all the work: how much of it is done, how long the rest takes, and which bundle is being prepared.

    Work is counted in a unit that grows with time: bytes while randomness is prepared, tokens while texts are answered.
    """

    def __init__(self) -> None:
        self.tick: Tick | None = None
        """Nothing is shown before there is one."""
        self._done = self._total = 0
        self._words = ""
        self._bundle: Callable[[int, int], float] = lambda done, total: 0.0

    def begin(self, total: int, bundle: Callable[[int, int], float]) -> None:
        """bundle: work that so many bytes of a bundle, of how many, stand for"""
        self._total, self._bundle = total, bundle

    def done(self, work: int, words: str) -> None:
        """words: the same for people, such as 12 of 100 texts"""
        self._done, self._words = work, words
        self._show(0.0, words)

    def bytes(self, done: int, total: int) -> None:
        """From whichever thread prepares."""
        if not total:
            self._show(0.0, f"{self._words}, waiting for the dealer")
            return
        note = f"{self._words}, preparing {human_bytes(done)}/{human_bytes(total)}"
        self._show(self._bundle(done, total), note)

    def _show(self, more: float, note: str) -> None:
        if self.tick is not None and self._total:
            self.tick(min(self._total, self._done + round(more)), self._total, note)


class FileWork:
    """The work of all runs of a file, in tokens, paddings included: about as the time that they take.

    sizes  the runs that there are, in their order
    """

    def __init__(self, sizes: Sizes) -> None:
        runs = (batch * bucket for (batch, bucket), count in sizes.items() for _ in range(count))
        self._ends = list(accumulate(runs))
        self.total = self._ends[-1] if self._ends else 0
        self.done = 0
        self._preparing = _PREPARING

    def answered(self, cost: Cost) -> None:
        """One text, of a run of that cost."""
        self.done += cost.bucket
        seconds = cost.offline_seconds + cost.online_seconds
        self._preparing = cost.offline_seconds / seconds if seconds else _PREPARING

    def of_bundle(self, done: int, total: int) -> float:
        """Of the run that it is prepared for, which is the next."""
        end = self._ends[min(bisect_right(self._ends, self.done), len(self._ends) - 1)] if self._ends else 0
        return self._preparing * max(0, end - self.done) * done / total
