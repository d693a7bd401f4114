"""A node is killed in the middle: a short form of `tests/attacks/lost_node.py`. Skipped where ray is not installed."""

from __future__ import annotations

import pytest

from attacks.lost_node import lost_node

pytestmark = pytest.mark.service


def test_a_lost_node_costs_its_bundles_and_nothing_else() -> None:
    found = lost_node(queries=9, clients=3, timeout=20, model="tiny")
    assert found["clients ended with"] == [0, 0, 0]
    assert found["answered by the node that was killed"] + found["runs that were cut off with it"] > 0
    assert (found["answers"], found["wrong"]) == (9, 0)
    assert [found[what] for what in ("named twice", "consumed twice", "consumed and never named")] == [0, 0, 0]
    errors = {"NodeLost", "PeerClosed", "PeerTimeout", "ServerBusy"}
    assert set(found["errors that clients saw, and asked again"]) <= errors
