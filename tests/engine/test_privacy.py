"""What a party sees says nothing: every byte it receives before the result is uniform, whatever the inputs are.

Statistics run under fixed seeds, so they are the same on every run: a threshold that holds once holds always.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2, ks_2samp

from comet_mpc.engine import Give, Open, Session, Truncate, TruncateOpen, Weight
from comet_mpc.engine.correlations import (
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    SquareSums,
    TableTransfers,
    WeightProduct,
    WeightScale,
)
from comet_mpc.engine.demand import Drawn
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import PlanSession, plan_program
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.requests import Choose, Request, Result, wire_bytes
from comet_mpc.engine.seeds import derive_seed, expand
from comet_mpc.engine.share import CLIENT, SERVER, Words, decode, encode
from comet_mpc.engine.tables import Column, Table
from comet_mpc.engine.twin import TwinSession, run_twin
from comet_mpc.errors import CometError, LeakError
from comet_mpc.functions.flooding import Flooding, flooded_guess_not_private, flooded_shares
from comet_mpc.functions.inverse_sqrt import inverse_sqrt
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.net.channel import memory_pair
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import Dealing, DealtRandomness, mask_weight, weight_key
from support.recording import recording_pair
from support.two_parties import KEY, Program, run_two_parties

Reals = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

X, Y = variables("x y")
RULE = minimax_rule(2.0**-6, 2.0, 3)
TABLE = Table((Column(tuple(range(256)), 8), Column(tuple(range(0, -512, -2)), 24)))
ROWS, COLUMNS = 8, 16  # counts are multiples of eight, so that packed bits have no padding


def seeds(run: int) -> tuple[bytes, bytes]:
    client, server = (derive_seed(b"privacy tests", name, str(run)) for name in ("client", "server"))
    return client, server


def everything(x: Reals, y: Reals) -> Program[object]:
    """A program with every kind of message but the result's: x is the client's, y the server's."""

    def program(session: Session, weights: Mapping[str, Weight]) -> object:
        first = session.private(CLIENT, x.shape, 12, 1.0, x)
        second = session.private(SERVER, y.shape, 12, 1.0, y)
        a, b = session.open(first, second)
        product = session.evaluate(X**2 * Y + X, {"x": a, "y": b}, bound=2.0)
        truncated = session.truncate(product, 24)
        scores = session.matmul(*session.open(truncated, second), transposed=True)
        narrow = session.open(session.truncate(scores, 12, 24))
        fused = session.truncate_open(product, 20)
        session.open(session.evaluate(X**2, {"x": fused}, bound=4.1))
        t = session.add_constant(session.evaluate(X**2, {"x": a}, bound=1.0), 0.25)
        session.open(session.truncate_to(inverse_sqrt(session, t, RULE), 12))
        session.open(session.square_sum(a), session.mean(second))
        session.open(*session.look_up(second.digit_sum(1, 7), TABLE))
        linear = session.linear(session.give(first), weights["matrix"])
        session.open(session.scale(session.give(linear), weights["vector"]))
        return narrow

    return program


def model(scale: float) -> dict[str, Weight]:
    rng = np.random.default_rng(3)
    return {
        "matrix": Weight.encode("matrix", scale * rng.uniform(-1, 1, (COLUMNS, COLUMNS)), 10, gain=20.0),
        "vector": Weight.encode("vector", scale * rng.uniform(-1, 1, COLUMNS), 10, gain=20.0),
    }


SHAPE = (ROWS, COLUMNS)
SMALL = everything(np.zeros(SHAPE), np.zeros(SHAPE)), model(0.0)
LARGE = everything(np.full(SHAPE, 0.99), np.linspace(-1.0, 1.0, ROWS * COLUMNS).reshape(SHAPE)), model(1.0)
RUNS = 40


def views(case: tuple[Program[object], dict[str, Weight]], first_run: int) -> tuple[Bytes, Bytes]:
    """All that the client and the server receive online in many runs with fresh randomness."""
    gathered: tuple[list[bytes], list[bytes]] = ([], [])
    for run in range(first_run, first_run + RUNS):
        ends = recording_pair()
        run_two_parties(*case, seeds=seeds(run), channels=ends)
        for party in (CLIENT, SERVER):
            gathered[party].extend(ends[party].received)
    client, server = (np.frombuffer(b"".join(frames), np.uint8) for frames in gathered)
    return client, server


@pytest.fixture(scope="module")
def received() -> tuple[tuple[Bytes, Bytes], tuple[Bytes, Bytes]]:
    """(client's, server's) views for the small inputs, and for the large ones with other seeds."""
    return views(SMALL, 0), views(LARGE, RUNS)


def uniformity(data: Bytes) -> float:
    """p-value of a chi-square test that byte values are uniform."""
    counts = np.bincount(data, minlength=256)
    expected = data.size / 256
    return float(chi2.sf(np.sum((counts - expected) ** 2) / expected, 255))


def sameness(one: Bytes, other: Bytes) -> float:
    """p-value of a chi-square test that two samples have the same distribution of byte values."""
    counts = np.stack([np.bincount(data, minlength=256) for data in (one, other)]).astype(np.float64)
    expected = counts.sum(axis=0) * counts.sum(axis=1, keepdims=True) / counts.sum()
    return float(chi2.sf(np.sum((counts - expected) ** 2 / expected), 255))


@pytest.mark.parametrize("party", [CLIENT, SERVER])
@pytest.mark.parametrize("case", [0, 1])
def test_a_party_receives_only_uniform_bytes(
    received: tuple[tuple[Bytes, Bytes], tuple[Bytes, Bytes]], party: int, case: int
) -> None:
    data = received[case][party]
    assert data.size > 100_000
    assert uniformity(data) > 1e-4


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_what_a_party_receives_does_not_depend_on_the_inputs(
    received: tuple[tuple[Bytes, Bytes], tuple[Bytes, Bytes]], party: int
) -> None:
    assert sameness(received[0][party], received[1][party]) > 1e-4


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_every_place_of_the_transcript_is_uniform(party: int) -> None:
    """Position by position over many dealings: the mean byte of no place stands out, for an extreme input."""
    x = np.full((8,), 0.99)

    def program(session: Session, weights: Mapping[str, Weight]) -> object:
        share = session.private(CLIENT, x.shape, 12, 1.0, x)
        opened = session.open(share)
        square = session.evaluate(X**2, {"x": opened}, bound=1.0)
        return session.open(session.truncate(square, 12), session.evaluate(X, {"x": opened}, bound=1.0))

    runs = 300
    rows = []
    for run in range(runs):
        ends = recording_pair()
        run_two_parties(program, seeds=seeds(10_000 + run), channels=ends)
        rows.append(np.frombuffer(b"".join(ends[party].received), np.uint8))
    means = np.stack(rows).astype(np.float64).mean(axis=0)
    deviation = np.sqrt((256**2 - 1) / 12 / runs)
    assert np.max(np.abs(means - 127.5)) < 5.0 * deviation


@pytest.mark.parametrize("owner", [CLIENT, SERVER])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("message", ["truncate", "truncate and open", "open", "look up", "give"])
def test_even_shares_that_are_not_uniform_are_hidden(owner: int, sign: float, message: str) -> None:
    """A private value is its owner's whole share: what it sends of it is uniform all the same."""
    count = 1 << 16

    def program(session: Session, _: Mapping[str, Weight]) -> object:
        x = session.private(owner, (count,), 20, 1.0, np.full(count, 0.75 * sign))
        match message:
            case "truncate":
                return session.truncate(x, 8)
            case "truncate and open":
                return session.truncate_open(x, 8)
            case "open":
                return session.open(x)
            case "look up":
                return session.look_up(x.digit_sum(2, 7), TABLE)
            case _:
                return session.give(x)

    ends = recording_pair()
    run_two_parties(program, seeds=seeds(30_000), channels=ends)
    for end in ends:
        for frame in end.received:
            assert uniformity(np.frombuffer(frame, np.uint8)) > 1e-4


def test_the_uniformity_test_would_notice_a_missing_mask() -> None:
    shares = encode(np.linspace(-1.0, 1.0, 20_000), 12).view(np.uint8)
    assert uniformity(shares) < 1e-12
    masked = (encode(np.linspace(-1.0, 1.0, 20_000), 12) - expand(seeds(1)[0], 0, 20_000)).view(np.uint8)
    assert uniformity(masked) > 1e-4
    assert sameness(shares, masked) < 1e-12


def test_the_servers_corrections_are_uniform() -> None:
    program, weights = LARGE
    plan = plan_program(lambda session: program(session, {name: w.public() for name, w in weights.items()}))
    streams = []
    for run in range(10):
        dealing = Dealing(plan.correlations, KEY, seeds(20_000 + run))
        streams.append(np.frombuffer(b"".join(dealing.corrections()), np.uint8))
    data = np.concatenate(streams)
    assert data.size > 200_000
    assert uniformity(data) > 1e-4
    positions = np.stack(streams).astype(np.float64)
    assert np.max(np.abs(positions.mean(axis=0) - 127.5)) < 6.0 * np.sqrt((256**2 - 1) / 12 / 10)


def test_the_masked_weights_are_uniform_and_new_for_a_changed_model() -> None:
    one, other = (Weight.encode("w", np.full((64, 64), value), 10) for value in (0.5, 0.75))
    secret = bytes(16)
    keys = [weight_key(secret, fingerprint) for fingerprint in ("first", "second")]
    masked = [mask_weight(key, weight) for key, weight in zip(keys, (one, other), strict=True)]
    for words in masked:
        assert uniformity(words.reshape(-1).view(np.uint8)) > 1e-4
    assert uniformity((masked[1] - masked[0]).reshape(-1).view(np.uint8)) > 1e-4
    careless = mask_weight(keys[0], other) - masked[0]
    assert uniformity(careless.reshape(-1).view(np.uint8)) < 1e-12


def test_a_result_in_an_odd_ring_says_nothing_above_its_width() -> None:
    """Bits above the width of a product depend on its factors and on the openings, not on the result."""
    width = 20

    def program(session: Session, _: Mapping[str, Weight]) -> object:
        x, y = (session.private(SERVER, (64,), 6, 2.0, np.linspace(-2, 2, 64), width) for _ in range(2))
        a, b = session.open(x, y)
        return session.reveal(session.product(a, b), CLIENT)

    ends = recording_pair()
    run_two_parties(program, seeds=seeds(7), channels=ends)
    last = np.frombuffer(ends[CLIENT].received[-1], np.uint8).reshape(64, 3)
    assert not np.any(last[:, 2] >> 4)


# What the paper's flooded shares give away --------------------------------------------------------------------


def advantage(one: Reals, other: Reals) -> float:
    """Of the best distinguisher that compares with a threshold: the largest distance of distribution functions."""
    return float(ks_2samp(one, other, method="asymp").statistic)


@pytest.mark.parametrize(
    ("spread", "distance", "expected"),
    [(8192.0, 4.0, 1 / 2048), (8192.0, 64.0, 1 / 128), (4.0, 1.0, 0.25), (4.0, 2.0, 0.5), (4.0, 4.0, 1.0)],
)
def test_flooded_shares_tell_secrets_apart_by_distance_over_spread(
    spread: float, distance: float, expected: float
) -> None:
    """The mask takes a million evenly spaced values, so this is the distance itself and not an estimate of it."""
    mask = (np.arange(1_000_000) + 0.5) / 1_000_000
    flooding = Flooding(spread=spread)
    ours = [flooded_shares(np.full(mask.shape, x), flooding, mask)[CLIENT] for x in (1.0, 1.0 + distance)]
    assert advantage(*ours) == pytest.approx(expected, rel=0.01)


def test_uniform_shares_do_not_tell_secrets_apart() -> None:
    mask = (np.arange(1_000_000, dtype=np.uint64) * np.uint64(2**64 // 1_000_000)) + np.uint64(2**43)
    ours = [decode(encode(np.full(mask.shape, x), 16) - mask, 0) for x in (1.0, 5.0)]
    assert advantage(*ours) < 2e-6


def first_message_to_the_client(program: Program[object], run: int, *, permits_leaks: bool = False) -> Words:
    ends = recording_pair()
    run_two_parties(program, seeds=seeds(run), channels=ends, permits_leaks=permits_leaks)
    return np.frombuffer(ends[CLIENT].received[0], np.uint64)


def test_the_leak_is_there_in_the_protocol_and_gone_from_ours() -> None:
    """The client's view of two secrets 2 apart: half of the elements give it away, against none."""
    count = 20_000

    def flooded(x: float) -> Program[object]:
        return lambda session, _: flooded_guess_not_private(
            session, session.private(SERVER, (count,), 16, 8.0, np.full(count, x)), Flooding()
        )

    def masked(x: float) -> Program[object]:
        return lambda session, _: session.open(session.private(SERVER, (count,), 16, 8.0, np.full(count, x)))

    leaks = [decode(first_message_to_the_client(flooded(x), 5, permits_leaks=True), 16) for x in (1.0, 3.0)]
    assert advantage(*leaks) == pytest.approx(0.5, abs=0.03)
    ours = [first_message_to_the_client(masked(x), run).view(np.int64) for run, x in enumerate((1.0, 3.0))]
    assert advantage(*(view.astype(np.float64) for view in ours)) < 0.03


# The permission to leak ---------------------------------------------------------------------------------------


def test_nobody_can_change_the_permission_to_leak_of_a_session() -> None:
    source = DealtRandomness(Bundle(SERVER, bytes(16), (), io.BytesIO()))
    channel, _ = memory_pair()
    for session in (PlanSession(), TwinSession(), PartySession(SERVER, channel, source)):
        assert not session.permits_leaks
        with pytest.raises(AttributeError):
            session.permits_leaks = True  # type: ignore[misc]
        with pytest.raises(AttributeError):
            session.fused = not session.fused  # type: ignore[misc]
        assert not session.permits_leaks


def test_a_program_cannot_grant_itself_the_permission_to_leak() -> None:
    def leaks(session: Session) -> object:
        return flooded_guess_not_private(session, session.private(SERVER, (2,), 16, 8.0, np.ones(2)), Flooding())

    def greedy(session: Session, _: Mapping[str, Weight]) -> object:
        session.permits_leaks = True  # type: ignore[misc]
        return leaks(session)

    for run in (plan_program, run_twin):
        with pytest.raises(AttributeError):
            run(lambda session: greedy(session, {}))
        with pytest.raises(LeakError):
            run(leaks)
        run(leaks, permits_leaks=True)
    with pytest.raises(AttributeError):
        run_two_parties(greedy)


# One mask, one opening ----------------------------------------------------------------------------------------


class WatchfulPlan(PlanSession):
    """A plan that notes which mask every request uses."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__(fused=fused)
        self.uses: list[tuple[int, Correlation, Request]] = []

    def _carry_out(self, requests: Sequence[Request], drawn: Sequence[Drawn | None]) -> list[Result]:
        for request, entry in zip(requests, drawn, strict=True):
            if entry is not None:
                self.uses.append((entry.index, self.correlations[entry.index], request))
        return super()._carry_out(requests, drawn)


def referred(correlation: Correlation) -> tuple[int, ...]:
    match correlation:
        case Monomials(masks=masks):
            return masks
        case SquareSums(mask=mask) | WeightProduct(mask=mask) | WeightScale(mask=mask):
            return (mask,)
        case MatrixProduct(left=left, right=right):
            return (left, right)
    return ()


@pytest.mark.parametrize("fused", [True, False])
def test_a_mask_is_used_for_one_opening_and_correlations_refer_backwards(fused: bool) -> None:
    session = WatchfulPlan(fused=fused)
    program, weights = LARGE
    program(session, {name: weight.public() for name, weight in weights.items()})
    indices = [index for index, _, _ in session.uses]
    assert len(indices) == len(set(indices))
    masks = [i for i, c in enumerate(session.correlations) if isinstance(c, Mask | ClientMask)]
    openings = [i for i, _, request in session.uses if isinstance(request, Open | TruncateOpen | Give)]
    assert sorted(openings) == masks
    for index, correlation, request in session.uses:
        assert index < len(session.correlations)
        assert wire_bytes(request) != (0, 0)
        if isinstance(request, Open | TruncateOpen):
            assert isinstance(correlation, Mask)
            assert (correlation.shape, correlation.width) == (request.share.shape, request.share.width)
        elif isinstance(request, Give):
            assert isinstance(correlation, ClientMask)
        elif isinstance(request, Choose):
            assert isinstance(correlation, TableTransfers)
        else:
            assert isinstance(request, Truncate)
    for place, correlation in enumerate(session.correlations):
        assert referred(correlation) == tuple(reference.place for reference in correlation.facts.references)
        for mask in referred(correlation):
            assert 0 <= mask < place
            assert mask in masks


def test_two_openings_of_one_tensor_have_two_masks() -> None:
    def program(session: Session, _: Mapping[str, Weight]) -> object:
        x = session.private(SERVER, (64,), 12, 1.0, np.full(64, 0.5))
        return session.open(x), session.open(x)

    ends = recording_pair()
    run_two_parties(program, seeds=seeds(8), channels=ends)
    first, second = (np.frombuffer(frame, np.uint64) for frame in ends[CLIENT].received)
    assert not np.any(first == second)


# Nothing secret is printed ------------------------------------------------------------------------------------

SECRET = 1.2345678
WORD_OF_IT = int(encode([SECRET], 16)[0])
TRACES = (str(SECRET), "1.23", str(WORD_OF_IT), hex(WORD_OF_IT), f"{WORD_OF_IT:x}", "array(")


def assert_silent(text: str, *more: str) -> None:
    for trace in (*TRACES, *more):
        assert trace not in text


def test_nothing_secret_is_in_a_representation() -> None:
    session = TwinSession()
    x = session.private(CLIENT, (2,), 16, 2.0, [SECRET, SECRET])
    weight = Weight.encode("w", [SECRET, -SECRET], 16, gain=2.0)
    masked = Weight("w", (2,), 16, 2.0, masked=mask_weight(KEY, weight))
    seed = bytes(range(65, 81))
    bundle = Bundle(SERVER, seed, (), io.BytesIO(b"correction"))
    source = DealtRandomness(bundle)
    channel, _ = memory_pair()
    drawn = Drawn(0, (x.flat(),))
    shown: list[object] = [
        x,
        Open(x),
        Truncate(x, 2),
        session.open(x),
        session.truncate_open(x, 2),
        session.give(x),
        weight,
        masked,
        bundle,
        source,
        Dealing((), seed, (seed, seed)),
        drawn,
        session,
        PartySession(SERVER, channel, source),
    ]
    for thing in shown:
        for text in (repr(thing), str(thing), repr([thing])):
            assert_silent(text, seed.hex(), seed.decode(), repr(seed), "correction'")


def mistakes() -> dict[str, Callable[[], object]]:
    session = TwinSession()
    values = np.array([SECRET, SECRET])
    x = session.private(CLIENT, (2,), 16, 2.0, values)
    weight = Weight.encode("w", [[SECRET, SECRET]], 16, gain=3.0)
    return {
        "bound of a private value": lambda: session.private(CLIENT, (2,), 16, 1.0, values),
        "shape of a private value": lambda: session.private(CLIENT, (3,), 16, 2.0, values),
        "encoding": lambda: encode(values, 62),
        "weight that does not fit": lambda: Weight.encode("w", values, 40),
        "weight above its gain": lambda: Weight.encode("w", [values], 16, gain=1.0),
        "shapes": lambda: x + session.private(CLIENT, (3,), 16, 2.0, np.full(3, SECRET)),
        "scales": lambda: x + x.lift(20),
        "values of another shape": lambda: x.with_values(np.full((3,), WORD_OF_IT, np.uint64)),
        "truncation": lambda: session.truncate(x.lift(61), 4),
        "weight of another shape": lambda: session.linear(session.give(x.reshape(1, 2)[:, :1]), weight),
        "polynomial": lambda: session.evaluate(X * Y, {"x": session.open(x)}, bound=2.0),
    }


@pytest.mark.parametrize("mistake", mistakes())
def test_nothing_secret_is_in_a_message(mistake: str) -> None:
    with pytest.raises(CometError) as caught:
        mistakes()[mistake]()
    assert_silent(str(caught.value))
    assert_silent(repr(caught.value))
