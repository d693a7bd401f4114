"""Kinds of randomness are registered by one line; what is not registered is refused by everybody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import msgspec
import numpy as np
import pytest

from comet_mpc.engine import correlations
from comet_mpc.engine.correlations import (
    BitProducts,
    Correlation,
    Facts,
    Mask,
    SquareSums,
    any_kind,
    decode_correlations,
    encode_correlations,
    register_kind,
)
from comet_mpc.engine.ring import Ring, odd_ring
from comet_mpc.engine.seeds import expand
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import ConfigurationError, ForeignRandomness, RandomnessError
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline import registry
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer import preparer as dealing
from comet_mpc.offline.dealer.admission import ProgramLimits, admit_program
from comet_mpc.offline.dealer.bundles import DealtRandomness
from comet_mpc.offline.dealer.preparer import DealerPreparer, DealerView
from comet_mpc.offline.kinds import register
from comet_mpc.offline.pair.costs import preparation_parts, preparation_traffic
from comet_mpc.offline.pair.prepare import prepare_bundle
from comet_mpc.offline.pair.stages import PairPreparer, Stage, Unprepared, arranged
from comet_mpc.offline.pair.workbench import Workbench
from comet_mpc.offline.streaming import Request, Sizes, Steps
from support.two_parties import as_parties


class Zeros(Correlation, frozen=True):
    """Shares of zeros: as small a kind as there can be."""

    count: int

    @property
    def facts(self) -> Facts:
        return Facts(self.count, 0.0, ((self.count, Ring(64)),))


class DealtZeros(DealerPreparer[Zeros]):
    def values(self, view: DealerView, index: int, entry: Zeros, array: int) -> Iterator[Words]:
        yield np.zeros(entry.count, np.uint64)


class PairZeros(PairPreparer):
    order = 5

    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        return (ZeroStage(index, entry.count) for index, entry in unprepared.of(Zeros))


@dataclass(frozen=True)
class ZeroStage(Stage):
    part = "zeros"

    index: int
    count: int

    @property
    def prepared(self) -> tuple[int, ...]:
        return (self.index,)

    @property
    def sizes(self) -> list[list[Sizes]]:
        return [[Sizes(CLIENT, 8 * self.count, 0)]]

    def run(self, bench: Workbench) -> Steps[None]:
        told = Told(expand(*bench.seed(self.index), self.count))
        yield [told]
        bench.keep(self.index, (told.words,))


class Told(Request):
    """The client tells the server its words, negated."""

    def __init__(self, words: Words) -> None:
        self.words = words

    @property
    def sizes(self) -> Sizes:
        return Sizes(CLIENT, 8 * self.words.size, 0)

    def ask(self) -> list[bytes]:
        return [(-self.words).tobytes()]

    def answer(self, question: memoryview) -> list[bytes]:
        self.words = np.frombuffer(question, np.uint64)
        return []


PROGRAM: list[Correlation] = [Mask((4,), 40), Zeros(11), BitProducts(9, 20), Zeros(3)]


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another package would do it; undone afterwards."""
    monkeypatch.setattr(correlations, "_KINDS", [*correlations._KINDS])
    for known in (registry.DEALER, registry.PAIR):
        monkeypatch.setattr(known, "entries", {**known.entries})
    register(Zeros, pair=[PairZeros()], dealer=DealtZeros())


@pytest.mark.usefixtures("registered")
def test_a_kind_of_another_package_is_read_and_dealt() -> None:
    data = encode_correlations(PROGRAM)
    assert decode_correlations(data) == PROGRAM
    dealing = admit_program(data, bytes(16), ProgramLimits())
    stored = BytesIO(b"".join(dealing.corrections()))
    client = DealtRandomness(Bundle(CLIENT, dealing.client_seed, PROGRAM))
    server = DealtRandomness(Bundle(SERVER, dealing.server_seed, PROGRAM, stored))
    for entry in PROGRAM:
        mine, theirs = client.draw(entry).arrays, server.draw(entry).arrays
        if isinstance(entry, Zeros):
            assert np.unique(mine[0]).size == entry.count
            assert not (mine[0] + theirs[0]).any()


@pytest.mark.usefixtures("registered")
def test_two_parties_prepare_it_as_planned() -> None:
    def work(channel: Channel, party: int) -> list[tuple[Words, ...]]:
        bundle = prepare_bundle(channel, party, PROGRAM, threads=1)
        return [bundle.draw(entry).arrays for entry in PROGRAM]

    ends = memory_pair()
    client, server = as_parties(work, ends)
    assert ends[CLIENT].traffic == preparation_traffic(PROGRAM)
    assert list(preparation_parts(PROGRAM)) == ["agreement", "keys", "zeros", "bits of truncation"]
    for mine, theirs, entry in zip(client, server, PROGRAM, strict=True):
        if isinstance(entry, Zeros):
            assert not (mine[0] + theirs[0]).any()


@pytest.mark.usefixtures("registered")
def test_a_name_stands_for_one_kind() -> None:
    with pytest.raises(ConfigurationError, match="called Zeros already"):
        register_kind(Zeros)


def test_what_is_not_registered_is_refused_by_everybody() -> None:
    with pytest.raises(msgspec.ValidationError, match="Zeros"):
        decode_correlations(encode_correlations(PROGRAM))
    with pytest.raises(ForeignRandomness, match="cannot be read"):
        admit_program(encode_correlations(PROGRAM), bytes(16), ProgramLimits())
    with pytest.raises(ForeignRandomness, match="does not know how to prepare Zeros"):
        dealing.dealer_preparer(PROGRAM[1])
    with pytest.raises(RandomnessError, match="do not know how to prepare Zeros"):
        arranged([Zeros(12)])


def test_a_dealer_prepares_every_kind_that_is_read() -> None:
    assert set(any_kind().__args__) == set(registry.DEALER)
    assert all(isinstance(preparer, DealerPreparer) for preparer in registry.DEALER.values())
    assert all(isinstance(preparer, PairPreparer) for preparer in registry.PAIR.values())


def test_no_correlation_is_left_out_or_prepared_twice() -> None:
    """Two sums of squares of one mask in an odd ring are more than the stages know: refused, and not left out."""
    ring = odd_ring(2.0**30)
    program: list[Correlation] = [
        Mask((2, 3), ring.width, 0, ring.width, ring.modulus),
        *[SquareSums(0, 2, 3, ring.width, ring.modulus)] * 2,
    ]
    assert [stage.prepared for stage in arranged(program[:2])] == [(1,)]
    with pytest.raises(RandomnessError, match="do not know how to prepare SquareSums"):
        arranged(program)
