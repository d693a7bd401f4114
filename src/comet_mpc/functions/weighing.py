"""How much weight a score gets in attention: R >= 0 of a score s, behind one protocol, `Weighing`.

    SmuWeighing   R = smu(s/scale)^p, the root by a public rule
    Quartic       R = (((s + b)/2)² + g)², b and g of the server's, for every head
    Eighth        R = ((((s + b)/2)² + g)² + h)², and h

Weights are R_ij/Σ_j R_ij, so R itself has no scale: of (a·s + b)² + g only b/a and g/a² matter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from comet_mpc.engine import Session
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.share import Share
from comet_mpc.errors import RangeError, RuleError
from comet_mpc.functions.activation import smu
from comet_mpc.functions.constants import Constants
from comet_mpc.functions.rule import Reals, Rule, Smu, times_real

S = variables("s")[0]

SCORE = 14
"""Fraction bits of s for smu, and of normalised queries and keys."""
_ACTIVATED = 14
LARGEST_ACTIVATED = 1.12
"""smu(s) for |s| <= 1, the rule's error included."""

_UNIT = 1.0 + 2.0**-8
_OPENED = 15
"""Fraction bits of what a quartic squares. Rows whose R are far below its top keep some, and so do odd rings."""
_BETWEEN = 14
"""The same of what is squared between the first and the last square."""
LARGEST_OFFSET = 0.25
"""|g| and |h|."""


class Weighing(ABC):
    """R of a score."""

    top: float
    """R at most."""
    score_bound: float
    """|s| for every input."""
    constants = 0
    """Private numbers of a head, beside its threshold."""
    finer = 1
    """Fraction bits that matter of ΣR, beyond those of the numerator."""

    @property
    @abstractmethod
    def bits(self) -> range:
        """Fraction bits of R: as many of them as the narrowest ring has room for."""

    @property
    @abstractmethod
    def numerator(self) -> int:
        """Fraction bits of what is divided by ΣR."""

    @property
    def reciprocal(self) -> int:
        """Fraction bits of what R·V is multiplied by, 1 over the mean of R."""
        return 22

    @property
    @abstractmethod
    def precision(self) -> int:
        """Fraction bits that matter of a score."""

    @abstractmethod
    def __call__(self, s: Reals, constants: Reals | None, *, exact: bool = False) -> Reals:
        """In real arithmetic, by public rules or exactly. constants: (heads, constants)"""

    @abstractmethod
    def on_shares(self, session: Session, s: Share, constants: Constants | None, fraction: int, width: int) -> Share:
        """R with so many fraction bits in a ring Z_2^width. constants: (heads, 1, 1)"""


@dataclass(frozen=True)
class SmuWeighing(Weighing):
    """smu(s/scale)^power."""

    power: int
    smu: Smu
    rule: Rule
    score_bound: float
    scale: float = 0.0
    """0: the score's bound."""

    top = LARGEST_ACTIVATED**2
    smallest_mean: ClassVar[float] = 2.0**-14
    """Of a row's R: below it, less accurate."""

    @property
    def bits(self) -> range:
        return range(20, 23)

    @property
    def numerator(self) -> int:
        return 26

    @property
    def precision(self) -> int:
        return SCORE - 1 if self.score_scale == 2.0 else SCORE

    @property
    def score_scale(self) -> float:
        return self.scale or self.score_bound

    def __call__(self, s: Reals, constants: Reals | None, *, exact: bool = False) -> Reals:
        return self.smu(s / self.score_scale, None if exact else self.rule) ** self.power

    def on_shares(self, session: Session, s: Share, constants: Constants | None, fraction: int, width: int) -> Share:
        """Opens s, what the rule opens, and smu(s) if it is squared."""
        top = self.score_bound * _UNIT
        scaled = times_real(s.bounded(top), 1.0 / self.score_scale).bounded(top / self.score_scale)
        cut = scaled if session.odd and self.rule.cuts_argument else session.truncate_to(scaled, SCORE)
        squared = session.ring(self.power * _ACTIVATED, self.top if self.power > 1 else 4.0)
        activated = smu(session, cut, self.smu, self.rule, fraction=_ACTIVATED, width=squared)
        return self._powered(session, activated.bounded(LARGEST_ACTIVATED), fraction, width)

    def _powered(self, session: Session, activated: Share, fraction: int, width: int) -> Share:
        if self.power == 1:
            whole = not activated.modulus and activated.width >= width
            return (activated if whole else session.truncate(activated, 0, width)).lift(fraction).narrow(width)
        opened = {"s": session.open(activated)}
        power = session.evaluate(S**self.power, opened, fraction=self.power * _ACTIVATED, bound=self.top)
        return session.truncate(power, power.fraction - fraction, width)


@dataclass(frozen=True)
class Squares(Weighing):
    """((((s + b)/2)² + g)² + …)², with one square or two after the first, for |s + b| <= 2: b is in the thresholds,
    g and what follows in `constants`.

    top: what the heads' own numbers allow R to be, a power of two. Fraction bits are counted from there.
    """

    top: float = 1.0

    score_bound = 2.0
    least_exponent: ClassVar[float]
    """Of means of a row's R, relative to their top: the interval is 2^-that wide."""
    by_tables: ClassVar[bool] = False
    """Whether that is too wide for steps, so that tables must do it."""
    _bits_below: ClassVar[int]
    """Fraction bits of R below its top, at least."""
    _middle_bits: ClassVar[int]
    """Of what is squared last, below its top."""

    @property
    def bits(self) -> range:
        least = self._bits_below - math.ceil(math.log2(self.top))
        return range(least, least + 3)

    @property
    def numerator(self) -> int:
        return self._bits_below + 5 - math.ceil(math.log2(self.top))

    @property
    def precision(self) -> int:
        return _OPENED - 1

    def __call__(self, s: Reals, constants: Reals | None, *, exact: bool = False) -> Reals:
        if constants is None:
            raise RuleError(f"scores by {self.constants + 1} squares need their constants")
        r = np.square(0.5 * s)
        for which in range(self.constants):
            r = np.square(r + constants[..., which : which + 1, None])
        return np.asarray(r)

    def on_shares(self, session: Session, s: Share, constants: Constants | None, fraction: int, width: int) -> Share:
        """Opens s, (s/2)² + g, and what follows. Reveals nothing."""
        if constants is None or constants.bound > LARGEST_OFFSET:
            raise RangeError(f"{session.here}: scores by squares need constants of at most {LARGEST_OFFSET:g}")
        half = s.bounded(self.score_bound * _UNIT).times_power(-1)
        opened = session.reopen(half, _OPENED, session.ring(2 * _OPENED, _UNIT**2 + LARGEST_OFFSET))
        r, largest = session.evaluate(S**2, {"s": opened}, bound=half.bound**2), half.bound**2 + LARGEST_OFFSET
        for which in range(self.constants):
            last, bits = which == self.constants - 1, _BETWEEN
            middle = constants.part(which).added_to(session, r).bounded(largest)
            if last:
                middle = middle.bounded(math.sqrt(self.top))
                # a small one has room for as many further bits
                bits = self._middle_bits + max(0, math.floor(-0.5 * math.log2(self.top)))
            top = self.top if last else middle.bound**2
            ring = session.ring(2 * bits, top if last else top + LARGEST_OFFSET)
            opened = session.reopen(middle, bits, ring)
            r, largest = session.evaluate(S**2, {"s": opened}, bound=top), top + LARGEST_OFFSET
        return session.truncate(r, r.fraction - fraction, width)


class Quartic(Squares):
    """(((s + b)/2)² + g)²."""

    constants = 1
    least_exponent = 15.3
    _bits_below = 22
    _middle_bits = _OPENED


class Eighth(Squares):
    """((((s + b)/2)² + g)² + h)²."""

    constants = 2
    least_exponent = 22.0
    by_tables = True
    finer = 5
    _bits_below = 24
    _middle_bits = _OPENED

    @property
    def reciprocal(self) -> int:
        """1 over a mean is at least 1 over the top, and typical means are far below that."""
        return max(2, 16 + math.ceil(math.log2(self.top)))


SQUARES: dict[int, type[Squares]] = {4: Quartic, 8: Eighth}
"""By the power of scores."""
