"""The audit: its bounds are bounds, its limit can be reached, and the command says what it finds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, chi2
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.errors import ConfigurationError
from comet_mpc.local.audit import report
from comet_mpc.local.audit.online import Recorded
from comet_mpc.local.audit.preparation import SET_UPS
from comet_mpc.local.audit.report import Finding, audit, passes
from comet_mpc.local.audit.statistics import (
    FALSE_ALARM,
    LIMIT,
    STATISTICS,
    Message,
    Pile,
    judge,
    mean_sign,
    pile_up,
    surprise_of_squares,
    surprise_of_sum,
)

pytestmark = pytest.mark.slow

RUNS, PLACES = 120, 8


def pile(rng: np.random.Generator, modulus: int) -> Pile:
    words, held = (rng.integers(0, modulus, (RUNS, PLACES), dtype=np.uint64) for _ in range(2))
    secret, own = (np.where(np.arange(RUNS) // step % 2, 1.0, -1.0) for step in (1, 2))
    return Pile(words, modulus, {"held": held, "constant": np.zeros_like(held)}, secret, own)


# Bounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [40, 300, 10_000])
def test_the_surprise_of_a_sum_is_a_bound(count: int) -> None:
    for right in range(count // 2, count + 1, max(1, count // 50)):
        probability = min(1.0, 2 * binom.sf(right - 1, count, 0.5))
        assert 10.0 ** -surprise_of_sum((2 * right - count) / math.sqrt(count), 1) >= probability * (1 - 1e-9)


@pytest.mark.parametrize("freedom", [1, 15, 240])
def test_the_surprise_of_squares_is_a_bound(freedom: int) -> None:
    for ratio in (1.0, 1.5, 2.0, 5.0, 20.0):
        assert 10.0 ** -surprise_of_squares(ratio * freedom, freedom, 1) >= chi2.sf(ratio * freedom, freedom)


@pytest.mark.parametrize("modulus", [2, 16, 2**23, 1073692673, 2**64])
def test_chance_is_not_surprising(modulus: int) -> None:
    """A surprise of s has a probability below 10^-s, in each of the statistics."""
    rng = np.random.default_rng(modulus % 1000)
    seen = [judge(pile(rng, modulus)) for _ in range(60)]
    for name in STATISTICS:
        surprises = np.array([one[name] for one in seen])
        assert np.mean(surprises >= 1.0) <= 0.2  # 0.1 by the bound, and six deviations of 60 are below this
        assert surprises.max() < 4.0


def test_uneven_bits_of_an_odd_modulus_are_expected_and_not_a_surprise() -> None:
    """Below 0.5625·2^8 the top bit is 1 in one case of nine, whatever the receiver holds: a constant, for example."""
    modulus = 145
    for bit in range(8):
        counted = 1 - 2 * np.mean([number >> bit & 1 for number in range(modulus)])
        assert mean_sign(bit, modulus) == pytest.approx(counted)
        assert mean_sign(bit, 2**20) == 0
    words = np.random.default_rng(5).integers(0, modulus, (4096, PLACES), dtype=np.uint64)
    secret, own = (np.where(np.arange(4096) // step % 2, 1.0, -1.0) for step in (1, 2))
    assert judge(Pile(words, modulus, {"constant": np.zeros_like(words)}, secret, own))["pairs"] < LIMIT


def test_the_limit_leaves_room_for_all_statistics_of_an_audit() -> None:
    rows = 2 * sum(len({m for messages in controls.values() for m in messages}) for controls in report.CAUGHT.values())
    assert rows * len(STATISTICS) * 10.0**-LIMIT <= FALSE_ALARM


# What must be found -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modulus", [16, 1073692673, 2**64])
@pytest.mark.parametrize("kind", ["means", "joint", "pairs", "guess"])
def test_every_statistic_can_exceed_the_limit(modulus: int, kind: str) -> None:
    clean = pile(np.random.default_rng(8), modulus)
    held, secret = clean.held["held"], clean.secret[:, None]
    third = modulus // 3
    words = {
        "means": np.full_like(held, modulus - 1),
        "joint": np.array([(third - int(word)) % modulus for word in held.flat], np.uint64).reshape(held.shape),
        "pairs": held,
        "guess": np.where(secret > 0, np.uint64(modulus - 1), np.uint64(0)) + np.zeros_like(held),
    }[kind]
    broken = Pile(words, modulus, clean.held, clean.secret, clean.own)
    assert max(judge(clean).values()) < LIMIT
    assert judge(broken)[kind] > LIMIT


def test_a_message_whose_sum_with_what_is_held_tells_the_secret_is_uniform_by_itself() -> None:
    """What tests of uniformity alone do not see."""
    clean = pile(np.random.default_rng(9), 2**64)
    secret = np.where(clean.secret[:, None] > 0, np.uint64(5), np.uint64(2**60))
    words = secret - clean.held["held"]
    assert max(judge(Pile(words, 2**64, {}, clean.secret, clean.own)).values()) < LIMIT
    assert judge(Pile(words, 2**64, clean.held, clean.secret, clean.own))["guess"] > LIMIT


def test_messages_pile_up_by_run() -> None:
    runs = [Message("Open", 0, np.arange(4, dtype=np.uint64) + np.uint64(run), 4, {}, 32) for run in range(4)]
    whole, cut = (pile_up(runs, [0, 1, 0, 1], [0, 0, 1, 1], blocks=blocks) for blocks in (1, 2))
    assert whole.words.shape == (4, 4)
    assert cut.words.shape == (8, 2)
    assert whole.words.max() < 4
    assert cut.secret.tolist() == [-1, -1, 1, 1, -1, -1, 1, 1]


# The command --------------------------------------------------------------------------------------------------


SHORT = ("dealer", "writing")
"""What two parties prepare is judged in tests/offline/test_preparation_privacy.py, after as many runs as here."""


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    return audit(report.FEWEST, SHORT)


@pytest.mark.slow
def test_a_short_audit_finds_nothing_and_misses_nothing(found: list[Finding]) -> None:
    assert passes(found), [finding for finding in found if not finding.right]
    for phase in SHORT:
        assert {finding.control for finding in found if finding.phase == phase} == {"", *report.CAUGHT[phase]}


def test_an_audit_has_every_phase_and_its_controls_and_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[str, int, str]] = []
    told: list[tuple[int, int]] = []

    def noting(phase: str, set_ups: int = 0) -> Callable[..., list[Recorded]]:
        def record(runs: int, control: str, *, tick: Callable[[], None]) -> list[Recorded]:
            noted.append((phase, runs, control))
            for _ in range(set_ups + runs):
                tick()
            return []

        return record

    monkeypatch.setattr(report, "record", lambda phase, *arguments, **options: noting(phase)(*arguments, **options))
    monkeypatch.setattr(report, "record_writing", noting("writing"))
    monkeypatch.setattr(report, "record_preparation", noting("preparing", SET_UPS))
    assert audit(243, tick=lambda done, total, note="": told.append((done, total))) == []
    runs = {"dealer": (240, 120), "pair": (12, 8), "writing": (120, 40), "preparing": (12, 8)}
    assert noted == [
        (phase, runs[phase][bool(control)], control) for phase in runs for control in ("", *report.CAUGHT[phase])
    ]
    assert told == [(done, len(told)) for done in range(1, len(told) + 1)]


def test_an_audit_of_too_few_runs_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="too few"):
        audit(report.FEWEST - 1)


def shown(found: list[Finding], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr("comet_mpc.cli.audit.audit", lambda runs, tick: found)
    result = CliRunner().invoke(app, ["audit", *arguments], env={"COLUMNS": "80"})
    return result.exit_code, result.output


def test_the_command_prints_tables_that_fit(found: list[Finding], monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = shown(found, monkeypatch)
    assert code == 0
    assert max(map(len, output.splitlines())) <= 80
    for word in ("Truncate", "TableLine", "same seed", "caught", "nothing", f"{LIMIT:.1f}"):
        assert word in output
    assert "MISSED" not in output
    assert "LEAK" not in output


def test_the_command_writes_json(found: list[Finding], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "audit.json"
    assert shown(found, monkeypatch, "--json", str(target))[0] == 0
    records = json.loads(target.read_text())
    assert len(records) == len(found)
    assert set(records[0]["surprise"]) == set(STATISTICS)


@pytest.mark.parametrize(("control", "word"), [("", "LEAK"), ("old mask", "MISSED")])
def test_a_leak_or_a_control_that_is_missed_is_exit_code_1(
    found: list[Finding], monkeypatch: pytest.MonkeyPatch, control: str, word: str
) -> None:
    """A control passed off as the protocol is a leak; the protocol passed off as a control is one that is missed."""
    wrong = next(finding for finding in found if bool(finding.control) != bool(control))
    claimed = Finding(**{name: getattr(wrong, name) for name in wrong.__struct_fields__} | {"control": control})
    code, output = shown([claimed, *found], monkeypatch)
    assert code == 1
    assert word in output
