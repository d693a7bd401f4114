"""What one party works with while it prepares bundles: keys and transfers, its masks and weights, and what it has made.

Every stage of a preparation is carried out on it (`stages`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from comet_mpc.engine import Weight, kernels
from comet_mpc.engine.correlations import AnyMask, Correlation
from comet_mpc.engine.seeds import expand
from comet_mpc.engine.share import CLIENT, Words
from comet_mpc.errors import ForeignRandomness, ShapeError
from comet_mpc.offline.ot.extension import Transfers
from comet_mpc.offline.rlwe.products import Homomorphic, check_bits, check_lengths
from comet_mpc.offline.rlwe.slots import SlotPlan, slot_sum_steps
from comet_mpc.offline.rlwe.tiling import Integers
from comet_mpc.offline.streaming import Steps

WEIGHT_BITS = 24
"""Public bound of the server's weights: |w| <= 2^23 in fixed point. The modulus of their products is chosen for it."""
WEIGHT_LENGTH = 2.0 ** (WEIGHT_BITS - 1)
"""Of a whole row of a weight: Σ w² is at most the square of this."""

Arrays = tuple[Words, ...]
Layout = Callable[[int], list[tuple[int, int]]]
"""The arrays that are stored of the correlation at an index, as `Correlation.layout` has them."""


def check_weight(values: Integers) -> None:
    """Refuses a weight of the server's, (outputs, inputs) or a vector, beyond the public bounds."""
    check_bits(values, WEIGHT_BITS)
    if values.ndim > 1:
        check_lengths(values, WEIGHT_LENGTH)


def mask_words(seed: bytes, index: int, mask: AnyMask) -> Words:
    """A party's part of the mask at an index, from its seed."""
    return mask.from_seed(expand(seed, index, mask.words_of_element * mask.facts.elements))


class HeldShares:
    """Words by index, held as they are stored: a number of 33 bits takes 5 bytes, not 8, while others are prepared."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._held: dict[int, Arrays] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._held

    def __setitem__(self, index: int, arrays: Arrays) -> None:
        assert index not in self._held, "a mask that was used is defined again"
        sizes = [size for _, size in self.layout(index)]
        self._held[index] = tuple(
            kernels.pack_words(array, size) if size else array  # type: ignore[misc]
            for array, size in zip(arrays, sizes, strict=True)
        )

    def __getitem__(self, index: int) -> Arrays:
        return self._words(index, self._held[index])

    def pop(self, index: int) -> Arrays:
        """The words at an index, and nothing there any more."""
        return self._words(index, self._held.pop(index))

    def pop_stored(self, index: int) -> Arrays:
        """The same as bytes."""
        return self._held.pop(index, ())

    def part(self, start: int, stop: int) -> HeldShares:
        """Those from start to stop, by their distance from the first: no longer here."""
        found = HeldShares(self.layout)
        found._held = {index - start: self._held.pop(index) for index in range(start, stop) if index in self._held}
        return found

    def _words(self, index: int, held: Arrays) -> Arrays:
        return tuple(
            kernels.unpack_words(array, size, count) if size else array  # type: ignore[arg-type]
            for array, (count, size) in zip(held, self.layout(index), strict=True)
        )


@dataclass(frozen=True, eq=False)
class Workbench:
    """One party's side of preparing a program, several copies of it together."""

    engine: Homomorphic
    transfers: Transfers
    program: Sequence[Correlation] = field(repr=False)
    """All copies, one after the other."""
    seeds: Sequence[bytes] = field(repr=False)
    """One for each copy."""
    weights: Mapping[str, Weight] = field(repr=False)
    """The server's."""
    held: HeldShares = field(repr=False)
    """What has been made, by index."""

    @property
    def party(self) -> int:
        return self.engine.party

    def seed(self, index: int) -> tuple[bytes, int]:
        """That of the copy which an index belongs to, and the index in that copy."""
        copy, place = divmod(index, len(self.program) // len(self.seeds))
        return self.seeds[copy], place

    def mask(self, index: int, shape: tuple[int, ...] | None = None) -> Words:
        """This party's part of a mask, spread to a shape."""
        described = self.program[index]
        if not isinstance(described, AnyMask):
            raise ShapeError(f"correlation {index} is not a mask")
        if not described.held_by(self.party):
            own = np.zeros(described.facts.elements, np.uint64)
        elif self.party == CLIENT and index in self.held:
            (own,) = self.held[index]
        else:
            own = mask_words(*self.seed(index), described)
            if self.party == CLIENT and self.held.layout(index):
                self.held[index] = (own,)  # no ciphertext has defined it, but the bundle has room for it
        if shape is not None and math.prod(shape) == own.size:
            return own.reshape(shape)
        own = own.reshape(described.shape)
        return own if shape is None else np.broadcast_to(own, shape)

    def weight(self, name: str, shape: tuple[int, ...]) -> Integers:
        """A weight of the server's, within the public bounds."""
        weight = self.weights.get(name)
        if weight is None or weight.values is None or weight.shape != shape:
            raise ForeignRandomness(f"the program needs the weight {name} of shape {shape}; the server has it not")
        values = weight.values.astype(np.int64)
        check_weight(values)
        return values

    def keep(self, index: int, arrays: Arrays) -> None:
        """This party's words of a correlation, or of a mask that its ciphertexts define."""
        self.held[index] = arrays

    def hand_out(self, counts: Mapping[int, int], shares: Words | Sequence[Words]) -> None:
        """What was prepared together: to each index so many of every array, one after the other."""
        start = 0
        for index, count in counts.items():
            self.keep(index, tuple(share[start : start + count].copy() for share in shares))
            start += count

    def slot_sums(
        self, plan: SlotPlan, count: int, width: int, left: list[Integers], right: list[list[Integers]]
    ) -> Steps[Words]:
        """left: the client's factors; right: the server's. Each party gives its own."""
        mine = {"left": left} if self.party == CLIENT else {"right": right}
        return slot_sum_steps(self.engine, self.transfers, plan, count, width, **mine)
