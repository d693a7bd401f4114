"""What a party sees is uniform by itself: every byte it receives before the result, whatever the inputs are.

That is not enough: `test_joint_privacy.py` compares it with what its receiver holds. Statistics run under fixed seeds,
so they are the same on every run: a threshold that holds once holds always. Each has a control that it must catch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2, ks_2samp

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.seeds import expand
from comet_mpc.engine.share import CLIENT, SERVER, Words, decode, encode
from comet_mpc.local.audit.controls import Unmasked
from comet_mpc.local.audit.statistics import LIMIT, surprise_of_sum
from comet_mpc.offline.dealer.bundles import Dealing, mask_weight, weight_key
from comet_research.functions.flooding import Flooding, flooded_guess_not_private, flooded_shares
from comet_research.look_up import look_up
from support.every_message import LARGE, SMALL, TABLE, X, seeds
from support.recording import recording_pair
from support.two_parties import KEY, Program, run_two_parties

Reals = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

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


def worst_place(runs: Sequence[bytes]) -> float:
    """The surprise of the largest mean byte, place by place (`comet_mpc.local.audit.statistics`)."""
    rows = np.stack([np.frombuffer(run, np.uint8) for run in runs]).astype(np.float64)
    deviations = np.abs(rows.mean(axis=0) - 127.5) / np.sqrt((256**2 - 1) / 12 / len(rows))
    return surprise_of_sum(float(deviations.max()), rows.shape[1])


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_every_place_of_the_transcript_is_uniform(party: int) -> None:
    """Position by position over many dealings: the mean byte of no place stands out, for an extreme input."""
    x = np.full((8,), 0.99)

    def program(session: Session, weights: Mapping[str, Weight]) -> object:
        share = session.private(CLIENT, x.shape, 12, 1.0, x)
        opened = session.open(share)
        square = session.evaluate(X**2, {"x": opened}, bound=1.0)
        return session.open(session.truncate(square, 12), session.evaluate(X, {"x": opened}, bound=1.0))

    rows = []
    for run in range(300):
        ends = recording_pair()
        run_two_parties(program, seeds=seeds(10_000 + run), channels=ends)
        rows.append(b"".join(ends[party].received))
    assert worst_place(rows) < LIMIT
    shares = encode(x, 12).tobytes()
    assert worst_place([row[: -len(shares)] + shares for row in rows]) > LIMIT  # had the last opening no mask


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
                return look_up(session, x.digit_sum(2, 7), TABLE)
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

    def streams(kind: type[Dealing]) -> list[bytes]:
        return [b"".join(kind(plan.correlations, KEY, seeds(20_000 + run)).corrections()) for run in range(40)]

    masked, bare = streams(Dealing), streams(Unmasked)
    assert len(b"".join(masked)) > 800_000
    assert uniformity(np.frombuffer(b"".join(masked), np.uint8)) > 1e-4
    assert worst_place(masked) < LIMIT
    assert uniformity(np.frombuffer(b"".join(bare), np.uint8)) < 1e-12
    assert worst_place(bare) > LIMIT


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


def test_a_result_says_nothing_above_its_width() -> None:
    """Bits above the width of a product depend on its factors and on the openings, not on the result."""
    width = 20

    def program(session: Session, _: Mapping[str, Weight]) -> object:
        x, y = (session.private(SERVER, (64,), 6, 2.0, np.linspace(-2, 2, 64), width) for _ in range(2))
        a, b = session.open(x, y)
        return session.reveal(session.product(a, b), CLIENT)

    ends = recording_pair()
    run_two_parties(program, seeds=seeds(7), channels=ends)
    assert len(ends[CLIENT].received[-1]) == 64 * width // 8


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


def first_message_to_the_client(program: Program[object], run: int) -> Words:
    ends = recording_pair()
    run_two_parties(program, seeds=seeds(run), channels=ends)
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

    leaks = [decode(first_message_to_the_client(flooded(x), 5), 16) for x in (1.0, 3.0)]
    assert advantage(*leaks) == pytest.approx(0.5, abs=0.03)
    ours = [first_message_to_the_client(masked(x), run).view(np.int64) for run, x in enumerate((1.0, 3.0))]
    assert advantage(*(view.astype(np.float64) for view in ours)) < 0.03
