"""1/sqrt(t) by every rule there is, two real parties beside the twin; and what the paper's guess really is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import comet_research.functions  # noqa: F401 -- registers their names
from comet_mpc.engine import Session, Weight
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, SERVER, Share
from comet_mpc.errors import RangeError, RuleError
from comet_mpc.functions.inverse_rule import MinimaxRule
from comet_mpc.functions.root_rule import DEGREES
from comet_mpc.functions.rule import inverse_sqrt
from comet_mpc.functions.rules import RULES, make_rule
from comet_research.functions.flooding import Flooding, constant_guess, flooded_guess_not_private
from comet_research.functions.newton_rule import NewtonRule
from comet_research.functions.table_rule import TableRule
from support.roots import of_secret, points
from support.toy_model import TINY, make_checkpoint
from support.two_parties import Program, run_two_parties, together, twin_value

Reals = npt.NDArray[np.float64]

# Where each rule converges with its usual number of steps, and to what relative error.
DOMAINS = {
    "minimax": (0.01, 1.0, 0.01),
    "reference": (0.01, 4.0, 0.0005),
    "paper": (0.5, 10.0, 0.03),
    "exponential": (0.1, 10.0, 0.001),
    "taylor7": (0.4, 1.6, 0.0005),
    "taylor2": (0.4, 2.0, 0.0005),
    "table": (0.1, 400.0, 0.00015),
}


def newton(x: npt.ArrayLike, y: npt.ArrayLike, steps: int) -> Reals:
    result = np.asarray(y, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(steps):
            result = result * (1.5 - 0.5 * np.asarray(x) * result**2)
    return result


def test_every_rule_has_a_domain_here() -> None:
    assert set(DOMAINS) | set(DEGREES) == set(RULES)


@pytest.mark.parametrize("name", DOMAINS)
@pytest.mark.parametrize("fused", [True, False])
def test_every_rule_gives_the_inverse_root_inside_its_domain(name: str, fused: bool) -> None:
    low, high, error = DOMAINS[name]
    rule = make_rule(name, low, high).inverse()
    t = points(low, high)
    program = of_secret(t, high, rule)
    exact = t**-0.5
    twin = twin_value(program)
    real = together(run_two_parties(program, fused=fused))
    assert np.max(np.abs(twin / exact - 1.0)) <= error
    assert np.max(np.abs(real / exact - 1.0)) <= error
    if isinstance(rule, TableRule):  # a place one further makes another guess, which a step squares away
        allowed = (rule.error + 2.0 * rule.rounding) * exact
    elif isinstance(rule, MinimaxRule):  # each is within `rounding` of the same rule in real arithmetic
        allowed = 2.0 * rule.rounding * exact
    else:  # a unit of t moves y by y³/2 units, twice in case t is opened twice; one of y is squared away
        assert isinstance(rule, NewtonRule)
        allowed = 2.0**-rule.fraction_t * exact**3 + 2.0**-rule.fraction_y
    if name == "paper":  # the twin floods with another r
        ends = newton(t, 0.4831, 4), newton(t, 0.4835, 4)
        allowed = allowed + np.abs(ends[0] - ends[1])
    assert np.all(np.abs(real - twin) <= allowed)


def test_a_rule_has_a_known_name_and_a_positive_interval() -> None:
    with pytest.raises(RuleError, match="unknown rule 'newton'"):
        make_rule("newton", 0.1, 1.0)
    for low, high in ((0.0, 1.0), (2.0, 1.0), (-1.0, 1.0)):
        with pytest.raises(RuleError, match="empty or not positive"):
            make_rule("paper", low, high)


# By look-ups -------------------------------------------------------------------------------------------------


@st.composite
def table_cases(draw: st.DrawFn) -> tuple[TableRule, Reals, int]:
    """An interval, points all over it and where digits or powers of two change, and the fraction bits they come in."""
    low = 2.0 ** draw(st.floats(-12.0, 6.0))
    high = low * 2.0 ** draw(st.floats(0.5, 16.0))
    rule = TableRule(low, high)
    fraction = draw(st.integers(rule.fraction_t, rule.fraction_t + 6))
    unit = 2.0**-fraction
    seams = 2.0 ** np.arange(np.floor(np.log2(low)), np.ceil(np.log2(high)) + 1.0)
    drawn = draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
    t = np.concatenate([seams - unit, seams, seams + unit, low * (high / low) ** np.array(drawn)])
    t = np.clip(np.rint(t / unit), np.ceil(low / unit), np.floor(high / unit)) * unit
    return rule, t, fraction


@given(table_cases(), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_tables_err_no_more_than_certified_over_their_whole_interval(
    case: tuple[TableRule, Reals, int], seed: int
) -> None:
    rule, t, fraction = case
    whole = np.rint(t * 2.0**fraction).astype(np.int64).view(np.uint64)
    server = np.random.default_rng(seed).integers(0, 2**64, t.shape, np.uint64)  # any sharing whatsoever

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        words = [whole - server if session.holds(CLIENT) else np.zeros_like(server)]
        words.append(server if session.holds(SERVER) else np.zeros_like(server))
        planned = not (session.holds(CLIENT) or session.holds(SERVER))
        share = Share(t.shape, fraction, rule.high, values=None if planned else words[0] + words[1])
        return inverse_sqrt(session, share, rule)

    real, twin = together(run_two_parties(program)), twin_value(program)
    for value in (real, twin):
        assert np.max(np.abs(value * np.sqrt(t) - 1.0)) <= rule.error + rule.rounding


def test_tables_prepared_by_the_parties_alone_do_the_same() -> None:
    rule = TableRule(1 / 16, 16.0)
    t = points(1 / 16, 16.0, 300)
    program = of_secret(t, 16.0, rule)
    real = together(run_two_parties(program, source="pair"))
    assert np.max(np.abs(real * np.sqrt(t) - 1.0)) <= rule.error + rule.rounding


def test_a_table_rule_refuses_what_it_cannot_do() -> None:
    with pytest.raises(RuleError, match="too wide for tables"):
        make_rule("table", 2.0**-12, 2.0**12)
    with pytest.raises(RuleError, match="takes one step"):
        make_rule("table", 0.1, 1.0, 2)
    with pytest.raises(RangeError, match="tables end at"):
        plan_program(lambda session: inverse_sqrt(session, Share((4,), 20, 2.0), TableRule(0.1, 1.0)))


# The paper's guess --------------------------------------------------------------------------------------------


def guess_program(x: Reals, flooding: Flooding) -> Program[Share]:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return flooded_guess_not_private(session, session.private(CLIENT, x.shape, 16, 32.0, x), flooding)

    return program


def test_the_flooded_guess_is_a_constant_whatever_x_is() -> None:
    x = np.geomspace(0.01, 20.0, 2000)
    constant = constant_guess(Flooding())
    assert constant == pytest.approx(0.483, abs=5e-4)
    program = guess_program(x, Flooding())
    run = run_two_parties(program)
    for guess in (together(run), twin_value(program)):
        assert np.max(np.abs(guess - constant)) < 4e-4
        assert np.all((guess > 0.4830) & (guess < 0.4835))


def test_with_a_wide_flood_the_guess_follows_the_mask_and_not_x() -> None:
    x = np.full(4000, 3.0)
    x[2000:] = 15.0
    guess = together(run_two_parties(guess_program(x, Flooding(spread=8192.0))))
    assert 0.355 < np.min(guess) < 0.37
    assert 0.47 < np.max(guess) < 0.485
    assert abs(np.mean(guess[:2000]) - np.mean(guess[2000:])) < 0.01  # 1/sqrt differs by 0.32


@pytest.mark.parametrize(
    ("x", "error"), [(0.01, 0.76), (0.1, 0.33), (0.5, 0.027), (1.0, 0.001), (10.0, 0.022), (20.0, 0.49)]
)
def test_four_newton_steps_from_that_constant_do_not_recover_the_value(x: float, error: float) -> None:
    after = abs(float(newton(x, constant_guess(Flooding()), 4)) * x**0.5 - 1.0)
    assert after == pytest.approx(error, rel=0.1, abs=0.0005)


def test_newton_from_that_constant_leaves_its_basin_and_explodes() -> None:
    constant = constant_guess(Flooding())
    assert 3.0 / constant**2 == pytest.approx(12.9, abs=0.1)
    assert 5.0 / constant**2 == pytest.approx(21.4, abs=0.1)
    assert newton(12.8, constant, 40) == pytest.approx(12.8**-0.5)
    assert newton(13.0, constant, 40) == pytest.approx(-(13.0**-0.5))
    assert not abs(newton(21.5, constant, 40)) < 1e3


def test_the_paper_mode_reproduces_those_errors() -> None:
    x = np.array([0.1, 0.5, 1.0, 10.0])
    rule = make_rule("paper", 0.1, 10.0).inverse()
    real = together(run_two_parties(of_secret(x, 10.0, rule)))
    assert np.abs(real * np.sqrt(x) - 1.0) == pytest.approx([0.33, 0.027, 0.001, 0.022], rel=0.1, abs=0.001)


def test_a_model_with_the_papers_rule_is_not_stored_and_so_not_served(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown rule 'paper'"):
        make_checkpoint(tmp_path, **TINY | {"rule": "paper"})
