"""What is shown of the bytes that a server receives is true: p-values of whole runs are uniform, and a broken protocol
has a tiny one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import stats

from comet_mpc.engine.correlations import AnyMask, Correlation
from comet_mpc.engine.ops.operation import BIT, Drawn, Leg, Request
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.ring import ODD_MODULI, Ring
from comet_mpc.engine.seeds import derive_seed
from comet_mpc.engine.share import CLIENT, WORD
from comet_mpc.models.served import ServedModel
from comet_mpc.net.channel import FRAME_HEADER, Channel
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, PAIR
from comet_mpc.service.clients.seen import Glimpse, Seen, SeenRun, _chi_squared_tail, glimpse
from support.two_parties import KEY, as_parties, deal, masked, opened

pytestmark = pytest.mark.service

TEXT = "the film is good"
NEVER = 1e-9
"""A p that no honest run has."""
RINGS = (*map(Ring, (1, 4, 8, 33, WORD)), *(Ring(modulus.bit_length(), modulus) for modulus in ODD_MODULI))


@dataclass(frozen=True)
class Case:
    """Runs of a whole model, online as its source has it. A dealer's randomness stands in for the parties' own:
    online it makes no difference, and it takes less time."""

    model: ServedModel
    source: Source
    plan: Plan

    def seen(self, number: int, client: Callable[..., PartySession] = PartySession) -> Glimpse:
        """What the client sent."""
        client_seed, server_seed = (derive_seed(bytes(16), str(number), name) for name in ("client", "server"))
        bundles = deal(self.plan.correlations, KEY, (client_seed, server_seed))
        weights = masked(self.model.weights()), self.model.weights()
        seen, query = Seen(), self.model.encode([TEXT])

        def work(channel: Channel, party: int) -> None:
            randomness = opened(bundles[party], weights[party], fused=self.source.abilities.fused)
            if party == CLIENT:
                session = client(party, channel, randomness, ways=self.plan.ways, watch=seen.run(1, 16))
            else:
                session = PartySession(party, channel, randomness, ways=self.plan.ways)
            self.model.answer(1, 16, query if party == CLIENT else None)(session, weights[party])

        as_parties(work)
        return seen.runs[0].glimpse()


def p_value(shown: Glimpse) -> float:
    assert shown.p_value is not None
    return shown.p_value


@pytest.fixture(scope="module", params=[PAIR, DEALER], ids=["pair", "dealer"])
def case(request: pytest.FixtureRequest, tiny_model: ServedModel) -> Case:
    return Case(tiny_model, request.param, tiny_model.plan(1, 16, request.param))


def test_p_values_of_whole_runs_are_uniform(case: Case) -> None:
    """In odd rings too, whose bytes are not uniform: Kolmogorov-Smirnov over runs with fixed seeds."""
    shown = [case.seen(number) for number in range(12)]
    planned = sum(max(0, each.from_client - FRAME_HEADER) for each in case.plan.schedule)
    assert {one.size for one in shown} == {planned}
    assert stats.kstest([*map(p_value, shown)], "uniform").pvalue > 1e-3


# What is broken on purpose ----------------------------------------------------------------------------------------


class NoMask(PartySession):
    """Its share of the text goes out as it is: the first mask is zero."""

    masks = 0

    def _draw(self, correlation: Correlation) -> Drawn:
        drawn = super()._draw(correlation)
        self.masks += isinstance(correlation, AnyMask)
        if isinstance(correlation, AnyMask) and self.masks == 1:
            return Drawn(drawn.index, tuple(np.zeros_like(words) for words in drawn.arrays))
        return drawn


class Constant(PartySession):
    """One of its many messages is all zeros."""

    messages = 0

    def _leg(self, request: Request[Any], drawn: Drawn | None) -> Leg[Any]:
        sent, finish = super()._leg(request, drawn)
        if sent is not None and sent.size >= 64:
            self.messages += 1
            if self.messages == 3:
                sent = np.zeros_like(sent)
        return sent, finish


@pytest.mark.parametrize("broken", [NoMask, Constant])
def test_a_message_that_is_not_masked_shows(case: Case, broken: type[PartySession]) -> None:
    assert p_value(case.seen(0, broken)) < NEVER


# The test itself ---------------------------------------------------------------------------------------------------


def seen_elements(ring: Ring, *rows: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> float:
    run = SeenRun(1, 16)
    for words in rows:
        run.add(((ring, words.size),), ring.pack(words))
    return p_value(run.glimpse())


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: f"{'Z_T ' if ring.modulus else ''}{ring.width}")
def test_elements_are_judged_by_their_own_ring(ring: Ring) -> None:
    """100,000 uniform ones pass, in one message or in many; so many of which every eighth is zero do not."""
    count = 100_000
    words = np.random.default_rng(ring.width).integers(0, 2**64, count * ring.seed_words, np.uint64)
    elements = ring.from_seed(words) & np.uint64(2**ring.width - 1)
    assert seen_elements(ring, elements) > 1e-3
    assert seen_elements(ring, *np.array_split(elements, 100)) > 1e-3
    elements[::8] = 0
    assert seen_elements(ring, elements) < NEVER


def test_bytes_of_an_odd_ring_are_not_uniform_though_its_elements_are() -> None:
    """Why bytes are not what is tested."""
    ring = next(ring for ring in RINGS if ring.modulus)
    words = ring.from_seed(np.random.default_rng(1).integers(0, 2**64, 200_000, np.uint64))
    assert seen_elements(ring, words) > 1e-3
    assert p_value(glimpse(ring.pack(words).tobytes())) < NEVER


def test_a_message_of_several_parts_is_taken_apart() -> None:
    """Elements and bits, as a truncation that opens sends them: either part can be wrong."""
    ring, count = RINGS[-1], 1001
    words = ring.from_seed(np.random.default_rng(2).integers(0, 2**64, 2 * count, np.uint64))
    bits = np.random.default_rng(3).integers(0, 2, count, np.uint64)
    found = []
    for elements, signs in ((words, bits), (words, 0 * bits), (0 * words, bits)):
        run = SeenRun(1, 16)
        run.add(((ring, count), (BIT, count)), np.concatenate([ring.pack(elements), BIT.pack(signs)]))
        found.append(p_value(run.glimpse()))
    assert found[0] > 1e-3 > NEVER > max(found[1:])


def test_a_text_is_no_noise_and_two_letters_say_nothing() -> None:
    shown = glimpse(b"a warm, funny and engaging film")
    assert (shown.size, shown.first_bytes[:8]) == (31, "61 20 77")
    assert p_value(shown) < 1e-5
    assert p_value(glimpse(np.random.default_rng(4).bytes(1 << 16))) > 1e-3
    assert glimpse(b"ok").p_value is None


def test_the_tail_is_that_of_chi_squared() -> None:
    for freedom in (1, 2, 3, 30, 255, 9001):
        for value in (0.0, 0.5 * freedom, freedom, 1.1 * freedom, 4.0 * freedom):
            expected = stats.chi2.sf(value, freedom)
            assert _chi_squared_tail(value, freedom) == pytest.approx(expected, rel=1e-6, abs=1e-300)
