"""A server that sends what it likes online: every message of the client's stays masked, whatever it has received.

The audit's program and statistics (`comet_mpc.local.audit`), with a server that follows the protocol in what it draws
and notes, but not in what it sends. Beside it stands a client whose masks are used twice, which must be caught.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from comet_mpc.engine.ops import Request
from comet_mpc.engine.ops.operation import Drawn, Leg, Packed
from comet_mpc.engine.share import SERVER
from comet_mpc.local.audit import online
from comet_mpc.local.audit.controls import Control
from comet_mpc.local.audit.report import Finding, findings
from comet_mpc.local.audit.statistics import LIMIT
from support.judged import worst

pytestmark = pytest.mark.slow

RUNS = 104
SECRET = b"deviating server"
Deviation = Callable[[dict[int, Packed], Packed], Packed]


def zeros(_: dict[int, Packed], own: Packed) -> Packed:
    """Nothing but zeros: the client's shares become the values themselves, less what it knows."""
    return np.zeros_like(own)


def replay(before: dict[int, Packed], own: Packed) -> Packed:
    """What it sent last in a message of that size, also in the run before."""
    sent = before.get(own.size, own)
    before[own.size] = own
    return sent


@cache
def found(source: str, deviation: Deviation, control: Control = "") -> list[Finding]:
    before: dict[int, Packed] = {}

    class Deviating(online.Watching):
        def _leg(self, request: Request[Any], drawn: Drawn | None) -> Leg[Any]:
            sent, finish = super()._leg(request, drawn)
            if self.party == SERVER and sent is not None:
                sent = deviation(before, sent)
            return sent, finish

    recorded = online.record(source, RUNS, control, watching=Deviating, secret=SECRET)
    return findings(recorded, source, control)


MESSAGES = ("Open", "Truncate", "TruncateOpen", "Give")


@pytest.mark.parametrize("deviation", [zeros, replay])
@pytest.mark.parametrize("message", MESSAGES)
def test_a_clients_message_says_nothing_whatever_the_server_sends(deviation: Deviation, message: str) -> None:
    surprise = worst(found("dealer", deviation), message, "server")
    assert max(surprise.values()) < LIMIT, surprise


@pytest.mark.parametrize("message", ["Open", "Truncate", "TruncateOpen", "Give"])
def test_a_mask_that_is_used_twice_would_be_noticed(message: str) -> None:
    surprise = worst(found("dealer", zeros, "old mask"), message, "server")
    assert max(surprise.values()) > LIMIT, surprise


@pytest.mark.parametrize("message", ["Open", "Truncate", "TruncateOpen", "TruncateOpen, bit", "Give"])
def test_the_same_where_two_parties_prepare_alone(message: str) -> None:
    surprise = worst(found("pair", zeros), message, "server")
    assert max(surprise.values()) < LIMIT, surprise
