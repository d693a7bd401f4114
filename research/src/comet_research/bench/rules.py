"""Every rule for 1/sqrt beside the others: its error over an interval, in fixed point, and what it costs by plan.

A polynomial rule gives sqrt(t), which is all that an activation needs: its relative error is compared with that of the
others, whose root t·(1/sqrt(t)) has the error of 1/sqrt(t). Rules are made for what they are used for: an activation's
root is to be exact where it is large.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import msgspec
import numpy as np

import comet_research.functions  # noqa: F401 -- registers their names
from comet_mpc.engine import Session
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, Reals, Share, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import RangeError, RuleError
from comet_mpc.functions.root_rule import DEGREES, RootRule, root_rule
from comet_mpc.functions.rule import Rule, inverse_sqrt
from comet_mpc.functions.rules import RULES, make_rule
from comet_mpc.offline.cheapest import cheapest_plan
from comet_mpc.offline.sources import SOURCES
from comet_mpc.progress import Tick, silent

_INTERVALS = ((1 / 16, 16.0), (1 / 4, 7 / 4))
"""The second for a rule that explodes on the first: a series around 1."""

_POINTS = 4096
_SHOWN = 65
_SHAPE = (128, 3072)
_MOST_STEPS = 6
_FRACTION_T, _FRACTION_Y = 16, 14


class RuleCost(msgspec.Struct, frozen=True):
    """Planned, both parties together."""

    online_bytes: int
    rounds: int
    offline_bytes: int


class RuleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One rule with one number of steps on [low, high], for `elements` values."""

    record: str = "rule"
    rule: str
    function: str = "1/sqrt"
    """Or sqrt."""
    steps: int | None
    """None: it has none to count."""
    usual: bool
    """Whether that is how the rule is used where nothing else is said."""
    private: bool
    low: float
    high: float
    elements: int
    costs: dict[str, RuleCost]
    """By source of randomness."""
    max_relative_error: float
    """Infinite: it left the range in which it is stable."""
    curve: list[tuple[float, float]]
    """t, and the relative error there: at each point the largest in its neighbourhood."""


def measure_rules(progress: Tick = silent) -> list[RuleRecord]:
    """All rules there are, with their usual number of steps and with 1 to 6 where they take one; and polynomials."""
    chosen = list(_choices())
    records = []
    for done, (name, steps, rule) in enumerate(chosen):
        progress(done, len(chosen), name)
        records.append(_measure(name, steps, rule))
    return records


def _choices() -> Iterator[tuple[str, int | None, Rule]]:
    seen: list[Rule] = []
    for name in (name for name in RULES if name not in DEGREES):
        for steps in (*range(1, _MOST_STEPS + 1), None):
            with contextlib.suppress(RuleError):  # it takes another number of steps
                found = [make_rule(name, *interval, steps) for interval in _INTERVALS]
                rule = next((rule for rule in found if _holds(rule)), found[0])
                if rule not in seen:
                    seen.append(rule)
                    yield name, steps, rule
    yield from ((name, None, root_rule(*_INTERVALS[0], degree)) for name, degree in DEGREES.items())


def _holds(rule: Rule) -> bool:
    """Whether no value leaves the ring or the rule's own bounds."""
    try:
        plan_program(lambda session: _program(session, rule, (1,)))
    except RangeError:
        return False
    return bool(np.isfinite(_errors(rule)[1]).all())


def _program(session: Session, rule: Rule, shape: tuple[int, ...], t: Reals | None = None) -> Share:
    shared = session.private(CLIENT, shape, _FRACTION_T, rule.high, t)
    value = rule.square_root(session, shared) if _of_root(rule) else inverse_sqrt(session, shared, rule.inverse())
    return session.truncate_to(value, _FRACTION_Y)


def _of_root(rule: Rule) -> bool:
    """Whether it gives sqrt(t) alone."""
    return rule.stored_as == RootRule.stored_as


def _measure(name: str, steps: int | None, rule: Rule) -> RuleRecord:
    leaks = name == "paper"
    costs = {}
    for source in SOURCES.values():
        plan = cheapest_plan(lambda session: _program(session, rule, _SHAPE), source)
        costs[source.name] = RuleCost(plan.online_bytes, plan.rounds, source.offline_bytes(plan))
    t, error = _errors(rule)
    bins = np.array_split(np.arange(_POINTS), _SHOWN)
    curve = [(float(t[part[len(part) // 2]]), float(error[part].max())) for part in bins]
    return RuleRecord(
        rule=name,
        function="sqrt" if _of_root(rule) else "1/sqrt",
        steps=steps if steps is not None else rule.counted_steps,
        usual=_of_root(rule) or rule == make_rule(name, rule.low, rule.high),
        private=not leaks,
        low=rule.low,
        high=rule.high,
        elements=math.prod(_SHAPE),
        costs=costs,
        max_relative_error=float(error.max()),
        curve=[(float(f"{t:.4g}"), float(f"{error:.3g}")) for t, error in curve if math.isfinite(error)],
    )


def _errors(rule: Rule) -> tuple[Reals, Reals]:
    """By the fixed-point twin, point by point, so that one value out of its range does not hide the others."""
    t = np.exp(np.linspace(math.log(rule.low), math.log(rule.high), _POINTS))
    t = np.clip(np.rint(t * 2.0**_FRACTION_T) * 2.0**-_FRACTION_T, rule.low, rule.high)
    parts = []
    for piece in np.array_split(t, _SHOWN):
        session = TwinSession()
        try:
            y = _program(session, rule, piece.shape, piece)
            values = decode(y.flat(), y.fraction, y.width)
            root = values if _of_root(rule) else values * piece
            parts.append(np.abs(root / np.sqrt(piece) - 1.0))
        except RangeError:
            parts.append(np.full(piece.shape, np.inf))
    return t, np.concatenate(parts)
