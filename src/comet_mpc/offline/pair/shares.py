"""What a pair's bundle holds: this party's shares as they are stored, and as a program draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from comet_mpc.engine import kernels
from comet_mpc.engine.correlations import AnyMask, Correlation
from comet_mpc.engine.ops.operation import Abilities
from comet_mpc.engine.share import CLIENT, word_bytes
from comet_mpc.errors import ForeignRandomness
from comet_mpc.offline.bundle import Bundle, OpenBundle, read_exactly
from comet_mpc.offline.pair.stages import masks_by_ciphertext
from comet_mpc.offline.pair.workbench import Arrays, HeldShares, Layout, mask_words


class PairRandomness(OpenBundle):
    """One party's randomness, prepared with the other party: most masks from its seed, the rest as it was stored."""

    abilities = Abilities(fused=False, odd=True, near=True)

    def __init__(self, bundle: Bundle, shares: Callable[[int], Arrays] | None = None) -> None:
        """shares: gives the words of the correlation at a place, each once; without it the bundle is read."""
        super().__init__(bundle)
        self._shares = shares
        self._layout = layouts(bundle.party, bundle.correlations)
        if shares is None and bundle.stored is None:
            raise ForeignRandomness("a bundle of a dealer's, where the two parties prepare their randomness themselves")

    def _words(self, index: int, correlation: Correlation) -> Arrays:
        layout = self._layout(index)
        if isinstance(correlation, AnyMask) and not layout:
            held = correlation.held_by(self.party)
            return (mask_words(self.bundle.seed, index, correlation),) if held else ()
        return self._shares(index) if self._shares is not None else self._read(layout)

    def _read(self, layout: list[tuple[int, int]]) -> Arrays:
        assert self.bundle.stored is not None
        arrays: list[Any] = []
        for count, size in layout:
            data = read_exactly(self.bundle.stored, count * (size or 1))
            arrays.append(kernels.unpack_words(data, size, count) if size else np.frombuffer(data, np.uint8))
        return tuple(arrays)


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a preparation gave one party: to be stored, or to be used at once; either uses it up."""

    party: int
    seed: bytes = field(repr=False)
    correlations: Sequence[Correlation] = field(repr=False)
    shares: HeldShares = field(repr=False)
    """By place, of all that is not in the seed."""

    def packed(self) -> Iterator[memoryview]:
        """The shares piece by piece, as they are stored."""
        for index in range(len(self.correlations)):
            for array in self.shares.pop_stored(index):
                yield array.data

    def open(self) -> PairRandomness:
        return PairRandomness(Bundle(self.party, self.seed, self.correlations), self.shares.pop)


def layouts(party: int, correlations: Sequence[Correlation]) -> Layout:
    """What is stored at each place, as `Correlation.layout` has it: also the client's masks that ciphertexts define."""
    defined = masks_by_ciphertext(correlations) if party == CLIENT else frozenset()

    def layout(index: int) -> list[tuple[int, int]]:
        correlation = correlations[index]
        if isinstance(correlation, AnyMask) and index in defined:
            return [(correlation.facts.elements, word_bytes(correlation.ring.width))]
        return correlation.layout(party)

    return layout


def stored_bytes(party: int, correlations: Sequence[Correlation]) -> int:
    """Bytes that `Prepared.packed` gives."""
    layout = layouts(party, correlations)
    return sum(count * (size or 1) for index in range(len(correlations)) for count, size in layout(index))
