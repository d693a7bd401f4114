"""Private numbers of the server's that are added to shares: nothing is sent, and nobody learns them."""

from __future__ import annotations

from dataclasses import dataclass, field

from comet_mpc.engine import Session
from comet_mpc.engine.share import SERVER, Reals, Share


@dataclass(frozen=True, eq=False)
class Constants:
    """Numbers that are known to the server alone, and what all of them are within.

    values  None at the client and in a plan
    """

    shape: tuple[int, ...]
    bound: float
    values: Reals | None = field(default=None, repr=False)

    def part(self, which: int) -> Constants:
        """Those of one place in the last axis, which keeps the length 1."""
        values = None if self.values is None else self.values[..., which : which + 1]
        return Constants((*self.shape[:-1], 1), self.bound, values)

    def added_to(self, session: Session, x: Share) -> Share:
        """x + c, in x's own scale and ring."""
        return x + session.private(SERVER, self.shape, x.fraction, self.bound, self.values, x.ring)
