"""1/sqrt(t) and sqrt(t) by minimax rules, two real parties beside the twin."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, Share
from comet_mpc.errors import RangeError
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.rule import inverse_sqrt
from support.roots import of_secret, points
from support.two_parties import run_two_parties, together, twin_value


@pytest.mark.parametrize(("low", "high", "steps"), [(2.0**-8, 1.01, 3), (0.001, 0.3, 5), (30.0, 4000.0, 4)])
def test_real_parties_err_no_more_than_certified(low: float, high: float, steps: int) -> None:
    rule = minimax_rule(low, high, steps)
    t = points(low, high, 2000)
    real = together(run_two_parties(of_secret(t, high, rule)))
    assert np.max(np.abs(real * np.sqrt(t) - 1.0)) <= rule.error + rule.rounding


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_root_fused_with_the_last_step_errs_no_more_than_certified(steps: int) -> None:
    rule = minimax_rule(2.0**-8, 1.01, steps, root=True, emphasis=0.25)
    t = points(2.0**-8, 1.01, 500)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        share = session.private(CLIENT, t.shape, 20, 1.01, t)
        return rule.square_root(session, share)

    real, twin = together(run_two_parties(program)), twin_value(program)
    # t is opened with fraction_t bits: half a unit moves the twin's root by that much, a whole one the parties'
    unit = 2.0**-rule.fraction_t * 2.0**rule.exponent / np.sqrt(t)
    for value in (real, twin):
        allowed = rule.root_error * np.sqrt(rule.high) + rule.rounding * np.sqrt(t) + unit
        assert np.all(np.abs(value - np.sqrt(t)) <= allowed)
        assert np.all(np.abs(value - t * rule(t)) <= 1.1 * rule.root_rounding * np.sqrt(rule.high))


def test_a_gain_is_folded_in() -> None:
    rule = minimax_rule(0.01, 1.0, 4, gain=0.75)
    t = points(0.01, 1.0)
    twin = twin_value(of_secret(t, 1.0, rule))
    assert np.max(np.abs(twin * np.sqrt(t) / 0.75 - 1.0)) <= rule.error + rule.rounding


def test_an_argument_that_could_leave_the_stable_range_is_refused() -> None:
    rule = minimax_rule(2.0**-8, 1.0, 3, classical=True)
    t = points(2.0**-8, 1.0)
    inside, outside = 0.999 * rule.stable_top, 1.001 * rule.stable_top
    twin_value(of_secret(t, inside, rule))
    with pytest.raises(RangeError, match="is stable only up to"):
        twin_value(of_secret(t, outside, rule))
    with pytest.raises(RangeError, match="is stable only up to"):
        plan_program(lambda session: inverse_sqrt(session, Share((4,), 20, outside), rule))


def test_minimax_costs_a_round_for_t_and_one_for_every_later_y() -> None:
    for steps in (1, 2, 3, 4):
        rule = minimax_rule(2.0**-8, 1.0, steps)
        plan = plan_program(partial(inverse_sqrt, t=Share((64,), 20, 1.0), rule=rule))
        assert plan.rounds == 1 + len(rule.steps)
