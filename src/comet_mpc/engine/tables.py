"""Public tables of lines that are read at secret places.

By distributed point functions (native/points/tree.hpp has the formulas): two keys give shares of a vector that is zero
but for one cell, and whoever has one key learns nothing of the cell or of what stands in it. So the sum of the cells
times a public table is a share of its entry at a place that nobody knows: local work, two blocks of AES a cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from comet_mpc import _native
from comet_mpc.engine.ring import WORD, Ring
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
    """Of keys: 2^index_bits cells, so many words in each, in a ring."""

    index_bits: int
    words: int
    ring: Ring = Ring(WORD)  # noqa: RUF009 (immutable)

    @property
    def early(self) -> int:
        """Levels that the tree ends above the cells: where a third word would need a block of its own in each."""
        return min(_EARLY, self.index_bits) if self.words > 2 else 0

    @property
    def levels(self) -> int:
        return self.index_bits - self.early

    @property
    def leaf_words(self) -> int:
        return self.words << self.early

    @property
    def key_words(self) -> int:
        """Of a party's key, a row."""
        return 2 * self.levels + self.leaf_words

    @property
    def native(self) -> tuple[int, int, int, int]:
        return self.index_bits, self.early, self.words, self.ring.modulus


@dataclass(frozen=True, eq=False)
class PointKeys:
    """One party's keys: its root, and of every row the corrections of all levels and the last one."""

    shape: PointShape
    table: int
    """Its number: keys that have a root in common have different ones."""
    root: Words = field(repr=False)
    corrections: Words = field(repr=False)
    last: Words = field(repr=False)
    numbers: Words | None = field(default=None, repr=False)
    """Of the rows, if they are some of those that were prepared together."""

    def __post_init__(self) -> None:
        shape, rows = self.shape, self.last.size // self.shape.leaf_words
        sizes = (2, 2 * rows * shape.levels, rows * shape.leaf_words)
        if (self.root.size, self.corrections.size, self.last.size) != sizes:
            raise ShapeError(f"keys for {rows} rows of 2^{shape.index_bits} cells are too short, or for another table")

    def lines(self, server: bool, tables: Words, starts: Words, values: Words, factors: Words, columns: int) -> Words:
        """A share of every column's line at every row's place, (rows, columns): `evaluate_lines` in native/points."""
        levels, leaf = 2 * self.shape.levels, self.shape.leaf_words
        if starts.size * leaf != self.last.size:
            raise ShapeError(f"{starts.size} rows are read with the keys of {self.last.size // leaf}")
        out = np.empty((starts.size, columns), np.uint64)
        numbers = np.empty(0, np.uint64) if self.numbers is None else self.numbers

        def some(start: int, stop: int) -> None:
            at, value, factor = (np.ascontiguousarray(array[start:stop]) for array in (starts, values, factors))
            keys = self.root, self.corrections[start * levels : stop * levels], self.last[start * leaf : stop * leaf]
            into, shape, rows = out[start:stop].reshape(-1), self.shape.native, (self.table, start)
            _native.evaluate_lines(
                shape, rows, numbers[start:stop], server, *keys, tables, columns, at, value, factor, into, ""
            )

        in_blocks(self.shape, starts.size, some)
        return out


def in_blocks(shape: PointShape, rows: int, work: Callable[[int, int], None]) -> None:
    """work(first, last + 1) for all rows, some at a time, on all cores."""
    step = max(1, _CELLS_AT_ONCE >> shape.index_bits)
    for _ in in_order(lambda start: work(start, min(rows, start + step)), range(0, rows, step)):
        pass


@dataclass(frozen=True, eq=False)
class Growing:
    """One party's keys while it finds the corrections together with the other one: (rows, levels, 2) words."""

    shape: PointShape
    table: int
    server: bool
    root: Words = field(repr=False)
    corrections: Words = field(repr=False)

    def level_sums(self, level: int) -> Words:
        """The sum of what a level's nodes are hashed to, (rows, 2); the corrections of those above are known."""
        out = np.empty((len(self.corrections), 2), np.uint64)

        def some(start: int, stop: int) -> None:
            rows, into = self.corrections[start:stop].reshape(-1), out[start:stop].reshape(-1)
            described = self.shape.native, (self.table, start), self.server, self.root
            _native.point_level_sums(*described, rows, level, into, "")

        in_blocks(self.shape, len(out), some)
        return out

    def leaf_sums(self) -> tuple[Words, Words]:
        """The sum of all leaves' numbers, (rows, words), and how many of them have the control bit."""
        count, words = len(self.corrections), self.shape.leaf_words
        out, controls = np.empty((count, words), np.uint64), np.empty(count, np.uint64)

        def some(start: int, stop: int) -> None:
            rows, into = self.corrections[start:stop].reshape(-1), out[start:stop].reshape(-1)
            described = self.shape.native, (self.table, start), self.server, self.root
            _native.point_leaf_sums(*described, rows, into, controls[start:stop], "")

        in_blocks(self.shape, count, some)
        return out, controls


def make_corrections(
    shape: PointShape,
    rows: tuple[int, int],
    client_root: Words,
    server_root: Words,
    places: Words,
    payloads: Words,
) -> tuple[Words, Words]:
    """A dealer's side: the corrections of all levels, and the last ones, for places and payloads (rows, words).

    rows: the table's number, and that of the first row
    """
    count = places.size
    if payloads.shape != (count, shape.words) or client_root.size != 2 or server_root.size != 2:
        raise ShapeError(f"{count} places, and payloads of shape {payloads.shape}: they do not fit")
    corrections = np.empty(2 * count * shape.levels, np.uint64)
    last = np.empty(count * shape.leaf_words, np.uint64)
    flat = np.ascontiguousarray(payloads).reshape(-1)
    _native.make_points(shape.native, rows, client_root, server_root, places, flat, corrections, last, "")
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
    """Of their ring."""
    bounds: tuple[float, ...]
    """|result| of every column."""
    words: Words = field(repr=False)
    """(phases, columns, A and B, cells twice)."""
    modulus: int = 0
    """Of their ring, if it is an odd one."""
    unwrapped: bool = False
    """Whether lines take z as an integer, so that their ring may be any: the second time each cell is given, and in the
    last cell, A has B times the size of z's ring taken off. Then z is at least -1, its ring is Z_2^(cut + index_bits),
    and it is neither multiplied nor truncated (`unwrapping`)."""

    def __post_init__(self) -> None:
        shape = (PHASES, len(self.bounds), 2, 2 << self.index_bits)
        if self.words.shape != shape or self.words.dtype != np.uint64:
            raise ShapeError(f"a table of lines has shape {self.words.shape}, expected {shape}")
        if self.cut < math.log2(PHASES) or not 1 <= self.index_bits <= MOST_INDEX_BITS:
            raise ShapeError(f"a table of 2^{self.index_bits} cells, cut at bit {self.cut}, cannot be read")
        if (self.unwrapped and (self.factor, self.shift) != (1, 0)) or (self.modulus and not self.unwrapped):
            raise ShapeError("lines in any ring are those of a value as it is")

    @property
    def ring(self) -> Ring:
        return Ring(self.width, self.modulus)

    @staticmethod
    def unwrapping(
        index_bits: int, cut: int, fraction: int, ring: Ring, bounds: tuple[float, ...], levels: Words, slopes: Words
    ) -> LineTable:
        """From levels and slopes, signed, of every phase, column and cell: lines of an integer z, at least -1.

        z = C + a - 2^w·k for the public C, the mask a and a bit k. Cell j of z is read at place c + j', c and j' being
        the cells of C and of a. If c + j' is below the last place of the first round, k is 0, beyond it k is 1; and in
        the last cell itself, which stands for what is just below 0 and, by the phase, for what is just above it, what
        is above it has wrapped, and what is below counts as if it had.
        """
        size, last = 1 << cut + index_bits, 2**index_bits - 1
        first, second = (ring.reduced(part.view(np.uint64)) for part in (levels, slopes))
        taken = ring.subtract(first, ring.times(second, size))
        once = np.where(np.arange(2**index_bits) == last, taken, first)
        words = np.stack([np.concatenate([once, taken], -1), np.concatenate([second, second], -1)], axis=2)
        return LineTable(
            index_bits, 1, cut, 0, fraction, ring.width, bounds, np.ascontiguousarray(words), ring.modulus, True
        )

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
        if self.unwrapped:
            below = cells == 2**self.index_bits - 1
            t = t + (below.astype(np.uint64) << np.uint64(self.cut + self.index_bits))
        return self.ring.add(level, self.ring.multiply(slope, self.ring.reduced(t)[:, None]))
