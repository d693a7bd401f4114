"""What roundings tell a client about the weights: the same text again and again, and a look at one's own low bits.

The toy is W2·trunc(W1·x). At a truncation the client's low bits decide, together with the value's, whether it rounds
up. So a client that repeats one input knows a threshold for every rounding of every run, and sees in the result what
each of them weighs: W2. Nothing here deviates from the protocol, so all that makes it dearer is what answers tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.share import CLIENT, Share, Words, decode
from comet_mpc.models.heads import coarsened
from comet_mpc.models.transformer import ANSWER_BITS
from support.two_parties import run_two_parties, twin_value

Reals = npt.NDArray[np.float64]

INPUTS, HIDDEN, RING = 32, 16, 56
REPEATED = 1_000
MANY_DIGITS = 16


@dataclass(frozen=True)
class View:
    """What a client has after many runs with one input."""

    answers: Reals
    coins: Reals
    """Its low bits where W1·x is truncated, (runs, hidden), over their top."""
    last: Reals
    """The same where the answer is truncated."""
    bits: int

    @property
    def clear(self) -> Reals:
        """The answers without what the client knows of their last rounding."""
        return self.answers + (self.last - 0.5) * 2.0**-self.bits


@dataclass(frozen=True)
class Toy:
    weights: dict[str, Weight]
    x: Reals

    @staticmethod
    def make(seed: int) -> Toy:
        random = np.random.default_rng(seed)
        first, second = random.standard_normal((HIDDEN, INPUTS)) / 6, random.standard_normal((1, HIDDEN)) / 2
        weights = {name: Weight.encode(name, w, 14, 64.0) for name, w in {"W1": first, "W2": second}.items()}
        return Toy(weights, random.standard_normal(INPUTS))

    @property
    def secret(self) -> Reals:
        """W2, which the client is after."""
        return np.asarray(self.weights["W2"].fixed()[0], np.float64)

    def view(self, runs: int, bits: int) -> View:
        """The runs are rows of one batch: each has randomness of its own."""
        seen: dict[str, Reals] = {}
        rows = np.repeat(self.x[None], runs, axis=0)

        def noted(session: Session, share: Share, to: int, name: str) -> Share:
            if isinstance(session, PartySession) and session.party == CLIENT:
                assert share.values is not None
                seen[name] = _low_bits(share.values, int(share.fraction) - to)
            return share

        def program(session: Session, weights: Mapping[str, Weight]) -> Reals | None:
            x = session.private(CLIENT, rows.shape, 18, 8.0, rows if session.holds(CLIENT) else None, RING)
            hidden = session.linear(session.give(x), weights["W1"], bound=64.0)
            rounded = session.truncate_to(noted(session, hidden, 12, "coins"), 12, RING)
            result = session.linear(session.give(rounded), weights["W2"], bound=64.0)
            answer = coarsened(session, noted(session, result, bits, "last"), bits)
            words = session.reveal(answer, CLIENT)
            return None if words is None else decode(words, answer.fraction, answer.width)

        found = run_two_parties(program, self.weights).client
        assert found is not None
        return View(found[:, 0], seen["coins"], seen["last"][:, 0], bits)

    def flips(self, coins: Reals) -> Reals:
        """Which roundings went up: a client does not know it, but whoever does attacks best."""
        exact = np.rint(self.x * 2.0**18) @ self.weights["W1"].fixed().T.astype(np.float64)
        return np.asarray(coins <= exact * 2.0**-20 % 1.0, np.float64)


def _low_bits(words: Words, bits: int) -> Reals:
    """As the truncation takes them: party 0 adds 2^(w-2) - 1 first."""
    low = (words + np.uint64(2 ** (RING - 2) - 1)) & np.uint64(2**bits - 1)
    return np.asarray(low * 2.0**-bits)


def least_squares(flips: Reals, answers: Reals) -> Reals:
    columns = np.asarray(np.column_stack([flips, np.ones(len(answers))]), np.float64)
    return np.asarray(np.linalg.lstsq(columns, answers, rcond=None)[0][:-1])


def found_by_regression(view: View) -> Reals:
    """The client's own attack on coarse answers: on its coins, after taking its own last coin off.

    It finds each weight up to a factor between 0 and 1, by where its rounding's threshold lies.
    """
    return -least_squares(view.coins, view.clear)


def found_by_thresholds(view: View, sweeps: int = 6) -> Reals:
    """The client's own attack on fine answers: rounding by rounding, the threshold that explains most of them."""
    coins, answers = view.coins, view.answers
    runs = len(answers)
    order, counts = np.argsort(coins, axis=0), np.arange(1, runs)
    flips, weights = np.zeros(coins.shape), np.zeros(HIDDEN)
    for _ in range(sweeps):
        for j in range(HIDDEN):
            centred = flips - flips.mean(axis=0)
            rest = answers - answers.mean() - centred @ weights + centred[:, j] * weights[j]
            sums = np.cumsum(rest[order[:, j]])[:-1]
            best = int(np.argmax(sums**2 / (counts * (runs - counts))))
            flips[:, j] = coins[:, j] <= coins[order[best, j], j]
            weights = least_squares(flips, answers)
    return weights


def found_when_told(toy: Toy, view: View) -> Reals:
    """More than a client can do: it is told which roundings went up."""
    return least_squares(toy.flips(view.coins), view.clear)


def likeness(found: Reals, wanted: Reals) -> float:
    return float(np.corrcoef(found, wanted)[0, 1])


@pytest.fixture(scope="module")
def toys() -> list[Toy]:
    return [Toy.make(seed) for seed in range(6)]


def test_with_many_digits_a_thousand_answers_tell_the_weights(toys: list[Toy]) -> None:
    """The control: what an answer of 16 digits gives away. (A rounding that goes up in few runs may be missed.)"""
    found = [likeness(found_by_thresholds(toy.view(REPEATED, MANY_DIGITS)), toy.secret) for toy in toys]
    assert np.median(found) > 0.999
    assert min(found) > 0.9


def test_with_the_digits_of_an_answer_a_thousand_tell_less(toys: list[Toy]) -> None:
    """Less, and not nothing: about 0.6 for the better of the client's attacks, 0.7 for one that is told more."""
    views = [(toy, toy.view(REPEATED, ANSWER_BITS)) for toy in toys]
    attacks = found_by_regression, found_by_thresholds
    own = [max(likeness(attack(view), toy.secret) for attack in attacks) for toy, view in views]
    told = [likeness(found_when_told(toy, view), toy.secret) for toy, view in views]
    assert 0.3 < np.mean(own) < 0.85
    assert np.mean(told) < 0.9


@pytest.mark.slow
def test_coarse_answers_make_it_dearer_and_do_not_prevent_it(toys: list[Toy]) -> None:
    """Noise of a fixed size averages out: with enough answers, the client's own attack works again."""
    own, told = [], []
    for toy in toys:
        view = toy.view(100 * REPEATED, ANSWER_BITS)
        own.append(likeness(found_by_regression(view), toy.secret))
        told.append(likeness(found_when_told(toy, view), toy.secret))
    assert np.mean(own) > 0.85
    assert np.mean(told) > 0.97


def test_an_answer_has_no_more_bits_than_are_stated(toys: list[Toy]) -> None:
    """labels · (log2(2·bound) + answer bits): every answer is a whole number of units, and within its range."""
    for bits in (4, ANSWER_BITS, MANY_DIGITS):
        view = toys[0].view(200, bits)
        units = view.answers * 2.0**bits
        assert np.array_equal(units, np.rint(units))
        assert np.abs(view.answers).max() <= 64.0


def test_the_last_coin_is_not_the_clients_alone() -> None:
    """Without the server's part of it, the client's low bits would say on which side of a threshold each answer lies.

    Then N answers locate a value to 1/N of a unit instead of 1/√N; here they contradict each other.
    """

    def program(session: Session, _: Mapping[str, Weight]) -> tuple[Share, Share]:
        value = session.private(CLIENT, (4096,), 26, 1.0, np.full(4096, 0.3) if session.holds(CLIENT) else None, RING)
        return value, coarsened(session, value, ANSWER_BITS)

    run = run_two_parties(program)
    (_, client), (_, server) = run.client, run.server
    assert client.values is not None
    assert server.values is not None
    found = decode(client.values + server.values, client.fraction, client.width) * 2.0**ANSWER_BITS
    # The client's share is the value itself, the same in every run: all that varies is the server's coin.
    assert len(np.unique(found)) > 1
    assert np.abs(found - 0.3 * 2.0**ANSWER_BITS).max() < 1.5
    twin = twin_value(lambda session, weights: program(session, weights)[1]) * 2.0**ANSWER_BITS
    assert np.array_equal(twin, np.full(4096, np.rint(0.3 * 2.0**ANSWER_BITS)))


def test_noise_that_hides_the_last_coin_is_fresh_and_centred(toys: list[Toy]) -> None:
    exact = toys[0].view(REPEATED, MANY_DIGITS).answers.mean()
    coarse = toys[0].view(20_000, ANSWER_BITS).answers
    assert abs(coarse.mean() - exact) < 6 * 2.0**-ANSWER_BITS / np.sqrt(20_000)
    assert np.abs(coarse - exact).max() < 2.0 * 2.0**-ANSWER_BITS
