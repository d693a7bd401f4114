"""What the server sees of a query: a record of what a client sends in the rounds of a run, and how random it looks.

Every message is a row of elements of known rings (`Request.messages`), and each element is uniform in its own
ring. Bytes are not: numbers below an odd T, packed bit by bit, have uneven top bits whatever the text is. So elements
are tested, not bytes. A message's elements are counted by their highest and by their lowest four bits (in Z_T: by the
sixteenth of the ring they are in), and each count is compared with what its ring predicts (Pearson's chi-squared). The
sum over all messages is one statistic, and the p-value is its tail: uniform elements give a p below 0.01 once in a
hundred runs. A test of one run cannot prove privacy (docs/explanation/security.md does); it shows a message that is
not masked.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from comet_mpc.engine.ops.operation import Message, Packed
from comet_mpc.engine.party import Sent
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import Words

_FIRST = 16
_CELLS = 16
_LEAST_IN_A_CELL = 2
_BYTE = Ring(8)


class Glimpse(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that somebody saw, and whether what they stand for looks random."""

    size: int
    first_bytes: str
    p_value: float | None
    """How often uniform elements look at least as uneven as these; None: there are too few to tell."""


def glimpse(data: bytes) -> Glimpse:
    """Of bytes, each on its own: a text, for comparison."""
    run = SeenRun(0, 0)
    run.add(((_BYTE, len(data)),), np.frombuffer(data, np.uint8))
    return run.glimpse()


class SeenRun:
    """One run of a program: its messages are counted and not kept."""

    def __init__(self, texts: int, bucket: int) -> None:
        self.texts, self.bucket = texts, bucket
        self._size, self._first = 0, b""
        self._misfit, self._freedom = 0.0, 0

    def add(self, message: Message, data: Packed) -> None:
        self._size += data.size
        self._first += data[: _FIRST - len(self._first)].tobytes()
        at = 0
        for ring, count in message:
            length = ring.wire_bytes(count)
            self._test(ring, ring.unpack(data[at : at + length], count))
            at += length

    def _test(self, ring: Ring, words: Words) -> None:
        cells = min(_CELLS, ring.size, 1 << (words.size // _LEAST_IN_A_CELL).bit_length() >> 1)
        if cells < 2:
            return
        width = -(-ring.size // cells)
        high = [min(width, ring.size - cell * width) for cell in range(cells)]
        self._compare(words // np.uint64(width), high, ring.size)
        if ring.size >= _CELLS**2:
            low = [ring.size // cells + (cell < ring.size % cells) for cell in range(cells)]
            self._compare(words & np.uint64(cells - 1), low, ring.size)

    def _compare(self, cells_of: Words, sizes: list[int], of: int) -> None:
        """So many elements of the ring belong to each cell."""
        found = np.bincount(cells_of.astype(np.intp), minlength=len(sizes))
        expected = np.array([size / of for size in sizes]) * cells_of.size
        self._misfit += float(np.sum((found - expected) ** 2 / expected))
        self._freedom += len(sizes) - 1

    def glimpse(self) -> Glimpse:
        p_value = _chi_squared_tail(self._misfit, self._freedom) if self._freedom else None
        return Glimpse(size=self._size, first_bytes=self._first.hex(" "), p_value=p_value)


def _chi_squared_tail(value: float, freedom: int) -> float:
    """How likely so many degrees of freedom exceed it: Q(a, x) = Σ_{j<a} x^j·e^-x/Γ(j + 1) with a = freedom/2, x =
    value/2, for j = 0, 1, … or for j = 1/2, 3/2, …, to which erfc(√x) is added."""
    x = max(value / 2.0, 1e-300)
    start = freedom % 2 / 2
    first = start * math.log(x) - x - math.lgamma(start + 1.0)
    steps = np.log(x / np.arange(start + 1.0, freedom / 2))
    terms = first + np.concatenate([[0.0], np.cumsum(steps)]) if freedom > 1 else np.empty(0)
    return float(np.sum(np.exp(terms))) + (math.erfc(math.sqrt(x)) if start else 0.0)


class Seen:
    """The runs of one client since `clear`. `Client(watch=seen.run)` records them."""

    def __init__(self) -> None:
        self.runs: list[SeenRun] = []

    def clear(self) -> None:
        self.runs = []

    def run(self, texts: int, bucket: int) -> Sent:
        """A run begins."""
        self.runs.append(SeenRun(texts, bucket))
        return self.runs[-1].add
