"""Roots by one polynomial: what a rule states of itself holds, and the protocol evaluates that very polynomial."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.correlations import Monomials
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, Share
from comet_mpc.errors import RangeError, RuleError
from comet_mpc.functions.activation import smu, smu_rule
from comet_mpc.functions.root_rule import DEGREES, FINE_PRECISION, RootRule, root_rule
from comet_mpc.functions.rule import PRECISION, Smu
from comet_mpc.offline.sources import find_source
from support.two_parties import able, run_two_parties, together, twin_value

INTERVALS = [(2.0**-8, 1.02), (2.0**-10, 1.0), (0.3, 900.0), (1e-3, 0.2)]
CERTIFIED = Smu(1.0 / 16.0)


def certified(degree: str, precision: int = PRECISION) -> RootRule:
    rule = smu_rule(CERTIFIED, 1.0 + 2.0**-8, 0, name=degree, precision=precision)
    assert isinstance(rule, RootRule)
    return rule


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("degree", DEGREES.values())
def test_the_stated_errors_hold_on_a_fine_grid(interval: tuple[float, float], degree: int) -> None:
    rule = root_rule(*interval, degree)
    rule.check()
    for t in (np.geomspace(*interval, 99_991), np.linspace(*interval, 99_991)):
        off = rule.root(t) - np.sqrt(t)
        assert np.max(np.abs(off / np.sqrt(t))) <= rule.error
        assert np.max(np.abs(off)) <= rule.root_error * math.sqrt(rule.high)


@pytest.mark.parametrize("emphasis", [0.0, 0.25, 0.5])
def test_no_polynomial_does_much_better_than_the_rounded_one(emphasis: float) -> None:
    rule = root_rule(2.0**-8, 1.02, 2, emphasis=emphasis)
    t = np.geomspace(2.0**-8, 1.02, 4000)
    weight = t ** (emphasis - 0.5)
    ours = np.max(np.abs(rule.root(t) - np.sqrt(t)) * weight)
    basis = np.stack([t**i for i in range(3)], axis=1) * weight[:, None]
    generator = np.random.default_rng(1)
    around = np.array(rule.coefficients) * (1.0 + 0.02 * generator.standard_normal((2000, 3)))
    others = np.max(np.abs(basis @ around.T - (np.sqrt(t) * weight)[:, None]), axis=0)
    assert np.min(others) > 0.9 * ours


@pytest.mark.parametrize("degree", [degree for degree in DEGREES.values() if degree > 1])
def test_more_degrees_are_more_exact(degree: int) -> None:
    assert root_rule(2.0**-8, 1.02, degree).root_error < root_rule(2.0**-8, 1.02, degree - 1).root_error


@pytest.mark.parametrize("degree", DEGREES)
def test_up_to_the_stable_top_the_root_keeps_its_bound_and_stays_positive(degree: str) -> None:
    rule = certified(degree)
    assert rule.stable_top > 1.05 * rule.high
    t = np.linspace(rule.floor, rule.stable_top, 100_000)
    root = rule.root(t) * 2.0 ** (-rule.exponent // 2)
    assert np.all(root > 0.0)
    assert np.max(root) <= rule.bound
    beyond = rule.root(1.02 * rule.stable_top) * 2.0 ** (-rule.exponent // 2)
    assert not 0.0 < beyond <= rule.bound


def test_a_quadratic_bends_down_slowly_above_its_top() -> None:
    rule = certified("quadratic")
    assert 0.3 < float(rule.root(1.5 * rule.high)) < 1.0
    assert rule.stable_top > 1.6 * rule.high


def test_a_finer_rule_is_the_same_but_for_its_rounding() -> None:
    usual, fine = certified("quadratic"), certified("quadratic", FINE_PRECISION)
    assert (usual.fraction_t, fine.fraction_t) == (13, 15)
    assert fine.root_rounding == pytest.approx(usual.root_rounding / 4.0, rel=1e-3)
    assert fine.coefficients == pytest.approx(usual.coefficients, abs=2.0**-15)
    assert fine.coefficients[2] == usual.coefficients[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("degree", "precision"), [*((degree, PRECISION) for degree in DEGREES), ("quadratic", FINE_PRECISION)]
)
@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_twin_and_parties_evaluate_the_rule(degree: str, precision: int, source: str) -> None:
    rule = certified(degree, precision)
    x = np.linspace(-1.0, 1.0, 600).reshape(4, 150)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        mine = session.private(CLIENT, x.shape, 24, 1.0, x)
        return smu(session, mine, CERTIFIED, rule, fraction=18, width=56)

    expected = CERTIFIED(np.rint(x * 2.0**24) * 2.0**-24, rule)
    slope = np.polynomial.polynomial.polyval(x**2 + 2.0**-8, np.polynomial.polynomial.polyder(rule.coefficients))
    cut = 2.0**-14 * np.abs(slope * x)  # half of what a unit of x moves the root
    unit = 0.5 * rule.root_rounding * math.sqrt(rule.high) + 2.0**-17
    fused = find_source(source).abilities.fused
    real = together(run_two_parties(program, fused=fused, source=source))  # type: ignore[arg-type]
    assert np.all(np.abs(twin_value(program) - expected) <= 0.6 * cut + unit)
    # without a dealer all is in one odd ring: truncations are off by 9/8 units, and x itself is one that was cut
    limit = 1.2 * cut + unit if fused else 9 / 8 * (1.2 * cut + unit + 2.0 ** -(rule.fraction_t + 1))
    assert np.all(np.abs(real - expected) <= limit)


def test_a_linear_root_needs_one_opening_and_no_truncation_between() -> None:
    x = Share((1000,), 14, 1.0, 64)
    plan = plan_program(lambda session: smu(session, x, CERTIFIED, certified("linear"), fraction=14))
    assert plan.rounds == 2
    assert [type(entry).__name__ for entry in plan.correlations] == ["Mask", "Monomials", "BitProducts"]


def test_with_a_pair_all_is_done_in_one_odd_ring() -> None:
    x = Share((1000,), 36, 1.0, 56)
    plan = plan_program(lambda session: smu(session, x, CERTIFIED, certified("quadratic")), abilities=able(False))
    assert all(entry.modulus for entry in plan.correlations if isinstance(entry, Monomials))


@pytest.mark.parametrize("degree", ["linear", "quadratic"])
def test_an_argument_beyond_the_stable_range_is_refused_while_planning(degree: str) -> None:
    with pytest.raises(RangeError, match="stable only up to"):
        plan_program(lambda session: smu(session, Share((4,), 14, 1.5), CERTIFIED, certified(degree)))


@pytest.mark.parametrize("degree", ["linear", "quadratic"])
def test_a_mu_for_every_neuron(degree: str) -> None:
    form = Smu((0.125, 0.25, 0.5, 1.0))
    rule = smu_rule(form, 1.0, 0, name=degree)
    x = np.linspace(-1.0, 1.0, 400).reshape(100, 4)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return smu(session, session.private(CLIENT, x.shape, 14, 1.0, x), form, rule, fraction=14)

    assert np.max(np.abs(together(run_two_parties(program)) - form(x, rule))) < 2.0**-11


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.0, 0.5, 2), "empty"),
        ((0.0, 1.0, 2), "not positive"),
        ((math.nan, 1.0, 2), "not positive"),
        ((0.1, 1.0, 0), "degree 0"),
        ((0.1, 1.0, 6), "degree 6"),
    ],
)
def test_what_is_no_interval_or_degree_is_refused(arguments: tuple[float, float, int], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        root_rule(*arguments)


@pytest.mark.parametrize(
    "changes",
    [
        {"bound": 0.5},
        {"bound": 1e6},
        {"width": 30},
        {"width": 65},
        {"exponent": 1},
        {"coefficients": ()},
        {"coefficients": (0.1,) * 7},
        {"coefficients": (-0.5, 1.0, 0.0)},
        {"coefficients": (0.0781, 2.01805, -1.187)},
        {"low": 2.0},
        {"floor": -1.0},
        {"fraction_t": 0},
        {"coefficients": (math.nan, 1.0, 1.0)},
    ],
)
def test_a_rule_from_a_file_that_is_none_is_refused(changes: dict[str, object]) -> None:
    rule = certified("quadratic")
    rule.check()
    with pytest.raises(RuleError):
        dataclasses.replace(rule, **changes).check()  # type: ignore[arg-type]
