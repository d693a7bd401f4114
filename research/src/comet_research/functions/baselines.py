"""The functions of other systems, on this engine: so that costs and errors compare function by function.

Each is computed as cheaply as the engine allows: a tensor is opened once, polynomials in opened tensors are local,
truncation is exact, rings are as narrow as the values. So the differences that remain are those of the functions.
What needs a comparison of large numbers is left out: CrypTen subtracts the largest score from a row, and clips tanh to
±1. The domain of each function says what takes its place. Which piece of a function x belongs to comes from tables.

Sources: CrypTen, crypten/common/functions/approximations.py (Knott et al., NeurIPS 2021); MPCFormer (Li et al.,
ICLR 2023), section 3; BumbleBee (Lu et al., NDSS 2025), section on GeLU, with PUMA's coefficients as SPU has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from comet_mpc.engine import Opened, Session
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.share import Share, ring_width
from comet_mpc.errors import RangeError, ShapeError
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.rule import inverse_sqrt
from comet_research.functions.newton_rule import exponential
from comet_research.look_up import Column, Table, look_up

X, Y, H, P, Q, E, L, M, R, S, U, V, W = variables("x y h p q e l m r s u v w")

GELU_TANH_BOUND = 4.0
GELU_ERF_BOUND = 2.0
GELU_PIECEWISE_BOUND = 7.75
QUAD2_SHIFT = 5.0

_PROBABILITY = 14
_TANH = 16
_TANH_TERMS = 32
_TANH_WIDTH = 6.0
_ROW_STEPS = 7

_Weigh = Callable[..., Share]
"""`softmax` or `quad2`."""


def _require(session: Session, what: str, bound: float, limit: float) -> None:
    if bound > limit:
        raise RangeError(f"{session.here}: {what} is for values up to {limit:g}, got a bound of {bound:g}")


def reciprocal(session: Session, x: Share, *, low: float, iterations: int = 10) -> Share:
    """1/x by Newton, y <- y·(2 - x·y), from y = 3·exp(1 - 2x) + 0.003. Not truncated yet.

    Domain: x in [low, 256], 2^-5 <= low. Opens eight powers, x and ten y's: 37 rounds, or 27 (`Session.reopen`).
    Reveals nothing. Source: CrypTen's `reciprocal` (its documentation has exp(0.5 - x), its code this).
    """
    with session.part("reciprocal"):
        _require(session, "the reciprocal", x.bound, 256.0)
        if low < 2.0**-5:
            raise RangeError(f"{session.here}: the reciprocal is for values from {2.0**-5:g} on, got {low:g}")
        guess = exponential(session, session.add_constant(-x.times(2), 1.0), top=1.0)
        y = session.add_constant(guess.times(3), 0.003).bounded(2.0 / low)
        opened = {"x": session.reopen(x, 18)}
        for _ in range(iterations):
            opened["y"] = session.reopen(y, 18)
            y = session.evaluate(2.0 * Y - X * Y**2, opened, bound=2.0 / low)
        return y


def softmax(
    session: Session, s: Share, *, score_bound: float, mask: Share | None = None, fraction: int = _PROBABILITY
) -> Share:
    """exp(s - c)·m / Σ exp(s - c)·m along the last axis, with `fraction` bits.

    c is the public score_bound instead of the row's maximum, so exp is in [exp(-2c), 1].
    Domain: |s| <= score_bound, at most 256 columns, Σ exp(s - c)·m >= 2^-5 in every row.
    Opens the eight powers, the result of exp, and the row's reciprocal. Rounds: 47, or 59 (`Session.reopen`).
    Reveals nothing. Source: CrypTen's `softmax`.
    """
    with session.part("softmax"):
        _require(session, "this softmax", s.bound, score_bound)
        e = exponential(session, session.add_constant(s, -score_bound))
        opened, weights = _masked(session, E, "e", e, mask)
        total = session.evaluate(weights, opened, fraction=e.fraction, bound=1.01).sum(keep=True)
        opened["r"] = session.reopen(reciprocal(session, total.bounded(float(s.shape[-1])), low=2.0**-5), 18)
        return session.truncate_to(session.evaluate(weights * R, opened, bound=1.01), fraction)


def quad2(
    session: Session, s: Share, *, score_bound: float, mask: Share | None = None, fraction: int = _PROBABILITY
) -> Share:
    """(s + 5)²·m / Σ (s + 5)²·m along the last axis, with `fraction` bits: MPCFormer's 2Quad.

    The reciprocal is 1/sqrt squared, by a minimax rule of 7 steps that holds for every input in the domain.
    Domain: |s| <= score_bound < 5, one token at least that is not masked. Opens s and the row quantities.
    Rounds: 11, or 20 (`Session.reopen`). Reveals nothing.
    """
    with session.part("quad2"):
        _require(session, "2Quad", s.bound, score_bound)
        _require(session, "2Quad", score_bound, QUAD2_SHIFT - 2.0**-4)
        columns = s.shape[-1]
        exponent = math.ceil(math.log2(columns))
        top = (QUAD2_SHIFT + score_bound) ** 2
        rule = minimax_rule(0.9 * (QUAD2_SHIFT - score_bound) ** 2 / 2**exponent, top, _ROW_STEPS)
        opened, weights = _masked(session, (S + QUAD2_SHIFT) ** 2, "s", s, mask)
        total = session.evaluate(weights, opened, bound=top).sum(keep=True)
        mean = total.times_power(-exponent).bounded(top)
        y = session.reopen(inverse_sqrt(session, mean, rule), 16)
        inverse = session.evaluate(Y**2, {"y": y}, bound=1.1 / rule.low).times_power(-exponent)
        opened["r"] = session.reopen(inverse, 24)
        return session.truncate_to(session.evaluate(weights * R, opened, bound=1.01), fraction)


def _masked(
    session: Session, weights: Polynomial, name: str, value: Share, mask: Share | None
) -> tuple[dict[str, Opened], Polynomial]:
    """A value opened, and the padding mask beside it; the polynomial of both."""
    if mask is None:
        return {name: session.open(value)}, weights
    if mask.shape != value.shape[-1:] or mask.fraction:
        raise ShapeError(f"the padding mask has shape {mask.shape}, expected {value.shape[-1:]} of whole numbers")
    first, second = session.open(value, mask)
    return {name: first, "m": second}, weights * M


def _scores(session: Session, q: Share, k: Share, score_bound: float, fraction: int = 12) -> Share:
    """q·kᵀ/√d with `fraction` bits."""
    d = q.shape[-1]
    width = ring_width(q.fraction + k.fraction + fraction, math.sqrt(d) * score_bound)
    product = session.matmul(
        *session.open(q.narrow(width), k.narrow(width)), transposed=True, bound=math.sqrt(d) * score_bound
    )
    scores = product.times(round(2**fraction / math.sqrt(d))).times_power(-fraction).bounded(score_bound)
    return session.truncate_to(scores, fraction).bounded(score_bound)


def _attention(
    session: Session, weigh: _Weigh, q: Share, k: Share, v: Share, score_bound: float, mask: Share | None, fraction: int
) -> Share:
    """weigh(q·kᵀ/√d)·v, where rows of weights add up to 1."""
    with session.part("attention"):
        p = weigh(session, _scores(session, q, k, score_bound), score_bound=score_bound, mask=mask)
        limit = 1.1 * v.bound
        width = ring_width(p.fraction + v.fraction, limit)
        product = session.matmul(*session.open(p.narrow(width), v.narrow(width)), bound=limit)
        return session.truncate_to(product, fraction)


def softmax_attention(
    session: Session, q: Share, k: Share, v: Share, *, score_bound: float, mask: Share | None = None, fraction: int = 12
) -> Share:
    """softmax(q·kᵀ/√d)·v for q, k, v of shape (heads, n, d), by `softmax`. |q·k/√d| <= score_bound is a claim."""
    return _attention(session, softmax, q, k, v, score_bound, mask, fraction)


def quad2_attention(
    session: Session, q: Share, k: Share, v: Share, *, score_bound: float, mask: Share | None = None, fraction: int = 12
) -> Share:
    """2Quad(q·kᵀ/√d)·v for q, k, v of shape (heads, n, d), by `quad2`. |q·k/√d| <= score_bound is a claim."""
    return _attention(session, quad2, q, k, v, score_bound, mask, fraction)


def quad(session: Session, x: Share, *, fraction: int = 12) -> Share:
    """0.125·x² + 0.25·x + 0.5: MPCFormer's Quad, which stands for GELU. Any x. Opens x. Rounds 2. Reveals nothing."""
    with session.part("quad"):
        bound = 0.125 * x.bound**2 + 0.25 * x.bound + 0.5
        whole = 2 * x.fraction + 3
        opened = session.open(x.narrow(min(x.width, ring_width(whole, bound))))
        value = session.evaluate(0.125 * X**2 + 0.25 * X + 0.5, {"x": opened}, fraction=whole, bound=bound)
        return session.truncate_to(value, fraction)


def chebyshev_tanh(session: Session, w: Share) -> Share:
    """tanh(6·w) by a Chebyshev series of 32 terms, the odd ones: Σ c_k·T_k(w). Not truncated yet.

    T_k = (4w² - 2)·T_{k-2} - T_{k-4}. Domain: |w| <= 1; beyond, where CrypTen clips,
    it explodes. Opens w, 4w² - 2 and 14 polynomials: 33 rounds. Reveals nothing.
    Source: CrypTen's `tanh` of method "chebyshev", maxval 6 as in its first releases.
    """
    with session.part("tanh"):
        _require(session, "tanh", w.bound, 1.0)
        angles = (np.arange(_TANH_TERMS) + 0.5) * (math.pi / _TANH_TERMS)
        degrees = np.arange(1, _TANH_TERMS, 2)
        coefficients = 2.0 / _TANH_TERMS * np.cos(np.outer(degrees, angles)) @ np.tanh(_TANH_WIDTH * np.cos(angles))
        width = ring_width(2 * _TANH, 4.0)
        w = session.truncate_to(w.lift(max(w.fraction, _TANH)), _TANH).narrow(width)
        w_opened = session.open(w)
        double = session.add_constant(
            session.evaluate(4.0 * W**2, {"w": w_opened}, fraction=2 * _TANH, bound=4.0), -2.0
        ).bounded(2.0)
        y = session.open(session.truncate_to(double, _TANH, width))
        third = session.evaluate(Y * W - W, {"w": w_opened, "y": y}, bound=1.1)
        polynomials = [w, session.truncate_to(third, _TANH, width).bounded(1.1)]
        while len(polynomials) < _TANH_TERMS // 2:
            product = session.evaluate(Y * P, {"p": session.open(polynomials[-1]), "y": y}, bound=2.2)
            following = product - polynomials[-2].lift(product.fraction)
            polynomials.append(session.truncate_to(following.bounded(1.1), _TANH, width).bounded(1.1))
        terms = [
            polynomial.times(round(float(c) * 2**_TANH))
            for polynomial, c in zip(polynomials, coefficients, strict=True)
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total.times_power(-_TANH).bounded(1.01)


def gelu_tanh(session: Session, x: Share, *, fraction: int = 12) -> Share:
    """x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³))), tanh by `chebyshev_tanh`, with `fraction` bits.

    Domain: |x| <= 4, where tanh's argument stays below 6. Opens x, the result of tanh and what that opens.
    Rounds 37. Reveals nothing.
    """
    with session.part("gelu_tanh"):
        _require(session, "GELU by tanh", x.bound, GELU_TANH_BOUND)
        scale = math.sqrt(2.0 / math.pi) / _TANH_WIDTH
        whole = 3 * x.fraction + 12
        opened = session.open(x.narrow(min(x.width, ring_width(whole, 1.0))))
        w = session.evaluate(
            scale * X + 0.044715 * scale * X**3,
            {"x": opened},
            fraction=whole,
            bound=scale * (x.bound + 0.044715 * x.bound**3),
        )
        tanh = chebyshev_tanh(session, w)
        width = ring_width(x.fraction + _TANH + 1, x.bound + 1.0)
        h = session.open(session.truncate_to(tanh, _TANH, width))
        value = session.evaluate(
            0.5 * X + 0.5 * X * H, {"h": h, "x": opened}, fraction=x.fraction + _TANH + 1, bound=x.bound + 0.1
        )
        return session.truncate_to(value, fraction)


def gelu_erf(session: Session, x: Share, *, fraction: int = 12) -> Share:
    """x/2·(1 + erf(x/√2)), erf by its Taylor series of 9 terms, with `fraction` bits.

    erf(z) = 2/√π·Σ (-1)^n·z^(2n+1) / (n!·(2n+1)), n = 0 … 8, as in CrypTen; off by less than 2/√π·z^19/(9!·19).
    With z = x/√2, x·erf(z) is a polynomial of degree 9 in v = x²/4, and powers of v come from openings of v, v², v⁴.
    (CrypTen raises z to powers by way of a logarithm, which fails for z < 0.)
    Domain: |x| <= 2, where the series is off by 1.2e-4 at most; it explodes beyond 3. Opens x, v, v² and v⁴.
    Rounds: 5, or 8 (`Session.reopen`). Reveals nothing.
    """
    with session.part("gelu_erf"):
        _require(session, "GELU by erf", x.bound, GELU_ERF_BOUND)
        bits = 14
        opened = session.open(x.narrow(min(x.width, ring_width(2 * x.fraction, x.bound**2))))
        square = session.evaluate(X**2, {"x": opened}, bound=x.bound**2).times_power(-2)
        v = session.reopen(square, bits)
        q = session.reopen(session.evaluate(V**2, {"v": v}, bound=1.01), bits)
        h = session.reopen(session.evaluate(Q**2, {"q": q}, bound=1.01), bits)
        powers = [V, Q, V * Q, H, V * H, Q * H, V * Q * H, H**2, V * H**2]  # v, v², … v⁹
        total = Polynomial({})
        for n, power in enumerate(powers):
            coefficient = math.sqrt(2.0 / math.pi) * (-1) ** n * 2.0 ** (n + 1) / (math.factorial(n) * (2 * n + 1))
            total = total + coefficient * power
        even = session.evaluate(total, {"v": v, "q": q, "h": h}, fraction=3 * bits + 16, bound=2.0)
        half = x.times_power(-1)
        return session.truncate_to(even + half.lift(even.fraction), fraction)


_CUBIC = (-0.5054031199708174, -0.42226581151983866, -0.11807612951181953, -0.011034134030615728)
"""On [-4, -2), by powers of x."""
_SEXTIC = (0.008526321541038084, 0.3603292692789629, -0.037688200365904236, 0.0018067462606141187)
"""On [-2, 3), by powers of x², besides x/2."""
_DIGIT = 4
_CELLS = [value % 2**_DIGIT - 8 for value in range(2 ** (_DIGIT + 1))]
"""What whole numbers [n, n + 1) a sum of two digits stands for."""
_CARRIES = Table((Column(tuple(value >> _DIGIT for value in range(2 ** (_DIGIT + 1))), 8),))
_PIECES = Table(
    tuple(Column(tuple(int(low <= n < high) for n in _CELLS), 16) for low, high in ((-4, -2), (-2, 3), (3, 8)))
)


def gelu_piecewise(session: Session, x: Share, *, fraction: int = 12) -> Share:
    """GELU by pieces: 0 below -4, a cubic up to -2 (BumbleBee: -1.95), a polynomial of degree 6 up to 3, and x beyond.

    Two look-ups of 32 entries say which piece x belongs to, to 1/16. Off by 0.02 at most, near the ends of pieces.
    Domain: |x| <= 7.75. Opens x, three bits, what of x belongs to the two polynomials, and a square. Rounds: 10,
    or 13 (`Session.reopen`).
    Reveals nothing.
    """
    with session.part("gelu_piecewise"):
        _require(session, "GELU by pieces", x.bound, GELU_PIECEWISE_BOUND)
        places = session.truncate(session.add_constant(x, 8.0), x.fraction - _DIGIT, 16)
        (carry,) = look_up(session, places.digit_sum(0, _DIGIT), _CARRIES)
        digit = places.digit_sum(1, _DIGIT)
        bits = look_up(session, (digit + carry.narrow(digit.width)).bounded(digit.bound), _PIECES)
        opened = dict(zip("xlmr", session.open(session.truncate_to(x, 11, 16), *bits), strict=True))
        cubic, sextic = (session.evaluate(each * X, opened, bound=limit) for each, limit in ((L, 4.1), (M, 3.1)))
        rest = session.evaluate(_CUBIC[0] * L + _SEXTIC[0] * M + R * X, opened, fraction=11, bound=x.bound + 0.1)
        linear = session.truncate(rest, 1)
        v, u = session.reopen(cubic, 11), session.reopen(sextic, 11)
        s = session.reopen(session.evaluate(U**2, {"u": u}, bound=3.1**2), 12)
        total = 0.5 * U
        for power in (1, 2, 3):
            total = total + _CUBIC[power] * V**power + _SEXTIC[power] * S**power
        value = session.evaluate(total, {"u": u, "s": s, "v": v}, fraction=56, bound=4.0)
        return session.truncate_to(value + linear.lift(value.fraction), fraction)
