"""Minimax coefficients for 1/sqrt(t) in real numbers, before a ring of 64 bits is divided among them (`minimax`).

Every fit is a Chebyshev problem in at most five unknowns on a grid of points, solved exactly by exchange: of all
points, one more than there are unknowns decide the answer, and each exchange brings in the worst one. This is the
simplex method on the dual program, so that no solver of linear programs is needed; a fit takes three or four exchanges.
Only whoever makes a checkpoint or plans a shape fits anything: a model that is served carries its coefficients with it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from comet_mpc.errors import RuleError

Reals = npt.NDArray[np.float64]

GRID = 600
"""Points on which coefficients are fitted."""
_FINE = 2.0**-8  # a coefficient rounded to this needs no new fit of the others
_EXCHANGES = 100
_UNIT = 1e-14  # what rounding does to an error, over the sum of the terms it is made of
_SMALLEST_PIVOT = 1e-12
_LAST = (1.0, 0.9, 0.8)
"""Where a reference to begin with ends: functions that agree at both ends, give none that ends there."""


def chebyshev_fit(basis: list[Reals], weight: Reals, target: Reals | float = 1.0) -> Reals:
    """The c that minimise max |Σ c_j·basis_j - target|·weight."""
    matrix = np.stack(basis, axis=1) * weight[:, None]
    scale = np.max(np.abs(matrix), axis=0)
    matrix = matrix / scale
    for last in _LAST:
        try:
            return np.asarray(_exchange(matrix, target * weight, last) / scale)
        except np.linalg.LinAlgError:
            if np.linalg.matrix_rank(matrix) < len(basis):
                break
    raise RuleError("no minimax coefficients found: the functions are not independent")


def _exchange(matrix: Reals, aim: Reals, last: float) -> Reals:
    """The c that minimise max |matrix·c - aim|, from a reference that ends with the point at that part of all.

    A reference of rows i with signs σ_i and λ_i >= 0, Σ λ_i·σ_i·matrix_i = 0 and Σ λ_i = 1, proves that no c does
    better than its level, at which matrix_i·c - aim_i = σ_i·level for all of it. The row that misses by most comes in;
    the first whose λ would fall below zero goes out, and the level rises.
    """
    points, unknowns = matrix.shape
    angles = np.linspace(0.0, np.pi, unknowns + 1)
    reference = np.rint(last * (points - 1) * (1.0 - np.cos(angles)) / 2.0).astype(np.intp)
    signs = np.where(np.linalg.svd(matrix[reference].T)[2][-1] < 0.0, -1.0, 1.0)
    for _ in range(_EXCHANGES):
        rows = matrix[reference]
        *c, level = np.linalg.solve(np.column_stack([rows, -signs]), aim[reference])
        missed = matrix @ c - aim
        worst = int(np.argmax(np.abs(missed)))
        if abs(missed[worst]) - level <= _UNIT * (1.0 + float(np.sum(np.abs(c)))):
            return np.asarray(c)
        sign = np.sign(missed[worst])
        balance = np.vstack([signs * rows.T, np.ones(unknowns + 1)])
        now, entering = np.zeros(unknowns + 1), np.append(sign * matrix[worst], 1.0)
        now[-1] = 1.0
        shares, change = np.linalg.solve(balance, np.column_stack([now, entering])).T
        rising = change > _SMALLEST_PIVOT
        leaves = int(np.argmin(np.where(rising, shares / np.where(rising, change, 1.0), np.inf)))
        reference[leaves], signs[leaves] = worst, sign
    raise RuleError(f"no minimax coefficients found after {_EXCHANGES} exchanges")


@lru_cache(maxsize=256)
def fit_start_and_steps(
    low: float, high: float, emphasis: float, degree: int, cubic: int
) -> tuple[tuple[float, ...], tuple[tuple[float, float], ...]]:
    """Start and steps for τ in [low, high], each step fitted to what the ones before it give.

    A step squares the error. To end with |error|·τ^emphasis level, every stage with `left` more steps to come levels
    |error|·τ^(emphasis/2^left).
    """
    tau = np.geomspace(low, high, GRID)
    root = np.sqrt(tau)
    start = chebyshev_fit([root * tau**i for i in range(degree + 1)], tau ** (emphasis * 0.5**cubic))
    y = np.polynomial.polynomial.polyval(tau, start)
    steps: list[tuple[float, float]] = []
    for left in reversed(range(cubic)):
        a, b = 1.5, 0.5  # Newton, once the values agree so well that the fit is ill-conditioned and pointless
        if float(np.max(np.abs(root * y - 1.0))) > 1e-3:
            a, b = (float(c) for c in chebyshev_fit([root * y, -root * tau * y**3], tau ** (emphasis * 0.5**left)))
        steps.append((a, b))
        y = a * y - b * tau * y**3
    return tuple(float(c) for c in start), tuple(steps)


def fit_multiples(
    tau: Reals, root: Reals, weight: Reals, start: tuple[float, ...], units: list[float], scale: float
) -> list[float]:
    """The start over `scale` with its coefficients rounded to their units: the highest first, and those below it fitted
    anew to what that gives, so that a coarse unit costs little.

    tau and root are the points: τ as the start takes it, and sqrt of the τ that it is for.
    """
    left, done, target = list(start), [0.0] * len(start), np.ones_like(tau)
    for power in reversed(range(len(start))):
        done[power] = round(left[power] / (scale * units[power])) * units[power]
        target = target - scale * done[power] * root * tau**power
        if power and units[power] > _FINE:
            left = list(chebyshev_fit([root * tau**i for i in range(power)], weight, target))
    return done


def from_floor(floor: float, low: float, high: float) -> Reals:
    """From the floor to the top, evenly; then the interval on `GRID` points, finer where t is small."""
    return np.concatenate([np.linspace(floor, high, 4 * GRID), np.geomspace(low, high, GRID)])
