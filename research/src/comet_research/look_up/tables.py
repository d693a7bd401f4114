"""Public tables that are looked up at a secret index, and how one party gives entries to the other.

For an index x = x_c + x_s mod M the server knows one pad of M, at a random index c. It says c - x_s. The client adds
pad k to the entry at x_c + k - (c - x_s), for every k; at k = c that is the entry at x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import kernels
from comet_mpc.engine.share import WORD, Share, Words, word_bytes
from comet_mpc.errors import RangeError, ShapeError

MOST_ENTRIES = 256
_CHUNK = 1 << 17  # entries that are hidden at once: what stays in a cache


@dataclass(frozen=True)
class Column:
    """One number of every entry, in fixed point: what a share of it carries. The ring is one of whole bytes."""

    values: tuple[int, ...]
    width: int
    fraction: int = 0

    @property
    def bound(self) -> float:
        return max(abs(value) for value in self.values) * 2.0**-self.fraction


@dataclass(frozen=True)
class Table:
    """Columns of equal length, which is a power of two."""

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        lengths = {len(column.values) for column in self.columns}
        if len(lengths) != 1 or not 2 <= (most := max(lengths)) <= MOST_ENTRIES or most & (most - 1):
            raise ShapeError(
                f"a table's columns have lengths {lengths}: all need one power of two, 2 to {MOST_ENTRIES}"
            )
        if any(column.width % 8 for column in self.columns) or not 0 < sum(self.sizes) <= WORD // 8:
            raise ShapeError("a table's columns must be whole bytes wide, and 1 to 8 bytes together")

    @property
    def entries(self) -> int:
        return len(self.columns[0].values)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of every column."""
        return tuple(word_bytes(column.width) for column in self.columns)

    @cached_property
    def words(self) -> tuple[Words, ...]:
        return tuple(np.array([value % 2**WORD for value in column.values], np.uint64) for column in self.columns)


def hide(column: Words, start: Words, pads: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """For every table the entries from `start` on, around the end to the beginning, each plus its pad."""
    entries = column.size
    rows = np.lib.stride_tricks.sliding_window_view(np.concatenate([column, column]), entries)
    first = start & np.uint64(entries - 1)
    out = np.empty(first.size * entries * size, np.uint8)
    step = _CHUNK // entries
    for begin in range(0, first.size, step):
        chosen = rows[first[begin : begin + step]].reshape(-1)
        place = slice(begin * entries * size, (begin * entries + chosen.size) * size)
        chosen += kernels.unpack_words(pads[place], size, chosen.size)
        out[place] = kernels.pack_words(chosen, size)
    return out


def pick(rows: npt.NDArray[np.uint8], places: Words, size: int) -> Words:
    """One entry of every row."""
    grid = rows.reshape(places.size, -1, size)
    return kernels.unpack_words(
        np.ascontiguousarray(grid[np.arange(places.size), places]).reshape(-1), size, places.size
    )


def digit_sum(share: Share, digit: int, bits: int) -> Share:
    """A digit (of `bits` bits) of one party's words plus the other's, without a carry from below: a whole number.

    It is at most 2^(bits+1) - 2, so it is exact in its ring of bits + 1. In a twin it is the value's own digit.
    """
    if share.error:
        raise RangeError("a product that is only near its value has no digits: truncate it first")
    if share.modulus or share.width < bits * (digit + 1):
        raise ShapeError(f"a ring of {share.width} bits has no digit {digit} of {bits} bits")
    shift, mask = np.uint64(bits * digit), np.uint64(2**bits - 1)
    values = None if share.values is None else share.values >> shift & mask
    return replace(share, fraction=0, bound=2.0**bits, width=bits + 1, values=values)
