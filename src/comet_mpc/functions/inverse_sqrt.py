"""The unified function: 1/sqrt(t) on shares, by a rule chosen by name.

    minimax      public coefficients fitted to an interval (`minimax`): the one that serves
    paper        double approximation on flooded shares, then plain Newton. NOT PRIVATE (`flooding`)
    exponential  CrypTen's guess 2.2·exp(-(t/2 + 0.2)) + 0.2 - t/1024, then 10 (or 3) Newton steps
    taylor7      the paper's degree 7 Taylor polynomial around 1, then 2 Newton steps
    taylor2      the same with degree 2, then 8 Newton steps
    table        the top bit, a power of two and a guess from tables by 1-of-M transfers, then one Newton step
    reference    minimax with as many steps as the fixed point has use for

All run on the same engine, so their costs and errors compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Opened, Session, Truncate
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.ring import WORD, Ring
from comet_mpc.engine.share import Share, concatenate, ring_width
from comet_mpc.errors import RangeError, RuleError
from comet_mpc.functions.flooding import Flooding, flooded_guess_not_private
from comet_mpc.functions.inverse_rule import MinimaxRule
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.root_rule import RootRule
from comet_mpc.functions.table_rule import TableRule

Reals = npt.NDArray[np.float64]

T, Y, K, P, Q, B, Z, H, D = variables("t y k p q b z h d")


@dataclass(frozen=True)
class NewtonRule:
    """A guess and plain Newton steps y <- y·(3/2 - t·y²/2). Nothing is certified: outside its basin it diverges."""

    name: str
    low: float
    high: float
    iterations: int
    gain: float = 1.0
    """Always 1: a caller that wants another constant multiplies with it."""

    @property
    def fraction_t(self) -> int:
        return 14

    @property
    def bound(self) -> float:
        """|y| while it converges. An assumption, not a proof: the reason why these rules do not serve."""
        return 2.0 / math.sqrt(self.low)

    @property
    def fraction_y(self) -> int:
        return min(14, int((60 - math.log2(self.bound) - self.fraction_t) // 3))


InverseSqrtRule = MinimaxRule | NewtonRule | TableRule

_ITERATIONS = {"paper": 4, "exponential": 10, "taylor7": 2, "taylor2": 8}
RULES = ("minimax", *_ITERATIONS, "table", "reference")


def make_rule(
    name: str,
    low: float,
    high: float,
    steps: int | None = None,
    *,
    root: bool = False,
    beside: float | None = None,
    emphasis: float = 0.0,
    floor: float = 0.0,
    gain: float = 1.0,
) -> InverseSqrtRule:
    """A rule by its name, for t in [low, high]; `steps` replaces its usual number of steps."""
    if not 0.0 < low < high:
        raise RuleError(f"the interval [{low:g}, {high:g}] is empty or not positive")
    if name == "minimax":
        return minimax_rule(low, high, steps or 3, root=root, beside=beside, emphasis=emphasis, floor=floor, gain=gain)
    if name == "reference":
        return minimax_rule(low, high, steps or 8, root=root, beside=beside, floor=floor, gain=gain)
    if name in _ITERATIONS:
        return NewtonRule(name, low, high, _ITERATIONS[name] if steps is None else steps)
    if name == "table":
        if steps not in (None, 1):
            raise RuleError(f"the rule of tables takes one step, not {steps}")
        return TableRule(low, high)
    raise RuleError(f"unknown rule {name!r}: choose one of {', '.join(RULES)}")


def inverse_sqrt(session: Session, t: Share, rule: InverseSqrtRule, *, keep: Opened | None = None) -> Share:
    """y ≈ 1/sqrt(t) for t in the rule's interval, not truncated yet. Reveals nothing (but for `paper`).

    keep: bits that y is multiplied with, in the last step and at no round: 0 where a row is padding
    minimax: opens t and one y per step after the start. Relative error at most rule.error + rule.rounding.
    table: the same error promise; rounds: 2 a digit of t, log2 of their number, and 9.
    """
    with session.part("inverse_sqrt"):
        if isinstance(rule, MinimaxRule):
            return _last(session, _Arguments(session, t, rule, row_ring(session, rule)), rule, keep=keep)
        y = _newton(session, t, rule) if isinstance(rule, NewtonRule) else _by_tables(session, t, rule)
        if keep is None:
            return y
        return session.evaluate(Y * K, {"y": session.reopen(y, rule.fraction_y), "k": keep}, bound=y.bound)


def plain_inverse_sqrt(t: Reals, rule: InverseSqrtRule | None) -> Reals:
    """In real arithmetic: by a minimax rule; without one, or by another rule, exactly."""
    return rule(t) if isinstance(rule, MinimaxRule) else np.asarray(1.0 / np.sqrt(t))


def overshoot(rule: InverseSqrtRule) -> float:
    """y·sqrt(t)/gain is at most this (certified for minimax and table, else assumed); less below the interval."""
    match rule:
        case NewtonRule():
            return 1.25
        case MinimaxRule():
            return rule.overshoot
    return 1.0 + rule.error + rule.rounding


def check_argument(session: Session, bound: float, rule: MinimaxRule | RootRule) -> None:
    """Refuses a t that could leave the rule's stable range."""
    if bound > rule.stable_top:
        raise RangeError(
            f"{session.here}: t may reach {bound:g}, but the rule for [{rule.low:g}, {rule.high:g}] is stable only "
            f"up to {rule.stable_top:g}: certify a smaller bound or widen the interval"
        )


def open_argument(session: Session, t: Share, rule: MinimaxRule, ring: int | Ring = WORD) -> Opened:
    """τ = t·2^-exponent with the rule's fraction bits, opened. Refuses a t that could leave the stable range."""
    check_argument(session, t.bound, rule)
    return session.reopen(t.times_power(-rule.exponent), rule.fraction_t, ring)


class _Arguments:
    """τ as the stages of a rule take it, opened with their bits: the start's at once, the others' along with others."""

    def __init__(self, session: Session, t: Share, rule: MinimaxRule, ring: Ring) -> None:
        check_argument(session, t.bound, rule)
        tau, first = t.times_power(-rule.exponent), rule.bits_of_t(None)
        more = dict.fromkeys(bits for step in rule.steps if (bits := rule.bits_of_t(step)) != first)
        self._later = {bits: session.reopen_later(tau, bits, ring) for bits in more}
        self._first = session.reopen(tau, first, ring)

    def __call__(self, bits: int) -> Opened:
        return self._later[bits].result() if bits in self._later else self._first


def row_ring(session: Session, rule: InverseSqrtRule) -> Ring:
    """The ring of t and of every y."""
    if not isinstance(rule, MinimaxRule):
        return Ring(WORD)
    sizes = [(rule.start_fraction, rule.start_bound), *((step.fraction, step.bound) for step in rule.steps)]
    ring = session.ring(0, max(bound * 2.0**fraction for fraction, bound in sizes))
    return ring if ring.modulus else Ring(WORD)


def square_root(session: Session, tau: Opened, rule: MinimaxRule) -> Share:
    """sqrt(t) = t·(1/sqrt(t)). Not truncated yet.

    With a dealer, t is fused with the last step, so that its y need not be opened. Two parties alone open it: two
    rounds more, and less randomness, since monomials of two large tensors are what costs them most.
    """
    if session.fused or not rule.steps:
        return _last(session, lambda bits: tau, rule, root=True)
    y = session.reopen(
        _last(session, lambda bits: tau, rule).times_power(rule.exponent // 2), rule.fraction_y, tau.ring
    )
    root = session.evaluate(T * Y, {"t": tau, "y": y}, bound=rule.root_bound)
    return root.times_power(rule.exponent // 2)


def _last(
    session: Session,
    tau: Callable[[int], Opened],
    rule: MinimaxRule,
    *,
    root: bool = False,
    keep: Opened | None = None,
) -> Share:
    """The start and the steps; the last one times τ if the root is wanted, or times bits that say what is kept."""
    current: Polynomial = Polynomial({})
    for power, coefficient in enumerate(rule.start):
        current = current + coefficient * T**power
    fraction, bound = rule.start_fraction, rule.start_bound
    opened = {"t": tau(rule.bits_of_t(None))}
    for step in rule.steps:
        y = session.reopen(
            session.evaluate(current, opened, fraction=fraction, bound=bound), rule.bits_of_y(step), opened["t"].ring
        )
        opened = {"t": tau(rule.bits_of_t(step)), "y": y}
        current = step.a * Y - (step.b or 2.0**-step.shift) * T * Y**3
        if step.b:
            current = current + 2.0**-step.shift * T**2 * Y**5
        fraction, bound = step.fraction, step.bound
    if root:
        current, fraction, bound = current * T, fraction + rule.fraction_t, rule.root_bound
    if keep is not None:
        current, opened = current * K, {**opened, "k": keep}
    value = session.evaluate(current, opened, fraction=fraction, bound=bound)
    return value.times_power(rule.exponent // 2 if root else -rule.exponent // 2)


# The others ----------------------------------------------------------------------------------------------


def _newton(session: Session, t: Share, rule: NewtonRule) -> Share:
    y = {
        "paper": _paper_guess,
        "exponential": _exponential_guess,
        "taylor7": _taylor7,
        "taylor2": _taylor2,
    }[rule.name](session, t, rule)
    t_opened = session.reopen(t, rule.fraction_t)
    for _ in range(rule.iterations):
        opened = {"t": t_opened, "y": session.reopen(y, rule.fraction_y)}
        fraction = rule.fraction_t + 3 * rule.fraction_y + 1
        y = session.evaluate(1.5 * Y - 0.5 * T * Y**3, opened, fraction=fraction, bound=rule.bound)
    return y


def _paper_guess(session: Session, t: Share, rule: NewtonRule) -> Share:
    return flooded_guess_not_private(session, session.truncate_to(t, 16), Flooding())


def exponential(session: Session, z: Share, *, top: float = 0.0) -> Share:
    """exp(z) ≈ (1 + z/2^8)^(2^8), as CrypTen does it, with 28 fraction bits, since errors grow 256-fold.

    Domain: z in [-512, top], top <= 4. Low by a factor of exp(z²/512). Opens eight powers. Rounds 16,
    one more if z has more than 20 fraction bits. Reveals nothing.
    """
    fraction = 28
    whole = max(z.fraction + 8, fraction)
    power = session.truncate_to(session.add_constant(z.times_power(-8).lift(whole), 1.0), fraction)
    for squared in range(8):
        size, limit = (
            math.exp(max(top, 0.0) * 2.0 ** (done - 8)) * (1.0 + 2.0**-16) for done in (squared, squared + 1)
        )
        square = session.evaluate(P**2, {"p": session.open(power.bounded(size))}, bound=limit)
        power = session.truncate(square, fraction).bounded(limit)
    return power


def _exponential_guess(session: Session, t: Share, rule: NewtonRule) -> Share:
    t = session.truncate_to(t, min(t.fraction, 19))  # also out of a narrow ring, if it comes in one
    z = session.add_constant(-t.times_power(-1).lift(20), -0.2)
    start = exponential(session, z).times(round(2.2 * 2**10)).times_power(-10)
    whole = max(start.fraction, t.fraction + 10)
    guess = session.add_constant(start.lift(whole) - t.times_power(-10).lift(whole), 0.2)
    return guess.bounded(rule.bound)


def _taylor2(session: Session, t: Share, rule: NewtonRule) -> Share:
    p = session.reopen(session.add_constant(t, -1.0), 14)
    bound = 1.0 + 0.5 * rule.high + 0.375 * rule.high**2
    return session.evaluate(1.0 - 0.5 * P + 0.375 * P**2, {"p": p}, fraction=40, bound=bound)


def _taylor7(session: Session, t: Share, rule: NewtonRule) -> Share:
    """A(p) + p⁴·B(p), p = t - 1, from the openings of p, p² and B(p)."""
    p = session.reopen(session.add_constant(t, -1.0), 14)
    low = 1.0 - 0.5 * P + 3.0 / 8 * P**2 - 5.0 / 16 * P**3
    high = 35.0 / 128 - 63.0 / 256 * P + 231.0 / 1024 * P**2 - 429.0 / 2048 * P**3
    size = max(1.0, rule.high)
    first = session.evaluate(low, {"p": p}, fraction=48, bound=size**3)
    second = session.evaluate(high, {"p": p}, fraction=48, bound=size**3)
    square = session.evaluate(P**2, {"p": p}, fraction=28, bound=size**2)
    both = session.reopen(second, 14), session.reopen(square, 14)
    product = session.evaluate(Q**2 * B, {"b": both[0], "q": both[1]}, fraction=42, bound=size**4)
    return (product.lift(48) + first).bounded(max(rule.bound, size**4))


# By look-ups -----------------------------------------------------------------------------------------------------


def _by_tables(session: Session, t: Share, rule: TableRule) -> Share:
    """Digits of t, m, m's leading bits, a Newton step. Besides look-ups opens t, its power, m, w, y and the scale."""
    if t.bound > rule.top:
        raise RangeError(f"{session.here}: t may reach {t.bound:g}, but the rule's tables end at {rule.top:g}")
    t = session.truncate_to(t.lift(max(t.fraction, rule.fraction_t)), rule.fraction_t, rule.width)
    power, scale = session.look_up(_top_bit(session, t, rule).narrow(5), *rule.power_tables)
    opened = dict(zip("tp", session.open(t.times_power(rule.fraction_t), power), strict=True))
    whole = session.evaluate(T * P, opened, bound=2.0**rule.bits)
    m = whole.times_power(1 - rule.bits)
    place = session.truncate(m.times(rule.cells), rule.bits - 1, rule.width - rule.bits + 1)
    (w,) = session.look_up(session.add_constant(place, 1.0 - rule.cells).narrow(rule.guess_bits), rule.guess_table)
    fraction = rule.fraction_m + 3 * rule.fraction_w + 1
    m, w = _brought(session, ring_width(fraction, 1.1), (m, rule.fraction_m), (w, rule.fraction_w))
    opened = dict(zip("ty", session.open(m, w), strict=True))
    y = session.evaluate(1.5 * Y - 0.5 * T * Y**3, opened, fraction=fraction, bound=1.01)
    bound = 1.02 * scale.bound
    width = ring_width(rule.fraction_y + rule.fraction_s, bound)
    y, scale = _brought(session, width, (y, rule.fraction_y), (scale, rule.fraction_s))
    return session.evaluate(Y * P, dict(zip("yp", session.open(y, scale), strict=True)), bound=bound)


def _top_bit(session: Session, t: Share, rule: TableRule) -> Share:
    """The place of the highest bit of t that is set: of the highest digit that is not zero."""
    carry: Share | None = None
    filled, places = [], []
    for place in range(rule.digits):
        digit = t.digit_sum(place, rule.digit_bits)
        if carry is not None:
            digit = (digit + carry.narrow(digit.width)).bounded(digit.bound)
        carry, full, top = session.look_up(digit, rule.digit_table(place))
        filled.append(full.reshape(1, *t.shape))
        places.append(top.reshape(1, *t.shape))
    z, d = concatenate(filled, 0), concatenate(places, 0)
    while z.shape[0] > 1:  # of two neighbours the higher one counts, unless it is zero
        pairs = z.shape[0] // 2 * 2
        low, high = (slice(start, pairs, 2) for start in (0, 1))
        opened = dict(zip("hzd", session.open(z[high], z[low], (d[high] - d[low]).bounded(32.0)), strict=True))
        either = session.evaluate(H + Z - H * Z, opened, bound=1.0)
        further = session.evaluate(H * D, opened, bound=32.0)
        z = concatenate([either, z[pairs:]], 0)
        d = concatenate([(d[low] + further).bounded(32.0), d[pairs:]], 0)
    return d[0]


def _brought(session: Session, width: int, *wanted: tuple[Share, int]) -> tuple[Share, ...]:
    """Shares with so many fraction bits in a ring of `width`. One round."""
    lifted = [(share.lift(max(share.fraction, fraction)), fraction) for share, fraction in wanted]
    results = session.communicate(*(Truncate(share, share.fraction - bits, width) for share, bits in lifted))
    return tuple(result for result in results if isinstance(result, Share))
