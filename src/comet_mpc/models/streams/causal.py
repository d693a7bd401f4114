"""Attention of a decoder: every position looks at itself and at those before it.

    q̂, k̂ = q·g(|q|²), k·g(|k|²)        a guard: g is near 1 for rows as they occur, and bounds the others
    v    = (2^e·(q̂·k̂ + b))² + c        b, c: a head's own, the server's
    w    = v²·y², y ≈ 1/|v|            for positions up to its own, 0 beyond
    out  = R·V / ΣR, R = w²            so weights are v⁴ / Σv⁴, whatever y is

With plain scores a product of certified norms is far above what occurs, and its eighth power leaves every ring. The
guard keeps |q̂| <= `Guard.top`, about what occurs, for every input whatsoever, and changes nothing else: a cubic in
|q|², of which there is one number a row. All scales are a head's own and in the weights of q and k, whose rows have
norm 1 at most.

The weights of a row may all be millions of times smaller than those of another row. So rows are brought to one size
before the last squaring, roughly: y errs by a quarter, and it does not matter. ΣR is then between 1/n and 1, or nearly.

Keys and values are opened once, for all later positions (`engine.windows`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from comet_mpc.engine import Open, Opened, Session, Truncate
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import SERVER, WORD, Reals, Share, concatenate, ring_width
from comet_mpc.engine.windows import Window, with_past
from comet_mpc.errors import ShapeError
from comet_mpc.functions.row_table import Allowed, Factor, open_row
from comet_mpc.functions.rule import InverseRule, inverse_sqrt, polynomial_value
from comet_mpc.models.streams.wide_rows import TableRule, wide_rule

N, T, U, Y = variables("n t u y")

ROTATION = 12
"""Fraction bits of cosines and sines."""
_QUERY = 13  # fraction bits of q and k, before and after the guard
_NORM = 11  # of |q|²
_FACTOR = 12  # of g(|q|²)
_VALUE = 12
_U, _V, _LENGTH, _W = 15, 18, 3, 16  # of u, v, y and w
_R = 24
_NUMERATOR = 28
_RECIPROCAL = 10
CONTEXT = 15
"""Fraction bits of what comes out."""
_ROUNDED = 1.0 + 2.0**-6
_RECIPROCAL_ERROR = Allowed(2.0**-7, 2.0**-7)
_ROUGH = Allowed(0.25, 0.25)
LARGEST = (1.25 + 2.0**-6) ** 4
"""ΣR of every row: y is at most so much too large."""


@dataclass(frozen=True)
class Guard:
    """g(t) = Σ c_k·t^k for t in [0, 1]: near 1 up to seen², and r·g(r²) within ±top for every r up to 1."""

    coefficients: tuple[float, ...] = (0.9923248291015625, 0.392364501953125, -2.5603485107421875, 0.6756591796875)
    seen: float = 0.4
    top: float = 0.5

    def __call__(self, t: Reals) -> Reals:
        return np.asarray(polynomial_value(self.coefficients, t))

    @property
    def polynomial(self) -> Polynomial:
        terms: Polynomial = Polynomial({})
        for power, coefficient in enumerate(self.coefficients):
            terms = terms + coefficient * T**power
        return terms

    @property
    def bound(self) -> float:
        """|g(t)|"""
        return float(np.max(np.abs(self(np.linspace(0.0, 1.0 + 2.0**-8, 4001))))) + 2.0**-10


@dataclass(frozen=True)
class CausalForm:
    """What is computed, and its public rules.

    lengths       for Σv² over as many positions as there may be (or the next power of two)
    denominators  for ΣR
    """

    lengths: InverseRule
    denominators: InverseRule
    shift: float = 0.125
    """|b| of every head is at most this."""
    inner: float = 0.125
    """And |c|."""
    guard: Guard = Guard()

    @property
    def scale(self) -> int:
        """e: u = 2^e·(z + b) is within 1."""
        return -math.ceil(math.log2(self.guard.top**2 * _ROUNDED + self.shift))

    @property
    def bounds(self) -> tuple[float, float]:
        """|u| and |v|, with room for their rounding."""
        u = 2.0**self.scale * (self.guard.top**2 * _ROUNDED + self.shift)
        return u, (u + 2.0 ** (1 - _U)) ** 2 + self.inner


def length_rule(low: float, shift: float = 0.125, inner: float = 0.125) -> InverseRule:
    """For the mean of v², roughly. low: as a part of the largest that it can be"""
    none = TableRule(0.5, 1.0, 1.0)
    largest = CausalForm(none, none, shift, inner).bounds[1] ** 2
    return wide_rule(low * largest, largest, rough=True)


def denominator_rule(positions: int) -> InverseRule:
    """For ΣR of up to so many positions."""
    return wide_rule(0.25 / positions, LARGEST, error=2.0**-7)


def rotation(positions: np.ndarray, size: int, theta: float) -> tuple[Reals, Reals]:
    """Cosines and sines of rotary positions, (positions, size)."""
    frequencies = theta ** -(np.arange(0, size, 2) / size)
    angles = np.asarray(positions, np.float64)[:, None] * np.tile(frequencies, 2)
    return np.cos(angles), np.sin(angles)


def rotated(x: Share, cosines: Reals, sines: Reals) -> Share:
    """x·cos + (-x₂, x₁)·sin for the halves x₁, x₂ of the last axis: public and linear, so it is local. |x| stays."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    parts = []
    for own, other, sign, columns in ((first, second, -1.0, slice(0, half)), (second, first, 1.0, slice(half, None))):
        parts.append(_times(own, cosines[:, columns]) + _times(other, sign * sines[:, columns]))
    return concatenate(parts, axis=-1).bounded(x.bound * _ROUNDED)


def _times(x: Share, factors: Reals) -> Share:
    """x times public numbers of at most 1, with `ROTATION` more fraction bits."""
    whole = np.rint(factors * 2.0**ROTATION).astype(np.int64).view(np.uint64)
    values = None if x.values is None else x.values * np.broadcast_to(whole, x.shape)
    return x.with_values(values).times_power(-ROTATION).bounded(x.bound * _ROUNDED)


@dataclass(frozen=True)
class Scores:
    """What the server alone knows of a layer's heads: b and c, (heads,) each; None where they are not known."""

    values: tuple[Reals, Reals] | None
    heads: int

    def share(self, session: Session, which: int, like: Share, bound: float) -> Share:
        values = None if self.values is None else self.values[which].reshape(self.heads, 1, 1)
        return session.private(SERVER, (self.heads, 1, 1), like.fraction, bound, values, like.ring)


@dataclass(frozen=True)
class Reading:
    """A window, and which positions up to its end count: later ones do not read those that were dropped.

    kept: (positions so far,), None where all count. It is public and changes values alone: not what is sent.
    """

    window: Window
    kept: np.ndarray | None = None

    def mask(self) -> np.ndarray:
        """1 where a row of the window may read a position: up to its own, and only what counts."""
        seen = np.tril(np.ones((self.window.size, self.window.stop), np.uint64), self.window.first)
        return seen if self.kept is None else seen * self.kept.astype(np.uint64)


def attend(
    session: Session,
    q: Share,
    k: Share,
    v: Share,
    form: CausalForm,
    scores: Scores,
    reading: Reading,
    *,
    name: str,
    width: int,
) -> Share:
    """Attention of all heads: q, k, v (heads, positions, size) of a window's positions, rows of norm 1 at most.

    name: of the layer, under which keys and values are kept. The result has `CONTEXT` fraction bits; it is within 1.
    Rounds: 13 or 14 with tables and openings that truncate. Opens q, k, v, their norms, g, q̂, k̂, u, v, y, w, R, the
    numerator and lines. Reveals nothing.
    """
    if not q.shape == k.shape == v.shape:
        raise ShapeError(f"attention needs q, k, v of one shape, got {q.shape}, {k.shape}, {v.shape}")
    window = reading.window
    with session.part("attention"):
        pair = ring_width(_R + _VALUE, LARGEST * v.bound * _ROUNDED)
        guarded, values = _guarded(session, q, k, v, form, pair)
        queries, keys = session.open(guarded[0], guarded[1])
        keys = with_past(session, f"{name} keys", keys, window, axis=-2)
        values = with_past(session, f"{name} values", values, window, axis=-2)
        with session.part("scores"):
            z = session.matmul(queries, keys, transposed=True, bound=form.guard.top**2 * _ROUNDED)
            r = _weights(session, z, form, scores, reading, pair)
        opened = session.open(r)
        summed = session.matmul(opened, values, causal=window.first, bound=LARGEST * v.bound)
        return _divided(session, summed, r.sum(keep=True).bounded(LARGEST), form, window, v.bound, width)


def _guarded(session: Session, q: Share, k: Share, v: Share, form: CausalForm, pair: int) -> tuple[Share, Opened]:
    """(2, heads, positions, size): q̂ and k̂, and v opened."""
    both = concatenate([q.reshape(1, *q.shape), k.reshape(1, *k.shape)], axis=0)
    room = ring_width(2 * _QUERY, form.guard.top**2 * _ROUNDED) + _FACTOR
    cut, values = session.communicate(
        Truncate(both, both.fraction - _QUERY, max(room, ring_width(2 * _QUERY, _ROUNDED))),
        Truncate(v, v.fraction - _VALUE, pair),
    )
    with session.part("guard"):
        opened, opened_values = session.open(cut, values)
        t = session.square_sum(opened, bound=_ROUNDED)
        narrow = session.reopen(t, _NORM, Ring(WORD))
        whole = (len(form.guard.coefficients) - 1) * _NORM + 4
        g = session.evaluate(form.guard.polynomial, {"t": narrow}, fraction=whole, bound=form.guard.bound)
        factor = session.open(session.truncate_to(g, _FACTOR, opened.width))
        product = session.evaluate(N * Y, {"n": opened, "y": factor}, bound=form.guard.top * _ROUNDED)
        return session.truncate_to(product, _QUERY, room - _FACTOR), opened_values


def _weights(session: Session, z: Share, form: CausalForm, scores: Scores, reading: Reading, pair: int) -> Share:
    """R, in the ring of the product that it enters; 0 for positions that a row may not read."""
    window = reading.window
    bounds = form.bounds
    u = (z + scores.share(session, 0, z, form.shift)).times_power(form.scale).bounded(bounds[0])
    opened = session.reopen(u, _U, session.ring(2 * _U, bounds[1]))
    v = session.evaluate(U**2, {"u": opened}, fraction=2 * _U, bound=bounds[1])
    v = _read(v + scores.share(session, 1, v, form.inner), reading).bounded(bounds[1])
    most = math.ceil(math.log2(window.total))
    whole = 2 * _V + 2 * _LENGTH
    ring = session.ring(whole + most, LARGEST**0.5)
    opened = session.reopen(v, _V, ring)
    y = _lengths(session, opened, form, window, ring)
    w = session.evaluate(
        U**2 * y.polynomial**2, {"u": opened, **y.opened}, fraction=whole, bound=LARGEST**0.5 * 2.0**most
    ).times_power(-most)
    last = session.ring(2 * _W, LARGEST)
    if not last.modulus:
        last = Ring(min(WORD, max(last.width, pair + 2 * _W - _R)))  # so that the cut behind it is free
    r = session.evaluate(U**2, {"u": session.reopen(w, _W, last)}, fraction=2 * _W, bound=LARGEST)
    return session.truncate_to(r, _R, pair)


def _lengths(session: Session, v: Opened, form: CausalForm, window: Window, ring: Ring) -> Factor:
    """y ≈ 1/sqrt(Σv²/2^k), roughly, of every row; k: the next power of two to what a row may have."""
    most = math.ceil(math.log2(window.total))
    rule = form.lengths
    squares = session.evaluate(U**2, {"u": v}, bound=form.bounds[1] ** 2)
    mean = squares.sum(keep=True).times_power(-most).bounded(rule.high)
    count = mean.shape[0] * window.total
    y = open_row(session, mean, rule, fraction=_LENGTH, ring=ring, allowed=_ROUGH, count=count)
    return y or Factor(Y, {"y": session.reopen(inverse_sqrt(session, mean, rule), _LENGTH, ring)})


def _read(x: Share, reading: Reading) -> Share:
    """0 for positions that a row may not read."""
    return x.with_values(None if x.values is None else x.values * reading.mask())


def _divided(
    session: Session, summed: Share, total: Share, form: CausalForm, window: Window, bound: float, width: int
) -> Share:
    """(R·V) / ΣR."""
    rule = form.denominators
    with session.part("division"):
        limit = bound * (1.0 + 2.0**-5)
        ring, total = Ring(WORD), total.bounded(min(total.bound, rule.high))
        opened = session.defer(Truncate(summed, summed.fraction - _NUMERATOR, ring.width), Open)
        y = open_row(
            session, total, rule, fraction=_RECIPROCAL, ring=ring, allowed=_RECIPROCAL_ERROR, power=1.0,
            count=total.shape[0] * window.total,
        )  # fmt: skip
        if y is None:
            y = Factor(Y**2, {"y": session.reopen(inverse_sqrt(session, total, rule), _RECIPROCAL, ring)})
        whole = _NUMERATOR + (2 if (("y", 2),) in y.polynomial.terms else 1) * _RECIPROCAL
        found = {"n": opened.result(), **y.opened}
        value = session.evaluate(N * y.polynomial, found, fraction=whole, bound=limit)
        return session.truncate_to(value, CONTEXT, width)


def plain_attend(q: Reals, k: Reals, v: Reals, form: CausalForm, scores: tuple[Reals, Reals]) -> Reals:
    """The same in real arithmetic, for all positions at once, with exact division."""
    guarded = [x * form.guard((x**2).sum(-1, keepdims=True)) for x in (q, k)]
    b, c = (part[:, None, None] for part in scores)
    u = 2.0**form.scale * (guarded[0] @ guarded[1].swapaxes(-1, -2) + b)
    r = np.tril((u**2 + c) ** 4)
    return np.asarray(r @ v / r.sum(-1, keepdims=True))
