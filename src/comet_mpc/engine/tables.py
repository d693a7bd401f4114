"""Public tables of lines that are read at secret places.

By distributed point functions (native/points/tree.hpp has the formulas): two keys give shares of a vector that is zero
but for one cell, and whoever has one key learns nothing of the cell or of what stands in it. So the sum of the cells
times a public table is a share of its entry at a place that nobody knows: local work, two blocks of AES a cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from comet_mpc import _native
from comet_mpc.engine.share import Words
from comet_mpc.errors import ShapeError
from comet_mpc.threads import in_order

MOST_INDEX_BITS = 16
POINT_ROWS = 4096
"""Rows whose corrections are made, sent and stored together."""
_EARLY = 2
_CELLS_AT_ONCE = 1 << 19


@dataclass(frozen=True)
class PointShape:
    """Of keys: 2^index_bits cells, so many words in each."""

    index_bits: int
    words: int

    @property
    def early(self) -> int:
        """Levels that the tree ends above the cells."""
        return min(_EARLY, self.index_bits)

    @property
    def levels(self) -> int:
        return self.index_bits - self.early

    @property
    def leaf_words(self) -> int:
        return self.words << self.early

    @property
    def key_words(self) -> int:
        """Of a party's key, its root included."""
        return 2 + 2 * self.levels + self.leaf_words

    @property
    def native(self) -> tuple[int, int, int]:
        return self.index_bits, self.early, self.words


@dataclass(frozen=True, eq=False)
class PointKeys:
    """One party's keys, a row each."""

    shape: PointShape
    roots: Words = field(repr=False)
    corrections: Words = field(repr=False)
    last: Words = field(repr=False)

    def __post_init__(self) -> None:
        rows, shape = self.roots.size // 2, self.shape
        sizes = (2 * rows, 2 * rows * shape.levels, rows * shape.leaf_words)
        if (self.roots.size, self.corrections.size, self.last.size) != sizes:
            raise ShapeError(f"keys for {rows} rows of 2^{shape.index_bits} cells are too short, or for another table")

    def _rows(self, start: int, stop: int) -> tuple[Words, Words, Words]:
        size, leaf = 2 * self.shape.levels, self.shape.leaf_words
        return (
            self.roots[2 * start : 2 * stop],
            self.corrections[start * size : stop * size],
            self.last[start * leaf : stop * leaf],
        )

    def lines(self, server: bool, tables: Words, starts: Words, values: Words, factors: Words, columns: int) -> Words:
        """A share of every column's line at every row's place, (rows, columns): `evaluate_lines` in native/points."""
        rows = self.roots.size // 2
        step = max(1, _CELLS_AT_ONCE >> self.shape.index_bits)
        out = np.empty((rows, columns), np.uint64)

        def some(start: int) -> None:
            place = slice(start, min(rows, start + step))
            at, value, factor = (np.ascontiguousarray(array[place]) for array in (starts, values, factors))
            keys, into = self._rows(place.start, place.stop), out[place].reshape(-1)
            _native.evaluate_lines(*self.shape.native, server, *keys, tables, columns, at, value, factor, into, "")

        for _ in in_order(some, range(0, rows, step)):
            pass
        return out


def make_corrections(
    shape: PointShape, client_roots: Words, server_roots: Words, places: Words, payloads: Words
) -> tuple[Words, Words]:
    """A dealer's side: the corrections of all levels, and the last ones, for places and payloads (rows, words)."""
    rows = places.size
    if payloads.shape != (rows, shape.words) or client_roots.size != 2 * rows or server_roots.size != 2 * rows:
        raise ShapeError(f"{rows} places, and payloads of shape {payloads.shape}: they do not fit")
    corrections = np.empty(2 * rows * shape.levels, np.uint64)
    last = np.empty(rows * shape.leaf_words, np.uint64)
    flat = np.ascontiguousarray(payloads).reshape(-1)
    _native.make_points(*shape.native, client_roots, server_roots, places, flat, corrections, last, "")
    return corrections, last


PHASES = 8
"""Tables of every column: which one a row takes follows from the public part of its opening."""


@dataclass(frozen=True, eq=False)
class LineTable:
    """Public lines A[j] + B[j]·t, one for each of 2^index_bits cells, in several columns.

    Cell j of phase p stands for factor·z/2^cut in [j + p/PHASES, j + 1 + (p+1)/PHASES), modulo 2^index_bits, z being
    the integer that is shared; t is z over 2^shift, rounded either way.
    """

    index_bits: int
    factor: int
    cut: int
    shift: int
    fraction: int
    """Fraction bits of the results."""
    width: int
    """Their ring."""
    bounds: tuple[float, ...]
    """|result| of every column."""
    words: Words = field(repr=False)
    """(phases, columns, A and B, cells twice)."""

    def __post_init__(self) -> None:
        shape = (PHASES, len(self.bounds), 2, 2 << self.index_bits)
        if self.words.shape != shape or self.words.dtype != np.uint64:
            raise ShapeError(f"a table of lines has shape {self.words.shape}, expected {shape}")
        if self.cut < math.log2(PHASES) or not 1 <= self.index_bits <= MOST_INDEX_BITS:
            raise ShapeError(f"a table of 2^{self.index_bits} cells, cut at bit {self.cut}, cannot be read")

    @staticmethod
    def of(
        index_bits: int, columns: Sequence[Sequence[tuple[int, int]]], *, cut: int, shift: int, fraction: int,
        width: int, factor: int = 1,
    ) -> LineTable:  # fmt: skip
        """From (level, slope) of every cell, of every column, whatever the phase: rougher, for small tables."""
        numbers = np.array(columns, np.int64).view(np.uint64).transpose(0, 2, 1)
        words = np.ascontiguousarray(np.broadcast_to(np.tile(numbers, 2), (PHASES, len(columns), 2, 2 << index_bits)))
        bounds = (2.0 ** (width - 1 - fraction),) * len(columns)
        return LineTable(index_bits, factor, cut, shift, fraction, width, bounds, words)

    @property
    def columns(self) -> int:
        return len(self.bounds)

    def places(self, z: Words, width: int) -> Words:
        """Where the words of a row's lines begin in the flat table, from a public z in Z_2^width."""
        scaled = (z * np.uint64(self.factor)) & np.uint64(2**width - 1)
        cell = (scaled >> np.uint64(self.cut)) & np.uint64(2**self.index_bits - 1)
        phase = (scaled >> np.uint64(self.cut - int(math.log2(PHASES)))) & np.uint64(PHASES - 1)
        return phase * np.uint64(self.words[0].size) + cell

    def at(self, z: Words, t: Words) -> Words:
        """The lines in the clear, (rows, columns): z exactly, t as it is truncated."""
        cells = (z.view(np.int64) * np.int64(self.factor) >> np.int64(self.cut)) & np.int64(2**self.index_bits - 1)
        level, slope = self.words[0, :, 0, cells], self.words[0, :, 1, cells]
        return np.asarray(level + slope * t[:, None])
