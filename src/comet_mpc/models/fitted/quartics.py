"""Quartics of neurons, as the protocol takes them: a square of a square, and what is linear in a matrix of its own.

With δ = c₃/(4·c₄) and v = h + δ

    f(h) = c₀ + c₁·h + … + c₄·h⁴ = c₄·v⁴ + a₂·v² + a₁·v + a₀ = c₄·(v² + a₂/(2·c₄))² + a₁·v + (a₀ - a₂²/(4·c₄))

and with B, the bound of |v|, the protocol computes (x² + γ)² of x = v/B, γ = a₂/(2·c₄·B²). c₄·B⁴ goes into W₂; the
constant goes into b₂; a₁·v = a₁·(W₁·n + b₁ + δ) is linear in the rows n, as γ⊙n is, and both are one matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError
from comet_mpc.functions.neurons import LARGEST_MIDDLE
from comet_mpc.models.bounds import Weights, activation_bounds

Tensors = Mapping[str, npt.NDArray[np.float32]]

MOST_SHIFTED = 0.5
"""|δ|/B of a neuron: beyond it the neuron is too straight to be a quartic in fixed point."""
_BENT_SHIFT = 0.125
"""|δ|/B of one that is bent."""
_LEAST = 2.0**-60  # c₄ of a neuron that is nothing but linear


def polynomials(tensors: Tensors, layer: int) -> tuple[Reals, ...]:
    """c₀, c₁, … of a layer's neurons f(h) = c₀ + c₁·h + …, (m,) each: a quartic's as it is served, c₄ not 0."""
    weights = Weights(tensors)
    scale = weights[f"layers.{layer}.neurons.scale"]
    if not np.all(scale > 0.0):
        raise CheckpointError(f"layers.{layer}.neurons.scale has numbers that are not above 0")
    columns = weights[f"layers.{layer}.neurons.coefficients"].T
    found = [c * scale ** (1 - k) for k, c in enumerate(columns)]
    return *found[:4], *(np.where(c4 == 0.0, _LEAST, c4) for c4 in found[4:])


@dataclass(frozen=True)
class Depressed:
    """A layer's neurons as quartics without a cubic part, (m,) each."""

    shift: Reals
    """δ"""
    bound: Reals
    """Of |h + δ|."""
    leading: Reals
    """c₄·B⁴"""
    offset: Reals
    """γ"""
    slope: Reals
    """a₁"""
    constant: Reals
    beyond: Reals
    """By how much γ was above what is taken: a little, since coefficients are stored in single precision."""

    @property
    def off(self) -> Reals:
        """By how much a neuron is off at most for that: |(x² + γ)² - (x² + γ')²| <= 4·|γ - γ'|."""
        return np.asarray(4.0 * np.abs(self.leading) * self.beyond)

    @staticmethod
    def of(tensors: Tensors, layer: int) -> Depressed:
        """Raises CheckpointError if a neuron is too straight, or its γ too large."""
        weights = Weights(tensors)
        (w, b), norm = weights.pair(f"layers.{layer}.up"), weights.pair(f"layers.{layer}.attention_norm")
        c0, c1, c2, c3, c4 = polynomials(tensors, layer)
        bound = activation_bounds(w, b, *norm)
        shift = c3 / (4.0 * c4)
        second = c2 - 6.0 * c4 * shift**2
        first = c1 - 4.0 * c4 * shift**3 - 2.0 * second * shift
        reach = activation_bounds(w, b + shift, *norm)
        offset = second / (2.0 * c4 * reach**2)
        for name, value, limit in (("δ/B", shift / bound, MOST_SHIFTED), ("γ", offset, LARGEST_MIDDLE)):
            off = np.abs(value) > limit * (1.0 + 1e-4)
            if np.any(off):
                raise CheckpointError(
                    f"layer {layer}: {name} of {np.count_nonzero(off)} of {len(value)} fitted neurons is above "
                    f"{limit:g}, neuron {np.flatnonzero(off)[0]} first: fit them with more of a fourth power "
                    "(`models.fitted.quartics.bent`)"
                )
        constant = c0 - c4 * shift**4 - second * shift**2 - first * shift - second**2 / (4.0 * c4)
        taken = np.clip(offset, -LARGEST_MIDDLE, LARGEST_MIDDLE)
        return Depressed(shift, reach, c4 * reach**4, taken, first, constant, np.abs(offset - taken))


@dataclass(frozen=True)
class Folded:
    """W₁', b₁', γ, W₂', M and b, so that W₂'·((W₁'·x + b₁')² + γ)² + M·x + b are the neurons, |W₁'·x + b₁'| <= 1."""

    up: Reals
    up_bias: Reals
    offsets: Reals
    down: Reals
    matrix: Reals
    bias: Reals


def neurons_as_quartics(tensors: Tensors, layer: int) -> Folded:
    """As the server serves them."""
    weights, own = Weights(tensors), Depressed.of(tensors, layer)
    (w1, b1), w2 = weights.pair(f"layers.{layer}.up"), weights[f"layers.{layer}.down.weight"]
    sloped = w2 * own.slope
    return Folded(
        w1 / own.bound[:, None],
        (b1 + own.shift) / own.bound,
        own.offset,
        w2 * own.leading,
        sloped @ w1,
        w2 @ own.constant + sloped @ (b1 + own.shift),
    )


def bent(coefficients: Reals, scale: Reals, bound: Reals) -> Reals:
    """Coefficients (m, 5) with as much of a fourth power as the protocol needs of neurons with |h| <= bound.

    Those that have enough of it stay as they are.
    """
    c, reach = coefficients.copy(), bound / scale
    c4 = np.where(c[:, 4] == 0.0, 1e-300, c[:, 4])
    shift = np.abs(c[:, 3] / (4.0 * c4))
    with np.errstate(over="ignore", invalid="ignore"):
        offset = np.abs(c[:, 2] / c4 - 6.0 * shift**2) / (2.0 * (reach - shift) ** 2)
        enough = (shift <= MOST_SHIFTED * reach) & (offset <= LARGEST_MIDDLE)
    by_shift = np.abs(c[:, 3]) / (4.0 * _BENT_SHIFT * reach)
    # the bound of v is at least B - |δ|, so |γ| <= (|c₂/c₄|/2 + 3·δ²)/(B - |δ|)²
    room = LARGEST_MIDDLE * (1.0 - _BENT_SHIFT) ** 2 - 3.0 * _BENT_SHIFT**2
    by_offset = 0.5 * np.abs(c[:, 2]) / reach**2 / room
    least = np.maximum(np.abs(c[:, 4]), np.maximum(by_shift, by_offset))
    sign = np.where(c[:, 4] < 0.0, -1.0, 1.0)
    c[:, 4] = np.where(enough, c[:, 4], sign * least)
    return c
