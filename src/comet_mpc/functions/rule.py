"""What a rule is: public numbers by which sqrt(t) or 1/sqrt(t) is computed on an interval, and all they promise.

A rule is asked for everything that anybody wants to know of it, and nobody asks which rule it is:

    interval      low, high; what is above is refused (`check_argument`)
    plain value   root(t), and for an `InverseRule` rule(t): on arrays of numpy or torch, by one text
    on shares     square_root, activate; for an `InverseRule` inverse_sqrt
    bounds        root_error, root_rounding; for an `InverseRule` overshoot
    certificate   certified, check
    checkpoint    stored_as; its fields are what is stored, so it is a frozen dataclass

`rules` lists the rules by their names. A new rule is a subclass in a file of its own, its test, and a line there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Opened, Session
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.ring import WORD, Ring
from comet_mpc.engine.share import Share, ring_width
from comet_mpc.errors import RangeError, RuleError

Reals = npt.NDArray[np.float64]

X, T, Y, K = variables("x t y k")

PRECISION = 13
"""Fraction bits of t, where there is room for them, unless a model's answers feel the rounding of its neurons."""
SPARE = 12
"""Fraction bits for a public real factor."""
FRACTION_X = 14
"""Fraction bits with which x enters the square root's argument: for |x| <= 1, what a ring of 32 bits holds."""


@dataclass(frozen=True)
class Smu:
    """smu(x) = (1+α)/2·x + ½·sqrt(φ·x² + μ²), a smooth max(x, α·x).

    φ is (1-α)², as max(x, α·x) = ½((1+α)·x + |(1-α)·x|) demands; `paper_factor` takes the paper's (1-α). They agree at
    α = 0. μ is one number, or one for every neuron (last axis).
    """

    mu: float | tuple[float, ...]
    alpha: float = 0.0
    paper_factor: bool = False

    @property
    def factor(self) -> float:
        return (1.0 - self.alpha) if self.paper_factor else (1.0 - self.alpha) ** 2

    def largest_argument(self, bound: float) -> float:
        """Of t = φ·x² + μ² for |x| <= bound."""
        return self.factor * bound**2 + float(np.max(np.square(self.mu)))

    def __call__(self, x: npt.ArrayLike, rule: Rule | None = None) -> Reals:
        """In real arithmetic: by a rule, or exactly."""
        real = np.asarray(x, dtype=np.float64)
        t = self.factor * real**2 + np.square(self.mu)
        root = t * plain_inverse_sqrt(t, None) if rule is None else rule.root(t)
        return np.asarray(0.5 * (1.0 + self.alpha) * real + 0.5 * root)


@dataclass(frozen=True)
class Wanted:
    """What a rule is made for (`rules.make_rule`). A maker takes what concerns it."""

    low: float
    high: float
    steps: int | None = None
    """None: the usual number."""
    root: bool = False
    """Whether sqrt(t) is wanted, and not 1/sqrt(t)."""
    beside: float | None = None
    """The largest number that is added to the root before it is truncated (as large as the root if not given)."""
    emphasis: float = 0.0
    """What is made small: the relative error of 1/sqrt(t), times t^emphasis."""
    floor: float = 0.0
    """t is never below it."""
    gain: float = 1.0
    """gain/sqrt(t) is wanted."""
    precision: int = PRECISION
    """Fraction bits of t, where there is room for them."""


class Rule(ABC):
    """sqrt(t) for t in [low, high]."""

    low: float
    high: float
    stored_as: ClassVar[str] = ""
    """The name under which a checkpoint stores it; none: no checkpoint does."""
    certified: ClassVar[bool] = False
    """Whether ranges and errors are proved: only then may it serve."""
    cuts_argument: ClassVar[bool] = False
    """Whether `activate` takes an x of many fraction bits into a ring of its own, where rings are odd."""

    @property
    def counted_steps(self) -> int | None:
        """How many steps it takes, the start among them; None: it has none to count."""
        return None

    @property
    def precision(self) -> int:
        """Fraction bits of t where it is opened, if an answer may feel them; 0: it does not."""
        return 0

    @property
    def unit(self) -> float:
        """What t is rounded to there; 0: nothing to speak of."""
        return 0.0

    @property
    def ratio(self) -> float:
        return self.high / self.low

    def inverse(self) -> InverseRule:
        """The rule itself, where 1/sqrt(t) is needed."""
        raise RuleError("Expected a 1/sqrt rule, found a sqrt rule.")

    # In real arithmetic, on arrays of numpy or torch -------------------------------------------------------

    @abstractmethod
    def root(self, t: Any) -> Any:
        """sqrt(t) by the rule. Out of place, so that torch can differentiate it."""

    def root_and_slope(self, t: Any) -> tuple[Any, Any] | None:
        """sqrt(t) and its derivative by t. None: it is left to torch, which takes longer."""
        return None

    # What it guarantees ----------------------------------------------------------------------------------------

    @property
    def stable_top(self) -> float:
        """The largest t for which nothing leaves the ring."""
        return self.high

    @property
    def error(self) -> float:
        """The largest relative error of what it gives over the interval, in real arithmetic."""
        return math.inf

    @property
    def root_error(self) -> float:
        """max |root - sqrt(t)| / sqrt(high) over the interval, in real arithmetic."""
        return math.inf

    @property
    def root_rounding(self) -> float:
        """What fixed point adds to `root_error` at most."""
        return math.inf

    def check(self) -> None:
        """Raises RuleError unless the numbers are a rule: for one that comes from a file."""
        raise RuleError("nothing is proved of this rule")

    def check_argument(self, session: Session, bound: float) -> None:
        """Refuses a t that could leave the stable range."""
        if bound > self.stable_top:
            raise RangeError(
                f"{session.here}: t may reach {bound:g}, but the rule for [{self.low:g}, {self.high:g}] is stable only "
                f"up to {self.stable_top:g}: certify a smaller bound or widen the interval"
            )

    # On shares -------------------------------------------------------------------------------------------------

    @abstractmethod
    def square_root(self, session: Session, t: Share) -> Share:
        """sqrt(t), not truncated yet."""

    def added(self, top: float) -> float:
        """What it adds to a t of at most `top`, for which the ring must have room."""
        return 0.0

    def activate(self, session: Session, x: Share, form: Smu) -> Share:
        """smu(x), not truncated yet."""
        root = self.root_of_square(session, x, form)
        half = times_real(x, 0.5 * (1.0 + form.alpha))
        whole = max(half.fraction, root.fraction + 1)
        return half.lift(whole) + root.times_power(-1).lift(whole)

    def root_of_square(self, session: Session, x: Share, form: Smu) -> Share:
        """sqrt(φ·x² + μ²), not truncated, by way of a shared t = φ·x² + μ²."""
        spare = 0 if form.factor == 1.0 else SPARE
        bits = min(x.fraction, FRACTION_X if not spare else FRACTION_X - 2)
        top = form.largest_argument(x.bound)
        narrow = ring_width(2 * bits + spare, top + self.added(top))
        opened = session.open(session.truncate_to(x, bits, min(x.width, narrow)))
        square = session.evaluate(
            form.factor * X**2, {"x": opened}, fraction=2 * bits + spare, bound=form.factor * opened.bound**2
        )
        return self.square_root(session, square + session.constant(np.square(form.mu), square.fraction, square.width))


class InverseRule(Rule):
    """gain/sqrt(t) for t in [low, high], and so sqrt(t) = t·(1/sqrt(t))."""

    gain: float
    """A public constant of what comes next, included for free."""
    fraction_y: int
    """Fraction bits of y where it is opened."""
    only_tables: ClassVar[bool] = False
    """Whether it has no steps, and a table must stand for it."""

    def inverse(self) -> InverseRule:
        return self

    def __call__(self, t: Any) -> Any:
        """gain/sqrt(t) by the rule, in real arithmetic; exactly, unless the rule says how."""
        return self.gain / t**0.5

    def root(self, t: Any) -> Any:
        return t * self(t)

    @property
    def exact_top(self) -> float:
        """Above it, where no value is expected, y is only never too large."""
        return self.high

    @property
    def table_above(self) -> float | None:
        """What y·sqrt(t)/gain of a table in its place may be above 1, if it is more than usual."""
        return None

    @property
    def of_rows(self) -> bool:
        """Whether it is as exact as rows need it, and no more: then a table may stand for it (`row_table`)."""
        return False

    @property
    def rounding(self) -> float:
        """What fixed point adds to `error` at most."""
        return math.inf

    @property
    @abstractmethod
    def overshoot(self) -> float:
        """y·sqrt(t)/gain is at most this, rounding included; less below the interval."""

    def ring(self, session: Session) -> Ring:
        """The ring of t and of every y."""
        return Ring(WORD)

    @abstractmethod
    def inverse_of(self, session: Session, t: Share) -> Share:
        """y ≈ gain/sqrt(t), not truncated yet."""

    def inverse_sqrt(self, session: Session, t: Share, keep: Opened | None = None) -> Share:
        """The same, times bits that say what is kept."""
        y = self.inverse_of(session, t)
        if keep is None:
            return y
        return session.evaluate(Y * K, {"y": session.reopen(y, self.fraction_y), "k": keep}, bound=y.bound)

    def square_root(self, session: Session, t: Share) -> Share:
        y = session.reopen(inverse_sqrt(session, t, self), self.fraction_y)
        return session.evaluate(T * Y, {"t": session.reopen(t, 16), "y": y}, bound=4.0 * np.sqrt(t.bound))


def inverse_sqrt(session: Session, t: Share, rule: InverseRule, *, keep: Opened | None = None) -> Share:
    """y ≈ gain/sqrt(t) for t in the rule's interval, not truncated yet. Reveals nothing.

    keep: bits that y is multiplied with, in the last step and at no round: 0 where a row is padding
    """
    with session.part("inverse_sqrt"):
        return rule.inverse_sqrt(session, t, keep)


def plain_inverse_sqrt(t: Reals, rule: InverseRule | None) -> Reals:
    """In real arithmetic, by a rule, or without one exactly."""
    return np.asarray(1.0 / np.sqrt(t) if rule is None else rule(t))


def times_real(x: Share, factor: float) -> Share:
    """x times a public real: exact for a power of two, else with SPARE more fraction bits."""
    mantissa, exponent = np.frexp(factor)
    if mantissa == 0.5:
        return x.times_power(int(exponent) - 1)
    return x.times(round(factor * 2**SPARE)).times_power(-SPARE)


def polynomial_value(coefficients: Sequence[float], tau: Any) -> Any:
    """Σ c_i·τ^i."""
    y = 0.0 * tau + coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        y = y * tau + coefficient
    return y


def polynomial_and_slope(coefficients: Sequence[float], tau: Any) -> tuple[Any, Any]:
    """Σ c_i·τ^i and its derivative."""
    y, slope = 0.0 * tau + coefficients[-1], 0.0 * tau
    for coefficient in reversed(coefficients[:-1]):
        slope *= tau
        slope += y
        y *= tau
        y += coefficient
    return y, slope
