"""Attention without a softmax: R·V / ΣR with weights R = f(s) of scores s (`weighing`), normalised after the product.

    paper      f = smu, s = q·k/√d: the range of s must be claimed by the caller
    certified  f = smu², s = cos(q, k) - c with a threshold c per head: s is in [-2, 2] whatever the input
    fitted     f two or three squares with numbers of its own for every head,
               s = q·k/sqrt((|q|² + c_q)·(|k|² + c_k)) + b, in [-2, 2] too

The softness c of a head is the server's: 0 makes a cosine, and a large one nearly q·k with a scale. |q| <= 1 and
|k| <= 1 by the server's weights, so such a score is within [-1, 1] whatever they are, before b is added.

A secret padding mask m (1 for a token, 0 for padding) is one more column of V, whose own rows are zero where m is:
R·[V | m] gives numerator and denominator, and the n×n weights R never meet it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from comet_mpc.engine import Open, Session, Truncate
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import WORD, Share, concatenate, ring_width
from comet_mpc.errors import RuleError, ScaleError, ShapeError
from comet_mpc.functions.activation import smu_rule
from comet_mpc.functions.constants import Constants
from comet_mpc.functions.inverse_rule import MinimaxRule, WideRule
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.row_rule import ROW_ERROR, row_rule
from comet_mpc.functions.row_table import Allowed, Factor, open_row
from comet_mpc.functions.rule import (
    SPARE,
    InverseRule,
    Reals,
    Rule,
    Smu,
    inverse_sqrt,
    plain_inverse_sqrt,
)
from comet_mpc.functions.weighing import SCORE, SQUARES, SmuWeighing, Weighing

N, Y = variables("n y")

# Fraction bits. Rows may have little weight in all, so R and what is divided keep more bits than scores do.
_QUERY = 5
_FREE = 2  # more of them than that, as a cut that sends nothing may leave
_SOFT_QUERY = 14  # rows that are shorter than their head's softness matter as well
_VALUE = 12
_ROW = 14
_DENOMINATOR_ERROR = 2.0**-7  # of 1/sqrt: all weights of a row are off by as much
_TOO_LONG = 0.0016  # what a normalised query or key may be longer than 1
LARGEST_SOFTNESS = 1.0 - 2.0**-6
"""c, beside norms that are at most 1."""
_NORM_ALLOWED = Allowed(_TOO_LONG, 2.5 * ROW_ERROR)


@dataclass(frozen=True)
class AttentionForm:
    """What is computed, and the public rules it is computed by."""

    weighing: Weighing
    cosine: bool
    denominators: InverseRule
    """For Σ_j R_ij / n with R scaled to at most 1."""
    norms: InverseRule | None = None
    """For |q|² + c and |k|² + c; only with cosine."""
    threshold_bound: float = 1.0
    floor: float = 0.0
    """Added to Σ_j R_ij: without a smooth smu a row may have no positive score at all."""
    soft: bool = False
    """Whether a softness c is added to the norms; else it is 0."""


def certified_attention(mu: float, *, scores: Rule, denominators: InverseRule, norms: InverseRule) -> AttentionForm:
    """Cosine scores and smu², by these rules."""
    weighing = SmuWeighing(2, Smu(mu / 2.0), scores, score_bound=2.0)  # scores are halved into [-1, 1]
    return AttentionForm(weighing, cosine=True, denominators=denominators, norms=norms)


def fitted_attention(*, denominators: InverseRule, norms: InverseRule, power: int = 4) -> AttentionForm:
    """Repeated squares of a head's own, by these rules. R is within the denominators' interval."""
    weighing = SQUARES[power](denominators.high)
    return AttentionForm(weighing, cosine=True, denominators=denominators, norms=norms, soft=True)


def certified_form(
    steps: int,
    *,
    mu: float = 0.125,
    row_steps: int | None = None,
    norm_interval: tuple[float, float] = (2.0**-12, 1.0 + 2.0**-6),
    name: str = "minimax",
    emphasis: float = 0.25,
) -> AttentionForm:
    """Certified attention with rules for `norm_interval`, that of |q|² and |k|², its top certified.

    A server divides the weights of queries and keys by their heads' bounds, so that all norms are at most 1.
    row_steps: of norms and, one more, of denominators; by default as many as their errors allow (`row_rule`)
    """
    return certified_attention(
        mu,
        scores=smu_rule(Smu(mu / 2.0), 1.0 + 2.0**-8, steps, name=name, emphasis=emphasis),
        denominators=denominator_rule(1.0 + 2.0**-4, row_steps and row_steps + 1),
        norms=norm_rule(*norm_interval, row_steps),
    )


def fitted_form(
    norm_interval: tuple[float, float] = (2.0**-8, 2.0 - 2.0**-8), largest_weight: float = 0.25, power: int = 4
) -> AttentionForm:
    """Fitted attention with rules for `norm_interval`, that of |q|² + c and |k|² + c, and the largest R there is."""
    denominators = fitted_denominator_rule(largest_weight, power)
    return fitted_attention(denominators=denominators, norms=norm_rule(*norm_interval), power=power)


def fitted_denominator_rule(largest_weight: float, power: int, steps: int | None = None) -> InverseRule:
    """For the mean of a row's R, at most `largest_weight`."""
    low = largest_weight * 2.0 ** -SQUARES[power].least_exponent
    if SQUARES[power].by_tables:
        return WideRule(low, largest_weight)
    return denominator_rule(largest_weight, steps, low=low)


def denominator_rule(high: float, steps: int | None = None, *, low: float = SmuWeighing.smallest_mean) -> MinimaxRule:
    """For the mean of a row's R, at most `high`."""
    if steps is not None:
        return minimax_rule(low, high, steps)
    return row_rule(low, high, error=_DENOMINATOR_ERROR)


def norm_rule(low: float, high: float, steps: int | None = None) -> MinimaxRule:
    """For |q|² and |k|². What is divided by it must not be too long, or scores would leave their interval."""
    return minimax_rule(low, high, steps) if steps is not None else row_rule(low, high, above=_TOO_LONG)


def paper_form(
    steps: int,
    *,
    mu: float,
    score_bound: float,
    row_steps: int = 7,
    name: str = "minimax",
) -> AttentionForm:
    """The paper's smu(s)/Σ smu(s), s = q·k/√d. |s| <= score_bound is the caller's claim."""
    if mu <= 0.0:
        raise RuleError("mu = 0 leaves rows without a positive score and t without a lower end: give a floor above 0")
    form = Smu(mu / score_bound)
    rule = smu_rule(form, 1.0 + 2.0**-8, steps, name=name)
    return AttentionForm(
        SmuWeighing(1, form, rule, score_bound),
        cosine=False,
        denominators=minimax_rule(SmuWeighing.smallest_mean, 1.0 + 2.0**-4, row_steps),
    )


def plain_attention(
    q: Reals,
    k: Reals,
    v: Reals,
    form: AttentionForm,
    thresholds: Reals | None = None,
    mask: Reals | None = None,
    *,
    exact: bool = True,
    constants: Reals | None = None,
    softness: Reals | None = None,
) -> Reals:
    """The same in real arithmetic, with exact functions or by the form's rules. Shapes as for `attention`, but
    thresholds may be (heads,), and softness is (heads, 2): of queries and of keys."""
    norms, denominators = (None if exact else rule for rule in (form.norms, form.denominators))
    if form.cosine:
        soft = np.zeros((q.shape[-3], 2)) if softness is None else softness
        q, k = (
            z * plain_inverse_sqrt((z**2).sum(axis=-1, keepdims=True) + soft[:, which, None, None], norms)
            for which, z in enumerate((q, k))
        )
    else:
        q = q / math.sqrt(q.shape[-1])
    s = q @ k.swapaxes(-1, -2)
    if thresholds is not None:
        s = s - (thresholds[:, None, None] if thresholds.ndim == 1 else thresholds)
    r = form.weighing(s, constants, exact=exact)
    if mask is not None:
        r = r * mask[..., None, None, :]
    scale = 2.0 ** math.ceil(math.log2(k.shape[-2]))
    root = plain_inverse_sqrt((r.sum(axis=-1, keepdims=True) + form.floor) / scale, denominators)
    return np.asarray(r @ v / scale * root**2)


def argument_bits(form: AttentionForm, size: int) -> int:
    """Fraction bits that matter of q, k and v, in heads of that size; of q and k with those that a free cut keeps."""
    return max(_query_bits(form, size) + _FREE, _VALUE) if form.norms is not None else _VALUE


def _query_bits(form: AttentionForm, size: int) -> int:
    """Enough bits for a coordinate of the shortest row that the norms' rule is made for."""
    least = _SOFT_QUERY if form.soft else 0
    return max(least, 0 if form.norms is None else math.ceil(0.5 * math.log2(size / form.norms.low)) + _QUERY)


def attention(
    session: Session,
    q: Share,
    k: Share,
    v: Share,
    form: AttentionForm,
    *,
    thresholds: Share | None = None,
    constants: Constants | None = None,
    softness: Reals | None = None,
    mask: Share | None = None,
    fraction: int = 12,
    width: int = WORD,
) -> Share:
    """Attention of all heads: q, k, v of shape (heads, n, d), thresholds (heads, 1, 1) or (heads, n, n), mask (n,).

    constants  of the form's weighing, (heads, 1, as many as it has)
    softness   at the server, of the form's norms, (heads, 2)

    With a batch: (batch, heads, n, d) and a mask of (batch, n). The mask is 1 for a token and 0 for padding, and the
    rows of v must be zero where it is 0. q may have other rows than k and v, fewer say: so has what comes out.

    Opens q and k (for their norms), their normalised forms, what the weighing of scores opens, R, v, the y's and the
    numerator, each in the narrowest ring that holds what it enters. Reveals nothing.
    """
    if len(q.shape) not in (3, 4) or k.shape != v.shape or k.shape != (*q.shape[:-2], k.shape[-2], q.shape[-1]):
        raise ShapeError(f"attention needs q, k, v of one shape (heads, n, d), got {q.shape}, {k.shape}, {v.shape}")
    n = k.shape[-2]
    if mask is not None and mask.shape != (*q.shape[:-3], n):
        raise ShapeError(f"the padding mask has shape {mask.shape}, expected {(*q.shape[:-3], n)}")
    weighing = form.weighing
    with session.part("attention"):
        # R enters R·V, so both are opened in the ring of that product.
        top_of_values = max(v.bound, 1.0)  # V has the padding mask as one more column
        largest, bits = n * weighing.top * top_of_values, weighing.bits
        pair = ring_width(bits[0] + _VALUE, largest)
        r_bits = max(more for more in bits if ring_width(more + _VALUE, largest) == pair)
        values = session.defer(Truncate(v, v.fraction - _VALUE, pair)) if v.fraction > _VALUE else None
        scores = _cosine(session, q, k, form, softness) if form.cosine else _product(session, q, k, form)
        if thresholds is not None:
            scores = scores - thresholds.lift(scores.fraction)
        r = weighing.on_shares(session, scores, constants, r_bits, pair)
        columns = v.narrow(pair) if values is None else values.result()
        if mask is not None:
            if mask.fraction:
                raise ScaleError(f"{session.here}: a padding mask of zeros and ones has no fraction bits")
            column = mask.reshape(*mask.shape[:-1], 1, n, 1).lift(_VALUE).narrow(pair)
            columns = concatenate([columns, concatenate([column] * q.shape[-3], axis=-3)], axis=-1)
        # a unit of the denominator's finest opening is 2^-24, 2^-28 or 2^-33: it is off by no more than a sixteenth
        precision = weighing.numerator + weighing.finer - math.ceil(math.log2(n))
        top = n * weighing.top
        product = session.matmul(*session.open(r, columns), bound=top * columns.bound, precision=precision)
        total = product[..., -1:] if mask is not None else r.sum(keep=True)
        if form.denominators.only_tables:
            total = total.lift(r_bits + _VALUE)  # room for the cut before a table: the mask's column has it anyway
        weighed = product[..., : v.shape[-1]].bounded(top * v.bound)
        return _divide(session, weighed, total.bounded(top), n, v.bound, form, fraction, width)


def _halves(rows: Share, q: Share) -> tuple[Share, Share]:
    """Rows of queries and keys, one below the other, apart again."""
    return rows[..., : q.shape[-2], :], rows[..., q.shape[-2] :, :]


def _product(session: Session, q: Share, k: Share, form: AttentionForm) -> Share:
    """q·kᵀ/√d."""
    d = q.shape[-1]
    bound = (form.weighing.score_bound + form.threshold_bound) * math.sqrt(d)
    with session.part("scores"):
        rows = concatenate([q, k], axis=-2)
        bits = min(rows.fraction, _VALUE)
        width = ring_width(2 * bits + SPARE, bound)
        rows = session.truncate_to(rows, bits, min(width, rows.width))
        opened = session.open(*_halves(rows, q))
        product = session.matmul(*opened, transposed=True, bound=bound, precision=form.weighing.precision)
        return product.times(round(2**SPARE / math.sqrt(d))).times_power(-SPARE).bounded(bound / math.sqrt(d))


def _cosine(session: Session, q: Share, k: Share, form: AttentionForm, softness: Reals | None) -> Share:
    """cos(q, k), perhaps a soft one: every row of q and k is divided by its norm."""
    rule = form.norms
    if rule is None:
        raise RuleError("cosine attention needs a rule for the norms")
    with session.part("scores"):
        rows = concatenate([q, k], axis=-2)
        bits = min(rows.fraction, _query_bits(form, q.shape[-1]))
        limit = max(rule.overshoot, 1.0 + _TOO_LONG) + 2.0**-8
        ring = session.ring(0, max(rule.high * 4.0**bits, limit * 2.0 ** (bits + _ROW)))
        if not ring.modulus:
            ring = Ring(min(ring.width, rows.width))
        spare = min(ring.room(rule.high * 4.0**bits) / 2, ring.room(limit * 2.0 ** (bits + _ROW))) - 2.0**-4
        opened = session.open(session.cut_to(rows, bits, ring, bits + spare))
        squares = session.square_sum(opened, bound=rule.high)
        if form.soft:
            added = _softness(q, k, softness).added_to(session, squares.bounded(rule.high - LARGEST_SOFTNESS))
            squares = added.bounded(rule.high)
        y = open_row(session, squares, rule, fraction=_ROW, ring=ring, allowed=_NORM_ALLOWED)
        if y is None:
            inverse = inverse_sqrt(session, squares, rule)
            y = Factor(Y, {"y": session.reopen(inverse, _ROW, ring if ring.modulus else WORD)})
        unit = session.evaluate(N * y.polynomial, {"n": opened, **y.opened}, bound=limit)
        top = (limit + 2.0**-SCORE * math.sqrt(q.shape[-1])) ** 2  # of a score, by Cauchy-Schwarz
        unit = session.truncate_to(unit, SCORE, ring_width(2 * SCORE, form.weighing.score_bound * (1.0 + 2.0**-8)))
        halves = session.open(*_halves(unit, q))
        return session.matmul(*halves, transposed=True, bound=top, precision=form.weighing.precision)


def _softness(q: Share, k: Share, values: Reals | None) -> Constants:
    """Of every row of queries and keys, one below the other."""
    heads, asking, rows = q.shape[-3], q.shape[-2], q.shape[-2] + k.shape[-2]
    if values is not None:
        values = np.repeat(values, (asking, rows - asking), axis=1)[..., None]
    return Constants((heads, rows, 1), LARGEST_SOFTNESS, values)


def _divide(
    session: Session,
    product: Share,
    total: Share,
    n: int,
    bound: float,
    form: AttentionForm,
    fraction: int,
    width: int,
) -> Share:
    """(R·V) / ΣR = (R·V/n)·(n/ΣR): divided by n, so that the range is the bucket's, not the text's."""
    rule = form.denominators
    exponent = math.ceil(math.log2(n))
    numerator_bits = form.weighing.numerator
    with session.part("division"):
        by_table = rule.error + rule.rounding if rule.of_rows else 0.0
        limit = (max(rule.overshoot, 1.0 + by_table) ** 2 + 2.0**-6) * bound
        reciprocal = form.weighing.reciprocal
        whole = numerator_bits + reciprocal
        numerator = product.times_power(-exponent)
        ring = session.ring(whole, limit)
        shift = numerator.fraction - numerator_bits
        opened = session.defer(Truncate(numerator, shift, ring.width, ring.modulus), Open)
        mean = total.times_power(-exponent)
        if form.floor:
            mean = session.add_constant(mean, form.floor * 2.0**-exponent)
        mean = mean.bounded(min(mean.bound, rule.high))
        y = _reciprocal(session, mean, rule, ring, reciprocal)
        value = session.evaluate(N * y.polynomial, {"n": opened.result(), **y.opened}, fraction=whole, bound=limit)
        return session.truncate_to(value, fraction, width)


def _reciprocal(session: Session, mean: Share, rule: InverseRule, ring: Ring, bits: int) -> Factor:
    """1/mean in terms of what is opened: from a table, or the square of y = 1/sqrt(mean).

    To square y once per row takes a round and saves a monomial of every element: two parties alone usually do.
    """
    off = rule.error + rule.rounding  # what bounds were certified with
    found = open_row(session, mean, rule, fraction=bits, ring=ring, allowed=Allowed(off, off), power=1.0)
    if found is not None:
        return found
    y = session.reopen(inverse_sqrt(session, mean, rule), bits // 2, ring if ring.modulus else WORD)
    if session.goes("square reciprocals of rows first", usually=session.odd):
        square = session.evaluate(Y**2, {"y": y}, bound=y.bound**2)
        return Factor(Y, {"y": session.open(square if square.modulus else square.narrow(ring.width))})
    return Factor(Y**2, {"y": y})
