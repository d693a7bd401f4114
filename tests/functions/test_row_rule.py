"""Rules for row quantities: few openings, and an error that holds with every rounding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.ring import LARGEST_ODD
from comet_mpc.engine.session import IN_ONE_ROUND, USUAL_WAYS, Ways
from comet_mpc.engine.share import CLIENT, Share
from comet_mpc.errors import RuleError
from comet_mpc.functions.inverse_rule import MinimaxRule
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.row_rule import ROW_ERROR, row_rule
from comet_mpc.functions.rule import inverse_sqrt
from support.two_parties import Program, able, run_two_parties, together, twin_value

INTERVALS = {
    "variances": row_rule(2.0**-6, 27.0, gain=0.866),
    "norms": row_rule(2.0**-12, 1.0078, above=0.0016),
    "denominators": row_rule(2.0**-14, 1.0625, error=2.0**-7),
    "pooler": row_rule(1.0, 257.0, floor=0.99),
}

OTHER_WAYS = frozenset({f"inverse_sqrt: {IN_ONE_ROUND}"})


def points(rule: MinimaxRule, count: int) -> npt.NDArray[np.float64]:
    """Dense at both ends, where a polynomial's error is largest."""
    even = rule.low + (rule.high - rule.low) * (0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, count // 2)))
    return np.concatenate([np.geomspace(rule.low, rule.high, count - count // 2), even])


def of_secret(t: npt.NDArray[np.float64], rule: MinimaxRule) -> Program[Share]:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        bits = 30 - max(0, math.ceil(math.log2(rule.high)))
        return inverse_sqrt(session, session.private(CLIENT, t.shape, bits, rule.high, t), rule)

    return program


@pytest.mark.slow
@pytest.mark.parametrize("rule", INTERVALS.values(), ids=INTERVALS)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("ways", [USUAL_WAYS, OTHER_WAYS])
def test_real_parties_err_no_more_than_certified(rule: MinimaxRule, fused: bool, ways: Ways) -> None:
    for seed in range(3):
        t = np.random.default_rng(seed).permutation(points(rule, 2000))
        real = together(run_two_parties(of_secret(t, rule), fused=fused, ways=ways)) * np.sqrt(t) / rule.gain
        assert np.max(np.abs(real - 1.0)) <= rule.error + rule.rounding
        assert np.max(real) <= rule.overshoot
        twin = twin_value(of_secret(t, rule), fused=fused, ways=ways) * np.sqrt(t) / rule.gain
        assert np.max(np.abs(twin - 1.0)) <= rule.error + rule.rounding


@pytest.mark.parametrize(
    ("ratio", "top", "gain"),
    [(0.5, 3.0, 1.0), (2.0, 0.0, 1.0), (5.1, -7.7, 1.9), (9.3, 11.2, 0.51), (12.0, 1.0, 1.4), (14.0, 20.3, 0.8)],
)
def test_the_error_is_what_was_asked_for(ratio: float, top: float, gain: float) -> None:
    high = 2.0**top
    rule = row_rule(high * 2.0**-ratio, high, gain=gain)
    rule.check()
    assert rule.error + rule.rounding <= ROW_ERROR
    assert rule.overshoot <= 1.0 + ROW_ERROR
    t = points(rule, 20_000)
    assert np.max(np.abs(rule(t) * np.sqrt(t) / gain - 1.0)) <= rule.error
    sizes = [(rule.start_bound, rule.start_fraction), *((step.bound, step.fraction) for step in rule.steps)]
    assert all(bound * 2.0**fraction <= LARGEST_ODD for bound, fraction in sizes)


def test_rounds_are_what_it_is_for() -> None:
    rule, other = INTERVALS["norms"], minimax_rule(2.0**-12, 1.0078, 6)

    def rounds(which: MinimaxRule, *, fused: bool, ways: Ways = USUAL_WAYS) -> int:
        share = Share((3072,), 28, 1.0078, 31)
        return plan_program(
            lambda session: inverse_sqrt(session, share, which), abilities=able(fused), ways=ways
        ).rounds

    assert (len(rule.steps), len(other.steps)) == (3, 5)
    assert (rounds(rule, fused=True), rounds(other, fused=True)) == (4, 6)
    assert rounds(rule, fused=True, ways=OTHER_WAYS) == 8
    assert (rounds(rule, fused=False), rounds(rule, fused=False, ways=OTHER_WAYS)) == (8, 4)


def test_one_that_must_not_be_too_large_errs_to_the_other_side() -> None:
    strict, even = INTERVALS["norms"], row_rule(2.0**-12, 1.0078, error=2.0 * ROW_ERROR)
    assert strict.overshoot <= 1.0016 < even.overshoot
    assert len(strict.steps) == len(even.steps)


@pytest.mark.parametrize(
    ("low", "high", "options"),
    [
        (0.0, 1.0, {}),
        (1.0, 1.0, {}),
        (1.0, math.inf, {}),
        (2.0**-20, 1.0, {}),
        (0.5, 1.0, {"gain": 3.0}),
        (0.5, 1.0, {"floor": 0.7}),
        (0.5, 1.0, {"error": 0.0}),
        (2.0**-14, 1.0, {"error": 1e-7}),
    ],
)
def test_what_cannot_be_is_refused(low: float, high: float, options: dict[str, float]) -> None:
    with pytest.raises(RuleError):
        row_rule(low, high, **options)


def test_a_rule_from_a_file_that_is_none_is_refused() -> None:
    rule = INTERVALS["variances"]
    first, *others = rule.steps
    for step in (
        dataclasses.replace(first, b=0.0),
        dataclasses.replace(first, fraction_t=first.fraction_t + 1),
        dataclasses.replace(first, fraction_y=63),
        dataclasses.replace(first, bound=first.bound / 8.0),
        dataclasses.replace(first, bound=math.nan),
    ):
        with pytest.raises(RuleError):
            dataclasses.replace(rule, steps=(step, *others)).check()
    with pytest.raises(RuleError):
        dataclasses.replace(rule, start_t=99).check()
