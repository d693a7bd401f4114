"""The rules there are, by name: how one is made for an interval, and which class a checkpoint stores.

    minimax                      steps of 1/sqrt with public coefficients fitted to an interval (`minimax`)
    linear, …, quintic           the root by one polynomial (`root_rule`)
                                 1/t of wide intervals by tables alone (`WideRule`), which nobody chooses by name

Other packages register theirs by the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from comet_mpc.errors import RuleError
from comet_mpc.functions.inverse_rule import MinimaxRule, WideRule
from comet_mpc.functions.minimax import make_minimax
from comet_mpc.functions.root_rule import DEGREES, RootRule, make_root
from comet_mpc.functions.rule import PRECISION, Rule, Wanted

Maker = Callable[[Wanted], Rule]

RULES: dict[str, Maker] = {}
"""By the name that a user gives."""
STORED: dict[str, type[Rule]] = {}
"""By the name under which a checkpoint stores them."""
SERVING: list[str] = []
"""Names of the rules that may serve."""


def register(rule: type[Rule], makers: Mapping[str, Maker]) -> None:
    """Makes a class of rules known, and the names by which they are made."""
    RULES.update(makers)
    if rule.stored_as:
        STORED[rule.stored_as] = rule
    if rule.certified:
        SERVING.extend(name for name in makers if name not in SERVING)


register(MinimaxRule, {"minimax": make_minimax})
register(WideRule, {})
register(RootRule, {name: partial(make_root, degree) for name, degree in DEGREES.items()})


def make_rule(
    name: str,
    low: float,
    high: float,
    steps: int | None = None,
    *,
    root: bool = False,
    beside: float | None = None,
    emphasis: float = 0.0,
    floor: float = 0.0,
    gain: float = 1.0,
    precision: int = PRECISION,
) -> Rule:
    """A rule by its name, for t in [low, high]; `Wanted` explains the rest."""
    if name not in RULES:
        raise RuleError(f"unknown rule {name!r}: choose one of {', '.join(RULES)}")
    if not 0.0 < low < high:
        raise RuleError(f"the interval [{low:g}, {high:g}] is empty or not positive")
    return RULES[name](Wanted(low, high, steps, root, beside, emphasis, floor, gain, precision))
