"""Where fitting begins, without data: for rows as LayerNorm makes them, in all directions alike."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.share import Reals
from comet_mpc.functions.attention import LARGEST_SOFTNESS
from comet_mpc.models.bounds import Weights, activation_bounds, head_bounds
from comet_mpc.models.checkpoint import FITTED, CometConfig
from comet_mpc.models.fitted.numbers import curved
from comet_mpc.models.fitted.quartics import bent

Tensors = Mapping[str, npt.NDArray[np.float32]]

USUAL_SOFTNESS = 1.0
"""c over the mean of |q|²."""
_LEAST = 2.0**-11
"""c over the square of a head's bound, at least."""
_FLAT = 4.0
"""(1 + z/4)^4 is exp(z), nearly."""


def first_functions(config: CometConfig, tensors: Tensors, layer: int) -> dict[str, Reals]:
    """A layer's fitted functions before they are fitted."""
    made: dict[str, Reals] = {}
    if config.activation.kind == FITTED:
        names = (f"layers.{layer}.neurons.{part}" for part in ("scale", "coefficients"))
        made |= dict(zip(names, first_neurons(tensors, layer, config.activation.degree), strict=True))
    if config.attention.kind == FITTED:
        names = (f"layers.{layer}.{part}" for part in ("scores", "softness"))
        made |= dict(
            zip(names, first_scores(tensors, layer, config.encoder.heads, config.attention.power), strict=True)
        )
    return made


def first_neurons(tensors: Tensors, layer: int, degree: int = 2) -> tuple[Reals, Reals]:
    """Scales and coefficients nearest to GeLU for rows as LayerNorm makes them, in all directions alike."""
    weights = Weights(tensors)
    (w, b), (gamma, beta) = weights.pair(f"layers.{layer}.up"), weights.pair(f"layers.{layer}.attention_norm")
    scaled = w * gamma
    scale = np.linalg.norm(scaled - scaled.mean(axis=1, keepdims=True), axis=1) + 1e-3
    nodes, weight = np.polynomial.hermite_e.hermegauss(24)
    h = (w @ beta + b)[:, None] + scale[:, None] * nodes
    powers = (h / scale[:, None])[..., None] ** np.arange(degree + 1)
    gram = np.einsum("n,jnk,jnl->jkl", weight, powers, powers)
    gram += 1e-9 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(degree + 1)
    right = np.einsum("n,jnk,jn->jk", weight, powers, _gelu(h) / scale[:, None])
    coefficients = np.linalg.solve(gram, right[..., None])[..., 0]
    return scale, (curved if degree == 2 else bent)(coefficients, scale, activation_bounds(w, b, gamma, beta))


def _gelu(h: Reals) -> Reals:
    return np.asarray(0.5 * h * (1.0 + np.vectorize(math.erf)(h / math.sqrt(2.0))))


def first_scores(tensors: Tensors, layer: int, heads: int, power: int = 4) -> tuple[Reals, Reals]:
    """(heads, 3) and (heads, 2): a quartic near exp(q·k/√d) for such rows, and its softness."""
    weights = Weights(tensors)
    gamma, beta = weights.before(layer)
    softness, lengths, means = [], [], []
    for part in ("query", "key"):
        w, b = weights.pair(f"layers.{layer}.{part}")
        scaled, shift = w * gamma, w @ beta + b
        scaled = (scaled - scaled.mean(axis=1, keepdims=True)).reshape(heads, -1)
        means.append(shift.reshape(heads, -1))
        length = (scaled**2).sum(axis=1) + (means[-1] ** 2).sum(axis=1)
        bound = head_bounds(w, b, gamma, beta, heads) ** 2
        softness.append(np.clip(USUAL_SOFTNESS * length, _LEAST * bound, LARGEST_SOFTNESS * bound))
        lengths.append(length + softness[-1])
    both = np.sqrt(lengths[0] * lengths[1])
    steepness = both / math.sqrt(means[0].shape[1])  # q·k/√d = steepness·z
    middle = (means[0] * means[1]).sum(axis=1) / both
    shift = power / steepness - middle
    clipped = np.clip(shift, -1.0, 1.0)
    far = np.maximum(np.abs(clipped + middle), 1e-3)
    offset = np.where(clipped == shift, 0.0, np.clip(power * far / steepness - far**2, -1.0, 1.0))
    zeros = np.zeros((heads, power.bit_length() - 3))
    return np.concatenate([np.stack([np.ones(heads), clipped, offset], axis=1), zeros], axis=1), np.stack(
        softness, axis=1
    )
