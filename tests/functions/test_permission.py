"""Who may run what is known to leak."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import PlanSession, plan_program
from comet_mpc.engine.share import SERVER
from comet_mpc.engine.twin import TwinSession, run_twin
from comet_mpc.errors import LeakError
from comet_mpc.functions.flooding import Flooding, flooded_guess_not_private
from comet_mpc.net.channel import memory_pair
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import DealtRandomness
from support.two_parties import run_two_parties


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
