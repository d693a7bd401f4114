"""A rule for 1/sqrt(t): a few public numbers, and what they guarantee on a public interval.

A `MinimaxRule` evaluates y ≈ 1/sqrt(t) for t in [low, high] by

    start   y = c_0 + c_1·t + … + c_n·t^n    from one opening of t; n = 1 is one classical step, n = 4 stands for two
    step    y <- a·y - b·t·y³                one opening of y each, a and b chosen for this very step
            y <- a·y - b·t·y³ + c·t²·y⁵      the same of degree five, from a coarser t and y (`row_rule`)

The guess costs no communication (it is a polynomial in t), it is not the constant of plain Newton, and every number
is public and independent of the data. `minimax` and `row_rule` make such rules. Whatever made one, its errors, its
rounding and the range in which it is stable are computed here, from the numbers themselves.

A `WideRule` has no steps: its interval is too wide for them, and tables stand for it (`row_table`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from comet_mpc.engine import Opened, Session
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.ring import WORD, Ring
from comet_mpc.engine.share import Share
from comet_mpc.errors import RuleError
from comet_mpc.functions.fit import from_floor
from comet_mpc.functions.rule import InverseRule, Reals, polynomial_and_slope, polynomial_value

T, Y, K = variables("t y k")

RING_LIMIT = 62  # values in a ring of 64 bits stay below 2^62, where a truncation is exact
WIDEST = 2.0**24
"""Up to this one there are tables."""
_WIDEST_ROUGH = 2.0**28
"""The same of tables that err by a quarter."""
_ROUGH = 0.25
_ERROR = 2.0**-7
ABOVE = 2.0**-4
"""What y·sqrt(t) may be above 1 where no row is expected: there, y has few digits."""
_PROOF = 20_000  # points on which errors are bounded


@dataclass(frozen=True)
class RuleStep:
    """ŷ <- a·ŷ - 2^-shift·t·ŷ³, or a·ŷ - b·t·ŷ³ + 2^-shift·t²·ŷ⁵; of `fraction` bits before it is truncated."""

    a: float
    shift: int
    fraction: int
    bound: float
    """|ŷ| after the step, for every t from the floor to the stable top."""
    b: float = 0.0
    """0: the step is cubic."""
    fraction_t: int = 0
    """Fraction bits of t in this step; 0: the rule's."""
    fraction_y: int = 0
    """The same of ŷ, where it is opened for this step."""

    def __call__(self, tau: Any, y: Any) -> Any:
        """In real arithmetic, of arrays of any library."""
        square, last = tau * y**2, 2.0**-self.shift
        return y * (self.a - square * (self.b - last * square if self.b else last))

    def with_slope(self, tau: Any, y: Any, slope: Any) -> tuple[Any, Any]:
        """The same and its derivative by τ, from y and its own."""
        square, last = tau * y**2, 2.0**-self.shift
        b, c = (self.b, last) if self.b else (last, 0.0)
        outer = self.a - square * (3.0 * b - 5.0 * c * square)
        inner = y**3 * (b - 2.0 * c * square)
        return self(tau, y), outer * slope - inner


@dataclass(frozen=True)
class MinimaxRule(InverseRule):
    """y ≈ 1/sqrt(t) for t in [low, high]. Made by `minimax_rule`; all numbers are public."""

    low: float
    high: float
    floor: float
    """t is never below it."""
    exponent: int
    """Even; τ = t·2^-exponent is between 1/2 and 2 at the interval's top."""
    fraction_t: int
    fraction_y: int
    start: tuple[float, ...]
    start_fraction: int
    start_bound: float
    steps: tuple[RuleStep, ...]
    gain: float
    """The rule gives gain/sqrt(t): a public constant of what comes next, included for free."""
    root_bound: float
    """|τ·ŷ| at the end, for every t from the floor to the stable top."""
    start_t: int = 0
    """Fraction bits of τ in the start; 0: as in the steps."""

    stored_as = "rule"
    certified = True

    @property
    def counted_steps(self) -> int:
        return 1 + len(self.steps)

    @property
    def of_rows(self) -> bool:
        return self.start_t > 0

    def normalised(self, t: Any) -> Any:
        """gain/sqrt of τ itself, by the rule, in real arithmetic: what the protocol computes but for rounding."""
        return self._trace(t * 2.0**-self.exponent)[-1]

    def __call__(self, t: Any) -> Any:
        return self.normalised(t) * 2.0 ** (-self.exponent // 2)

    def root_and_slope(self, t: Any) -> tuple[Any, Any]:
        tau, scale = t * 2.0**-self.exponent, 2.0 ** (self.exponent // 2)
        y, slope = polynomial_and_slope(self.start, tau)
        for step in self.steps:
            y, slope = step.with_slope(tau, y, slope)
        return tau * y * scale, (slope * tau + y) / scale

    def _trace(self, tau: Any) -> list[Any]:
        values = [polynomial_value(self.start, tau)]
        for step in self.steps:
            values.append(step(tau, values[-1]))
        return values

    def bits_of_t(self, step: RuleStep | None) -> int:
        """Fraction bits of τ as a step takes it, or the start (None)."""
        return (self.start_t if step is None else step.fraction_t) or self.fraction_t

    def bits_of_y(self, step: RuleStep) -> int:
        """Fraction bits of ŷ as a step takes it."""
        return step.fraction_y or self.fraction_y

    def check(self) -> None:
        """Raises RuleError unless the numbers are a rule: for one that comes from a file and not from `minimax_rule`.

        From the floor to the top no value leaves its bound, and what is truncated fits the ring. Errors, rounding and
        the stable range need no check: they are computed from the numbers themselves.
        """
        sizes = [self.fraction_t, self.fraction_y, self.bits_of_t(None), self.start_fraction]
        for step in self.steps:
            sizes += [step.fraction, self.bits_of_t(step), self.bits_of_y(step)]
        if not 0.0 <= self.floor <= self.low < self.high < math.inf or not 0.5 <= self.gain <= 2.0:
            raise RuleError(f"the interval [{self.low:g}, {self.high:g}] or the gain {self.gain:g} is not valid")
        if self.exponent % 2 or not self.start or not all(1 <= size <= RING_LIMIT for size in sizes):
            raise RuleError("a rule's exponent or fraction bits are not valid")
        tau = from_floor(self.floor, self.low, self.high) * 2.0**-self.exponent
        with np.errstate(over="ignore", invalid="ignore"):
            trace = self._trace(tau)
        bounds = [self.start_bound, *(step.bound for step in self.steps)]
        for y, bound in zip(trace, bounds, strict=True):
            if not float(np.max(np.abs(y))) <= bound:
                raise RuleError("a rule's values leave the bounds that it states")
        for step in self.steps:
            degree = 2 if step.b else 1  # in t
            least = degree * self.bits_of_t(step) + (2 * degree + 1) * self.bits_of_y(step) + max(0, step.shift)
            if step.fraction != least or not step.bound * 2.0**step.fraction < 2.0**RING_LIMIT:
                raise RuleError("a rule's step does not fit into a ring of 64 bits")
        if not float(np.max(np.abs(tau * trace[-1]))) <= self.root_bound:
            raise RuleError("a rule's root leaves the bound that it states")

    @cached_property
    def _proof_grid(self) -> Reals:
        return np.geomspace(self.low, self.high, _PROOF) * 2.0**-self.exponent

    @cached_property
    def error(self) -> float:
        """max |y·sqrt(t)/gain - 1| over the interval, in real arithmetic."""
        tau = self._proof_grid
        return _peak(np.sqrt(tau) * self._trace(tau)[-1] / self.gain - 1.0)

    @cached_property
    def root_error(self) -> float:
        """max |t·y/gain - sqrt(t)| / sqrt(high) over the interval, in real arithmetic."""
        tau = self._proof_grid
        top = math.sqrt(self.high * 2.0**-self.exponent)
        return _peak(tau * self._trace(tau)[-1] / self.gain - np.sqrt(tau)) / top

    @cached_property
    def _rounding_of_y(self) -> Reals:
        """What one unit of every opened ŷ does to the last one, at most and to first order."""
        tau = self._proof_grid
        unit = 2.0**-self.fraction_y
        gathered = np.full_like(tau, unit if self.steps else 2.0**-self.start_fraction)
        for step, y in zip(self.steps, self._trace(tau), strict=False):
            slope = np.abs(step.a - 3.0 * 2.0**-step.shift * tau * y**2)
            curvature = 3.0 * 2.0**-step.shift * tau * np.abs(y) * gathered
            gathered = (slope + curvature) * gathered + (unit if step is not self.steps[-1] else 0.0)
        return gathered

    @cached_property
    def rounding(self) -> float:
        """What fixed point adds to `error` at most, to first order: one unit of t, one of every opened ŷ."""
        if self.start_t:
            inside = self._rounded_grid >= self._proof_grid[0]
            root = np.sqrt(self._rounded_grid[inside]) / self.gain
            return max(0.0, *(_highest(np.abs(root * y[inside] - 1.0)) - self.error for y in self._rounded))
        tau = self._proof_grid
        relative_t = 0.5 * 2.0**-self.fraction_t / tau
        relative_y = self._rounding_of_y * np.sqrt(tau) / self.gain
        return float(np.max(relative_y + relative_t * (1.0 + self.error) / (1.0 - 2 * relative_t)))

    @property
    def _rounded_grid(self) -> Reals:
        """Also below the interval, where y·sqrt(t) must not be too large."""
        low, high = self.low * 2.0**-self.exponent, self.high * 2.0**-self.exponent
        return np.geomspace(low / 64.0, high, _PROOF // 5)

    @cached_property
    def _rounded(self) -> tuple[Reals, Reals]:
        """The least and the largest that the last ŷ can be, every t and ŷ being off by up to a unit as it is opened."""
        tau = self._rounded_grid[:, None]
        off = units_off(tau, float(tau[-1, 0]))
        y = polynomial_value(self.start, tau + np.linspace(-1.0, 1.0, 5) * off * 2.0 ** -self.bits_of_t(None))
        bounds = [self.start_bound, *(step.bound for step in self.steps)]
        for step, bound in zip(self.steps, bounds, strict=False):
            unit = 2.0 ** -self.bits_of_y(step)
            least, largest = (ends[:, None] for ends in (y.min(axis=1), y.max(axis=1)))
            least, largest = least - unit * units_off(least, bound), largest + unit * units_off(largest, bound)
            spread = (least + (largest - least) * np.linspace(0.0, 1.0, 9))[:, :, None]
            moved = (tau + np.array([-1.0, 0.0, 1.0]) * off * 2.0 ** -self.bits_of_t(step))[:, None, :]
            y = step(moved, spread).reshape(len(tau), -1)
        return y.min(axis=1), y.max(axis=1)

    @cached_property
    def overshoot(self) -> float:
        """y·sqrt(t)/gain is at most this, rounding included; less below the interval."""
        if not self.start_t:
            return 1.0 + self.error + self.rounding
        return max(1.0, _highest(np.sqrt(self._rounded_grid) * self._rounded[1] / self.gain))

    @cached_property
    def root_rounding(self) -> float:
        """The same for `root_error`."""
        tau = self._proof_grid
        root = tau * self._trace(tau)[-1]
        moved = np.abs(np.gradient(root, tau)) * 2.0**-self.fraction_t + tau * self._rounding_of_y
        return float(np.max(moved)) / (self.gain * math.sqrt(self.high * 2.0**-self.exponent))

    @cached_property
    def stable_top(self) -> float:
        """Up to here no intermediate value leaves the bounds that the ring was planned for, and y stays positive."""
        tops = self.high * np.linspace(1.0, 4.0, 3001)
        with np.errstate(over="ignore", invalid="ignore"):
            trace = self._trace(tops * 2.0**-self.exponent)
        bounds = [self.start_bound, *(step.bound for step in self.steps)]
        fine = np.all([np.abs(y) <= bound for y, bound in zip(trace, bounds, strict=True)], axis=0)
        fine &= trace[-1] > 0
        broken = np.flatnonzero(~fine)
        return float(tops[broken[0] - 1] if broken.size else tops[-1]) if not broken.size or broken[0] else self.high

    # On shares -------------------------------------------------------------------------------------------------

    def ring(self, session: Session) -> Ring:
        sizes = [(self.start_fraction, self.start_bound), *((step.fraction, step.bound) for step in self.steps)]
        ring = session.ring(0, max(bound * 2.0**fraction for fraction, bound in sizes))
        return ring if ring.modulus else Ring(WORD)

    def inverse_of(self, session: Session, t: Share) -> Share:
        return self.inverse_sqrt(session, t)

    def inverse_sqrt(self, session: Session, t: Share, keep: Opened | None = None) -> Share:
        """Opens t and one y per step after the start. Relative error at most error + rounding. Reveals nothing."""
        return self._last(session, _Arguments(session, t, self, self.ring(session)), keep=keep)

    def square_root(self, session: Session, t: Share) -> Share:
        """sqrt(t) = t·(1/sqrt(t)), from one opening of t. Reveals nothing.

        With a dealer, t is fused with the last step, so that its y need not be opened. Two parties alone open it: two
        rounds more, and less randomness, since monomials of two large tensors are what costs them most.
        """
        self.check_argument(session, t.bound)
        tau = session.reopen(t.times_power(-self.exponent), self.fraction_t, WORD)
        if session.fused or not self.steps:
            return self._last(session, lambda bits: tau, root=True)
        y = self._last(session, lambda bits: tau).times_power(self.exponent // 2)
        opened = {"t": tau, "y": session.reopen(y, self.fraction_y, tau.ring)}
        return session.evaluate(T * Y, opened, bound=self.root_bound).times_power(self.exponent // 2)

    def _last(
        self, session: Session, tau: Callable[[int], Opened], *, root: bool = False, keep: Opened | None = None
    ) -> Share:
        """The start and the steps; the last one times τ if the root is wanted, or times bits that say what is kept."""
        current: Polynomial = Polynomial({})
        for power, coefficient in enumerate(self.start):
            current = current + coefficient * T**power
        fraction, bound = self.start_fraction, self.start_bound
        opened = {"t": tau(self.bits_of_t(None))}
        for step in self.steps:
            y = session.evaluate(current, opened, fraction=fraction, bound=bound)
            y_opened = session.reopen(y, self.bits_of_y(step), opened["t"].ring)
            opened = {"t": tau(self.bits_of_t(step)), "y": y_opened}
            current = step.a * Y - (step.b or 2.0**-step.shift) * T * Y**3
            if step.b:
                current = current + 2.0**-step.shift * T**2 * Y**5
            fraction, bound = step.fraction, step.bound
        if root:
            current, fraction, bound = current * T, fraction + self.fraction_t, self.root_bound
        if keep is not None:
            current, opened = current * K, {**opened, "k": keep}
        value = session.evaluate(current, opened, fraction=fraction, bound=bound)
        return value.times_power(self.exponent // 2 if root else -self.exponent // 2)


class _Arguments:
    """τ as the stages of a rule take it, opened with their bits: the start's at once, the others' along with others."""

    def __init__(self, session: Session, t: Share, rule: MinimaxRule, ring: Ring) -> None:
        rule.check_argument(session, t.bound)
        tau, first = t.times_power(-rule.exponent), rule.bits_of_t(None)
        more = dict.fromkeys(bits for step in rule.steps if (bits := rule.bits_of_t(step)) != first)
        self._later = {bits: session.reopen_later(tau, bits, ring) for bits in more}
        self._first = session.reopen(tau, first, ring)

    def __call__(self, bits: int) -> Opened:
        return self._later[bits].result() if bits in self._later else self._first


def _peak(error: Reals) -> float:
    """The largest |error| of a smooth function sampled on a fine grid, plus what it can rise between two samples: an
    eighth of its second difference, of which the whole is added."""
    return float(np.max(np.abs(error)) + np.max(np.abs(np.diff(error, n=2)), initial=0.0))


def units_off(values: Reals, bound: float) -> Reals:
    """By how many units a number up to `bound` may be off, once it is truncated out of or into an odd ring.

    One, and in proportion to the number 1/8 at most, of a ring that just holds it (docs/explanation/numerics.md, odd
    rings); 1/9 where the bits have small products. Within Z_2^w it is one.
    """
    return np.asarray(1.0 + np.abs(values) / (8.0 * bound))


def _highest(values: Reals) -> float:
    """The largest value of a function with kinks, and half of what it moves from one sample to the next."""
    return float(np.max(values) + 0.5 * np.max(np.abs(np.diff(values))))


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
