"""What an operation is: one class that knows its messages, its randomness, and how it is planned and run.

A `Request` communicates: `Session.communicate` carries out several in one round. A `Step` is local. Each is planned
from shapes, run in the clear by the twin, and run by a party with the randomness that was drawn for it; the sessions
only drive them.

To add one: write its class in a file here, add it to `OPERATIONS` (`ops/__init__.py`, or from another package by
`OPERATIONS.register`), and test it with `comet_mpc.testing.run_two_parties`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.ops.conversion import whole
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import WORD, Share, Words
from comet_mpc.errors import ConfigurationError, RangeError, ShapeError

Made = TypeVar("Made")
Made_co = TypeVar("Made_co", covariant=True)

BIT = Ring(1)
Message = tuple[tuple[Ring, int], ...]
"""So many elements of a ring, packed bit by bit; then so many of the next. Each part begins with a whole byte."""
Packed = npt.NDArray[np.uint8]
Leg = tuple[Packed | None, Callable[[memoryview], Made]]
"""One request on its way: what this party sends, and what it makes of the answer."""


@dataclass(frozen=True)
class Abilities:
    """A source states them, a program is planned for them, and all who run it have the same.

    fused  masks of openings that truncate on the way in Z_2^w, so that both share a round
    odd    masks and their monomials modulo odd numbers, in which element-wise work is cheaper for two parties alone
    near   products of matrices that are as exact as what is cut from them later lets them be (`product_error`)
    points  keys of point functions, by which tables are read at secret places in one round
    """

    fused: bool = True
    odd: bool = False
    near: bool = False
    points: bool = True


FUSED = Abilities()


@dataclass(frozen=True, eq=False)
class Drawn:
    """What was drawn for an operation: the index of its correlation in the program, and this party's words.

    arrays  none in a plan
    more    the indices of further correlations, if it takes several; `arrays` holds the words of all
    """

    index: int
    arrays: tuple[Words, ...] = field(default=(), repr=False)
    more: tuple[int, ...] = ()


Draw = Callable[[Correlation], Drawn]
"""Draws the next correlation of a program."""


class Operation:
    """A request or a step."""

    def demand(self) -> tuple[Correlation, ...]:
        """The correlations that it uses, in the order in which they are drawn."""
        return ()

    def draw(self, source: Draw) -> Drawn | None:
        """Draws them: a plan writes them down, a party gets its words."""
        found = [source(correlation) for correlation in self.demand()]
        if not found:
            return None
        first, *more = found
        words = tuple(words for each in found for words in each.arrays)
        return Drawn(first.index, words, tuple(each.index for each in more))

    def check(self, part: str) -> None:
        """Raises what is wrong with its operands. part: of the program, for messages"""

    @property
    def extent(self) -> tuple[int, ...]:
        """The shape of what its randomness is for, where a correlation has none of its own (`engine.windows`)."""
        return ()


@dataclass(frozen=True, eq=False)
class Request(Operation, ABC, Generic[Made_co]):
    """An operation on a share that communicates."""

    cuts: ClassVar[bool] = False
    """Whether it truncates: then it may take a share that is off (`Share.error`), and says by how much at most."""

    share: Share

    @property
    def extent(self) -> tuple[int, ...]:
        return self.share.shape

    @property
    def target(self) -> Ring:
        """The result's ring."""
        return self.share.ring

    @abstractmethod
    def messages(self) -> tuple[Message, Message]:
        """What is sent: (the client's message, the server's)."""

    def wire_bytes(self) -> tuple[int, int]:
        """Payload bytes: (from the client, from the server)."""
        client, server = (sum(ring.wire_bytes(count) for ring, count in message) for message in self.messages())
        return client, server

    def split(self, abilities: Abilities) -> tuple[Request[Any], Callable[[Any], Request[Made_co]]] | None:
        """Two requests instead of it, the second made from the first one's result, where a source cannot do it."""
        return None

    @abstractmethod
    def planned(self, drawn: Drawn | None) -> Made_co:
        """The result, without values."""

    @abstractmethod
    def in_the_clear(self) -> Made_co:
        """The result, from a share that holds the whole value."""

    @abstractmethod
    def leg(self, party: int, drawn: Drawn | None) -> Leg[Made_co]:
        """A party's side."""


class Step(Operation, ABC):
    """An operation on masked tensors that is local."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result, if it has one."""
        return ()

    @property
    def extent(self) -> tuple[int, ...]:
        return self.shape

    @abstractmethod
    def result(self, words: Words | None) -> Share:
        """The result, with its words where they are known."""

    @abstractmethod
    def in_the_clear(self) -> Words:
        """The words, from operands that hold whole values."""

    @abstractmethod
    def compute(self, party: int, drawn: Drawn | None) -> Words:
        """A party's words."""


class Registry:
    """The operations that programs may use: what is not registered is neither sent nor computed."""

    def __init__(self, *operations: type[Operation]) -> None:
        self._operations: dict[str, type[Operation]] = {}
        self.register(*operations)

    def register(self, *operations: type[Operation]) -> None:
        """Adds operations. Their names are unique."""
        for operation in operations:
            if self._operations.setdefault(operation.__name__, operation) is not operation:
                raise ConfigurationError(f"there is another operation {operation.__name__}")

    def __iter__(self) -> Iterator[type[Operation]]:
        return iter(self._operations.values())

    def check(self, operation: Operation, part: str) -> None:
        """Raises if it was not registered, or if its operands do not fit."""
        kind = type(operation)
        if self._operations.get(kind.__name__) is not kind:
            raise ShapeError(f"{part}: {kind.__name__} is not a registered operation")
        if isinstance(operation, Request) and operation.share.error and not operation.cuts:
            raise RangeError(
                f"{part}: {kind.__name__} of a product that is only near its value: truncate it first, or ask for the "
                "product without a precision"
            )
        operation.check(part)


def product_error(cut: int, fraction: float) -> float:
    """By how much a product with so many fraction bits is off at most that will be truncated by `cut` bits: half a unit
    of what is left. 0: not at all. A source with `Abilities.near` keeps to it."""
    return float(2.0 ** (cut - 1 - fraction)) if cut else 0.0


def expect(drawn: Drawn | None, count: int) -> tuple[Words, ...]:
    """The arrays that were drawn, which must be so many."""
    if drawn is None or len(drawn.arrays) != count:
        raise ShapeError("the randomness does not fit the operation")
    return drawn.arrays


def index_of(drawn: Drawn | None) -> int:
    """Of the correlation that was drawn, in the program."""
    if drawn is None:
        raise ShapeError("the operation has drawn no randomness")
    return drawn.index


def check_even(share: Share, part: str) -> None:
    if share.modulus:
        raise ShapeError(f"{part}: this is not done in an odd ring: truncate into Z_2^w first")


def mask_bits(width: int) -> np.uint64:
    return np.uint64(2**width - 1)


def reconstructed(share: Share, own: Words, data: memoryview, ring: Ring | None = None) -> Words:
    """This party's words and the other's, added up, in the share's ring unless another is named."""
    ring = ring or share.ring
    total = ring.add(own, ring.unpack(data, share.count))
    if not ring.modulus and ring.width < WORD:
        total &= mask_bits(ring.width)
    return total.reshape(share.shape)


def rounded(share: Share, shift: float = 0, ring: Ring | None = None) -> Words:
    """The value of a share that holds all of it, over 2^shift and rounded to the nearest, in a ring."""
    signed = share.ring.signed(share.flat())
    if not whole(shift):
        signed = np.rint(signed.astype(np.float64) * 2.0**-shift).astype(np.int64)
    elif shift:
        bits = int(shift)
        signed = (signed + (np.int64(1) << np.int64(bits - 1))) >> np.int64(bits)
    return (ring or share.ring).reduced(signed.view(np.uint64)).reshape(share.shape)
