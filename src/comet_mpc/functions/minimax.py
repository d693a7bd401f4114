"""Coefficients for 1/sqrt(t): how a public interval becomes a few public numbers, and what they guarantee.

A `MinimaxRule` evaluates y ≈ 1/sqrt(t) for t in [low, high] by

    start   y = c_0 + c_1·t + … + c_n·t^n    from one opening of t; n = 1 is one classical step, n = 4 stands for two
    step    y <- a·y - b·t·y³                one opening of y each, a and b chosen for this very step

The guess costs no communication (it is a polynomial in t), it is not the constant of plain Newton, and every number
is public and independent of the data. Coefficients are minimax: they make the largest |y·sqrt(t) - 1|·t^emphasis over
the interval as small as it can be. Emphasis 0 is the relative error; 0.5 is the error of sqrt(t) = t·y, which is
what an activation is made of.

Two facts keep the arithmetic in a 64-bit ring. Only the ratio of the interval's ends matters, so t is first
scaled by an even power of two to about 1. And y is scaled so that every b is a power of two, which is
absorbed in a shift: with s_k·ŷ_k = y_k, b·s_{k-1}³/s_k = 2^-j. The last scale is 1 (or what the caller wants), and
the first is free because the start's coefficients are real anyway; so nothing is left over to be corrected downstream.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from comet_mpc.engine.share import ring_width
from comet_mpc.engine.tables import Column, Table
from comet_mpc.errors import RuleError

__all__ = ["CubicStep", "MinimaxRule", "TableRule", "fast_inverse_sqrt", "minimax_rule", "next_interval"]

Reals = npt.NDArray[np.float64]

_GRID = 600  # points on which coefficients are fitted
_PROOF = 20_000  # points on which errors are bounded
_LIMIT = 62  # values in a ring of 64 bits stay below 2^62, where a truncation is exact
_TOP = 61  # the same with a bit to spare, for bounds that are not powers of two
_FINE = 2.0**-8  # a coefficient rounded to this needs no new fit of the others
_COARSEST = 8.0  # units of its rounding that the highest coefficient must have
_MARGIN = 1.25  # bounds on |y| leave room for values above the interval's top: the stable range


@dataclass(frozen=True)
class CubicStep:
    """ŷ <- a·ŷ - 2^-shift·t·ŷ³, the value of which has `fraction` bits before it is truncated."""

    a: float
    shift: int
    fraction: int
    bound: float
    """|ŷ| after the step, for every t from the floor to the stable top."""


@dataclass(frozen=True)
class MinimaxRule:
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
    steps: tuple[CubicStep, ...]
    gain: float
    """The rule gives gain/sqrt(t): a public constant of what comes next, folded in for free."""
    root_bound: float
    """|τ·ŷ| at the end, for every t from the floor to the stable top."""

    @property
    def ratio(self) -> float:
        return self.high / self.low

    def normalised(self, t: npt.ArrayLike) -> Reals:
        """gain/sqrt of τ itself, by the rule, in real arithmetic: what the protocol computes but for rounding."""
        return self._trace(np.asarray(t, dtype=np.float64) * 2.0**-self.exponent)[-1]

    def __call__(self, t: npt.ArrayLike) -> Reals:
        """The rule in real arithmetic."""
        return np.asarray(self.normalised(t) * 2.0 ** (-self.exponent // 2))

    def _trace(self, tau: Reals) -> list[Reals]:
        values: list[Reals] = [np.asarray(np.polynomial.polynomial.polyval(tau, self.start), np.float64)]
        for step in self.steps:
            y = values[-1]
            values.append(step.a * y - 2.0**-step.shift * tau * y**3)
        return values

    def check(self) -> None:
        """Raises RuleError unless the numbers are a rule: for one that comes from a file and not from `minimax_rule`.

        From the floor to the top no value leaves its bound, and what is truncated fits the ring. Errors, rounding and
        the stable range need no check: they are computed from the numbers themselves.
        """
        sizes = (self.fraction_t, self.fraction_y, self.start_fraction, *(step.fraction for step in self.steps))
        if not 0.0 <= self.floor <= self.low < self.high < math.inf or not 0.5 <= self.gain <= 2.0:
            raise RuleError(f"the interval [{self.low:g}, {self.high:g}] or the gain {self.gain:g} cannot be")
        if self.exponent % 2 or not self.start or not all(1 <= size <= _LIMIT for size in sizes):
            raise RuleError("a rule's exponent or fraction bits cannot be")
        tau = np.concatenate([np.linspace(self.floor, self.high, 4 * _GRID), np.geomspace(self.low, self.high, _GRID)])
        tau = tau * 2.0**-self.exponent
        with np.errstate(over="ignore", invalid="ignore"):
            trace = self._trace(tau)
        bounds = [self.start_bound, *(step.bound for step in self.steps)]
        for y, bound in zip(trace, bounds, strict=True):
            if not float(np.max(np.abs(y))) <= bound:
                raise RuleError("a rule's values leave the bounds that it states")
        for step in self.steps:
            cubic = self.fraction_t + 3 * self.fraction_y + max(0, step.shift)
            if step.fraction != cubic or step.bound * 2.0**step.fraction >= 2.0**_LIMIT:
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
        tau = self._proof_grid
        relative_t = 0.5 * 2.0**-self.fraction_t / tau
        relative_y = self._rounding_of_y * np.sqrt(tau) / self.gain
        return float(np.max(relative_y + relative_t * (1.0 + self.error) / (1.0 - 2 * relative_t)))

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


def _peak(error: Reals) -> float:
    """The largest |error| of a smooth function sampled on a fine grid, plus what it can rise between two samples: an
    eighth of its second difference, of which the whole is added."""
    return float(np.max(np.abs(error)) + np.max(np.abs(np.diff(error, n=2)), initial=0.0))


def _fit(basis: list[Reals], weight: Reals, target: Reals | float = 1.0) -> Reals:
    """The c that minimise max |Σ c_j·basis_j - target|·weight: a linear program in a few unknowns."""
    matrix = np.stack(basis, axis=1) * weight[:, None]
    scale = np.max(np.abs(matrix), axis=0)
    matrix = matrix / scale
    aim = target * weight
    ones = np.ones((len(weight), 1))
    program = linprog(
        c=[0.0] * len(basis) + [1.0],
        A_ub=np.block([[matrix, -ones], [-matrix, -ones]]),
        b_ub=np.concatenate([aim, -aim]),
        bounds=[(None, None)] * len(basis) + [(0, None)],
        method="highs",
    )
    if not program.success:
        raise RuleError(f"no minimax coefficients found: {program.message}")
    return np.asarray(program.x[:-1] / scale)


def next_interval(low: float, high: float) -> tuple[float, float, float, float]:
    """One classical minimax step for s = y·sqrt(t) in [low, high]: (a, b, new low, new high), in closed form."""
    q = low * low + low * high + high * high
    m = math.sqrt(q / 3.0)
    bottom, peak = low * (q - low * low), m * (q - m * m)
    c = 2.0 / (bottom + peak)
    return c * q, c, c * bottom, c * peak


@lru_cache(maxsize=256)
def _fit_rule(
    low: float, high: float, emphasis: float, degree: int, cubic: int
) -> tuple[tuple[float, ...], tuple[tuple[float, float], ...]]:
    """Start and steps in real scale, each step fitted to what the ones before it give.

    A step squares the error. To end with |error|·τ^emphasis level, every stage with `left` more steps to come levels
    |error|·τ^(emphasis/2^left).
    """
    tau = np.geomspace(low, high, _GRID)
    root = np.sqrt(tau)
    start = _fit([root * tau**i for i in range(degree + 1)], tau ** (emphasis * 0.5**cubic))
    y = np.polynomial.polynomial.polyval(tau, start)
    steps: list[tuple[float, float]] = []
    for left in reversed(range(cubic)):
        a, b = 1.5, 0.5  # Newton, once the values agree so well that the fit is ill-conditioned and pointless
        if float(np.max(np.abs(root * y - 1.0))) > 1e-3:
            a, b = (float(c) for c in _fit([root * y, -root * tau * y**3], tau ** (emphasis * 0.5**left)))
        steps.append((a, b))
        y = a * y - b * tau * y**3
    return tuple(float(c) for c in start), tuple(steps)


def _multiples(
    low: float, high: float, emphasis: float, start: tuple[float, ...], units: list[float], scale: float
) -> list[float]:
    """The start over `scale` with its coefficients rounded to their units: the highest first, and those below it fitted
    anew to what that gives, so that a coarse unit costs little."""
    tau = np.geomspace(low, high, _GRID)
    root = np.sqrt(tau)
    left, done, target = list(start), [0.0] * len(start), np.ones_like(tau)
    for power in reversed(range(len(start))):
        done[power] = round(left[power] / (scale * units[power])) * units[power]
        target = target - scale * done[power] * root * tau**power
        if power and units[power] > _FINE:
            left = list(_fit([root * tau**i for i in range(power)], tau**emphasis, target))
    return done


@lru_cache(maxsize=256)
def minimax_rule(
    low: float,
    high: float,
    steps: int,
    *,
    emphasis: float = 0.0,
    root: bool = False,
    beside: float | None = None,
    floor: float = 0.0,
    classical: bool = False,
    precision: int | None = None,
    gain: float = 1.0,
) -> MinimaxRule:
    """The rule for an interval.

    steps      as in the paper: Newton-like steps from a constant. The first is affine in t. Unless `classical`, a
               polynomial of degree 4 stands for the first two, or where there is no room for that one of degree 2 or 3
               for the first: both cost no more and err less
    emphasis   what is made small: |y·sqrt(t) - 1|·t^emphasis. 0: the relative error. 0.5: the error of sqrt(t) = t·y
    root       leave room in the ring for t·y fused with the last step (`inverse_sqrt.square_root`), and divide it
               between t and y so that rounding does least to the root
    beside     the largest number that is added to the root before it is truncated (as large as the root if not given)
    floor      t is never below it (0: not known); the wider the range, the more room y takes
    precision  fraction bits of t at the interval's low end; by default what there is room for
    gain       the rule gives gain/sqrt(t), gain in [1/2, 2]
    """
    if not (math.isfinite(low) and math.isfinite(high) and 0.0 < low < high):
        raise RuleError(f"the interval [{low:g}, {high:g}] is empty or not positive")
    if not 1 <= steps <= 16:
        raise RuleError(f"{steps} steps: there must be 1 to 16")
    if not 0.0 <= floor <= low or not 0.0 <= emphasis <= 1.0:
        raise RuleError(f"floor {floor:g} must be in [0, low] and emphasis {emphasis:g} in [0, 1]")
    if not 0.5 <= gain <= 2.0:
        raise RuleError(f"gain {gain:g} must be in [0.5, 2]: put powers of two elsewhere")
    exponent = 2 * round(math.log2(high) / 2)
    low_bits = -math.floor(math.log2(low * 2.0**-exponent))
    spares = (10, 9, 8, 7, 6, 5, 4) if not root else (8, 7, 6, 5, 4, 3, 2)

    def with_start(degree: int | None) -> Iterator[MinimaxRule]:
        """For every number of bits of t the one with as many of y as fit."""
        for spare in spares if precision is None else (precision,):
            fraction_t = low_bits + spare
            made = (
                _scaled(low, high, emphasis, root, beside, floor, exponent, fraction_t, bits_y, steps, degree, gain)
                for bits_y in range(44, 17, -1 if root else -3)
            )
            yield from islice((rule for rule in made if rule is not None), 1)

    for degree in (1,) if classical else (4, None) if root and steps > 1 else (None,):
        rules = with_start(degree)
        best = min(rules, key=lambda rule: rule.root_rounding, default=None) if root else next(rules, None)
        if best is not None:
            return best
    raise RuleError(
        f"the interval [{low:g}, {high:g}], a ratio of {high / low:.3g}, overflows a ring of 64 bits: "
        "narrow it, raise its floor or lower the precision"
    )


def _scaled(
    low: float,
    high: float,
    emphasis: float,
    root: bool,
    beside: float | None,
    floor: float,
    exponent: int,
    fraction_t: int,
    bits_y: int,
    steps: int,
    degree: int | None,
    gain: float,
) -> MinimaxRule | None:
    """The rule with given fraction bits, or None if a value could leave the ring.

    bits_y   those of ŷ³; for a root, where every bit counts, together with the last step's shift
    degree   of the start; None: what there is room for
    """
    fraction_y, last = divmod(bits_y, 3)
    scale = 2.0**-exponent
    low_tau, high_tau = low * scale, high * scale
    size = math.ceil(math.log2(1.5 / math.sqrt(low_tau)))
    if degree is None:
        # without a cubic step it is the start that t is fused with, and t·y takes less room than y
        most = (_TOP - 4) // fraction_t - 1 if root and steps <= 2 else (_TOP - size - 6) // fraction_t
        degree = min(4 if steps > 1 else 1, most)
        if degree < 1 or (root and steps == 2):
            return None
    cubic = steps - (2 if degree == 4 else 1)
    if root and cubic and 2 * fraction_t + bits_y >= _LIMIT:  # what the check of the root below comes to
        return None
    start, real = _fit_rule(low_tau, high_tau, emphasis, degree, cubic)
    every = np.concatenate([np.linspace(floor * scale, high_tau, 4 * _GRID), np.geomspace(low_tau, high_tau, _GRID)])
    # Scales from the back, so that every b becomes a power of two and the last scale is 1/gain.
    scales: list[float] = [1.0 / gain]
    shifts: list[int] = []
    for _, b in reversed(real):
        shift = last if root and not shifts else round(math.log2(scales[0] / b))
        shifts.insert(0, shift)
        scales.insert(0, (scales[0] * 2.0**-shift / b) ** (1.0 / 3.0))
    y = np.polynomial.polynomial.polyval(every, start) / scales[0]
    start_bound = _MARGIN * float(np.max(np.abs(y)))
    if root and not real:
        room = _TOP - 1 - max(0, math.ceil(math.log2(_MARGIN * float(np.max(np.abs(every * y)))))) - fraction_t
    else:
        room = _TOP - max(0, math.ceil(math.log2(start_bound)))
    start_fraction = min(room, degree * fraction_t + 24)
    if abs(start[-1]) / scales[0] * 2.0 ** (start_fraction - degree * fraction_t) < _COARSEST:
        return None
    units = [2.0 ** (i * fraction_t - start_fraction) for i in range(degree + 1)]
    quantised = _multiples(low_tau, high_tau, emphasis * 0.5**cubic, start, units, scales[0])
    y = np.polynomial.polynomial.polyval(every, quantised)
    made = []
    for (a, _), shift, (before, after) in zip(real, shifts, pairwise(scales), strict=True):
        fraction = fraction_t + 3 * fraction_y + max(0, shift)
        a_scaled = _round_to(a * before / after, fraction - fraction_y)
        y = a_scaled * y - 2.0**-shift * every * y**3
        bound = _MARGIN * float(np.max(np.abs(y)))
        if bound * 2.0**fraction >= 2.0**_LIMIT:
            return None
        made.append(CubicStep(a_scaled, shift, fraction, bound))
    root_bound = _MARGIN * float(np.max(np.abs(every * y)))
    final = made[-1].fraction if made else start_fraction
    added = root_bound if beside is None else beside * 2.0 ** (-exponent // 2)
    if root and (root_bound + added) * 2.0 ** (final + fraction_t) >= 2.0**_LIMIT:
        return None
    return MinimaxRule(
        low, high, floor, exponent, fraction_t, fraction_y, tuple(quantised), start_fraction, start_bound, tuple(made),
        gain, root_bound,
    )  # fmt: skip


def _round_to(value: float, bits: int) -> float:
    return round(value * 2.0**bits) * 2.0**-bits


def fast_inverse_sqrt(x: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """The one-party bit trick: as_float(0x5f3759df - as_int(x)/2), relative error at most 3.4 % for normal x > 0.

    It is the paper's equation for one party: M_y + L·E_y = (3/2)·L·(B - b) - (M_x + L·E_x)/2 with b = 0.045.
    """
    bits = np.asarray(x, dtype=np.float32).view(np.int32)
    return (np.int32(0x5F3759DF) - (bits >> 1)).view(np.float32)


# By look-ups --------------------------------------------------------------------------------------------------


_DIGIT = 4  # bits of a digit: larger ones take fewer rounds and more bytes
_GUESS = 7  # bits of the place in the table of guesses
_CELLS = (1 << _GUESS) - 3  # in [1, 2); a place is off by less than one, which takes three more


@dataclass(frozen=True)
class TableRule:
    """1/sqrt(t) for t in [low, high] from tables, as SIRNN and Iron do it: t = m·2^k with m in [1, 2).

    digits  t's top bit, digit by digit: of every digit's sum a carry, whether it is zero, and where its top bit is
    powers  from the top bit's place: what to multiply t with to have m; and 2^(-k/2)
    guesses w ≈ 1/sqrt(m) from m's leading bits, then one Newton step w·(3/2 - m·w²/2)

    The error is relative and the same for every interval that the tables hold. All numbers are public.
    """

    low: float
    high: float
    gain: float = 1.0
    """Always 1: a caller that wants another constant multiplies with it."""

    fraction_m = 16
    fraction_w = 9
    fraction_y = 16

    def __post_init__(self) -> None:
        if self.bits > 32:
            raise RuleError(f"the interval [{self.low:g}, {self.high:g}] is too wide for tables of 32 places")

    @property
    def fraction_t(self) -> int:
        return 14 - math.floor(math.log2(self.low))

    @property
    def bits(self) -> int:
        """Of t, as a whole number with its fraction bits."""
        return math.floor(math.log2(self.high * 2.0**self.fraction_t + 2.0)) + 1

    @property
    def top(self) -> float:
        """The largest t that the tables hold, the interval's high end or above; a truncation adds less than a unit."""
        return (2.0**self.bits - 2.0) * 2.0**-self.fraction_t

    @property
    def digits(self) -> int:
        return math.ceil(self.bits / _DIGIT)

    @property
    def digit_bits(self) -> int:
        return _DIGIT

    @property
    def cells(self) -> int:
        return _CELLS

    @property
    def guess_bits(self) -> int:
        return _GUESS

    @property
    def width(self) -> int:
        """A ring for m times the number of cells."""
        return max(ring_width(self.bits - 1, 2.0 * _CELLS), 8 * -(-_DIGIT * self.digits // 8))

    def digit_table(self, place: int) -> Table:
        """Of a digit's sum with the carry from below: (carry, not zero, place of the top bit in all of t)."""
        sums = [(value >> _DIGIT, value % 2**_DIGIT) for value in range(2 ** (_DIGIT + 1))]
        tops = [_DIGIT * place + digit.bit_length() - 1 if digit else 0 for _, digit in sums]
        carries = Column(tuple(carry for carry, _ in sums), 8)
        return Table((carries, Column(tuple(int(digit > 0) for _, digit in sums), 8), Column(tuple(tops), 8)))

    @property
    def _exponents(self) -> list[int]:
        """k for every place of the top bit; below the interval that of its low end."""
        lowest = math.floor(math.log2(self.low * 2.0**self.fraction_t))
        return [min(max(top, lowest), self.bits - 1) - self.fraction_t for top in range(32)]

    @property
    def fraction_s(self) -> int:
        """Of 2^(-k/2), the smallest of which has 15 bits."""
        return 15 + math.ceil(max(self._exponents) / 2)

    @cached_property
    def power_tables(self) -> tuple[Table, Table]:
        powers = tuple(2 ** max(0, self.bits - 1 - top) for top in range(32))
        scales = tuple(round(2.0 ** (self.fraction_s - k / 2)) for k in self._exponents)
        width = ring_width(self.fraction_s, max(scales) * 2.0**-self.fraction_s)
        return Table((Column(powers, self.width),)), Table((Column(scales, width, self.fraction_s),))

    def _ends(self, place: int) -> tuple[float, float]:
        """Which m a place of the table of guesses stands for."""
        middle = place + _CELLS - 1
        return max(1.0, (middle - 1) / _CELLS), max(1.0, min(2.0, (middle + 1) / _CELLS))

    @cached_property
    def guess_table(self) -> Table:
        ends = [self._ends(place) for place in range(2**_GUESS)]
        values = [2.0 / (math.sqrt(low) + math.sqrt(min(2.0, high))) for low, high in ends]
        return Table((Column(tuple(round(w * 2**self.fraction_w) for w in values), 16, self.fraction_w),))

    @cached_property
    def error(self) -> float:
        """max |y·sqrt(t) - 1| in real arithmetic: w·sqrt(m) = r becomes r·(3 - r²)/2, at most 1."""
        ratios = [
            value * 2.0**-self.fraction_w * math.sqrt(m)
            for place, value in enumerate(self.guess_table.columns[0].values)
            for m in self._ends(place)
            if place <= _CELLS + 2
        ]
        return max(1.0 - r * (3.0 - r * r) / 2.0 for r in ratios)

    @cached_property
    def rounding(self) -> float:
        """What fixed point adds at most: a unit of t and of m, which y halves; one of y, half a one of 2^(-k/2)."""
        smallest = min(self.power_tables[1].columns[0].values)
        halved = 0.5 * 2.0**-self.fraction_t / self.low + 0.5 * 2.0**-self.fraction_m
        return 1.01 * (halved + math.sqrt(2.0) * 2.0**-self.fraction_y + 0.5 / smallest)
