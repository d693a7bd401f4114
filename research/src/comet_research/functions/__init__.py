"""Functions and rules of other systems and of the paper, to compare with. The rules are registered by their names.

paper, exponential, taylor7, taylor2   a guess and plain Newton steps (`newton_rule`)
table                                  the top bit, a power of two and a guess from tables (`table_rule`)
reference                              minimax with as many steps as the fixed point has use for
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from comet_mpc.functions.inverse_rule import MinimaxRule
from comet_mpc.functions.minimax import make_minimax
from comet_mpc.functions.rule import Wanted
from comet_mpc.functions.rules import register
from comet_research.functions.newton_rule import ITERATIONS, NewtonRule
from comet_research.functions.table_rule import TableRule


def _reference(wanted: Wanted) -> MinimaxRule:
    return make_minimax(replace(wanted, steps=wanted.steps or 8, emphasis=0.0))


register(NewtonRule, {name: partial(NewtonRule.make, name) for name in ITERATIONS})
register(TableRule, {"table": TableRule.make})
register(MinimaxRule, {"reference": _reference})
