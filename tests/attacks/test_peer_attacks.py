"""A peer, a bundle or a program that is not what it should be: a typed error, soon, and nobody is left waiting."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.correlations import (
    BitProducts,
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    MonomialTerm,
    SquareSums,
    WeightProduct,
    WeightScale,
    encode_correlations,
)
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.share import CLIENT, SERVER, Share
from comet_mpc.errors import (
    CometError,
    ForeignRandomness,
    PeerClosed,
    PeerError,
    PeerTimeout,
    RandomnessExhausted,
    RandomnessSpent,
    ShapeError,
    WrongSize,
)
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.admission import ProgramLimits, admit_program
from comet_research.look_up import TableTransfers
from support.two_parties import KEY, both, deal, masked, opened, outcome
from support.waiting import PATIENCE

X, Y = variables("x y")
WEIGHT = Weight.encode("w", np.eye(4), 8)


def program(session: Session, weights: Mapping[str, Weight]) -> object:
    """Five rounds with every kind of message."""
    x = session.private(CLIENT, (4, 4), 12, 1.0, np.full((4, 4), 0.5))
    opened = session.open(x)
    square = session.evaluate(X**2, {"x": opened}, bound=1.0)
    session.truncate_open(square, 12)
    linear = session.linear(session.give(session.truncate(square, 12)), weights["w"])
    return session.reveal(linear, CLIENT)


def plan_of(body: Callable[[Session, Mapping[str, Weight]], object]) -> Plan:
    return plan_program(lambda session: body(session, {"w": WEIGHT.public()}))


def bundles(plan: Plan) -> tuple[Bundle, Bundle]:
    return deal(plan.correlations)


def held(party: int) -> dict[str, Weight]:
    return {"w": WEIGHT} if party == SERVER else masked({"w": WEIGHT})


def honest(
    party: int,
    channel: Channel,
    bundle: Bundle,
    weights: Mapping[str, Weight] | None = None,
    body: Callable[[Session, Mapping[str, Weight]], object] = program,
) -> object:
    """One party as a service runs it: whatever happens, the channel is closed at the end."""
    mine = held(party) if weights is None else weights
    with channel:
        return body(PartySession(party, channel, opened(bundle, mine)), mine)


def outcomes(client: Callable[[], object], server: Callable[[], object]) -> tuple[object, object]:
    """How it ended for each. Nobody waits until patience ends: the peer has left, or says what is wrong."""
    ended = both(lambda: outcome(client), lambda: outcome(server))
    assert not any(isinstance(end, PeerTimeout) for end in ended)
    return ended


# The peer -----------------------------------------------------------------------------------------------------


def relay(channel: Channel, frames: int) -> None:
    """Answers so many rounds with bytes of the right sizes, as an honest peer would."""
    plan = plan_of(program)
    for entry in plan.schedule[:frames]:
        ours = entry.from_server - 8 if entry.from_server else 0
        theirs = entry.from_client - 8 if entry.from_client else 0
        channel.exchange([bytes(ours)] if ours else [], theirs)


def answered(channel: Channel, rounds: int) -> int:
    """Relays, and says how long the next frame ought to be."""
    relay(channel, rounds)
    return plan_of(program).schedule[rounds].from_server - 8


ROUNDS_WITH_AN_ANSWER = [i for i, entry in enumerate(plan_of(program).schedule) if entry.from_server]


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_the_honest_parties_finish(party: int) -> None:
    pair, ends = bundles(plan_of(program)), memory_pair(PATIENCE)
    ended = outcomes(lambda: honest(CLIENT, ends[0], pair[0]), lambda: honest(SERVER, ends[1], pair[1]))
    assert not isinstance(ended[party], CometError)


@pytest.mark.parametrize("round_", ROUNDS_WITH_AN_ANSWER)
@pytest.mark.parametrize("change", [-1, 1, 1 << 20])
def test_a_peer_that_sends_too_little_or_too_much_is_cut_off(round_: int, change: int) -> None:
    ends = memory_pair(PATIENCE)

    def attack() -> None:
        size = answered(ends[1], round_)
        ends[1].send(bytes(size + change))
        ends[1].receive(1 << 30)
        ends[1].receive(1 << 30)

    victim, attacker = outcomes(lambda: honest(CLIENT, ends[0], bundles(plan_of(program))[0]), attack)
    assert isinstance(victim, WrongSize)
    assert victim.got == victim.expected + change  # type: ignore[operator]
    assert isinstance(attacker, PeerClosed)


@pytest.mark.parametrize("round_", ROUNDS_WITH_AN_ANSWER)
def test_a_silent_peer_times_out(round_: int) -> None:
    ends = memory_pair(0.2)
    release = threading.Event()

    def attack() -> None:
        relay(ends[1], round_)
        release.wait(PATIENCE)

    def victim() -> object:
        try:
            return honest(CLIENT, ends[0], bundles(plan_of(program))[0])
        finally:
            release.set()

    error, _ = both(lambda: outcome(victim), attack)
    assert isinstance(error, PeerTimeout)
    assert ends[0].closed


@pytest.mark.parametrize("round_", ROUNDS_WITH_AN_ANSWER)
def test_a_peer_that_leaves_midway_is_noticed_at_once(round_: int) -> None:
    ends = memory_pair(PATIENCE)

    def attack() -> None:
        relay(ends[1], round_)
        ends[1].close()

    error, _ = outcomes(lambda: honest(CLIENT, ends[0], bundles(plan_of(program))[0]), attack)
    assert isinstance(error, PeerClosed)


def test_rubbish_of_the_right_size_gives_a_wrong_number_and_nothing_worse() -> None:
    """Parties are assumed to follow the protocol: lies are not detected, but they break nothing either."""
    ends = memory_pair(PATIENCE)
    plan = plan_of(program)

    def attack() -> None:
        rng = np.random.default_rng(1)
        for entry in plan.schedule:
            ours, theirs = (max(0, size - 8) for size in (entry.from_server, entry.from_client))
            ends[1].exchange([rng.bytes(ours)] if ours else [], theirs)

    for ended in outcomes(lambda: honest(CLIENT, ends[0], bundles(plan)[0]), attack):
        assert not isinstance(ended, CometError)


def test_parties_of_two_programs_do_not_wait_for_each_other() -> None:
    def other(session: Session, weights: Mapping[str, Weight]) -> object:
        return session.open(session.private(CLIENT, (5, 4), 12, 1.0, np.full((5, 4), 0.5)))

    ends = memory_pair(PATIENCE)
    errors = outcomes(
        lambda: honest(CLIENT, ends[0], bundles(plan_of(program))[0]),
        lambda: honest(SERVER, ends[1], bundles(plan_of(other))[1], body=other),
    )
    assert any(isinstance(error, WrongSize) for error in errors)
    assert all(isinstance(error, PeerError) for error in errors)


# Randomness ---------------------------------------------------------------------------------------------------


def with_bad_randomness(
    party: int, bad: Callable[[tuple[Bundle, Bundle]], Bundle], weights: Mapping[str, Weight] | None = None
) -> object:
    """One party's bundle is bad, the other's good: the first error, after checking that the other is told."""
    good, ends = bundles(plan_of(program)), memory_pair(PATIENCE)
    pair = [*good]
    pair[party] = bad(good)

    def side(who: int) -> Callable[[], object]:
        return lambda: honest(who, ends[who], pair[who], weights if who == party else None)

    ended = outcomes(side(CLIENT), side(SERVER))
    other = ended[1 - party]
    assert isinstance(other, PeerClosed) or not isinstance(other, CometError)
    return ended[party]


def different(session: Session, weights: Mapping[str, Weight]) -> object:
    return session.open(session.private(CLIENT, (4, 5), 12, 1.0, np.full((4, 5), 0.5)))


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_a_bundle_for_another_program_is_refused(party: int) -> None:
    error = with_bad_randomness(party, lambda _: bundles(plan_of(different))[party])
    assert isinstance(error, ForeignRandomness)


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_a_bundle_that_ends_before_the_program_is_exhausted(party: int) -> None:
    def shorter(good: tuple[Bundle, Bundle]) -> Bundle:
        bundle = good[party]
        return Bundle(party, bundle.seed, bundle.correlations[:3], bundle.stored)

    assert isinstance(with_bad_randomness(party, shorter), RandomnessExhausted)


@pytest.mark.parametrize("missing", [1, 100, 10**9])
def test_corrections_that_end_early_are_noticed(missing: int) -> None:
    def cut(good: tuple[Bundle, Bundle]) -> Bundle:
        assert isinstance(good[1].stored, io.BytesIO)
        data = good[1].stored.getvalue()
        return Bundle(SERVER, good[1].seed, good[1].correlations, io.BytesIO(data[: max(0, len(data) - missing)]))

    assert isinstance(with_bad_randomness(SERVER, cut), RandomnessExhausted)


def test_a_server_without_corrections_does_not_start() -> None:
    error = with_bad_randomness(SERVER, lambda good: Bundle(SERVER, good[1].seed, good[1].correlations))
    assert isinstance(error, ForeignRandomness)


def test_a_client_without_the_masked_weights_is_told_to_set_up_the_model() -> None:
    error = with_bad_randomness(CLIENT, lambda good: good[0], {"w": WEIGHT.public()})
    assert isinstance(error, ForeignRandomness)
    assert "set up the model" in str(error)


def test_a_server_without_its_weights_cannot_serve() -> None:
    error = with_bad_randomness(SERVER, lambda good: good[1], {"w": WEIGHT.public()})
    assert isinstance(error, ShapeError)
    assert "weight w has no values" in str(error)


def test_a_source_hands_out_every_correlation_once() -> None:
    plan = plan_of(program)
    source = opened(bundles(plan)[0], held(CLIENT))
    for left, correlation in zip(reversed(range(len(plan.correlations))), plan.correlations, strict=True):
        source.draw(correlation)
        assert source.remaining == left
    with pytest.raises(RandomnessExhausted):
        source.draw(plan.correlations[-1])


def test_a_bundle_is_drawn_from_once() -> None:
    bundle = bundles(plan_of(program))[0]
    opened(bundle, held(CLIENT))
    with pytest.raises(RandomnessSpent):
        opened(bundle, held(CLIENT))


def test_the_other_partys_bundle_is_refused() -> None:
    source = opened(bundles(plan_of(program))[0], held(CLIENT))
    with pytest.raises(ForeignRandomness, match="other party"):
        PartySession(SERVER, memory_pair()[0], source)


def test_preparing_ahead_changes_nothing() -> None:
    plan = plan_of(program)
    bundle = bundles(plan)[0]
    ahead, later = (opened(replace(bundle), held(CLIENT)) for _ in range(2))
    ahead.compute_ahead()
    for correlation in plan.correlations:
        one, other = ahead.draw(correlation), later.draw(correlation)
        assert one.index == other.index
        assert all(np.array_equal(a, b) for a, b in zip(one.arrays, other.arrays, strict=True))


# Programs sent to a dealer --------------------------------------------------------------------------------------

MASK = Mask((4, 4), 64, 0, 64)
GIVEN = ClientMask((4, 4), 64)
TERM = MonomialTerm((1, 1), (0, 0), 64)

HOSTILE: dict[str, list[Correlation]] = {
    "a mask that does not exist": [MASK, SquareSums(5, 4, 4, 64)],
    "itself for a mask": [SquareSums(0, 4, 4, 64)],
    "a mask before the first": [MASK, SquareSums(-1, 4, 4, 64)],
    "a product for a mask": [MASK, SquareSums(0, 4, 4, 64), SquareSums(1, 4, 4, 64)],
    "a client's mask for a common one": [GIVEN, SquareSums(0, 4, 4, 64)],
    "a common mask for a client's": [MASK, WeightProduct(0, "w", 4, 4, 4, 64)],
    "other sizes than the mask's": [MASK, SquareSums(0, 4, 5, 64)],
    "other sizes than the factors'": [MASK, MASK, MatrixProduct(0, 1, 1, 4, 4, 5, False, 64)],
    "other sizes than the given's": [GIVEN, WeightScale(0, "w", 4, 5, 64)],
    "a ring too wide": [MASK, SquareSums(0, 4, 4, 65)],
    "a ring of no bits": [BitProducts(4, 0)],
    "a mask too wide": [Mask((4,), 65, 0, 64)],
    "fewer than no elements": [BitProducts(-4, 8)],
    "a shift out of the ring": [Mask((4,), 32, 31, 64)],
    "a shift to the left": [Mask((4,), 32, -1, 64)],
    "monomials of another shape": [MASK, MASK, Monomials((0, 1), (4, 5), (TERM,))],
    "no monomials": [MASK, MASK, Monomials((0, 1), (4, 4), ())],
    "a monomial of too few powers": [MASK, MASK, Monomials((0, 1), (4, 4), (MonomialTerm((1,), (0,), 64),))],
    "a power beyond reason": [MASK, MASK, Monomials((0, 1), (4, 4), (MonomialTerm((10**6, 1), (0, 0), 64),))],
    "masks that do not broadcast": [Mask((2,), 64), Mask((3,), 64), Monomials((0, 1), (3,), (TERM,))],
    "rows of no columns": [Mask((4, 0), 64), SquareSums(0, 4, 0, 64)],
    "a weight without inputs": [ClientMask((4, 0), 64), WeightProduct(0, "w", 4, 0, 4, 64)],
    "a mask of negative sides": [Mask((-4, -4), 64), SquareSums(0, 4, 4, 64)],
    "a shape of too many axes": [Mask((1,) * 33, 64)],
    "a number beyond reason": [Mask((10**400,), 64)],
    "a size beyond reason": [BitProducts(2**40 + 1, 8)],
    "a mask into a ring too wide": [Mask((4,), 64, 0, 65)],
    "tables of no power of two": [TableTransfers(4, 12, (1,))],
    "tables without columns": [TableTransfers(4, 16, ())],
    "tables of columns too wide": [TableTransfers(4, 16, (8, 1))],
    "a negative power": [MASK, MASK, Monomials((0, 1), (4, 4), (MonomialTerm((-1, 1), (0, 0), 64),))],
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_program_that_cannot_be_is_refused_before_anything_is_dealt(what: str) -> None:
    with pytest.raises(ForeignRandomness):
        admit_program(encode_correlations(HOSTILE[what]), KEY, ProgramLimits())


def test_a_program_that_is_fine_is_dealt_in_full() -> None:
    plan = plan_of(program)
    dealing = admit_program(encode_correlations(plan.correlations), KEY, ProgramLimits())
    assert len(b"".join(dealing.corrections())) == plan.correction_bytes
    assert plan.correction_bytes > 0


def test_no_party_is_anyone_else() -> None:
    channel, _ = memory_pair()
    with pytest.raises(CometError, match="not 2"):
        PartySession(2, channel, opened(bundles(plan_of(program))[0]))


def test_a_planned_share_does_not_get_into_a_run() -> None:
    ends = memory_pair(0.2)
    session = PartySession(CLIENT, ends[0], opened(bundles(plan_of(different))[0]))
    with pytest.raises(ShapeError, match="no values"):
        session.open(Share((4, 5), 12, 1.0))
