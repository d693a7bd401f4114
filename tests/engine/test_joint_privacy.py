"""What a party receives says nothing together with what it holds: its share, its seed, its result, earlier messages.

Both parties have one of two inputs in every run. A statistic of the protocol must stay below the limit of
`comet_mpc.local.audit.statistics` (all of an audit together are above it by chance less than once in a million audits),
and the same statistic of a protocol that is broken on purpose must be above it. All randomness follows from one fixed
secret, so the outcome is the same on every run.
"""

from __future__ import annotations

from functools import cache

import pytest

from comet_mpc.local.audit.controls import Control
from comet_mpc.local.audit.online import record
from comet_mpc.local.audit.report import Finding, findings
from comet_mpc.local.audit.statistics import LIMIT, STATISTICS
from support.judged import assert_nothing_but_caught, worst

pytestmark = pytest.mark.slow

SECRET = b"privacy tests   "
RUNS = 160
BROKEN = 104
"""Runs of a control: the least with which a classifier that is always right stands out."""


@cache
def found(control: Control = "") -> list[Finding]:
    return findings(record("dealer", BROKEN if control else RUNS, control, secret=SECRET), "dealer", control)


BOTH = ("Open", "Truncate", "TruncateOpen", "TableLine")
PRODUCTS = tuple(f"products, {kind}" for kind in ("bits", "powers", "squares", "matrix", "weights", "scale"))
CASES: list[tuple[Control, str, str]] = [
    *(("same seed", message, to) for message in BOTH for to in ("client", "server")),
    *(("old mask", message, to) for message in BOTH for to in ("client", "server")),
    ("same seed", "Give", "server"),
    ("old mask", "Give", "server"),
    *(("same seed", message, "server") for message in PRODUCTS),
    *(("no mask", message, "server") for message in PRODUCTS),
    *(("old mask", "products, points", to) for to in ("client", "server")),
    ("old mask", "weights", "client"),
]


@pytest.mark.parametrize(("control", "message", "to"), CASES)
def test_a_message_says_nothing_but_its_control_is_caught(control: Control, message: str, to: str) -> None:
    assert_nothing_but_caught(found(), found(control), message, to)


@pytest.mark.parametrize(
    ("statistic", "control", "message", "to"),
    [
        ("means", "same seed", "Truncate", "server"),
        ("means", "old mask", "Truncate", "client"),
        ("joint", "same seed", "Open", "client"),
        ("joint", "no mask", "products, squares", "server"),
        ("pairs", "same seed", "Give", "server"),
        ("pairs", "old mask", "TruncateOpen", "client"),
        ("guess", "same seed", "Open", "client"),
        ("guess", "same seed", "Give", "server"),
        ("guess", "old mask", "weights", "client"),
    ],
)
def test_no_statistic_is_there_for_show(statistic: str, control: Control, message: str, to: str) -> None:
    """Each catches a control all by itself, each of them for either party or more than one reason."""
    assert_nothing_but_caught(found(), found(control), message, to, statistic)


def test_every_kind_of_message_has_a_control() -> None:
    judged = {(finding.message, finding.to) for finding in found()}
    assert judged == {(message, to) for _, message, to in CASES}


def test_a_control_is_caught_where_it_breaks_something_and_nowhere_else() -> None:
    """An old mask of an opening does not make the dealer's products suspicious: the limit is not simply too low."""
    untouched = findings(record("dealer", BROKEN, "old mask", secret=SECRET), "dealer")
    for message in PRODUCTS:
        assert max(worst(untouched, message, "server").values()) < LIMIT


def test_the_limit_can_be_reached_by_every_statistic() -> None:
    highest = {name: max(finding.surprise[name] for finding in found("same seed")) for name in STATISTICS}
    assert min(highest.values()) > LIMIT, highest
