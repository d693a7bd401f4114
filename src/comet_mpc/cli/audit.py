"""`comet audit`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

from comet_mpc.cli.options import JsonFile, option
from comet_mpc.cli.tables import report, table
from comet_mpc.errors import CometError
from comet_mpc.local.audit.report import FEWEST, Finding, audit, passes
from comet_mpc.local.audit.statistics import FALSE_ALARM, LIMIT, STATISTICS
from comet_mpc.progress import bar
from comet_mpc.units import human_bytes

_TITLES = {
    "dealer": "A query with a dealer, and what the dealer sends",
    "pair": "A query without a dealer",
    "writing": "A text that is written, with a dealer",
    "preparing": "Preparing without a dealer",
}
_EXPLAINED = (
    f"Numbers are surprises: chance reaches s in less than one of 10^s cases.\n"
    f"The limit is {LIMIT:.1f}. False alarms: less than one in {1 / FALSE_ALARM:,.0f} audits.\n"
    "Indented rows are broken on purpose, and must be caught:\n"
    "  same seed  both parties have the same seed\n"
    "  old mask   one mask hides two messages\n"
    "  no mask    nothing hides what is sent"
)


def audit_command(
    runs: Annotated[int, option("Runs with a dealer; a twentieth without.", min=FEWEST, max=100_000)] = 240,
    json: JsonFile = None,
) -> None:
    """Test whether a party learns anything from what it receives.

    Two parties run a small program with every kind of message, many times, with one of two inputs each, and a small
    decoder that writes. Everything that a party receives is compared with all that it holds itself: its share, its
    seed, its keys, what it received before. Four statistics look for anything that tells the other party's input:
    means, joint (counts of both together), pairs (of bits), and guess (a classifier). The same is done with protocols
    that are broken on purpose.

    Fails if the protocol is above the limit anywhere, or if a broken one is not caught.
    """
    with bar("auditing") as tick:
        found = audit(runs, tick=tick)
    report(found, json, *_tables(found), _EXPLAINED)
    if not passes(found):
        raise CometError("the audit has found something: see the rows that say LEAK or MISSED")


def _tables(found: Sequence[Finding]) -> list[object]:
    columns = ("message", "to", "bytes", *STATISTICS, "verdict")
    shown: list[object] = []
    for phase, group in groupby(found, key=lambda finding: finding.phase):
        rows = list(group)
        runs = sorted({row.runs for row in rows if not row.control})
        counted = " or ".join(map(str, runs))
        shown.append(table(f"{_TITLES[phase]} ({counted} runs)", columns, map(_row, rows), left=2))
    return shown


def _row(finding: Finding) -> tuple[str, ...]:
    numbers = [f"{value:.1f}" if value < 999.95 else ">999" for value in finding.surprise.values()]
    if finding.control:
        return f"  {finding.control}", "", "", *numbers, "caught" if finding.right else "MISSED"
    size = human_bytes(finding.bytes) if finding.bytes else ""
    return finding.message, finding.to, size, *numbers, "nothing" if finding.right else "LEAK"
