"""Activations made of square roots: the smooth maximum unit (for GeLU and ReLU) and x/sqrt(1 + x²) (for tanh)."""

from __future__ import annotations

import numpy as np

from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.session import Session
from comet_mpc.engine.share import WORD, Share
from comet_mpc.errors import RuleError
from comet_mpc.functions.inverse_rule import MinimaxRule
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.row_rule import ROW_ERROR, row_rule
from comet_mpc.functions.row_table import ROW_ALLOWED, Factor, open_row
from comet_mpc.functions.rule import PRECISION, InverseRule, Rule, Smu, inverse_sqrt
from comet_mpc.functions.rules import make_rule

X, Y = variables("x y")


def argument_interval(form: Smu, bound: float) -> tuple[float, float]:
    """All values that t = φ·x² + μ² can take for |x| <= bound."""
    mu = np.asarray(form.mu, dtype=np.float64)
    low = float(np.min(mu**2))
    if low <= 0.0 or not 0.0 <= form.alpha < 1.0:
        raise RuleError("smu needs 0 <= alpha < 1 and, so that t has a positive lower end, every mu above 0")
    return low, form.factor * bound**2 + float(np.max(mu**2))


def smu_rule(
    form: Smu,
    bound: float,
    steps: int | None,
    *,
    name: str = "minimax",
    emphasis: float = 0.25,
    precision: int = PRECISION,
) -> Rule:
    """The rule of that name for |x| <= bound: its interval holds for every input, so that nothing depends on data."""
    low, high = argument_interval(form, bound)
    return make_rule(
        name, low, high, steps, root=True, beside=(1.0 + form.alpha) * bound, emphasis=emphasis, floor=0.9 * low,
        precision=precision,
    )  # fmt: skip


def smu(
    session: Session,
    x: Share,
    form: Smu,
    rule: Rule,
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
        return session.truncate_to(rule.activate(session, x, form), fraction, width)


def tanh_like_rule(bound: float, steps: int | None = None) -> MinimaxRule:
    """For t = 1 + x², |x| <= bound; by default in as few steps as its error allows (`row_rule`)."""
    high = 1.0 + bound**2
    return minimax_rule(1.0, high, steps, floor=0.99) if steps is not None else row_rule(1.0, high, floor=0.99)


def tanh_like(session: Session, x: Share, rule: InverseRule, *, fraction: int = 12) -> Share:
    """x / sqrt(1 + x²), which stands for tanh(x) in a pooler. Opens x, t and the y's. Reveals nothing."""
    with session.part("tanh"):
        opened = session.open(x)
        t = session.add_constant(session.evaluate(X**2, {"x": opened}, bound=x.bound**2), 1.0)
        y = open_row(session, t, rule, fraction=14, ring=opened.ring, allowed=ROW_ALLOWED)
        if y is None:
            y = Factor(Y, {"y": session.reopen(inverse_sqrt(session, t, rule), 14)})
        limit = max(rule.overshoot, 1.0 + ROW_ERROR) + 2.0**-10 + 2.0**-14 * x.bound
        product = session.evaluate(X * y.polynomial, {"x": opened, **y.opened}, bound=limit)
        return session.truncate_to(product, fraction)
