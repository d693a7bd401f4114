"""`comet_mpc.testing`: whoever builds a protocol hears of every difference between plan, twin and parties."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
import pytest

from comet_mpc.engine.party import PartySession
from comet_mpc.engine.session import Session
from comet_mpc.engine.share import CLIENT, SERVER, Share
from comet_mpc.engine.tensors import Weight
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import RangeError
from comet_mpc.testing import Mismatch, Weights, run_two_parties

WEIGHTS = {"w": Weight.encode("w", np.array([[0.5, -0.25], [1.0, 0.75]]), 8, gain=2.0)}


def product(session: Session, weights: Weights) -> Share:
    x = session.private(CLIENT, (1, 2), 8, 1.0, [[0.5, -1.0]])
    return session.linear(session.give(x), weights["w"])


@pytest.mark.parametrize("source", ["dealer", "pair"])
@pytest.mark.parametrize("processes", [False, True])
def test_parties_compute_what_the_twin_does_at_the_planned_cost(
    source: Literal["dealer", "pair"], processes: bool
) -> None:
    run = run_two_parties(product, WEIGHTS, source=source, processes=processes, tolerance=0.0)
    assert run.value.tolist() == [[0.5, -0.25]]
    assert run.twin is not None
    assert [one.rounds for one in run.traffic] == [run.plan.rounds] * 2
    assert run.traffic[CLIENT].sent == run.plan.sent(CLIENT) > 0
    assert run.offline.received > 0


def test_the_server_has_a_process_of_its_own() -> None:
    def whoami(session: Session, _: Weights) -> int:
        return os.getpid()

    apart = run_two_parties(whoami, processes=True)
    assert apart.client == os.getpid() != apart.server


def test_a_result_that_is_not_the_twins_is_noticed() -> None:
    def other(session: Session, _: Weights) -> Share:
        return session.private(SERVER, (1,), 8, 1.0, [0.25 if isinstance(session, TwinSession) else 0.5])

    with pytest.raises(Mismatch, match=r"0\.25 from the twin's"):
        run_two_parties(other, tolerance=0.125)
    assert run_two_parties(other).value == 0.5


def test_traffic_that_was_not_planned_is_noticed() -> None:
    def chatty(session: Session, _: Weights) -> None:
        if isinstance(session, PartySession):
            session.channel.exchange([b"psst"], 4)

    with pytest.raises(Mismatch, match="planned"):
        run_two_parties(chatty)


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("fails", [CLIENT, SERVER])
def test_an_error_of_either_party_is_raised(fails: int, processes: bool) -> None:
    def failing(session: Session, weights: Weights) -> Share:
        result = product(session, weights)
        if isinstance(session, PartySession) and session.party == fails:
            raise RangeError("no")
        return session.truncate(session.truncate(result, 4), 2)

    with pytest.raises(RangeError, match="no"):
        run_two_parties(failing, WEIGHTS, processes=processes)


def test_what_has_no_value_cannot_be_compared() -> None:
    with pytest.raises(TypeError, match="not str"):
        run_two_parties(lambda session, _: "a text", tolerance=1.0)
