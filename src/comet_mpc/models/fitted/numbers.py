"""Fitted functions of a checkpoint: what their tensors mean, what is allowed of them, and where fitting may begin.

    neurons    f_j(h) = s_j·Σ_k c_jk·(h/s_j)^k      `layers.i.neurons.scale` (m,), `.coefficients` (m, degree + 1)
    scores     R = ((a·z + b)² + g)²                `layers.i.scores` (heads, 3): a, b, g
               R = (((a·z + b)² + g)² + h)²         (heads, 4): a, b, g, h
               z = q·k/sqrt((|q|² + c)·(|k|² + c')) `layers.i.softness` (heads, 2): c of queries, c' of keys

All of it is the server's (`fold`). Weights are R/ΣR, so only b/a and g/a² matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError
from comet_mpc.functions.attention import LARGEST_SOFTNESS
from comet_mpc.functions.weighing import LARGEST_OFFSET
from comet_mpc.models.bounds import Weights, activation_bounds, head_bounds, power_of_two_above
from comet_mpc.models.checkpoint import FITTED, CometConfig
from comet_mpc.models.fitted.quartics import bent

Tensors = Mapping[str, npt.NDArray[np.float32]]

MOST_SHIFTED = 16.0
"""|δ|/B of a neuron c₂·(h + δ)² + …: beyond it the neuron is too straight to be a square in fixed point."""
_SCORE_OFF, _ROUNDED = 2.0**-7, 2.0**-13
"""By how much a score may be too large, relatively, and what is opened, by rounding."""


@dataclass(frozen=True)
class Quadratics:
    """f_j(h) = c₀ + c₁·h + c₂·h² of a layer's neurons, (m,) each."""

    constant: Reals
    slope: Reals
    curvature: Reals

    @staticmethod
    def of(tensors: Tensors, layer: int) -> Quadratics:
        weights = Weights(tensors)
        scale = weights[f"layers.{layer}.neurons.scale"]
        if not np.all(scale > 0.0):
            raise CheckpointError(f"layers.{layer}.neurons.scale has numbers that are not above 0")
        c = weights[f"layers.{layer}.neurons.coefficients"].T
        return Quadratics(c[0] * scale, c[1], c[2] / scale)

    def shift(self, bound: Reals, layer: int) -> Reals:
        """δ = c₁/(2·c₂) of c₂·(h + δ)² + …, for |h| <= bound."""
        straight = np.abs(self.slope) > 2.0 * MOST_SHIFTED * bound * np.abs(self.curvature) * (1.0 + 1e-4)
        if np.any(straight):
            raise CheckpointError(
                f"layer {layer}: {np.count_nonzero(straight)} of {len(bound)} fitted neurons are too straight to be "
                f"computed as a square, neuron {np.flatnonzero(straight)[0]} first: fit them with more curvature "
                "(`models.fitted.numbers.curved`)"
            )
        flat = self.curvature == 0.0
        return np.asarray(np.where(flat, 0.0, self.slope / np.where(flat, 1.0, 2.0 * self.curvature)))


def neurons_as_squares(tensors: Tensors, layer: int) -> tuple[Reals, Reals, Reals, Reals]:
    """W₁', b₁', W₂' and what b₂ gets added, so that W₂'·(W₁'·x + b₁')² + … are the neurons, |W₁'·x + b₁'| <= 1."""
    weights = Weights(tensors)
    (w1, b1), w2 = weights.pair(f"layers.{layer}.up"), weights[f"layers.{layer}.down.weight"]
    norm, own = weights.pair(f"layers.{layer}.attention_norm"), Quadratics.of(tensors, layer)
    shift = own.shift(activation_bounds(w1, b1, *norm), layer)
    bound = activation_bounds(w1, b1 + shift, *norm)
    constant = own.constant - own.curvature * shift**2
    return w1 / bound[:, None], (b1 + shift) / bound, w2 * (own.curvature * bound**2), w2 @ constant


def curved(coefficients: Reals, scale: Reals, bound: Reals) -> Reals:
    """Coefficients (m, 3) with as much curvature as the protocol needs of neurons with |h| <= bound."""
    least = np.abs(coefficients[:, 1]) * scale / (2.0 * MOST_SHIFTED * bound)
    sign = np.where(coefficients[:, 2] < 0.0, -1.0, 1.0)
    bent = np.where(np.abs(coefficients[:, 2]) < least, sign * least, coefficients[:, 2])
    return np.stack([coefficients[:, 0], coefficients[:, 1], bent], axis=1)


def score_numbers(tensors: Tensors, layer: int) -> tuple[Reals, Reals]:
    """b/a, (heads,), and g/(2a)² and h/(2a)⁴, (heads, one or two): as the protocol takes ((z + b/a)/2)² + g/(2a)²."""
    a, b, *offsets = Weights(tensors)[f"layers.{layer}.scores"].T
    if not np.all(a != 0.0):
        raise CheckpointError(f"layers.{layer}.scores has a slope of 0")
    shift, units = b / a, [(4.0 * a**2) ** (2**i) for i in range(len(offsets))]
    found = np.stack([offset / unit for offset, unit in zip(offsets, units, strict=True)], axis=1)
    checked = [("b/a", shift, 1.0), ("g/a²", 4.0 * found[:, 0], 4.0 * LARGEST_OFFSET)]
    for name, values, limit in (*checked, ("h/(2a)⁴", found[:, -1], LARGEST_OFFSET)):
        if np.max(np.abs(values)) > limit * (1.0 + 1e-6):
            raise CheckpointError(
                f"layers.{layer}.scores: {name} is {np.max(np.abs(values)):.3g} at head {np.argmax(np.abs(values))}, "
                f"at most {limit:g} is allowed"
            )
    return np.clip(shift, -1.0, 1.0), np.clip(found, -LARGEST_OFFSET, LARGEST_OFFSET)


def relative_softness(tensors: Tensors, layer: int, heads: int) -> Reals:
    """c over the square of the head's bound, (heads, 2): of queries and keys."""
    relative = Weights(tensors)[f"layers.{layer}.softness"] / head_norms(tensors, layer, heads) ** 2
    if np.min(relative) < 0.0 or np.max(relative) > LARGEST_SOFTNESS * (1.0 + 1e-6):
        raise CheckpointError(
            f"layers.{layer}.softness: it is from 0 to the square of a head's bound, found "
            f"{np.min(relative):.3g} to {np.max(relative):.3g} times that"
        )
    return np.asarray(np.minimum(relative, LARGEST_SOFTNESS))


def largest_weight(tensors: Tensors, layers: int, heads: int) -> float:
    """R of all heads at most, for every input: a power of two."""
    largest = 0.0
    for i in range(layers):
        shift, offsets = score_numbers(tensors, i)
        score = 1.0 / np.sqrt((1.0 + relative_softness(tensors, i, heads)).prod(axis=1)) * (1.0 + _SCORE_OFF)
        shifts = np.clip(shift + position_biases(tensors, heads), -1.0, 1.0)
        arguments = 0.5 * (score + np.abs(shifts).max(axis=0)) + _ROUNDED
        low, high = np.zeros_like(arguments), arguments**2
        for offset in offsets.T:  # what is squared is between two ends
            ends = np.stack([low + offset - _ROUNDED, high + offset + _ROUNDED])
            low, high = np.where(ends[0] * ends[1] < 0.0, 0.0, (ends**2).min(axis=0)), (ends**2).max(axis=0)
        largest = max(largest, float(np.max(high)))
    return power_of_two_above(largest)


def within_limits(config: CometConfig, tensors: Mapping[str, npt.NDArray[np.float32]]) -> Tensors:
    """Tensors whose fitted functions are moved to where the protocol takes them, if training left it a little."""
    mended, weights = dict(tensors), Weights(tensors)
    for i in range(config.encoder.layers):
        layer = f"layers.{i}"
        if config.activation.kind == FITTED:
            name = f"{layer}.neurons"
            bound = activation_bounds(*weights.pair(f"{layer}.up"), *weights.pair(f"{layer}.attention_norm"))
            mend = curved if config.activation.degree == 2 else bent
            found = mend(weights[f"{name}.coefficients"], weights[f"{name}.scale"], bound)
            mended[f"{name}.coefficients"] = found.astype(np.float32)
        if config.attention.kind == FITTED:
            a, b, *offsets = weights[f"{layer}.scores"].T
            most = [LARGEST_OFFSET * (4.0 * a**2) ** (2**i) for i in range(len(offsets))]
            clipped = [np.clip(g, -limit, limit) for g, limit in zip(offsets, most, strict=True)]
            scores = np.stack([a, np.clip(b, -np.abs(a), np.abs(a)), *clipped], axis=1)
            bounds = head_norms(tensors, i, config.encoder.heads) ** 2
            soft = np.clip(weights[f"{layer}.softness"], 0.0, LARGEST_SOFTNESS * bounds)
            mended |= {f"{layer}.scores": scores.astype(np.float32), f"{layer}.softness": soft.astype(np.float32)}
    return mended


def head_norms(tensors: Tensors, layer: int, heads: int) -> Reals:
    """|q| and |k| of every head at most, (heads, 2)."""
    weights = Weights(tensors)
    pairs = (weights.pair(f"layers.{layer}.{part}") for part in ("query", "key"))
    return np.stack([head_bounds(*pair, *weights.before(layer), heads) for pair in pairs], axis=1)


def position_biases(tensors: Tensors, heads: int) -> Reals:
    """r of relative positions, (buckets, heads): what is added to scores. Zeros without any."""
    found = tensors.get("relative_positions")
    return np.zeros((1, heads)) if found is None else found.astype(np.float64)
