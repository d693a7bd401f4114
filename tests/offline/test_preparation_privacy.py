"""What a party receives while two parties prepare says nothing together with its transfers, its key and its factors.

Here the randomness is the operating system's, so the outcome is not the same on every run: by the bounds of
`comet_mpc.local.audit.statistics` all of this fails by chance less than once in a million times.
"""

from __future__ import annotations

from functools import cache

import pytest

from comet_mpc.local.audit.controls import Control
from comet_mpc.local.audit.online import record
from comet_mpc.local.audit.preparation import record_preparation
from comet_mpc.local.audit.report import CAUGHT, Finding, findings
from support.judged import assert_nothing_but_caught

pytestmark = pytest.mark.slow


@cache
def preparing(control: Control = "") -> list[Finding]:
    return findings(record_preparation(8, control, set_ups=2), "preparing", control)


@cache
def online(control: Control = "") -> list[Finding]:
    return findings(record("pair", 8, control), "pair", control)


UPLOADS = ("", ", packed", ", turned", " in slots", " in odd slots, defined", " in odd slots")
CASES: list[tuple[Control, str, str]] = [
    *(
        ("old mask", message, to)
        for message in (
            "points",
            "trees",
            "extension",
            "answer",
            "extension, odd",
            "answer, odd",
            "trees, renewed",
            "keys, levels",
            "keys, signs chosen",
            "keys, signs",
            "keys, last",
        )
        for to in ("client", "server")
    ),
    ("old mask", "words", "client"),
    ("old mask", "flips", "server"),
    *(("old mask", f"keys, {message}", "client") for message in ("bits of masks", "carries")),
    ("old mask", "keys, carries chosen", "server"),
    *(("old mask", f"upload{kind}", "server") for kind in UPLOADS),
    ("no mask", "public key", "server"),
    ("no mask", "packing keys", "server"),
    *(
        ("no mask", f"response{kind}{more}", "client")
        for kind in ("", ", packed", ", turned", " in slots", " in odd slots")
        for more in ("", ", decrypted")
    ),
]


@pytest.mark.parametrize(("control", "message", "to"), CASES)
def test_preparing_says_nothing_but_its_control_is_caught(control: Control, message: str, to: str) -> None:
    assert_nothing_but_caught(preparing(), preparing(control), message, to)


def test_every_message_of_a_preparation_has_a_control() -> None:
    assert {(finding.message, finding.to) for finding in preparing()} == {(message, to) for _, message, to in CASES}


ONLINE: list[tuple[Control, str, str]] = [
    *(("same seed", "Open", to) for to in ("client", "server")),
    ("same seed", "Give", "server"),
    *(("old mask", message, to) for message in ("Open", "Truncate") for to in ("client", "server")),
    *(("same seed", message, to) for message in ("TruncateOpen", "TruncateOpen, bit") for to in ("client", "server")),
    *(("old mask", message, to) for message in ("TruncateOpen", "TruncateOpen, bit") for to in ("client", "server")),
    *(("no mask", "TruncateOpen, bit", to) for to in ("client", "server")),
    *(("old mask", message, to) for message in ("TableLine", "products, points") for to in ("client", "server")),
    ("old mask", "Give", "server"),
]


@pytest.mark.parametrize(("control", "message", "to"), ONLINE)
def test_a_query_prepared_by_a_pair_says_nothing_but_its_control_is_caught(
    control: Control, message: str, to: str
) -> None:
    assert_nothing_but_caught(online(), online(control), message, to)


@pytest.mark.parametrize(("phase", "cases"), [("preparing", CASES), ("pair", ONLINE)])
def test_an_audit_says_that_these_controls_are_caught(phase: str, cases: list[tuple[Control, str, str]]) -> None:
    assert {control: set(messages) for control, messages in CAUGHT[phase].items()} == {
        control: {message for each, message, _ in cases if each == control} for control, _, _ in cases
    }


def test_every_message_of_such_a_query_has_a_control() -> None:
    assert {(finding.message, finding.to) for finding in online()} == {(message, to) for _, message, to in ONLINE}
