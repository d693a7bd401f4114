"""Coefficients for 1/sqrt(t): how a public interval becomes a rule (`inverse_rule`).

Coefficients are minimax: they make the largest |y·sqrt(t) - 1|·t^emphasis over the interval as small as it can be.
Emphasis 0 is the relative error; 0.5 is the error of sqrt(t) = t·y, which is what an activation is made of.

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
from itertools import pairwise

import numpy as np

from comet_mpc.errors import RuleError
from comet_mpc.functions.fit import GRID, fit_multiples, fit_start_and_steps, from_floor
from comet_mpc.functions.inverse_rule import RING_LIMIT, MinimaxRule, RuleStep
from comet_mpc.functions.rule import Reals, Wanted, polynomial_value

_TOP = 61  # the limit with a bit to spare, for bounds that are not powers of two
_COARSEST = 8.0  # units of its rounding that the highest coefficient must have
_MARGIN = 1.25  # bounds on |y| leave room for values above the interval's top: the stable range


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
    wanted = _Wanted(low, high, steps, emphasis, root, beside, floor, gain)
    wanted.check()
    for degree in (1,) if classical else (4, None) if root and steps > 1 else (None,):
        rules = _rules_with_start(wanted, degree, precision)
        best = min(rules, key=lambda rule: rule.root_rounding, default=None) if root else next(rules, None)
        if best is not None:
            return best
    raise RuleError(
        f"the interval [{low:g}, {high:g}], a ratio of {high / low:.3g}, overflows a ring of 64 bits: "
        "narrow it, raise its floor or lower the precision"
    )


def make_minimax(wanted: Wanted) -> MinimaxRule:
    """The rule `minimax`, of 3 steps unless another number is wanted."""
    return minimax_rule(
        wanted.low, wanted.high, wanted.steps or 3, root=wanted.root, beside=wanted.beside,
        emphasis=wanted.emphasis, floor=wanted.floor, gain=wanted.gain,
    )  # fmt: skip


@dataclass(frozen=True)
class _Wanted:
    """The arguments of `minimax_rule`."""

    low: float
    high: float
    steps: int
    emphasis: float
    root: bool
    beside: float | None
    floor: float
    gain: float

    def check(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and 0.0 < self.low < self.high):
            raise RuleError(f"the interval [{self.low:g}, {self.high:g}] is empty or not positive")
        if not 1 <= self.steps <= 16:
            raise RuleError(f"{self.steps} steps: there must be 1 to 16")
        if not 0.0 <= self.floor <= self.low or not 0.0 <= self.emphasis <= 1.0:
            raise RuleError(f"floor {self.floor:g} must be in [0, low] and emphasis {self.emphasis:g} in [0, 1]")
        if not 0.5 <= self.gain <= 2.0:
            raise RuleError(f"gain {self.gain:g} must be in [0.5, 2]: put powers of two elsewhere")

    @property
    def exponent(self) -> int:
        return 2 * round(math.log2(self.high) / 2)

    @property
    def interval(self) -> tuple[float, float]:
        """Of τ."""
        return self.low * 2.0**-self.exponent, self.high * 2.0**-self.exponent

    @cached_property
    def taus(self) -> Reals:
        return from_floor(self.floor, self.low, self.high) * 2.0**-self.exponent


class _NoRoom(Exception):
    """A value could leave the ring."""


def _rules_with_start(wanted: _Wanted, degree: int | None, precision: int | None) -> Iterator[MinimaxRule]:
    """For every number of bits of t the rule with as many of ŷ as fit. degree: of the start; None: all there is room
    for."""
    low_bits = -math.floor(math.log2(wanted.interval[0]))
    spares = range(8, 1, -1) if wanted.root else range(10, 3, -1)
    for spare in spares if precision is None else (precision,):
        for bits_y in range(44, 17, -1 if wanted.root else -3):
            try:
                rule = _Budget(wanted, low_bits + spare, bits_y, degree).rule()
            except _NoRoom:
                continue
            yield rule
            break


@dataclass(frozen=True)
class _Budget:
    """A ring of 64 bits, divided: fraction bits of t and of ŷ, and from what they leave those of the start."""

    wanted: _Wanted
    fraction_t: int
    bits_y: int
    """Of ŷ³; for a root, where every bit counts, together with the last step's shift."""
    start_degree: int | None

    @property
    def fraction_y(self) -> int:
        return self.bits_y // 3

    @cached_property
    def degree(self) -> int:
        """Of the start."""
        if self.start_degree is not None:
            return self.start_degree
        steps, root = self.wanted.steps, self.wanted.root
        size = math.ceil(math.log2(1.5 / math.sqrt(self.wanted.interval[0])))
        # without a cubic step it is the start that t is fused with, and t·y takes less room than y
        most = (_TOP - 4) // self.fraction_t - 1 if root and steps <= 2 else (_TOP - size - 6) // self.fraction_t
        if most < 1 or (root and steps == 2):
            raise _NoRoom
        return min(4 if steps > 1 else 1, most)

    @property
    def cubic(self) -> int:
        """Steps after the start."""
        return self.wanted.steps - (2 if self.degree == 4 else 1)

    def rule(self) -> MinimaxRule:
        """Raises _NoRoom if a value could leave the ring."""
        wanted, taus = self.wanted, self.wanted.taus
        if wanted.root and self.cubic and 2 * self.fraction_t + self.bits_y >= RING_LIMIT:
            raise _NoRoom  # as _check_root would find in the end
        start, real = fit_start_and_steps(*wanted.interval, wanted.emphasis, self.degree, self.cubic)
        scales, shifts = self._scales([b for _, b in real])
        start_fraction, start_bound = self._start_room(start, scales[0])
        units = [2.0 ** (i * self.fraction_t - start_fraction) for i in range(self.degree + 1)]
        tau = np.geomspace(*wanted.interval, GRID)
        weight = tau ** (wanted.emphasis * 0.5**self.cubic)
        quantised = fit_multiples(tau, np.sqrt(tau), weight, start, units, scales[0])
        y, steps = polynomial_value(quantised, taus), []
        for (a, _), shift, (before, after) in zip(real, shifts, pairwise(scales), strict=True):
            step, y = self._step(a * before / after, shift, y)
            steps.append(step)
        root_bound = _with_margin(taus * y)
        self._check_root(root_bound, steps[-1].fraction if steps else start_fraction)
        return MinimaxRule(
            wanted.low, wanted.high, wanted.floor, wanted.exponent, self.fraction_t, self.fraction_y, tuple(quantised),
            start_fraction, start_bound, tuple(steps), wanted.gain, root_bound,
        )  # fmt: skip

    def _scales(self, factors: list[float]) -> tuple[list[float], list[int]]:
        """Scales of y and shifts of steps, from the back, so that every b is 2^-shift and the last scale is 1/gain."""
        scales, shifts = [1.0 / self.wanted.gain], list[int]()
        for b in reversed(factors):
            last = self.wanted.root and not shifts
            shifts.insert(0, self.bits_y % 3 if last else round(math.log2(scales[0] / b)))
            scales.insert(0, (scales[0] * 2.0 ** -shifts[0] / b) ** (1.0 / 3.0))
        return scales, shifts

    def _start_room(self, start: tuple[float, ...], scale: float) -> tuple[int, float]:
        """Fraction bits of the start, and what bounds it."""
        y = polynomial_value(start, self.wanted.taus) / scale
        bound = _with_margin(y)
        if self.wanted.root and not self.cubic:
            room = _TOP - 1 - _whole_bits(_with_margin(self.wanted.taus * y)) - self.fraction_t
        else:
            room = _TOP - _whole_bits(bound)
        fraction = min(room, self.degree * self.fraction_t + 24)
        if abs(start[-1]) / scale * 2.0 ** (fraction - self.degree * self.fraction_t) < _COARSEST:
            raise _NoRoom
        return fraction, bound

    def _step(self, a: float, shift: int, y: Reals) -> tuple[RuleStep, Reals]:
        """A step with a rounded to what the ring holds, and what it makes of y."""
        fraction = self.fraction_t + 3 * self.fraction_y + max(0, shift)
        unit = 2.0 ** (self.fraction_y - fraction)
        a = round(a / unit) * unit
        y = a * y - 2.0**-shift * self.wanted.taus * y**3
        bound = _with_margin(y)
        if bound * 2.0**fraction >= 2.0**RING_LIMIT:
            raise _NoRoom
        return RuleStep(a, shift, fraction, bound), y

    def _check_root(self, bound: float, fraction: int) -> None:
        """τ·ŷ and what is added to it fit into the ring, if they are wanted."""
        wanted = self.wanted
        added = bound if wanted.beside is None else wanted.beside * 2.0 ** (-wanted.exponent // 2)
        if wanted.root and (bound + added) * 2.0 ** (fraction + self.fraction_t) >= 2.0**RING_LIMIT:
            raise _NoRoom


def _with_margin(values: Reals) -> float:
    return _MARGIN * float(np.max(np.abs(values)))


def _whole_bits(bound: float) -> int:
    return max(0, math.ceil(math.log2(bound)))
