"""The audit finds nothing in look-ups, catches broken ones, and catches the paper's flooded shares as they are."""

from __future__ import annotations

import pytest

from comet_mpc.local.audit.controls import Control
from comet_mpc.local.audit.statistics import LIMIT
from comet_research.audit import CAUGHT, audit_flooded, audit_look_ups

pytestmark = pytest.mark.slow

RUNS = {"dealer": 104, "pair": 8}
CASES = [(source, control) for source, controls in CAUGHT.items() for control in controls]


@pytest.mark.parametrize("source", CAUGHT)
def test_look_ups_tell_nothing(source: str) -> None:
    found = audit_look_ups(source, RUNS[source])
    assert {"Open", "Choose", "Fetch"} <= {finding.message for finding in found}
    assert all(finding.right for finding in found), found


@pytest.mark.parametrize(("source", "control"), CASES)
def test_broken_look_ups_are_caught(source: str, control: Control) -> None:
    found = audit_look_ups(source, RUNS[source], control)
    assert {finding.message for finding in found} == set(CAUGHT[source][control])
    assert all(finding.right for finding in found), found


def test_flooded_shares_are_caught_at_both_parties() -> None:
    found = audit_flooded(RUNS["dealer"])
    caught = {finding.to for finding in found if max(finding.surprise.values()) > LIMIT}
    assert caught == {"client", "server"}
