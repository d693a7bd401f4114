"""LayerNorm on shares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from comet_mpc.engine import Deferred, Open, Opened, Session, Truncate
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import WORD, Share, ring_width
from comet_mpc.functions.inverse_rule import WideRule
from comet_mpc.functions.row_rule import ROW_ERROR, row_rule
from comet_mpc.functions.row_table import PADDING_ROOM, ROW_ALLOWED, Allowed, Factor, may_read, open_row
from comet_mpc.functions.rule import SPARE, InverseRule, Reals, inverse_sqrt
from comet_mpc.functions.rules import make_rule

V, W, Y = variables("v w y")

_FRACTION_V = 12
_FRACTION_Y = 14
_WIDEST = 2.0**22
"""Of an interval of variances: high over low."""
SUMMANDS = _FRACTION_V + 1
"""Fraction bits that matter of what is added up and then normalised: v is off by at most twice as much as x."""


def shrink_factor(size: int) -> float:
    """size = shrink·2^bits with shrink in (1/2, 1]."""
    return float(size / 2 ** math.ceil(math.log2(size)))


def largest_norm(size: int, rule: InverseRule) -> float:
    """‖v‖ of what `normalise` takes by that rule, for every input."""
    return math.sqrt(rule.high * 2.0 ** math.ceil(math.log2(size)))


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


def wide_layer_norm_rule(size: int, low: float, high: float) -> WideRule:
    """The same for an interval that is too wide for steps, by tables: n is never longer than by a rule of steps.

    Variances up to 2^7 times the low end are expected. Above, n is a few per cent too short, since y has few digits.
    """
    shrink = shrink_factor(size)
    low, high = max(low, high / _WIDEST) * shrink**3, high * shrink**3
    rule = WideRule(low, high, math.sqrt(shrink), throughout=False, above=ROW_ERROR, exact=2.0**7)
    rule.check()
    return rule


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


@dataclass(frozen=True)
class Centred:
    """v = (size·x - Σx)/2^k of shared rows x, with size = odd·2^power: exact, but for a unit of what is taken off.

    odd·x takes no more than k - power further fraction bits, and only Σx, of which there is one a row, is truncated.
    """

    scaled: Share
    mean: Deferred[Share]

    @staticmethod
    def of(session: Session, x: Share, width: int, bound: float) -> Centred:
        """width: of the ring that v is wanted in. bound: |Σx/2^k|. The truncation is free, or rides along."""
        bits, power = math.ceil(math.log2(x.shape[-1])), power_in(x.shape[-1])
        mean = x.sum(keep=True).times_power(-bits).bounded(bound)
        scaled = x.times(x.shape[-1] >> power).times_power(power - bits)
        return Centred(scaled, session.defer(Truncate(mean, power, width)))

    def result(self) -> Share:
        return self.scaled - self.mean.result()


def power_in(size: int) -> int:
    """size = odd·2^power."""
    return (size & -size).bit_length() - 1


def layer_norm(
    session: Session,
    x: Share,
    rule: InverseRule,
    *,
    epsilon: float = 1e-12,
    fraction: int = 12,
    width: int = WORD,
) -> Share:
    """(x - mean) / sqrt(variance + ε) along the last axis, without γ and β: `normalise` of v = (size·x - Σx)/2^k."""
    bits = math.ceil(math.log2(x.shape[-1]))
    v = (x.times(x.shape[-1]) - x.sum(keep=True)).times_power(-bits)
    return normalise(session, v, rule, epsilon=epsilon, fraction=fraction, width=width)


def normalise(
    session: Session,
    v: Share,
    rule: InverseRule,
    *,
    epsilon: float = 1e-12,
    fraction: int = 12,
    width: int = WORD,
    keep: Padding | None = None,
    hurried: bool = False,
) -> Share:
    """x / sqrt(mean square + ε) along the last axis, of v = x·size/2^k: LayerNorm, if x has the mean 0.

    keep: a bit for every row (`padding_bits`); rows with 0 become zero, at no round and no byte but for the rows' own
    hurried: whether rounds are dearer than randomness, for few rows: then v is truncated as it is opened (`reopen`),
    and always in Z_2^w

    v is opened once and serves the square and the product; of the masks' squares only row sums are needed. The result
    has `fraction` bits in a ring of `width`; with 18 bits in 56 or fewer its truncation is free. Opens v and the row
    quantities. Reveals nothing.
    """
    with session.part("layer_norm"):
        sizes = _Sizes(v.shape[-1], rule)
        room = PADDING_ROOM if keep is not None and session.fused and may_read(session, rule) else 1.0
        ring = sizes.ring(session, sizes.limit, sizes.fraction, room)
        if hurried:  # the last truncation is free there
            ring = Ring(ring_width(0, max(room * sizes.total * 4.0**_FRACTION_V, sizes.limit * 2.0**sizes.fraction)))
        if not ring.modulus and (free := width + sizes.fraction - fraction) <= WORD:
            ring = Ring(max(ring.width, free))  # so that the last truncation is free
        opened, t = sizes.argument(session, v, ring, epsilon, hurried)
        y = _opened_inverse(session, t, rule, ring, keep, hurried)
        result = session.evaluate(
            sizes.constant * V * y.polynomial, {"v": opened, **y.opened}, fraction=sizes.fraction, bound=sizes.limit
        )
        return session.truncate_to(result, fraction, width)


def normalised_mean(
    session: Session,
    v: Share,
    rule: InverseRule,
    averages: Share,
    *,
    epsilon: float = 1e-12,
    fraction: int = 12,
    width: int = WORD,
) -> Share:
    """Σ_t w_t·n_t over the tokens t, n the rows that `normalise` gives and w the `averages` (batch, tokens).

    From Σ_t (w_t·y_t)·v_t, so neither n nor a product of every element is needed: one row a text comes out, (batch,
    size), and what is done with every row ends with the opening of v. w is at least 0 and adds up to 1, but for its
    rounding. Rounds and openings as `normalise`, and one round for w·y. Reveals nothing.
    """
    with session.part("layer_norm"):
        batch, tokens, size = v.shape
        sizes = _Sizes(size, rule)
        limit = sizes.limit * (1.0 + tokens * 2.0**-averages.fraction)
        whole = sizes.fraction + averages.fraction
        ring = sizes.ring(session, limit, whole)
        row_ring = ring if ring.modulus else Ring(WORD)
        column = averages.reshape(batch, tokens, 1)
        if ring.modulus:
            deferred = session.defer(Truncate(column, 0, ring.width, ring.modulus), Open)
        else:
            deferred = session.defer(Open(column))
        opened, t = sizes.argument(session, v, ring, epsilon)
        if rule.only_tables:
            factor, largest = _opened_inverse(session, t, rule, row_ring, None), 1.25 * rule.gain * rule.low**-0.5
        else:
            y = session.reopen(inverse_sqrt(session, t, rule), _FRACTION_Y, row_ring)
            factor, largest = Factor(Y, {"y": y}), y.bound
        weighed = session.evaluate(
            sizes.constant * W * factor.polynomial, {"w": deferred.result(), **factor.opened},
            fraction=whole - _FRACTION_V, bound=largest * averages.bound,
        )  # fmt: skip
        if ring.modulus:
            products = session.product(opened, session.open(weighed), bound=sizes.limit)
            mean = products.sum(axis=-2).bounded(limit)
        else:
            row = session.open(weighed.narrow(ring.width).reshape(batch, 1, tokens))
            mean = session.matmul(row, opened, bound=limit).reshape(batch, size)
        return session.truncate_to(mean, fraction, width)


@dataclass(frozen=True)
class _Sizes:
    """What v / sqrt(t) is computed with, t = shrink·mean(v²) + ε·shrink³, for rows of `size` numbers."""

    size: int
    rule: InverseRule

    @property
    def total(self) -> float:
        """Σ v², for every input."""
        return largest_norm(self.size, self.rule) ** 2

    @property
    def limit(self) -> float:
        """A coordinate of n."""
        return (max(self.rule.overshoot, 1.0 + ROW_ERROR) + 2.0**-8) * math.sqrt(self.size)

    @property
    def constant(self) -> float:
        """n = v·sqrt(shrink)/sqrt(t), of which the rule's gain is in y."""
        return math.sqrt(shrink_factor(self.size)) / self.rule.gain

    @property
    def fraction(self) -> int:
        """Fraction bits of n before it is truncated."""
        return _FRACTION_V + _FRACTION_Y + (0 if self.constant == 1.0 else SPARE)

    def ring(self, session: Session, limit: float, fraction: float, room: float = 1.0) -> Ring:
        """For v², times `room`, and for a product of v that has this bound and these fraction bits."""
        return session.ring(0, max(room * self.total * 4.0**_FRACTION_V, limit * 2.0**fraction))

    def argument(
        self, session: Session, v: Share, ring: Ring, epsilon: float, hurried: bool = False
    ) -> tuple[Opened, Share]:
        """v, opened in that ring, and t."""
        bits, shrink = math.ceil(math.log2(self.size)), shrink_factor(self.size)
        top = largest_norm(self.size, self.rule)
        if hurried:
            opened = session.reopen(v.bounded(top), _FRACTION_V, ring)
        else:
            opened = session.open(session.truncate_to(v.bounded(top), _FRACTION_V, ring))
        squares = session.square_sum(opened, bound=self.total).times_power(-bits)
        return opened, session.add_constant(squares, epsilon * shrink**3).bounded(self.rule.high)


def _opened_inverse(
    session: Session, t: Share, rule: InverseRule, ring: Ring, keep: Padding | None, hurried: bool = False
) -> Factor:
    """gain/sqrt(t), opened: by a table, or by the rule's steps."""
    bits = None if keep is None else keep.bits
    allowed = ROW_ALLOWED if rule.table_above is None else Allowed(rule.table_above, rule.error)
    found = open_row(session, t, rule, fraction=_FRACTION_Y, ring=ring, allowed=allowed, keep=bits, hurried=hurried)
    if found is not None:
        return found
    inverse = inverse_sqrt(session, t, rule, keep=None if keep is None else keep.opened())
    return Factor(Y, {"y": session.reopen(inverse, _FRACTION_Y, ring if ring.modulus else WORD)})


def plain_centred(x: Reals, axis: int = -1) -> Reals:
    return np.asarray(x - x.mean(axis=axis, keepdims=True))


def plain_normalise(v: Reals, rule: InverseRule | None = None, *, epsilon: float = 1e-12) -> Reals:
    """`normalise` in real arithmetic, or exactly."""
    shrink, square = shrink_factor(v.shape[-1]), (v**2).mean(axis=-1, keepdims=True)
    if rule is None:
        return np.asarray(v / np.sqrt(square + epsilon * shrink**2))
    return np.asarray(v * rule(square * shrink + epsilon * shrink**3) * (math.sqrt(shrink) / rule.gain))
