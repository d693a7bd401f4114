"""The short forms of the sieges: what they count must be nought, whatever the machine is busy with."""

from __future__ import annotations

import pytest

from attacks.crowd import crowd
from attacks.damaged import damaged
from attacks.kills import kills
from attacks.malformed import malformed

pytestmark = pytest.mark.service


def test_clients_at_once_and_half_open_connections() -> None:
    found = crowd(clients=3, strangers=300, model="tiny", repeats=1)
    assert (found["answered"], found["wrong"], found["errors"]) == (3, 0, [])


def test_malformed_connections_to_server_and_dealer() -> None:
    found = malformed(connections=14, seed=7, queries=1)
    assert (found["wrong"], found["errors"], found["tracebacks"]) == (0, [], 0)
    assert found["right"] > 2


def test_kills_of_every_process() -> None:
    found = kills(kills=3, seed=3)
    assert [found[what] for what in ("wrong", "consumed twice", "named twice", "consumed and never named")] == [0] * 4
    assert found["serves at the end"]


def test_damaged_files_of_every_kind() -> None:
    ends = damaged(files=30, seed=5)["ends"]
    assert (ends["wrong"], ends["traceback"], ends["hang"]) == (0, 0, 0)
    assert ends["refused"] > 8
