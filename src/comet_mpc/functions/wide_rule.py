"""1/sqrt(t) on intervals that are too wide for steps: read from public tables alone (`row_table`).

Tops are proved for every input, so they are far above what occurs: a stream's, which grows by what is added to it, and
those of weights that are high powers of scores. A source of randomness needs point functions to serve such a rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from comet_mpc.engine import Session
from comet_mpc.engine.share import Share
from comet_mpc.errors import RuleError
from comet_mpc.functions.row_rule import ROW_ERROR, row_rule
from comet_mpc.functions.rule import InverseRule

_OF_STEPS = 2.0**16
"""Up to this ratio of an interval's ends there is a rule of steps."""
WIDEST = 2.0**24
"""Up to this one there are tables."""
_WIDEST_ROUGH = 2.0**28
"""The same of tables that err by a quarter."""
_ROUGH = 0.25
_ERROR = 2.0**-7
ABOVE = 2.0**-4
"""What y·sqrt(t) may be above 1 where no row is expected: there, y has few digits."""


@dataclass(frozen=True)
class WideRule(InverseRule):
    """gain/sqrt(t) for t in [low, high], by tables only."""

    low: float
    high: float
    gain: float = 1.0
    rough: bool = False
    """Whether it errs by a quarter."""
    throughout: bool = True
    """Whether it is exact up to the high end, which takes digits of y."""
    above: float = ABOVE
    """What y·sqrt(t) may be above 1 up to the high end."""

    exact: float = 2.0**9
    """Over the low end: beyond it no row is expected, unless it is exact throughout."""

    stored_as = "wide"
    certified = True
    only_tables = True
    fraction_y = 14

    def __call__(self, t: Any) -> Any:
        """Below the interval it stays what it is at the low end, as tables do."""
        return self.gain / t.clip(self.low) ** 0.5

    @property
    def exact_top(self) -> float:
        return self.high if self.rough or self.throughout else min(self.high, self.low * self.exact)

    @property
    def of_rows(self) -> bool:
        return True

    @property
    def error(self) -> float:
        return _ROUGH if self.rough else _ERROR

    @property
    def rounding(self) -> float:
        return 0.0

    @property
    def overshoot(self) -> float:
        """Up to `above` the table is held to that, else to its error."""
        return 1.0 + (self.error if self.throughout or self.rough else self.above)

    @property
    def table_above(self) -> float | None:
        return None if self.throughout else self.above

    def check(self) -> None:
        if (
            not 0.0 < self.low < self.high < math.inf
            or self.high / self.low > (_WIDEST_ROUGH if self.rough else WIDEST)
            or not 0.5 <= self.gain <= 2.0
            or not (2.0**-12 <= self.above <= ABOVE and 1.0 <= self.exact <= WIDEST)
        ):
            raise RuleError(f"there is no table for the interval [{self.low:g}, {self.high:g}]")

    def inverse_of(self, session: Session, t: Share) -> Share:
        raise RuleError(
            f"{session.here}: the interval [{self.low:g}, {self.high:g}] is too wide for steps: it needs a source of "
            "randomness with tables"
        )


def wide_rule(
    low: float,
    high: float,
    *,
    gain: float = 1.0,
    error: float = ROW_ERROR,
    rough: bool = False,
    throughout: bool = False,
) -> InverseRule:
    """By steps or tables where the interval is narrow enough for steps, else by tables."""
    if high / low <= _OF_STEPS:
        try:
            return row_rule(low, high, gain=gain, error=_ROUGH / 2.0 if rough else error)
        except RuleError:
            pass
    rule = WideRule(low, high, gain, rough, throughout)
    rule.check()
    return rule
