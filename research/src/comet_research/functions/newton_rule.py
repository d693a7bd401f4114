"""1/sqrt(t) by a guess and plain Newton steps, as other systems and the paper do it. Nothing is certified.

paper        double approximation on flooded shares, then 4 steps. NOT PRIVATE (`flooding`)
exponential  CrypTen's guess 2.2·exp(-(t/2 + 0.2)) + 0.2 - t/1024, then 10 (or 3) steps
taylor7      the paper's degree 7 Taylor polynomial around 1, then 2 steps
taylor2      the same with degree 2, then 8 steps
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from comet_mpc.engine import Session
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.share import Share
from comet_mpc.functions.rule import InverseRule, Wanted
from comet_research.functions.flooding import Flooding, flooded_guess_not_private

T, Y, P, Q, B = variables("t y p q b")

ITERATIONS = {"paper": 4, "exponential": 10, "taylor7": 2, "taylor2": 8}
"""Of a rule by its name, unless another number is wanted."""


@dataclass(frozen=True)
class NewtonRule(InverseRule):
    """A guess and plain Newton steps y <- y·(3/2 - t·y²/2). Nothing is certified: outside its basin it diverges."""

    name: str
    low: float
    high: float
    iterations: int
    gain: float = 1.0
    """Always 1: a caller that wants another constant multiplies with it."""

    @staticmethod
    def make(name: str, wanted: Wanted) -> NewtonRule:
        return NewtonRule(name, wanted.low, wanted.high, ITERATIONS[name] if wanted.steps is None else wanted.steps)

    @property
    def counted_steps(self) -> int:
        return self.iterations

    @property
    def overshoot(self) -> float:
        """Assumed."""
        return 1.25

    @property
    def fraction_t(self) -> int:
        return 14

    @property
    def bound(self) -> float:
        """|y| while it converges. An assumption, not a proof: the reason why these rules do not serve."""
        return 2.0 / math.sqrt(self.low)

    @property
    def fraction_y(self) -> int:  # type: ignore[override]
        return min(14, int((60 - math.log2(self.bound) - self.fraction_t) // 3))

    def added(self, top: float) -> float:
        return top + 2.0

    def inverse_of(self, session: Session, t: Share) -> Share:
        y = _GUESSES[self.name](session, t, self)
        t_opened = session.reopen(t, self.fraction_t)
        fraction = self.fraction_t + 3 * self.fraction_y + 1
        for _ in range(self.iterations):
            opened = {"t": t_opened, "y": session.reopen(y, self.fraction_y)}
            y = session.evaluate(1.5 * Y - 0.5 * T * Y**3, opened, fraction=fraction, bound=self.bound)
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


_GUESSES = {"paper": _paper_guess, "exponential": _exponential_guess, "taylor7": _taylor7, "taylor2": _taylor2}
