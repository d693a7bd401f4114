"""A bundle: one party's randomness for one run of one program; and, once it is open, what the program draws from."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.ops.operation import FUSED, Drawn
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import Words
from comet_mpc.errors import ForeignRandomness, PeerError, RandomnessDamaged, RandomnessExhausted, RandomnessSpent


class Reader(Protocol):
    """Where the stored part of a bundle comes from: a file, or bytes in memory."""

    def read(self, size: int, /) -> bytes: ...

    def close(self) -> None: ...


class CheckedReader:
    """The stored part in a file: hashed as it is read, and its last byte is given only if all of it checks."""

    def __init__(self, file: BinaryIO, bundle_id: str, length: int, checksum: bytes) -> None:
        self._file, self._bundle_id, self._rest, self._checksum = file, bundle_id, length, checksum
        self._hasher = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        try:
            data = self._file.read(size)
        except OSError as error:
            raise RandomnessDamaged(f"bundle {self._bundle_id} cannot be read: {error.strerror}") from error
        self._hasher.update(data)
        self._rest -= len(data)
        if self._rest <= 0 and self._hasher.digest() != self._checksum:
            raise RandomnessDamaged(f"bundle {self._bundle_id} is damaged: what it holds does not check")
        return data

    def close(self) -> None:
        self._file.close()


def read_exactly(reader: Reader, size: int) -> bytes:
    """The next `size` bytes of the stored part."""
    data = reader.read(size)
    if len(data) != size:
        raise RandomnessExhausted("the stored randomness ends before the program does")
    return data


def read_elements(reader: Reader, ring: Ring, count: int) -> Words:
    """The next `count` elements of the stored part. One that is outside the ring shows that the file has changed."""
    data = read_exactly(reader, ring.wire_bytes(count))
    try:
        return ring.unpack(data, count)
    except PeerError as error:
        raise RandomnessDamaged("the stored randomness is damaged: a number is outside its ring") from error


@dataclass(frozen=True, eq=False)
class Bundle:
    """One party's part. It is used once: whoever opens it claims it."""

    party: int
    seed: bytes = field(repr=False)
    correlations: Sequence[Correlation] = field(repr=False)
    stored: Reader | None = field(default=None, repr=False)
    """What is not in the seed."""
    bundle_id: str = ""
    spent: int = 0
    """Bytes on the wire that it took to prepare."""
    _claims: list[None] = field(default_factory=list, init=False, repr=False)

    def claim(self) -> None:
        """A second claim is refused."""
        if self._claims:
            raise RandomnessSpent("this bundle was used before: a mask is used once")
        self._claims.append(None)

    def close(self) -> None:
        """Lets go of the file that it is read from, if there is one."""
        if self.stored is not None:
            self.stored.close()


class InOrder:
    """The correlations that were prepared, handed out in the program's order and each once: for every source."""

    def __init__(self, correlations: Sequence[Correlation]) -> None:
        self.correlations = tuple(correlations)
        self._next = 0

    @property
    def remaining(self) -> int:
        """Correlations not drawn yet."""
        return len(self.correlations) - self._next

    def take(self, correlation: Correlation) -> int:
        """The index of the next one, which must be the one that the program asks for."""
        index = self._next
        if index >= len(self.correlations):
            raise RandomnessExhausted(
                f"the program asks for more than the {index} correlations that were prepared for it"
            )
        if (prepared := self.correlations[index]) != correlation:
            raise ForeignRandomness(
                f"correlation {index} was prepared for another program: it is {type(prepared).__name__}, "
                f"and this program asks for {type(correlation).__name__}, or for other dimensions"
            )
        self._next += 1
        return index


class OpenBundle(ABC):
    """A bundle in use: hands out the program's correlations in order, each once."""

    abilities = FUSED
    """Those of its source."""

    def __init__(self, bundle: Bundle) -> None:
        bundle.claim()
        self.bundle = bundle
        self.party = bundle.party
        self.seconds = 0.0
        """What it took to prepare and to open, as far as this process has done that."""
        self._order = InOrder(bundle.correlations)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(party={self.party}, {self.remaining} of {len(self._order.correlations)} left)"

    @property
    def remaining(self) -> int:
        """Correlations that were not drawn yet."""
        return self._order.remaining

    def draw(self, correlation: Correlation) -> Drawn:
        """This party's words of the next correlation, which must be the one that the program asks for."""
        index = self._order.take(correlation)
        return Drawn(index, self._words(index, correlation))

    def compute_ahead(self) -> None:
        """Does the part of a query's work that needs no input. Nothing, unless a source says otherwise."""

    @abstractmethod
    def _words(self, index: int, correlation: Correlation) -> tuple[Words, ...]:
        """This party's words of the correlation at a place."""
