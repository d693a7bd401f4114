"""Attention of a decoder: every position looks at itself and at those before it.

    q̂, k̂ = q·g(|q|²), k·g(|k|²)        a guard: g is near 1 for rows as they occur, and bounds the others
    v    = (2^e·(q̂·k̂ + b))² + c        b, c: a head's own, the server's
    s    = v·y, y ≈ 1/Σ(v - c + |c|)   for positions that are read, 0 for others
    out  = R·V / ΣR, R = s⁴            so weights are v⁴ / Σv⁴, whatever y is

With plain scores a product of certified norms is far above what occurs, and its eighth power leaves every ring. The
guard keeps |q̂| <= `Guard.top`, about what occurs, for every input whatsoever, and changes nothing else: a cubic in
|q|², of which there is one number a row. All scales are a head's own and in the weights of q and k, whose rows have
norm 1 at most.

The weights of a row may all be millions of times smaller than those of another row. So rows are brought to one size
before they are raised to the fourth power, roughly: y errs by a quarter, and it does not matter. That sum is no less
than any |v| of its row, so |s| is 1 or little more at most. It is known as soon as u = 2^e·(q̂·k̂ + b) is opened, so s
is one polynomial of u, c and y, and v is never opened. ΣR is about n^-3 to 1 for n positions. 1/ΣR is looked up while R
is opened.

Keys and values are opened once, for all later positions (`engine.windows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from comet_mpc.engine import Deferred, Open, Opened, Session, Truncate
from comet_mpc.engine.ops import Request, TruncateOpen
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import SERVER, WORD, Reals, Share, concatenate, ring_width
from comet_mpc.engine.windows import Window, with_past
from comet_mpc.errors import ShapeError
from comet_mpc.functions.inverse_rule import WideRule
from comet_mpc.functions.row_rule import wide_rule
from comet_mpc.functions.row_table import Allowed, Factor, open_row
from comet_mpc.functions.rule import InverseRule, inverse_sqrt, polynomial_value

N, T, U, C, Y, S = variables("n t u c y s")

ROTATION = 12
"""Fraction bits of cosines and sines."""
_QUERY = 14  # fraction bits of q and k, before and after the guard
_NORM = 11  # of |q|²
_GUARD = 2  # of the guard's last coefficient
_VALUE = 12
_U, _MEAN, _S = 16, 3, 14  # of u, y and s
_R = 32  # of R as it is opened, if it comes from an odd ring; else all that it has
_NUMERATOR = 30
_FINER = 4  # more of them for a round more, where rounds are few: ΣR may be millions of times less than 1
_NEAR = 29  # of these matter
_RECIPROCAL = 8
CONTEXT = 15
"""Fraction bits of what comes out."""
_ROUNDED = 1.0 + 2.0**-6
_RECIPROCAL_ERROR = Allowed(2.0**-7, 2.0**-7)
_WIDEST_SUMS = 2.0**24
_ROUGH = Allowed(0.125, 0.125)
"""Of a root, and y is its square."""
GUARD_AT_ONCE = "rows and their guard in one product"
"""A way of attention: a round less, and monomials of every element's own."""
LARGEST = (1.0 + _ROUGH.above) ** 8
"""ΣR of every row: y is at most so much too large, and R is a fourth power."""
_MOST_DIGITS = WORD - 4  # of R and what is multiplied with it


@dataclass(frozen=True)
class Guard:
    """g(t) = Σ c_k·t^k for t in [0, 1]: near 1 up to seen², and r·g(r²) within ±top for every r up to 1."""

    coefficients: tuple[float, ...] = (0.9922637939453125, 0.3970947265625, -2.60235595703125, 0.75)
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
    def fraction(self) -> int:
        """Bits of the polynomial of t."""
        return (len(self.coefficients) - 1) * _NORM + _GUARD

    @property
    def bound(self) -> float:
        """|g(t)|"""
        return float(np.max(np.abs(self(np.linspace(0.0, 1.0 + 2.0**-8, 4001))))) + 2.0**-10


@dataclass(frozen=True)
class CausalForm:
    """What is computed, and its public rules.

    means         for Σ(v - c + |c|) over as many positions as there may be (or the next power of two)
    denominators  for ΣR
    """

    means: InverseRule
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


def mean_rule(low: float, shift: float = 0.125, inner: float = 0.125) -> InverseRule:
    """For the mean of u² + |c|, roughly. low: as a part of the largest that it can be"""
    none = WideRule(0.5, 1.0)
    largest = CausalForm(none, none, shift, inner).bounds[1]
    return wide_rule(low * largest, largest, rough=True)


def denominator_rule(positions: int) -> InverseRule:
    """For ΣR of up to so many positions: their weights may all be the same, and y a quarter too small."""
    least = 0.75**4 / positions**3
    return wide_rule(max(least, LARGEST / _WIDEST_SUMS), LARGEST, error=2.0**-6, throughout=True)


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

    def added(self, session: Session, z: Share, bound: float) -> Share:
        """z + b"""
        values = None if self.values is None else self.values[0].reshape(self.heads, 1, 1)
        return z + session.private(SERVER, (self.heads, 1, 1), z.fraction, bound, values, z.ring)

    def every_row(self, session: Session, rows: int, like: tuple[int, Ring], bound: float) -> tuple[Share, Share]:
        """c and |c|, (heads, rows, 1): every row has its own mask of c. like: fraction bits, and the ring"""
        shape, found = (self.heads, rows, 1), []
        for sign in (False, True):
            values = None
            if self.values is not None:
                c = self.values[1].reshape(self.heads, 1, 1)
                values = np.broadcast_to(np.abs(c) if sign else c, shape)
            found.append(session.private(SERVER, shape, like[0], bound, values, like[1]))
        return found[0], found[1]


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
    Rounds: 10 with tables and openings that truncate. Opens q, k, v, their norms, g, q̂, k̂, u, c, y, s, R, the
    numerator and lines. Reveals nothing.
    """
    if not q.shape == k.shape == v.shape:
        raise ShapeError(f"attention needs q, k, v of one shape, got {q.shape}, {k.shape}, {v.shape}")
    window = reading.window
    with session.part("attention"):
        digits = min(4 * _S, _MOST_DIGITS - _VALUE) if session.fused else _R
        pair = ring_width(digits + _VALUE, LARGEST * v.bound * _ROUNDED)
        guarded, values = _guarded(session, q, k, v, form, pair)
        queries, keys = session.open(guarded[0], guarded[1])
        keys = with_past(session, f"{name} keys", keys, window, axis=-2)
        values = with_past(session, f"{name} values", values, window, axis=-2)
        with session.part("scores"):
            z = session.matmul(queries, keys, transposed=True, bound=form.guard.top**2 * _ROUNDED, precision=_U)
            r = _weights(session, z, form, scores, reading)
        return _averaged(session, r, (digits, pair), values, form, window, width)


def _guarded(session: Session, q: Share, k: Share, v: Share, form: CausalForm, pair: int) -> tuple[Share, Opened]:
    """(2, heads, positions, size): q̂ and k̂, and v opened."""
    both = concatenate([q.reshape(1, *q.shape), k.reshape(1, *k.shape)], axis=0)
    with session.part("guard"):
        polynomial, bits = form.guard.polynomial, form.guard.fraction
        room, bound = ring_width(2 * _QUERY, form.guard.top**2 * _ROUNDED), form.guard.top * _ROUNDED
        ring = session.ring(_QUERY + bits, form.guard.top)
        if not ring.modulus:
            ring = Ring(min(WORD, max(ring.width, room + bits)))  # so that the last cut is free
        values = session.defer(Truncate(v, v.fraction - _VALUE, pair), Open)
        (rows,) = reopened(session, (both, _QUERY, ring))
        t = session.square_sum(rows, bound=_ROUNDED)
        if ring.modulus:  # there is one a row, so its randomness is cheap
            norms = session.request(TruncateOpen(t, t.fraction - _NORM, ring.width, ring.modulus))
        else:
            norms = session.reopen(t, _NORM, Ring(WORD))
        if session.goes(GUARD_AT_ONCE, usually=session.fused):
            found = {"n": rows, "t": norms}
            product = session.evaluate(N * polynomial, found, fraction=_QUERY + bits, bound=bound)
        else:
            factor = session.open(session.evaluate(polynomial, {"t": norms}, fraction=bits, bound=form.guard.bound))
            product = session.evaluate(N * Y, {"n": rows, "y": factor}, bound=bound)
        return session.truncate_to(product, _QUERY, room), values.result()


def reopened(session: Session, *wanted: tuple[Share, int, Ring]) -> tuple[Opened, ...]:
    """Shares opened with so many fraction bits, in rings, in one round where openings can truncate, else in two."""
    cuts = [(share, share.fraction - fraction, ring) for share, fraction, ring in wanted]
    if session.fused and not any(ring.modulus for _, _, ring in cuts):
        return session.communicate(*(TruncateOpen(share, shift, ring.width) for share, shift, ring in cuts))
    cut = session.communicate(*(Truncate(share, shift, ring.width, ring.modulus) for share, shift, ring in cuts))
    return session.communicate(*(Open(share) for share in cut))


def _weights(session: Session, z: Share, form: CausalForm, scores: Scores, reading: Reading) -> Share:
    """R; 0 for positions that a row may not read."""
    bounds, most = form.bounds, math.ceil(math.log2(reading.window.total))
    u = scores.added(session, z, form.shift).times_power(form.scale).bounded(bounds[0])
    whole = 2 * _U + _MEAN + most
    ring = session.ring(whole, LARGEST**0.25)
    c, size = scores.every_row(session, z.shape[-2], (2 * _U, ring), form.inner)
    later = session.defer(Open(c))
    opened = {"u": session.reopen(u, _U, ring), "c": later.result()}
    square = session.evaluate(U**2, {"u": opened["u"]}, fraction=2 * _U, bound=bounds[1] - form.inner)
    y = _means(session, _read((square + size).bounded(bounds[1]), reading), form, reading.window, ring)
    s = session.evaluate(
        (U**2 + C) * y.polynomial, {**opened, **y.opened}, fraction=whole - most, bound=LARGEST**0.25 * 2.0**most
    )
    s = _read(s.times_power(-most).bounded(LARGEST**0.25), reading)
    last = session.ring(4 * _S, LARGEST)
    narrow = session.reopen(s, _S, last if last.modulus else Ring(WORD))
    return session.evaluate(S**4, {"s": narrow}, fraction=4 * _S, bound=LARGEST)


def _means(session: Session, sizes: Share, form: CausalForm, window: Window, ring: Ring) -> Factor:
    """y ≈ 2^k/Σ, roughly, of every row; k: the next power of two to what a row may have."""
    most = math.ceil(math.log2(window.total))
    rule = form.means
    mean = sizes.sum(keep=True).times_power(-most).bounded(rule.high)
    count = mean.shape[0] * window.total
    y = open_row(session, mean, rule, fraction=_MEAN, ring=ring, allowed=_ROUGH, count=count, power=1.0)
    return y or Factor(Y**2, {"y": session.reopen(inverse_sqrt(session, mean, rule), _MEAN, ring)})


def _read(x: Share, reading: Reading) -> Share:
    """0 for positions that a row may not read."""
    return x.with_values(None if x.values is None else x.values * reading.mask())


def _averaged(
    session: Session, r: Share, cut: tuple[int, int], values: Opened, form: CausalForm, window: Window, width: int
) -> Share:
    """(R·V) / ΣR. While R is opened, 1/ΣR is looked up. cut: fraction bits of R as it is opened, and its ring"""
    rule, ring, (digits, pair) = form.denominators, Ring(WORD), cut
    bits = _NUMERATOR + (_FINER if session.fused else 0)
    shift = digits + _VALUE - bits

    def product(opened: Opened) -> Share:
        return session.matmul(opened, values, causal=window.first, bound=LARGEST * values.bound, precision=_NEAR)

    def reduced(opened: Opened) -> Request[Any]:
        return (TruncateOpen if session.fused else Truncate)(product(opened), shift, ring.width)

    with session.part("division"):
        last: list[Callable[..., Request[Any]]] = [reduced] if session.fused else [reduced, Open]
        if r.fraction == digits and not r.modulus:
            numerator: Deferred[Opened] = session.defer(Open(r.narrow(pair)), *last)
        else:
            numerator = session.defer(Truncate(r, r.fraction - digits, pair), Open, *last)
        total = r.sum(keep=True).bounded(min(LARGEST, rule.high))
        y = open_row(
            session, total, rule, fraction=_RECIPROCAL, ring=ring, allowed=_RECIPROCAL_ERROR, power=1.0,
            count=total.shape[0] * window.total, hurried=True,
        )  # fmt: skip
        if y is None:
            y = Factor(Y**2, {"y": session.reopen(inverse_sqrt(session, total, rule), _RECIPROCAL, ring)})
        whole = bits + (2 if (("y", 2),) in y.polynomial.terms else 1) * _RECIPROCAL
        found, limit = {"n": numerator.result(), **y.opened}, values.bound * (1.0 + 2.0**-5)
        value = session.evaluate(N * y.polynomial, found, fraction=whole, bound=limit)
        return session.truncate_to(value, CONTEXT, width)


def plain_attend(q: Reals, k: Reals, v: Reals, form: CausalForm, scores: tuple[Reals, Reals]) -> Reals:
    """The same in real arithmetic, for all positions at once, with exact division."""
    guarded = [x * form.guard((x**2).sum(-1, keepdims=True)) for x in (q, k)]
    b, c = (part[:, None, None] for part in scores)
    u = 2.0**form.scale * (guarded[0] @ guarded[1].swapaxes(-1, -2) + b)
    r = np.tril((u**2 + c) ** 4)
    return np.asarray(r @ v / r.sum(-1, keepdims=True))
