"""One seed for both parties: every byte on the wire is uniform, and the receiver reads the secret all the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chisquare

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.seeds import derive_seed, expand
from comet_mpc.engine.share import CLIENT, SERVER, decode
from comet_mpc.offline.pair import prepare
from support.recording import recording_pair
from support.two_parties import run_two_parties

COUNT = 4096
VALUES = np.random.default_rng(5).uniform(-1, 1, COUNT)
SEEDS = tuple(derive_seed(b"same seed", name) for name in ("client", "server"))


def opens(owner: int) -> object:
    def program(session: Session, _: Mapping[str, Weight]) -> object:
        return session.open(session.private(owner, (COUNT,), 16, 1.0, VALUES))

    return program


def taken(received: bytes, own_seed: bytes) -> npt.NDArray[np.float64]:
    """What the receiver makes of a message x - a: it adds its own part of the mask."""
    return decode(np.frombuffer(received, np.uint64) + expand(own_seed, 0, COUNT), 16)


@pytest.mark.parametrize("receiver", [CLIENT, SERVER])
def test_with_one_seed_a_receiver_reads_the_secret_from_uniform_bytes(receiver: int) -> None:
    seed = SEEDS[0]
    ends = recording_pair()
    run_two_parties(opens(1 - receiver), seeds=(seed, seed), channels=ends)  # type: ignore[arg-type]
    (message,) = ends[receiver].received
    assert chisquare(np.bincount(np.frombuffer(message, np.uint8), minlength=256)).pvalue > 1e-4
    np.testing.assert_allclose(taken(message, seed), VALUES, atol=2.0**-16)


@pytest.mark.parametrize("receiver", [CLIENT, SERVER])
def test_with_two_seeds_it_reads_nothing(receiver: int) -> None:
    ends = recording_pair()
    run_two_parties(opens(1 - receiver), seeds=SEEDS, channels=ends)  # type: ignore[arg-type]
    (message,) = ends[receiver].received
    guess = taken(message, SEEDS[receiver])
    assert abs(np.corrcoef(guess, VALUES)[0, 1]) < 0.08
    assert np.mean(np.abs(guess) <= 1.0) < 0.01


def test_the_same_attack_on_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two parties draw their seeds themselves: with one generator in the same state for both, nothing is hidden."""
    ends = recording_pair()
    run_two_parties(opens(SERVER), source="pair", channels=ends)  # type: ignore[arg-type]
    assert np.mean(np.abs(taken(ends[CLIENT].received[-1], SEEDS[0])) <= 1.0) < 0.01
    monkeypatch.setattr(prepare, "new_seed", lambda: SEEDS[0])
    ends = recording_pair()
    run_two_parties(opens(SERVER), source="pair", channels=ends)  # type: ignore[arg-type]
    np.testing.assert_allclose(taken(ends[CLIENT].received[-1], SEEDS[0]), VALUES, atol=2.0**-16)
