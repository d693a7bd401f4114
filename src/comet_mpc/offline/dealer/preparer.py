"""How a dealer and the two parties make one kind of randomness out of seeds: what a kind's preparer has to say.

The dealer draws two fresh seeds for every bundle (`bundles`). Each array of a correlation has a stream of its own, in
either seed. What is not uniform by itself is the dealer's correction for the server: a value minus the client's stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from comet_mpc.engine import Weight
from comet_mpc.engine.correlations import AnyMask, Correlation
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.seeds import Streams, derive_seed, expand
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import ForeignRandomness
from comet_mpc.offline import registry
from comet_mpc.offline.bundle import Reader, read_elements

CHUNK = 1 << 16
"""Elements that the dealer holds of any one array at a time; with weights' masks, a few times that for every core."""

Kind = TypeVar("Kind", bound=Correlation)


def stream_of(index: int, array: int) -> int:
    """Array 0 of a correlation is its mask or bits; 1, 2, … are the client's shares of products."""
    return index << 16 | array


def ring_elements(streams: Streams, ring: Ring, stream: int, count: int, offset: int = 0) -> Words:
    """Uniform elements offset … offset+count-1 of a ring."""
    return ring.from_seed(streams.words(stream, count * ring.seed_words, offset * ring.seed_words))


def mask_words(streams: Streams, index: int, mask: AnyMask, count: int, offset: int = 0) -> Words:
    """A party's part of elements offset … offset+count-1 of a mask."""
    size = mask.words_of_element
    return mask.from_seed(streams.words(stream_of(index, 0), count * size, offset * size))


def weight_mask(key: bytes, name: str, count: int, offset: int = 0) -> Words:
    """Elements of the mask B of a weight, which follows from the server's key alone."""
    return expand(derive_seed(key, "weight", name), 0, count, offset)


@dataclass(frozen=True, eq=False)
class DealerView:
    """What a dealer computes with: both seeds, the program and the key of the weight masks."""

    program: Sequence[Correlation] = field(repr=False)
    client: Streams = field(repr=False)
    server: Streams = field(repr=False)
    key: bytes = field(repr=False)

    def described(self, index: int) -> AnyMask:
        mask = self.program[index]
        assert isinstance(mask, AnyMask)
        return mask

    def mask(self, index: int, start: int, stop: int) -> Words:
        """Elements start … stop-1 of a mask, both parties' parts added."""
        mask, parties = self.described(index), ((CLIENT, self.client), (SERVER, self.server))
        own = [mask_words(s, index, mask, stop - start, start) for party, s in parties if mask.held_by(party)]
        return mask.ring.add(own[0], own[1]) if len(own) == 2 else own[0]


@dataclass(frozen=True, eq=False)
class PartyView:
    """What a party draws from: its seed's streams, and the corrections as they are read: at the client common ones."""

    party: int
    streams: Streams = field(repr=False)
    """For one thread."""
    stored: Reader | None = field(repr=False)
    weights: Mapping[str, Weight] = field(repr=False)
    """Of the model, masked at the client."""

    def shares(self, index: int, correlation: Correlation) -> tuple[Words, ...]:
        """This party's shares of what has corrections: the client's from its seed, the server's as they were sent."""
        arrays = []
        for array, (count, ring) in enumerate(correlation.facts.corrections, start=1):
            if self.party == CLIENT:
                arrays.append(ring_elements(self.streams, ring, stream_of(index, array), count))
            else:
                assert self.stored is not None
                arrays.append(read_elements(self.stored, ring, count))
        return tuple(arrays)


class DealerPreparer(Generic[Kind]):
    """How a kind is dealt, and what a party makes of its part."""

    ahead = False
    """Whether the client computes with its part, and can do that before there is an input."""

    def values(self, view: DealerView, index: int, entry: Kind, array: int) -> Iterator[Words]:
        """What the two parties' shares of a correction add up to, chunk by chunk. array: which correction."""
        raise NotImplementedError(f"{type(self).__name__} has no corrections")

    def common(self, view: DealerView, index: int, entry: Kind) -> Iterator[memoryview]:
        """What both parties receive, `Correlation.common_bytes` of it."""
        return iter(())

    def held_words(self, entry: Kind, masks: Sequence[AnyMask]) -> int:
        """Words that the dealer holds at once, beyond a few chunks. masks: those that it refers to."""
        return 0

    def words(self, view: PartyView, index: int, entry: Kind) -> tuple[Words, ...]:
        """This party's arrays of the correlation at an index."""
        return view.shares(index, entry)


def dealer_preparer(entry: Correlation) -> DealerPreparer[Any]:
    try:
        found: DealerPreparer[Any] = registry.DEALER[type(entry)]
    except KeyError:
        raise ForeignRandomness(f"a dealer does not know how to prepare {type(entry).__name__}") from None
    return found
