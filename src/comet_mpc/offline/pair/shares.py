"""What a pair's bundle holds: this party's shares as they are stored, and as a program draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from comet_mpc.engine import kernels
from comet_mpc.engine.correlations import (
    BitProducts,
    ClientMask,
    Correlation,
    Mask,
    TableTransfers,
    correction_widths,
)
from comet_mpc.engine.seeds import expand
from comet_mpc.engine.share import CLIENT, SERVER, Words, word_bytes
from comet_mpc.errors import ForeignRandomness
from comet_mpc.offline.bundle import Bundle, OpenBundle, read_exactly

__all__ = ["PairRandomness", "Prepared", "stored_bytes"]

Arrays = tuple[Words, ...]


class PairRandomness(OpenBundle):
    """One party's randomness, prepared with the other party: masks from its seed, the rest as it was stored."""

    fused = False

    def __init__(self, bundle: Bundle, shares: Callable[[int], Arrays] | None = None) -> None:
        """shares: gives the words of the correlation at a place, each once; without it the bundle is read."""
        super().__init__(bundle)
        self._shares = shares
        if shares is None and bundle.stored is None:
            raise ForeignRandomness("a bundle of a dealer's, where the two parties prepare their randomness themselves")

    def _words(self, index: int, correlation: Correlation) -> Arrays:
        match correlation:
            case ClientMask() if self.party != CLIENT:
                return ()
            case Mask(shape=shape) | ClientMask(shape=shape):
                return (expand(self.bundle.seed, index, math.prod(shape)),)
        return self._shares(index) if self._shares is not None else self._read(correlation)

    def _read(self, correlation: Correlation) -> Arrays:
        assert self.bundle.stored is not None
        arrays: list[Any] = []
        for count, size in _layout(self.party, correlation):
            data = read_exactly(self.bundle.stored, count * (size or 1))
            arrays.append(kernels.unpack_words(data, size, count) if size else np.frombuffer(data, np.uint8))
        return tuple(arrays)


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a preparation gave one party: to be stored, or to be used at once; either uses it up."""

    party: int
    seed: bytes = field(repr=False)
    correlations: Sequence[Correlation] = field(repr=False)
    shares: dict[int, Arrays] = field(repr=False)
    """By place, of all that is not in the seed."""

    def packed(self) -> Iterator[memoryview]:
        """The shares piece by piece, as they are stored."""
        for index, correlation in enumerate(self.correlations):
            arrays = self.shares.pop(index, ())
            for array, (_, size) in zip(arrays, _layout(self.party, correlation), strict=True):
                yield kernels.pack_words(array, size).data if size else array.data

    def open(self) -> PairRandomness:
        return PairRandomness(Bundle(self.party, self.seed, self.correlations), self.shares.pop)


def stored_bytes(party: int, correlations: Iterable[Correlation]) -> int:
    """Bytes that `Prepared.packed` gives."""
    return sum(count * (size or 1) for entry in correlations for count, size in _layout(party, entry))


def _layout(party: int, correlation: Correlation) -> list[tuple[int, int]]:
    """A correlation's arrays as they are stored: elements, and bytes of each word; 0 for an array of bytes."""
    words = [(count, word_bytes(width)) for count, width in correction_widths(correlation)]
    match correlation:
        case BitProducts(count=count):
            return [(-(-count // 8), 0), *words]
        case TableTransfers(count=count) if party == SERVER:
            return [(count, 8), *words]
        case TableTransfers(count=count, entries=entries, sizes=sizes):
            return [*words, *((count * entries * size, 0) for size in sizes)]
    return words
