"""Activations made of square roots: the smooth maximum unit (for GeLU and ReLU) and x/sqrt(1 + x²) (for tanh)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.session import Session
from comet_mpc.engine.share import WORD, Share, ring_width
from comet_mpc.errors import RuleError
from comet_mpc.functions.inverse_rule import MinimaxRule
from comet_mpc.functions.inverse_sqrt import (
    InverseSqrtRule,
    check_argument,
    inverse_sqrt,
    make_rule,
    open_argument,
    overshoot,
    plain_inverse_sqrt,
    square_root,
)
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.root_rule import DEGREES, PRECISION, RootRule, root_rule
from comet_mpc.functions.row_rule import row_rule

SmuRule = InverseSqrtRule | RootRule
"""What smu takes its root by: sqrt(t) itself, or t times 1/sqrt(t)."""

X, T, Y = variables("x t y")

_SPARE = 12
"""Fraction bits for a public real factor."""

_FRACTION_X = 14
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

    def __call__(self, x: npt.ArrayLike, rule: SmuRule | None = None) -> npt.NDArray[np.float64]:
        """In real arithmetic: by a rule, or exactly."""
        real = np.asarray(x, dtype=np.float64)
        t = self.factor * real**2 + np.square(self.mu)
        root = rule.root(t) if isinstance(rule, RootRule) else t * plain_inverse_sqrt(t, rule)
        return np.asarray(0.5 * (1.0 + self.alpha) * real + 0.5 * root)


def argument_interval(form: Smu, bound: float) -> tuple[float, float]:
    """All values that t = φ·x² + μ² can take for |x| <= bound."""
    mu = np.asarray(form.mu, dtype=np.float64)
    low = float(np.min(mu**2))
    if low <= 0.0 or not 0.0 <= form.alpha < 1.0:
        raise RuleError("smu needs 0 <= alpha < 1 and, so that t has a positive lower end, every mu above 0")
    return low, form.factor * bound**2 + float(np.max(mu**2))


def smu_rule(
    form: Smu, bound: float, steps: int, *, name: str = "minimax", emphasis: float = 0.25, precision: int = PRECISION
) -> SmuRule:
    """The rule for |x| <= bound: its interval holds for every input, so that nothing depends on data.

    name       one of `root_rule.DEGREES`, for which there are no steps, or of `inverse_sqrt.RULES`
    precision  of a root rule (`root_rule`)
    """
    low, high = argument_interval(form, bound)
    beside = (1.0 + form.alpha) * bound
    if name in DEGREES:
        return root_rule(
            low, high, DEGREES[name], emphasis=emphasis, beside=beside, floor=0.9 * low, precision=precision
        )
    return make_rule(name, low, high, steps, root=True, beside=beside, emphasis=emphasis, floor=0.9 * low)


def times_real(x: Share, factor: float) -> Share:
    """x times a public real: exact for a power of two, else with _SPARE more fraction bits."""
    mantissa, exponent = np.frexp(factor)
    if mantissa == 0.5:
        return x.times_power(int(exponent) - 1)
    return x.times(round(factor * 2**_SPARE)).times_power(-_SPARE)


def smu(
    session: Session,
    x: Share,
    form: Smu,
    rule: SmuRule,
    *,
    fraction: int = 12,
    width: int | Ring = WORD,
) -> Share:
    """smu(x) with `fraction` bits.

    x may come with more fraction bits, straight from a product: what is squared is cut to 14 in a narrow ring, which is
    mostly free.

    A root rule: opens x and, from degree 2 on, t. Rounds 4, or 3; for degree 1 always 2.
    minimax, k steps: opens x, t, and y k-2 times (k-1 times if the start is classical). Rounds 2k (k >= 2).
    Reveals nothing.
    """
    with session.part("activation"):
        if isinstance(rule, RootRule) and (ring := _smu_ring(session, x, form, rule)).modulus:
            return session.truncate_to(_in_odd_ring(session, x, form, rule, ring), fraction, width)
        if isinstance(rule, RootRule) and _linear_in_square(form, rule):
            root = _root_of_x(session, x, form, rule)
        else:
            root = _root_of_t(session, x, form, rule)
        half = times_real(x, 0.5 * (1.0 + form.alpha))
        whole = max(half.fraction, root.fraction + 1)
        result = half.lift(whole) + root.times_power(-1).lift(whole)
        return session.truncate_to(result, fraction, width)


def _smu_ring(session: Session, x: Share, form: Smu, rule: RootRule) -> Ring:
    """The ring that holds x² and smu(x), as `_in_odd_ring` computes them."""
    top, bits = _largest_argument(x, form), min(x.fraction, rule.fraction_t)
    whole, bound = _smu_fraction(x, form, rule), _smu_bound(x, form, rule)
    return session.ring(0, max(bound * 2.0**whole, top * 4.0**bits))


def _largest_argument(x: Share, form: Smu) -> float:
    return form.factor * x.bound**2 + float(np.max(np.square(form.mu)))


def _linear_in_square(form: Smu, rule: RootRule) -> bool:
    """Whether the root is a polynomial in x² that needs no opening of t."""
    return rule.degree == 1 and isinstance(form.mu, float)


def _smu_fraction(x: Share, form: Smu, rule: RootRule) -> int:
    """Fraction bits of smu(x) before it is truncated, in units of the scaled root."""
    square = 2 * min(x.fraction, rule.fraction_t) + rule.grain
    return 1 + (square if _linear_in_square(form, rule) else rule.fraction)


def _smu_bound(x: Share, form: Smu, rule: RootRule) -> float:
    """|smu(x)|, scaled as the root is."""
    return 0.5 * rule.bound + 0.5 * (1.0 + form.alpha) * x.bound * 2.0 ** (-rule.exponent // 2)


def _in_odd_ring(session: Session, x: Share, form: Smu, rule: RootRule, ring: Ring) -> Share:
    """smu(x), not truncated, all of it in one odd ring, from the openings of x and, from degree 2 on, t.

    Monomials of the masks: x², and t², …, t^n.
    """
    top = _largest_argument(x, form)
    check_argument(session, top, rule)
    bits, fraction, bound = (
        min(x.fraction, rule.fraction_t),
        _smu_fraction(x, form, rule),
        _smu_bound(x, form, rule),
    )
    opened = {"x": session.open(session.truncate_to(x, bits, ring))}
    half = 0.5 * (1.0 + form.alpha) * 2.0 ** (-rule.exponent // 2)
    if _linear_in_square(form, rule):
        root = _polynomial(rule, (form.factor * X**2 + np.square(form.mu)) * 2.0**-rule.exponent)
    else:
        spare = _SPARE if form.factor != 1.0 else 0
        square = session.evaluate(form.factor * X**2, opened, fraction=2 * bits + spare, bound=form.factor * x.bound**2)
        t = session.add_constant(square, np.square(form.mu)).bounded(top)
        opened["t"] = session.reopen(t.times_power(-rule.exponent), rule.fraction_t, ring)
        root = _polynomial(rule, T)
    value = session.evaluate(root * 0.5 + half * X, opened, fraction=fraction, bound=bound)
    return value.times_power(rule.exponent // 2)


def _root_of_t(session: Session, x: Share, form: Smu, rule: SmuRule) -> Share:
    """sqrt(φ·x² + μ²), not truncated, from an opening of t = φ·x² + μ²."""
    spare = 0 if form.factor == 1.0 else _SPARE
    bits = min(x.fraction, _FRACTION_X if not spare else _FRACTION_X - 2)
    top = form.factor * x.bound**2 + float(np.max(np.square(form.mu)))
    added = 0.0 if isinstance(rule, MinimaxRule | RootRule) else top + 2.0  # what other rules add to t
    narrow = ring_width(2 * bits + spare, top + added)
    opened = session.open(session.truncate_to(x, bits, min(x.width, narrow)))
    square = session.evaluate(
        form.factor * X**2, {"x": opened}, fraction=2 * bits + spare, bound=form.factor * opened.bound**2
    )
    t = square + session.constant(np.square(form.mu), square.fraction, square.width)
    match rule:
        case RootRule():
            return polynomial_root(session, t, rule)
        case MinimaxRule():
            return square_root(session, open_argument(session, t, rule), rule)
    y = session.reopen(inverse_sqrt(session, t, rule), rule.fraction_y)
    return session.evaluate(T * Y, {"t": session.reopen(t, 16), "y": y}, bound=4.0 * np.sqrt(top))


def polynomial_root(session: Session, t: Share, rule: RootRule) -> Share:
    """sqrt(t) by a polynomial, not truncated, from an opening of t. Reveals nothing."""
    check_argument(session, t.bound, rule)
    tau = session.reopen(t.times_power(-rule.exponent), rule.fraction_t, rule.width)
    root = session.evaluate(_polynomial(rule, T), {"t": tau}, fraction=rule.fraction, bound=rule.bound)
    return root.times_power(rule.exponent // 2)


def _root_of_x(session: Session, x: Share, form: Smu, rule: RootRule) -> Share:
    """The same by a root that is linear in x², from the opening of x alone."""
    check_argument(session, _largest_argument(x, form), rule)
    scale = 2.0**-rule.exponent
    bits = min(x.fraction, _FRACTION_X)
    fraction = 2 * bits + rule.grain
    width = max(ring_width(fraction, rule.bound), ring_width(fraction + 1, _smu_bound(x, form, rule)))
    opened = session.open(session.truncate_to(x, bits, width))
    polynomial = _polynomial(rule, scale * form.factor * X**2 + scale * float(np.square(form.mu)))
    root = session.evaluate(polynomial, {"x": opened}, fraction=fraction, bound=rule.bound)
    return root.times_power(rule.exponent // 2)


def _polynomial(rule: RootRule, tau: Polynomial) -> Polynomial:
    total = Polynomial.of(rule.coefficients[-1])
    for coefficient in reversed(rule.coefficients[:-1]):
        total = total * tau + coefficient
    return total


def tanh_like_rule(bound: float, steps: int | None = None) -> MinimaxRule:
    """For t = 1 + x², |x| <= bound; by default in as few steps as its error allows (`row_rule`)."""
    high = 1.0 + bound**2
    return minimax_rule(1.0, high, steps, floor=0.99) if steps is not None else row_rule(1.0, high, floor=0.99)


def tanh_like(session: Session, x: Share, rule: InverseSqrtRule, *, fraction: int = 12) -> Share:
    """x / sqrt(1 + x²), which stands for tanh(x) in a pooler. Opens x, t and the y's. Reveals nothing."""
    with session.part("tanh"):
        opened = session.open(x)
        t = session.add_constant(session.evaluate(X**2, {"x": opened}, bound=x.bound**2), 1.0)
        y = session.reopen(inverse_sqrt(session, t, rule), 14)
        limit = overshoot(rule) + 2.0**-10 + 2.0**-14 * x.bound
        return session.truncate_to(session.product(opened, y, bound=limit), fraction)
