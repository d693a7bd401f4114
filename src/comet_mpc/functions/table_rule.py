"""1/sqrt(t) and 1/t on an interval that is too wide for steps: read from public tables, or not at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from comet_mpc.engine import Session
from comet_mpc.engine.share import Share
from comet_mpc.errors import RuleError
from comet_mpc.functions.rule import InverseRule

WIDEST = 2.0**22
"""Of an interval: high over low. Two tables of 2^14 cells do it."""
_ERROR = 2.0**-7


@dataclass(frozen=True)
class TableRule(InverseRule):
    """gain/sqrt(t) for t in [low, high], by tables only (`row_table`): whatever they hold is as exact as `error`."""

    low: float
    high: float
    gain: float = 1.0

    stored_as: ClassVar[str] = "table"
    certified = True
    only_tables = True
    fraction_y = 14

    def __call__(self, t: Any) -> Any:
        """Below the interval it stays what it is at the low end, as tables do."""
        return self.gain / t.clip(self.low) ** 0.5

    @property
    def of_rows(self) -> bool:
        return True

    @property
    def error(self) -> float:
        return _ERROR

    @property
    def rounding(self) -> float:
        return 0.0

    @property
    def overshoot(self) -> float:
        return 1.0 + _ERROR

    def check(self) -> None:
        if not 0.0 < self.low < self.high < math.inf or self.high / self.low > WIDEST or not 0.5 <= self.gain <= 2.0:
            raise RuleError(f"there is no table for the interval [{self.low:g}, {self.high:g}]")

    def inverse_of(self, session: Session, t: Share) -> Share:
        raise RuleError(
            f"{session.here}: the interval [{self.low:g}, {self.high:g}] is too wide for steps: it needs a source of "
            "randomness with tables"
        )
