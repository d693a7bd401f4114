"""LayerNorm on shares."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from comet_mpc.engine import Deferred, Open, Opened, Session, Truncate
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import WORD, Share
from comet_mpc.functions.row_rule import ROW_ERROR, row_rule
from comet_mpc.functions.row_table import PADDING_ROOM, ROW_ALLOWED, Factor, may_read, open_row
from comet_mpc.functions.rule import SPARE, InverseRule, Reals, inverse_sqrt
from comet_mpc.functions.rules import make_rule

V, Y = variables("v y")

_FRACTION_V = 12
_FRACTION_Y = 14


def shrink_factor(size: int) -> float:
    """size = shrink·2^bits with shrink in (1/2, 1]."""
    return float(size / 2 ** math.ceil(math.log2(size)))


def layer_norm_rule(
    size: int, low: float, high: float, steps: int | None = None, *, name: str = "minimax"
) -> InverseRule:
    """The rule for a variance in [low, high] over rows of `size` numbers; `high` must hold for every input.

    steps: by default as many as the error of a row allows (`row_rule`)
    """
    shrink = shrink_factor(size)
    gain = math.sqrt(shrink)
    if steps is None and name == "minimax":
        return row_rule(low * shrink**3, high * shrink**3, gain=gain)
    return make_rule(name, low * shrink**3, high * shrink**3, steps, gain=gain).inverse()


class Padding(NamedTuple):
    """Which rows `layer_norm` keeps, 1 or 0 for each (last axis 1): as a share and, for a rule's last step, opened."""

    bits: Share
    opened: Callable[[], Opened]


def padding_bits(session: Session, mask: Share, rule: InverseRule) -> Padding:
    """A padding mask (batch, tokens) as `layer_norm` by that rule takes it: opened along with what is opened anyway.

    A table needs it as a share only: then it is not opened, unless somebody asks for it.
    """
    bits, ring = mask.reshape(*mask.shape, 1), rule.ring(session)

    def put_off() -> Deferred[Opened]:
        if ring.modulus:
            return session.defer(Truncate(bits, 0, ring.width, ring.modulus), Open)
        return session.defer(Open(bits))

    if may_read(session, rule):
        return Padding(bits, lambda: put_off().result())
    return Padding(bits, put_off().result)


def layer_norm(
    session: Session,
    x: Share,
    rule: InverseRule,
    *,
    epsilon: float = 1e-12,
    fraction: int = 12,
    width: int = WORD,
    keep: Padding | None = None,
) -> Share:
    """(x - mean) / sqrt(variance + ε) along the last axis, without γ and β.

    keep: a bit for every row (`padding_bits`); rows with 0 become zero, at no round and no byte but for the rows' own

    Works with v = (size·x - Σx)/2^k, which needs no division before the square. v is opened once and serves the
    square and the product; of the masks' squares only row sums are needed. The result has `fraction` bits in a ring of
    `width`; with 18 bits in 56 or fewer its truncation is free. Opens v and the row quantities. Reveals nothing.
    """
    with session.part("layer_norm"):
        bits = math.ceil(math.log2(x.shape[-1]))
        centred = (x.times(x.shape[-1]) - x.sum(keep=True)).times_power(-bits)
        return _over_root(session, centred, rule, epsilon, fraction, width, keep)


def root_mean_square(
    session: Session, x: Share, rule: InverseRule, *, epsilon: float = 1e-12, fraction: int = 12, width: int = WORD
) -> Share:
    """x / sqrt(mean square + ε) along the last axis: `layer_norm` without the mean, by the same kind of rule."""
    with session.part("length"):
        bits = math.ceil(math.log2(x.shape[-1]))
        return _over_root(session, x.times(x.shape[-1]).times_power(-bits), rule, epsilon, fraction, width)


def _over_root(
    session: Session,
    v: Share,
    rule: InverseRule,
    epsilon: float,
    fraction: int,
    width: int,
    keep: Padding | None = None,
) -> Share:
    """v / sqrt(shrink·mean(v²) + ε·shrink³), times sqrt(shrink)."""
    size = v.shape[-1]
    bits, shrink = math.ceil(math.log2(size)), shrink_factor(size)
    total = rule.high * 2.0**bits  # Σ v², for every input
    limit = (max(rule.overshoot, 1.0 + ROW_ERROR) + 2.0**-8) * math.sqrt(size)
    constant = math.sqrt(shrink) / rule.gain  # n = v·sqrt(shrink)/sqrt(t)
    spare = 0 if constant == 1.0 else SPARE
    whole = _FRACTION_V + _FRACTION_Y + spare
    room = PADDING_ROOM if keep is not None and may_read(session, rule) else 1.0
    ring = session.ring(0, max(room * total * 4.0**_FRACTION_V, limit * 2.0**whole))
    if not ring.modulus and (free := width + whole - fraction) <= WORD:
        ring = Ring(max(ring.width, free))  # so that the last truncation is free
    opened = session.open(session.truncate_to(v.bounded(math.sqrt(total)), _FRACTION_V, ring))
    squares = session.square_sum(opened, bound=total).times_power(-bits)
    t = session.add_constant(squares, epsilon * shrink**3).bounded(rule.high)
    y = _opened_inverse(session, t, rule, ring, keep)
    result = session.evaluate(constant * V * y.polynomial, {"v": opened, **y.opened}, fraction=whole, bound=limit)
    return session.truncate_to(result, fraction, width)


def _opened_inverse(session: Session, t: Share, rule: InverseRule, ring: Ring, keep: Padding | None) -> Factor:
    """gain/sqrt(t), opened: by a table, or by the rule's steps."""
    bits = None if keep is None else keep.bits
    found = open_row(session, t, rule, fraction=_FRACTION_Y, ring=ring, allowed=ROW_ALLOWED, keep=bits)
    if found is not None:
        return found
    inverse = inverse_sqrt(session, t, rule, keep=None if keep is None else keep.opened())
    return Factor(Y, {"y": session.reopen(inverse, _FRACTION_Y, ring if ring.modulus else WORD)})


def plain_layer_norm(x: Reals, rule: InverseRule | None = None, *, epsilon: float = 1e-12) -> Reals:
    """The same in real arithmetic, by a rule of `layer_norm_rule`, or exactly."""
    return plain_root_mean_square(x - x.mean(axis=-1, keepdims=True), rule, epsilon=epsilon)


def plain_root_mean_square(x: Reals, rule: InverseRule | None = None, *, epsilon: float = 1e-12) -> Reals:
    square = (x**2).mean(axis=-1, keepdims=True) + epsilon
    if rule is None:
        return np.asarray(x / np.sqrt(square))
    shrink = shrink_factor(x.shape[-1])
    return np.asarray(x * shrink * rule(square * shrink**3) * (math.sqrt(shrink) / rule.gain))
