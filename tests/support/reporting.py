"""What a run of the tests says at its end: what was skipped and why, and what took the most processor time.

A plugin of pytest (`tests/conftest.py`). Skips have names, by what is missing. With `--only-skip NAMES` a skip of
any other name fails the run: CI says what it does without, and everything else must have been tested.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ["group_of", "unexpected"]

GROUPS = {
    "train": r"the extra \[train\] is not installed",
    "crypten": "crypten is not installed",
    "cluster": "ray is not installed",
    "browser": "chromium|playwright",
    "data": "set COMET_(GLUE|MODELS)",
    "machine": "needs (systemd|curl|a compiler for aarch64)|there is one core|from /proc",
}
"""By name, what the reason of a skip says."""


def group_of(reason: str) -> str:
    """The name of a skip; empty if it has none."""
    return next((name for name, pattern in GROUPS.items() if re.search(pattern, reason)), "")


def unexpected(reasons: Iterator[str], allowed: str | None) -> set[str]:
    """Reasons of skips that may not be, if `allowed` names those that may (separated by commas)."""
    if allowed is None:
        return set()
    names = {name for name in allowed.split(",") if name}
    unknown = names - GROUPS.keys()
    if unknown:
        raise pytest.UsageError(f"--only-skip: no such skips: {', '.join(unknown)}. There are: {', '.join(GROUPS)}")
    return {reason for reason in reasons if group_of(reason) not in names}


def pytest_addoption(parser: pytest.Parser) -> None:
    options = parser.getgroup("comet")
    options.addoption("--only-skip", metavar="NAMES", help=f"fail if anything else is skipped: {', '.join(GROUPS)}")
    options.addoption(
        "--cpu", type=int, default=0, metavar="N", help="show the N tests that took the most processor time"
    )


def _skips(config: pytest.Config) -> Iterator[tuple[str, str]]:
    """Where and why, of every skipped test or file."""
    terminal: Any = config.pluginmanager.get_plugin("terminalreporter")
    for report in terminal.stats.get("skipped", ()):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        yield report.nodeid, reason.removeprefix("Skipped: ")


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workerinput") or config.pluginmanager.get_plugin("terminalreporter") is None:
        return
    well = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    if well and unexpected((reason for _, reason in _skips(config)), config.getoption("only_skip")):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    _say_skips(terminalreporter, config)
    _say_costs(terminalreporter, config)


def _say_skips(terminal: Any, config: pytest.Config) -> None:
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for place, reason in _skips(config):
        files[reason][place.split("::")[0]] += 1
    wrong = unexpected(iter(files), config.getoption("only_skip"))
    if files:
        terminal.section("skipped, and why")
    for reason, places in sorted(files.items(), key=lambda each: -sum(each[1].values())):
        where = ", ".join(sorted(places))
        mark = "NOT ALLOWED HERE: " if reason in wrong else ""
        terminal.line(f"{sum(places.values()):5}  {mark}{reason}  ({where})", red=bool(mark))
    if wrong:
        terminal.line(f"FAILED: {len(wrong)} reasons to skip that --only-skip does not name", red=True, bold=True)


# Processor time -------------------------------------------------------------------------------------------------

_BEGUN = pytest.StashKey[float]()


def _spent() -> float:
    """Seconds of this process, and of those that it has started and that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_BEGUN] = _spent()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown" and _BEGUN in item.stash:
        item.user_properties.append(("cpu", _spent() - item.stash[_BEGUN]))


def _say_costs(terminal: Any, config: pytest.Config) -> None:
    """A service that several tests share is counted where it ends."""
    reports = (
        report for each in terminal.stats.values() for report in each if getattr(report, "when", "") == "teardown"
    )
    costs = {report.nodeid: dict(report.user_properties)["cpu"] for report in reports}
    shown = sorted(costs, key=lambda test: -costs[test])[: config.getoption("cpu")]
    if shown:
        terminal.section(f"processor time: {sum(costs.values()):.0f} s")
    for test in shown:
        terminal.line(f"{costs[test]:7.2f} s  {test}")
