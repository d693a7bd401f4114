"""What one party works with while it prepares bundles: keys and transfers, its masks and weights, and what it has made.

Every stage of a preparation is carried out on it (`stages`).
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from comet_mpc.engine import Weight, kernels
from comet_mpc.engine.correlations import AnyMask, Correlation
from comet_mpc.engine.kernels import Bytes
from comet_mpc.engine.seeds import expand
from comet_mpc.engine.share import CLIENT, Words
from comet_mpc.errors import ConfigurationError, ForeignRandomness, ShapeError
from comet_mpc.offline.bundle import read_exactly
from comet_mpc.offline.ot.extension import Transfers
from comet_mpc.offline.rlwe.products import Homomorphic, check_bits, check_lengths
from comet_mpc.offline.rlwe.slots import SlotPlan, slot_sum_steps
from comet_mpc.offline.rlwe.tiling import Factor, Integers
from comet_mpc.offline.streaming import Steps

WEIGHT_BITS = 24
"""Public bound of the server's weights: |w| <= 2^23 in fixed point. The modulus of their products is chosen for it."""
WEIGHT_LENGTH = 2.0 ** (WEIGHT_BITS - 1)
"""Of a whole row of a weight: Σ w² is at most the square of this."""

_LARGE = 1 << 16
"""Bytes from which on shares wait in a file."""

Arrays = tuple[Words, ...]
Layout = Callable[[int], list[tuple[int, int]]]
"""The arrays that are stored of the correlation at an index, as `Correlation.layout` has them."""


def check_weight(values: Factor) -> None:
    """Refuses a weight of the server's, (outputs, inputs) or a vector, beyond the public bounds."""
    check_bits(values, WEIGHT_BITS)
    if values.ndim > 1:
        check_lengths(values, WEIGHT_LENGTH)


def mask_words(seed: bytes, index: int, mask: AnyMask) -> Words:
    """A party's part of the mask at an index, from its seed."""
    return mask.from_seed(expand(seed, index, mask.words_of_element * mask.facts.elements))


@contextmanager
def _keeping(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"no room in {directory} for what is being prepared: {error.strerror}") from error


class Scratch:
    """A file without a name in which shares wait until all are prepared: for BERT-base they are hundreds of megabytes.

    It lies where the bundle will be stored, readable by nobody else, and is gone with the process.
    """

    def __init__(self, directory: Path) -> None:
        with _keeping(directory):
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 (closed when nobody needs it any more)
        self._directory = directory

    def write(self, data: Bytes) -> tuple[int, int]:
        """Where it is, and how long."""
        with _keeping(self._directory):
            place = self._file.seek(0, os.SEEK_END)
            self._file.write(data.data)
            self._file.flush()
        return place, data.nbytes

    def read(self, place: int, size: int) -> Bytes:
        self._file.seek(place)
        return np.frombuffer(read_exactly(self._file, size), np.uint8)


class HeldShares:
    """Words by index, held as they are stored: a number of 33 bits takes 5 bytes, not 8, while others are prepared.

    scratch: holds what is large; without it, memory does
    """

    def __init__(self, layout: Layout, scratch: Scratch | None = None) -> None:
        self.layout = layout
        self._scratch = scratch
        self._held: dict[int, tuple[Bytes | tuple[int, int], ...]] = {}

    def __contains__(self, index: int) -> bool:
        return index in self._held

    def __setitem__(self, index: int, arrays: Arrays) -> None:
        assert index not in self._held, "a mask that was used is defined again"
        sizes = [size for _, size in self.layout(index)]
        packed = [
            kernels.pack_words(array, size) if size else array.view(np.uint8)
            for array, size in zip(arrays, sizes, strict=True)
        ]
        scratch = self._scratch
        self._held[index] = tuple(
            scratch.write(data) if scratch is not None and data.nbytes >= _LARGE else data for data in packed
        )

    def __getitem__(self, index: int) -> Arrays:
        return self._words(index, self._stored(self._held[index]))

    def pop(self, index: int) -> Arrays:
        """The words at an index, and nothing there any more."""
        return self._words(index, self.pop_stored(index))

    def pop_stored(self, index: int) -> tuple[Bytes, ...]:
        """The same as bytes."""
        return self._stored(self._held.pop(index, ()))

    def part(self, start: int, stop: int) -> HeldShares:
        """Those from start to stop, by their distance from the first: no longer here."""
        found = HeldShares(self.layout, self._scratch)
        found._held = {index - start: self._held.pop(index) for index in range(start, stop) if index in self._held}
        return found

    def _stored(self, held: tuple[Bytes | tuple[int, int], ...]) -> tuple[Bytes, ...]:
        if self._scratch is None:
            return held  # type: ignore[return-value]
        return tuple(self._scratch.read(*data) if isinstance(data, tuple) else data for data in held)

    def _words(self, index: int, held: tuple[Bytes, ...]) -> Arrays:
        return tuple(
            kernels.unpack_words(array, size, count) if size else array  # type: ignore[misc]
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
    renewed: dict[int, Transfers] = field(default_factory=dict, repr=False)
    """Transfers of a copy's own, whose secrets its bundle holds."""

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

    def weight(self, name: str, shape: tuple[int, ...]) -> NDArray[np.int32]:
        """A weight of the server's, within the public bounds."""
        weight = self.weights.get(name)
        if weight is None or weight.values is None or weight.shape != shape:
            raise ForeignRandomness(f"the program needs the weight {name} of shape {shape}; the server has it not")
        check_weight(weight.values)
        return weight.values

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
