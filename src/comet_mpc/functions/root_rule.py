"""sqrt(t) by one polynomial in t with a constant term: the cheapest rule for activations and scores.

    sqrt(t) ≈ c_0 + c_1·t + … + c_n·t^n    for t in [low, high], n = 1 to 5

An activation and a score need sqrt(t) itself, not 1/sqrt(t), and a public constant costs nothing. Coefficients are
minimax: they make the largest |p(t) - sqrt(t)|·t^(emphasis - 1/2) over the interval as small as it can be, as in
`minimax`, where the root is t·y: emphasis 0 levels the relative error, 0.5 the absolute one.

Only the ratio of the interval's ends matters, so t is scaled by an even power of two to about 1, τ = t·2^-exponent. The
highest coefficient is rounded to a few bits, and those below it are fitted again to the rounded one. So the protocol
evaluates the very polynomial that was trained with, from an opening of t; a linear one from one of x.

Above the interval the error grows as a polynomial does, slowly: a quadratic bends down. `stable_top` says up to where
the root stays positive and in its bound; below the interval it is only less accurate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from comet_mpc.engine import Session
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import WORD, Share, ring_width
from comet_mpc.errors import RangeError, RuleError
from comet_mpc.functions.fit import GRID, chebyshev_fit, from_floor
from comet_mpc.functions.rule import (
    FRACTION_X,
    PRECISION,
    SPARE,
    Reals,
    Rule,
    Smu,
    Wanted,
    polynomial_and_slope,
    polynomial_value,
)

X, T = variables("x t")

DEGREES = {"linear": 1, "quadratic": 2, "cubic": 3, "quartic": 4, "quintic": 5}
"""Names of rules."""

_PROOF = 20_000  # points on which errors are bounded
_MARGIN = 1.25  # the bound on the root leaves room for values above the interval's top: the stable range
FINE_PRECISION = 15
"""`PRECISION` for a model whose answers feel the rounding of its neurons."""
_COARSEST = 8.0  # units of its rounding that the highest coefficient has at least
_FEWEST = 8  # fraction bits of t


@dataclass(frozen=True)
class RootRule(Rule):
    """p(t) ≈ sqrt(t) for t in [low, high]. Made by `root_rule`; all numbers are public."""

    low: float
    high: float
    floor: float
    """t is never below it."""
    exponent: int
    """Even; τ = t·2^-exponent is between 1/2 and 2 at the interval's top."""
    fraction_t: int
    """Fraction bits of τ, where it is opened."""
    fraction: int
    """Of p(τ) before it is truncated: c_i is a multiple of 2^(i·fraction_t - fraction)."""
    width: int
    """The ring in which τ is opened: it holds p(τ) and what is added to it."""
    coefficients: tuple[float, ...]
    """c_0, …, c_n of sqrt(τ)."""
    bound: float
    """|p(τ)| for every t from the floor to the stable top."""

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1

    stored_as = "root"
    certified = True
    cuts_argument = True

    @property
    def precision(self) -> int:
        return self.fraction_t

    @property
    def unit(self) -> float:
        return 2.0 ** (self.exponent - self.fraction_t)

    @property
    def grain(self) -> int:
        """Fraction bits of the highest coefficient."""
        return self.fraction - self.degree * self.fraction_t

    def root(self, t: Any) -> Any:
        return self._tau_root(t * 2.0**-self.exponent) * 2.0 ** (self.exponent // 2)

    def root_and_slope(self, t: Any) -> tuple[Any, Any]:
        root, slope = polynomial_and_slope(self.coefficients, t * 2.0**-self.exponent)
        return root * 2.0 ** (self.exponent // 2), slope * 2.0 ** (-self.exponent // 2)

    def _tau_root(self, tau: Any) -> Any:
        return polynomial_value(self.coefficients, tau)

    def check(self) -> None:
        """Raises RuleError unless the numbers are a rule: for one that comes from a file and not from `root_rule`.

        From the floor to the top the root keeps its bound and is not negative, and it fits the ring. Errors, rounding
        and the stable range need no check: they are computed from the numbers themselves.
        """
        if not 0.0 <= self.floor <= self.low < self.high < math.inf or self.exponent % 2:
            raise RuleError(f"the interval [{self.low:g}, {self.high:g}] or its exponent is not valid")
        if not 1 <= self.degree <= max(DEGREES.values()):
            raise RuleError(f"a root by a polynomial of degree {self.degree}: it must be 1 to {max(DEGREES.values())}")
        if not (1 <= self.fraction_t <= WORD and 1 <= self.fraction <= WORD and 8 <= self.width <= WORD):
            raise RuleError("a root rule's fraction bits or ring are not valid")
        if not 0.0 < self.bound * 2.0**self.fraction < 2.0 ** (self.width - 2):
            raise RuleError(f"a root rule's values do not fit into a ring of {self.width} bits")
        units = np.array([2.0 ** (i * self.fraction_t - self.fraction) for i in range(self.degree + 1)])
        if np.any(np.array(self.coefficients) % units != 0.0):
            raise RuleError("a root rule's coefficients have more bits than the ring")
        root = self._tau_root(from_floor(self.floor, self.low, self.high) * 2.0**-self.exponent)
        if not (float(np.max(root)) <= self.bound and float(np.min(root)) >= 0.0):
            raise RuleError("a root rule's values leave the bounds that it states")

    @cached_property
    def _proof_grid(self) -> Reals:
        return np.geomspace(self.low, self.high, _PROOF) * 2.0**-self.exponent

    def _peak(self, error: Reals) -> float:
        """The largest |error| on the grid, and what it can rise between two samples."""
        return float(np.max(np.abs(error)) + np.max(np.abs(np.diff(error, n=2))))

    @cached_property
    def error(self) -> float:
        """max |p(t)/sqrt(t) - 1| over the interval, in real arithmetic."""
        tau = self._proof_grid
        return self._peak(self._tau_root(tau) / np.sqrt(tau) - 1.0)

    @cached_property
    def root_error(self) -> float:
        """max |p(t) - sqrt(t)| / sqrt(high) over the interval, in real arithmetic."""
        tau = self._proof_grid
        return self._peak(self._tau_root(tau) - np.sqrt(tau)) / math.sqrt(float(tau[-1]))

    @cached_property
    def root_rounding(self) -> float:
        """What fixed point adds to `root_error` at most, to first order: one unit of t."""
        tau = self._proof_grid
        slope = np.polynomial.polynomial.polyval(tau, np.polynomial.polynomial.polyder(self.coefficients))
        return float(np.max(np.abs(slope))) * 2.0**-self.fraction_t / math.sqrt(float(tau[-1]))

    @cached_property
    def stable_top(self) -> float:
        """Up to here the root keeps the bound that the ring was planned for, and stays positive."""
        tops = self.high * np.linspace(1.0, 4.0, 3001)
        root = self._tau_root(tops * 2.0**-self.exponent)
        broken = np.flatnonzero((root > self.bound) | (root <= 0.0))
        if not broken.size:
            return float(tops[-1])
        return float(tops[broken[0] - 1]) if broken[0] else self.high

    # On shares -------------------------------------------------------------------------------------------------

    def square_root(self, session: Session, t: Share) -> Share:
        """sqrt(t) from one opening of t. Reveals nothing."""
        self.check_argument(session, t.bound)
        tau = session.reopen(t.times_power(-self.exponent), self.fraction_t, self.width)
        root = session.evaluate(self._polynomial(T), {"t": tau}, fraction=self.fraction, bound=self.bound)
        return root.times_power(self.exponent // 2)

    def activate(self, session: Session, x: Share, form: Smu) -> Share:
        """smu(x). Opens x and, from degree 2 on, t. Rounds 4, or 3; for degree 1 always 2. Reveals nothing."""
        ring = self._smu_ring(session, x, form)
        return self._in_odd_ring(session, x, form, ring) if ring.modulus else super().activate(session, x, form)

    def root_of_square(self, session: Session, x: Share, form: Smu) -> Share:
        """If the root is linear in x², from the opening of x alone."""
        if not self._linear_in_square(form):
            return super().root_of_square(session, x, form)
        self.check_argument(session, form.largest_argument(x.bound))
        scale = 2.0**-self.exponent
        bits = min(x.fraction, FRACTION_X)
        fraction = 2 * bits + self.grain
        width = max(ring_width(fraction, self.bound), ring_width(fraction + 1, self._smu_bound(x, form)))
        opened = session.open(session.truncate_to(x, bits, width))
        polynomial = self._polynomial(scale * form.factor * X**2 + scale * float(np.square(form.mu)))
        root = session.evaluate(polynomial, {"x": opened}, fraction=fraction, bound=self.bound)
        return root.times_power(self.exponent // 2)

    def _in_odd_ring(self, session: Session, x: Share, form: Smu, ring: Ring) -> Share:
        """smu(x), all of it in one odd ring, from the openings of x and, from degree 2 on, t.

        Monomials of the masks: x², and t², …, t^n.
        """
        top, bits = form.largest_argument(x.bound), min(x.fraction, self.fraction_t)
        self.check_argument(session, top)
        cut = session.cut_to(x, bits, ring, bits + self._spare_bits(x, form, ring))
        opened, bits = {"x": session.open(cut)}, cut.fraction
        half = 0.5 * (1.0 + form.alpha) * 2.0 ** (-self.exponent // 2)
        if self._linear_in_square(form):
            root = self._polynomial((form.factor * X**2 + np.square(form.mu)) * 2.0**-self.exponent)
        else:
            fraction = 2 * bits + (SPARE if form.factor != 1.0 else 0)
            square = session.evaluate(form.factor * X**2, opened, fraction=fraction, bound=form.factor * x.bound**2)
            t = session.add_constant(square, np.square(form.mu)).bounded(top)
            opened["t"] = session.reopen(t.times_power(-self.exponent), self.fraction_t, ring)
            root = self._polynomial(T)
        fraction, bound = self._smu_fraction(bits, form), self._smu_bound(x, form)
        value = session.evaluate(root * 0.5 + half * X, opened, fraction=fraction, bound=bound)
        return value.times_power(self.exponent // 2)

    def _smu_ring(self, session: Session, x: Share, form: Smu) -> Ring:
        """The ring that holds x² and smu(x), as `_in_odd_ring` computes them."""
        top, bits = form.largest_argument(x.bound), min(x.fraction, self.fraction_t)
        return session.ring(0, max(self._smu_bound(x, form) * 2.0 ** self._smu_fraction(bits, form), top * 4.0**bits))

    def _spare_bits(self, x: Share, form: Smu, ring: Ring) -> float:
        """More of x than `precision` for which the ring has room, with something to spare for roundings."""
        bits = min(x.fraction, self.fraction_t)
        largest: float = form.largest_argument(x.bound) * 4.0**bits
        if self._linear_in_square(form):
            largest = max(largest, self._smu_bound(x, form) * 2.0 ** self._smu_fraction(bits, form))
        return ring.room(largest) / 2 - 2.0**-4

    def _linear_in_square(self, form: Smu) -> bool:
        """Whether the root is a polynomial in x² that needs no opening of t."""
        return self.degree == 1 and isinstance(form.mu, float)

    def _smu_fraction(self, bits: float, form: Smu) -> float:
        """Fraction bits of smu(x) before it is truncated, in units of the scaled root. bits: of x"""
        return 1 + (2 * bits + self.grain if self._linear_in_square(form) else self.fraction)

    def _smu_bound(self, x: Share, form: Smu) -> float:
        """|smu(x)|, scaled as the root is."""
        return 0.5 * self.bound + 0.5 * (1.0 + form.alpha) * x.bound * 2.0 ** (-self.exponent // 2)

    def _polynomial(self, tau: Polynomial) -> Polynomial:
        total = Polynomial.of(self.coefficients[-1])
        for coefficient in reversed(self.coefficients[:-1]):
            total = total * tau + coefficient
        return total


@lru_cache(maxsize=256)
def root_rule(
    low: float,
    high: float,
    degree: int,
    *,
    emphasis: float = 0.25,
    beside: float | None = None,
    floor: float = 0.0,
    precision: int = PRECISION,
) -> RootRule:
    """The rule for an interval.

    emphasis   what is made small: |p(t) - sqrt(t)|·t^(emphasis - 1/2)
    beside     the largest number that is added to the root before it is truncated (as large as the root if not given)
    floor      t is never below it (0: not known)
    precision  fraction bits of t, where there is room for them
    """
    if not (math.isfinite(low) and math.isfinite(high) and 0.0 < low < high):
        raise RuleError(f"the interval [{low:g}, {high:g}] is empty or not positive")
    if degree not in DEGREES.values():
        raise RuleError(f"a root by a polynomial of degree {degree}: it must be 1 to {max(DEGREES.values())}")
    if not 0.0 <= floor <= low or not 0.0 <= emphasis <= 1.0:
        raise RuleError(f"floor {floor:g} must be in [0, low] and emphasis {emphasis:g} in [0, 1]")
    exponent = 2 * round(math.log2(high) / 2)
    taus = from_floor(floor, low, high) * 2.0**-exponent
    for fraction_t, grain in _precisions(taus, emphasis, degree, precision):
        coefficients = _fit(taus[-GRID:], emphasis, degree, grain, fraction_t)
        root = np.polynomial.polynomial.polyval(taus, coefficients)
        bound = _MARGIN * float(np.max(np.abs(root)))
        added = bound if beside is None else beside * 2.0 ** (-exponent // 2)
        fraction = degree * fraction_t + grain
        try:
            width = max(ring_width(fraction, bound), ring_width(fraction + 1, (bound + added) / 2.0))
        except RangeError:
            continue
        rule = RootRule(low, high, floor, exponent, fraction_t, fraction, width, coefficients, bound)
        rule.check()
        return rule
    raise RuleError(
        f"the interval [{low:g}, {high:g}], a ratio of {high / low:.3g}, is too wide for a root by a polynomial of "
        f"degree {degree}: narrow it or take another degree"
    )


def make_root(degree: int, wanted: Wanted) -> RootRule:
    """The rule of that degree."""
    return root_rule(
        wanted.low, wanted.high, degree, emphasis=wanted.emphasis, beside=wanted.beside, floor=wanted.floor,
        precision=wanted.precision,
    )  # fmt: skip


def _precisions(taus: Reals, emphasis: float, degree: int, most: int) -> Iterator[tuple[int, int]]:
    """Fraction bits of t and of the highest coefficient, the best first."""
    highest = abs(_fit(taus[-GRID:], emphasis, degree, None, 0)[-1])
    grain = math.ceil(math.log2(_COARSEST / highest))
    for fraction_t in range(most, _FEWEST - 1, -1):
        yield fraction_t, max(grain, 1 - degree * fraction_t)


def _fit(tau: Reals, emphasis: float, degree: int, grain: int | None, fraction_t: int) -> tuple[float, ...]:
    """Minimax coefficients. With a grain they are rounded to their units, from the highest, which has `grain` fraction
    bits; those below it are fitted anew to what that gives, so that a coarse unit costs little."""
    weight, target = tau ** (emphasis - 0.5), np.sqrt(tau)
    left = [float(c) for c in chebyshev_fit([tau**i for i in range(degree + 1)], weight, target)]
    if grain is None:
        return tuple(left)
    done = [0.0] * (degree + 1)
    for power in reversed(range(degree + 1)):
        unit = 2.0 ** -(grain + (degree - power) * fraction_t)
        done[power] = round(left[power] / unit) * unit
        target = target - done[power] * tau**power
        if power:
            left = [float(c) for c in chebyshev_fit([tau**i for i in range(power)], weight, target)]
    return tuple(done)
