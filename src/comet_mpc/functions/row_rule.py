"""Rules for 1/sqrt(t) of which there is one per row: as few openings as an error allows.

A variance, a norm or a denominator is one number for a whole row, so its bytes do not count and its rounds do. Its
interval is wide, and what a round is worth is the degree of the polynomial that it adds: a start of degree n multiplies
the range of y·sqrt(t) that is level by 2n + 1, a cubic step by 3, one of degree five by 5. A ring of 63 bits has no
room for high powers of an exact t. It needs none: the first values of y are rough, and every step corrects what the
ones before it did wrong, their rounding included. So the start takes a coarse t, steps of degree five a finer one, and
only the last, cubic ones all the bits. Each of these openings of t is made in the same round.

Stage by stage, the bits and the degree that leave the smallest error are taken, with every t and y off by a unit either
way: coefficients are fitted to the extremes, not to the values that would be exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise

import numpy as np

from comet_mpc.engine.ring import LARGEST_ODD
from comet_mpc.errors import RuleError
from comet_mpc.functions.fit import chebyshev_fit, fit_multiples
from comet_mpc.functions.inverse_rule import MinimaxRule, RuleStep, WideRule, units_off
from comet_mpc.functions.rule import InverseRule, Reals, polynomial_value

ROW_ERROR = 0.9 * 2.0**-8
"""What y·sqrt(t) is off by at most, unless a caller wants another error: a LayerNorm's rows may be 2^-8 too long."""
_ROOM = math.log2(LARGEST_ODD)
_SPARE = (0.2, 0.6)  # bits that scaling y may take
_MARGIN = 1.25  # bounds on |y| leave room for values above the interval's top: the stable range
_MOST = 8  # steps
_WIDEST = 2.0**16  # interval: high over low
_DEGREES = range(2, 8)  # of the start
_GRID = 120  # points of a fit, twice
_LARGEST_SCALE = 1.08  # of y, about
_PASSES = 4  # of scaling and rounding the start, which change each other
_COARSEST = 8.0  # units that the start's highest coefficient has at least


@dataclass(frozen=True)
class _Stage:
    """The start, or a step, in real numbers, and what is known of y after it."""

    coefficients: tuple[float, ...]
    """Of the start by power; of a step those of y, t·y³ and t²·y⁵ (the second is subtracted)."""
    bits_t: int
    bits_y: int
    least: Reals
    largest: Reals
    """y on the grid, every rounding included."""
    nominal: Reals
    """y from the floor to the top without rounding."""
    error: float

    @property
    def cubic(self) -> bool:
        """Whether a step is."""
        return len(self.coefficients) == 2

    @property
    def bound(self) -> float:
        return float(_MARGIN * max(np.max(np.abs(part)) for part in (self.nominal, self.least, self.largest)))


@dataclass(frozen=True)
class _Interval:
    low: float
    high: float
    floor: float
    spare: float
    """Bits of the ring that are kept free."""

    @cached_property
    def grid(self) -> Reals:
        """Fine where t is small, and at the top, where polynomials of t turn fastest."""
        ends = 0.5 - 0.5 * np.cos(np.linspace(0.0, np.pi, _GRID))
        even = self.low + (self.high - self.low) * ends
        return np.unique(np.concatenate([np.geomspace(self.low, self.high, _GRID), even]))

    @cached_property
    def all(self) -> Reals:
        """Every t there can be, from the floor on."""
        return np.concatenate([np.linspace(self.floor, self.high, 10 * _GRID), self.grid])

    @property
    def _off(self) -> Reals:
        """Units by which t may be off."""
        return units_off(self.grid, self.high)[:, None]

    def coarse(self, bits: int) -> tuple[Reals, Reals]:
        """Points for a fit: what t of so many fraction bits can be, and the root of what it is."""
        moved = self.grid[:, None] + np.linspace(-1.0, 1.0, 5) * self._off * 2.0**-bits
        return moved.reshape(-1), np.repeat(np.sqrt(self.grid), 5)

    def starts(self) -> Iterator[_Stage]:
        """For every degree the start from the finest t that there is room for."""
        for degree in _DEGREES:
            yield from _finest(range(min(16, 72 // degree), 5, -1), partial(self._fitted_start, degree), degree)

    def _fitted_start(self, degree: int, bits: int) -> tuple[_Stage, float]:
        """And the bits of room that it lacks."""
        moved, root = self.coarse(bits)
        found = chebyshev_fit([root * moved**i for i in range(degree + 1)], np.ones_like(root))
        stage = self.start(tuple(map(float, found)), bits)
        return stage, degree * bits + math.log2(_COARSEST / abs(found[-1]) * stage.bound) - _ROOM + self.spare

    def start(self, coefficients: tuple[float, ...], bits: int) -> _Stage:
        y = polynomial_value(coefficients, self.coarse(bits)[0]).reshape(len(self.grid), -1)
        return self._stage(coefficients, bits, 0, y, polynomial_value(coefficients, self.all))

    def steps(self, before: _Stage, fine: int | None) -> Iterator[_Stage]:
        """Steps that there is room for. fine: bits of t in cubic ones, once that is decided."""

        def fifth(bits_y: int, bits_t: int) -> tuple[_Stage, float]:
            return self._with_lack(self.step(before, 5, bits_t, bits_y), 5)

        def third(bits_t: int, bits_y: int) -> tuple[_Stage, float]:
            return self._with_lack(self.step(before, 3, bits_t, bits_y), 3)

        for bits_y in range(3, 8):
            yield from _finest(range((int(_ROOM) - 5 * bits_y) // 2, 7, -1), partial(fifth, bits_y), 2)
        low_bits = -math.floor(math.log2(self.low))
        for bits_t in range(low_bits + 6, low_bits + 11) if fine is None else (fine,):
            yield from _finest(range((int(_ROOM) - bits_t) // 3, 4, -1), partial(third, bits_t), 3)

    def _with_lack(self, stage: _Stage, degree: int) -> tuple[_Stage, float]:
        """A step, and the bits of room that it lacks."""
        if stage.coefficients[-1] <= 0.0:
            return stage, math.inf
        shift = max(0, round(-math.log2(stage.coefficients[-1])))
        fraction = (degree // 2) * stage.bits_t + degree * stage.bits_y + shift
        return stage, fraction + math.log2(stage.bound) - _ROOM + self.spare

    def step(self, before: _Stage, degree: int, bits_t: int, bits_y: int, scale: float = _LARGEST_SCALE) -> _Stage:
        """The step of a degree that is best after a stage; y is opened over a scale."""
        unit = scale * 2.0**-bits_y
        least = before.least - unit * units_off(before.least, before.bound)
        largest = before.largest + unit * units_off(before.largest, before.bound)
        y = (least[:, None] + (largest - least)[:, None] * np.linspace(0.0, 1.0, 5))[:, :, None]
        moved = (self.grid[:, None] + np.array([-1.0, 0.0, 1.0]) * self._off * 2.0**-bits_t)[:, None, :]
        y, moved, exact = np.broadcast_arrays(y, moved, self.grid[:, None, None])
        root, shape = np.sqrt(exact).reshape(-1), y.shape
        powers = _powers(moved.reshape(-1), y.reshape(-1), degree)
        if before.error > 1e-3 or degree == 5:
            found = chebyshev_fit([root * power for power in powers], np.ones_like(root))
        else:
            found = np.array([1.5, 0.5])  # Newton: the fit is ill-conditioned and pointless
        after = _sum(found, powers).reshape(shape[0], -1)
        return self._stage(
            tuple(map(float, found)), bits_t, bits_y, after, _sum(found, _powers(self.all, before.nominal, degree))
        )

    def _stage(self, found: tuple[float, ...], bits_t: int, bits_y: int, y: Reals, nominal: Reals) -> _Stage:
        error = float(np.max(np.abs(np.sqrt(self.grid)[:, None] * y - 1.0)))
        return _Stage(found, bits_t, bits_y, y.min(axis=1), y.max(axis=1), nominal, error)


def _finest(bits: range, make: Callable[[int], tuple[_Stage, float]], gain: int) -> Iterator[_Stage]:
    """The stage of the most bits that there is room for, if there is one.

    make: a stage of so many bits, and the bits of room that it lacks; each bit less brings `gain` of them, and hardly
    any besides. So what lacks some leaps down to where it should not, and from there looks up again.
    """
    at, failed = bits.start, bits.start + 1
    while at > bits.stop:
        stage, lack = make(at)
        if lack < 0.0:
            break
        leap = max(1, math.floor(lack / gain)) if lack < math.inf else 1
        failed, at = at, at - 1 if at - 1 == bits.stop else max(bits.stop + 1, at - leap)
    else:
        return
    while at + 1 < failed:
        above, lack = make(at + 1)
        if lack >= 0.0:
            break
        stage, at = above, at + 1
    yield stage


def _error(stage: _Stage) -> float:
    return stage.error


def _powers(t: Reals, y: Reals, degree: int) -> list[Reals]:
    return [y, -t * y**3, t**2 * y**5][: degree // 2 + 1]


def _sum(coefficients: Reals, powers: list[Reals]) -> Reals:
    return np.asarray(sum(c * power for c, power in zip(coefficients, powers, strict=True)))


@lru_cache(maxsize=256)
def row_rule(
    low: float,
    high: float,
    *,
    gain: float = 1.0,
    floor: float = 0.0,
    error: float = ROW_ERROR,
    above: float | None = None,
) -> MinimaxRule:
    """The rule for an interval with the fewest steps that keep `error`, rounding included.

    gain   the rule gives gain/sqrt(t), gain in [1/2, 2]
    floor  t is never below it (0: not known)
    above  what y·sqrt(t)/gain may be above 1, if that is less: the rule then errs more to the other side
    """
    if not (math.isfinite(low) and math.isfinite(high) and 0.0 < low < high):
        raise RuleError(f"the interval [{low:g}, {high:g}] is empty or not positive")
    if not (0.0 <= floor <= low and 0.5 <= gain <= 2.0 and error > 0.0):
        raise RuleError(f"floor {floor:g} must be in [0, low], gain {gain:g} in [0.5, 2] and the error above 0")
    if high / low > _WIDEST:
        raise RuleError(f"the interval [{low:g}, {high:g}], a ratio of {high / low:.3g}, is too wide: 2^16 at most")
    found = []
    for exponent in {2 * round(math.log2(high) / 2), 2 * math.ceil(math.log2(high) / 2)}:
        whole = MinimaxRule(low, high, floor, exponent, 0, 0, (), 0, 0.0, (), gain, 0.0)
        for spare in _SPARE:
            interval = _Interval(low * 2.0**-exponent, high * 2.0**-exponent, floor * 2.0**-exponent, spare)
            found.append(_fewest_steps(whole, interval, error, above))
            if found[-1] is not None:
                break
    rules = [rule for rule in found if rule is not None]
    if rules:
        return min(rules, key=lambda rule: (len(rule.steps), rule.error + rule.rounding))
    raise RuleError(
        f"the interval [{low:g}, {high:g}], a ratio of {high / low:.3g}, is too wide for an error of {error:.2%}: "
        "narrow it or allow more"
    )


def _fewest_steps(whole: MinimaxRule, interval: _Interval, error: float, above: float | None) -> MinimaxRule | None:
    """Stage by stage the best, until a cubic step is good enough for a last one."""
    stages = [min(interval.starts(), key=_error)]
    while len(stages) <= _MOST:
        fine = next((stage.bits_t for stage in stages[1:] if stage.cubic), None)
        found = list(interval.steps(stages[-1], fine))
        last = min((stage for stage in found if stage.cubic), key=_error, default=None)
        if last is not None and last.error < error:
            rule = _put_together(whole, interval, [*stages, last])
            if above is not None and rule.overshoot > 1.0 + above:
                factor = (1.0 + above) / rule.overshoot * (1.0 - 2.0**-14)
                rule = _put_together(whole, interval, [*stages, last], factor)
            if _good(rule, error, above):
                rule.check()
                return rule
        best = min(found, key=_error, default=None)
        if best is None or best.error > 0.99 * stages[-1].error:
            break
        stages.append(best)
    return None


def _good(rule: MinimaxRule, error: float, above: float | None) -> bool:
    """Whether it keeps the errors, and the ring that its values are meant for."""
    sizes = [(rule.start_bound, rule.start_fraction), *((step.bound, step.fraction) for step in rule.steps)]
    room = all(bound * 2.0**fraction <= LARGEST_ODD for bound, fraction in sizes)
    return (
        room and rule.overshoot - 1.0 <= (above or error) and rule.error + rule.rounding < error * (2 if above else 1)
    )


def _put_together(whole: MinimaxRule, interval: _Interval, stages: list[_Stage], factor: float = 1.0) -> MinimaxRule:
    """The rule with y scaled so that every step's last coefficient is a power of two, all rounded to their units.

    The scale of the start follows from the steps, its rounding from the scale, and the steps from what is rounded.
    factor: of the last y, to make it smaller than it would be
    """
    bits, degree = stages[0].bits_t, len(stages[0].coefficients) - 1
    moved, root = interval.coarse(bits)
    for _ in range(_PASSES):
        scales, shifts = _scales(_times(stages, factor), whole.gain)
        bound = stages[0].bound / scales[0]
        fraction = min(math.floor(_ROOM - math.log2(bound)), degree * bits + 24)
        units = [2.0 ** (i * bits - fraction) for i in range(degree + 1)]
        quantised = fit_multiples(moved, root, np.ones_like(root), stages[0].coefficients, units, scales[0])
        again = [interval.start(tuple(scales[0] * c for c in quantised), bits)]
        for stage, scale in zip(stages[1:], scales, strict=False):
            again.append(interval.step(again[-1], 2 * len(stage.coefficients) - 1, stage.bits_t, stage.bits_y, scale))
        stages = again
    tau = interval.all
    y, made = polynomial_value(quantised, tau), []
    steps = _times(stages, factor)[1:]
    scales, shifts = _scales(_times(stages, factor), whole.gain)
    for stage, shift, (before, after) in zip(steps, shifts, pairwise(scales), strict=True):
        step = _scaled(stage, shift, before, after)
        y = step(tau, y)
        extremes = max(np.max(np.abs(stage.least)), np.max(np.abs(stage.largest))) / after
        made.append(replace(step, bound=_MARGIN * float(max(np.max(np.abs(y)), extremes))))
    fine = next(stage for stage in steps if stage.cubic)
    return replace(
        whole,
        fraction_t=fine.bits_t,
        fraction_y=fine.bits_y,
        start=tuple(quantised),
        start_fraction=fraction,
        start_bound=bound,
        steps=tuple(made),
        root_bound=_MARGIN * float(np.max(np.abs(tau * y))),
        start_t=bits,
    )


def _times(stages: list[_Stage], factor: float) -> list[_Stage]:
    *others, last = stages
    return [*others, replace(last, coefficients=tuple(factor * c for c in last.coefficients))]


def _scales(stages: list[_Stage], gain: float) -> tuple[list[float], list[int]]:
    """Scales of y and shifts of steps, from the back: the last scale is 1/gain, and every last coefficient 2^-shift."""
    scales, shifts = [1.0 / gain], list[int]()
    for stage in reversed(stages[1:]):
        last, degree = stage.coefficients[-1], 2 * len(stage.coefficients) - 1
        shifts.insert(0, round(math.log2(scales[0] / last)))
        scales.insert(0, (scales[0] * 2.0 ** -shifts[0] / last) ** (1.0 / degree))
    return scales, shifts


def _scaled(stage: _Stage, shift: int, before: float, after: float) -> RuleStep:
    """A step of ŷ = y/scale."""
    a, *middle, _ = stage.coefficients
    degree = len(stage.coefficients) - 1  # in t
    fraction = degree * stage.bits_t + (2 * degree + 1) * stage.bits_y + max(0, shift)
    unit = 2.0 ** (stage.bits_y - fraction)
    b = middle[0] * before**3 / after if middle else 0.0
    unit_b = 2.0 ** (stage.bits_t + 3 * stage.bits_y - fraction)
    return RuleStep(
        a=round(a * before / after / unit) * unit,
        shift=shift,
        fraction=fraction,
        bound=0.0,
        b=round(b / unit_b) * unit_b,
        fraction_t=stage.bits_t,
        fraction_y=stage.bits_y,
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
    if high / low <= _WIDEST:
        try:
            return row_rule(low, high, gain=gain, error=0.125 if rough else error)
        except RuleError:
            pass
    rule = WideRule(low, high, gain, rough, throughout)
    rule.check()
    return rule
