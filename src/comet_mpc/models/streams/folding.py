"""From a decoder's weights and fitted functions to what is served: folded weights, and rules that hold for any input.

Everything follows from ‖n‖ <= √d for rows of LayerNorm and RMSNorm alike, as in `models.bounds`. A part adds at most

    attention     Σ_h σ(O_h·V_h·diag(γ))·√d      its weights add up to 1, but for the reciprocal's error
    feed-forward  σ(W2·diag(P·r))·σ(diag(1/r)·U·diag(γ))·√d,  P_j the largest |p_j(g)| for |g| <= ‖γ⊙w_j‖·√d, any r > 0

and the stream is no longer than what it begins with and all that is added: tops grow by depth, not by product. What
fixed point makes of the weights is added to that (`rounding`).

What a decoder is made of, by canonical names: `reading` brings checkpoints to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError
from comet_mpc.functions.inverse_rule import ABOVE, WIDEST
from comet_mpc.functions.layer_norm import plain_centred, shrink_factor
from comet_mpc.functions.row_rule import wide_rule
from comet_mpc.functions.rule import InverseRule
from comet_mpc.models.bounds import LEAST_BOUND, power_of_two_above, sigma
from comet_mpc.models.streams.causal import CausalForm, denominator_rule, mean_rule
from comet_mpc.models.streams.decoder import DecoderLayerRules, DecoderRules, DecoderShape
from comet_mpc.models.streams.rounding import attention_moved, feed_forward_moved

SLACK = 1.0 + ABOVE + 2.0**-7
"""What a row of a norm may be longer than √d, by its rule's error and rounding."""
_WEIGHTS_OFF = 1.0 + 2.0**-5  # what the weights of attention may add up to
_FULL = 0.98  # of a range that neurons and rows are brought to, so that their roundings stay within
_SCALE = 2  # the stream is held times 2^_SCALE: its first rows are short
_LOW = 0.25  # of what was seen least, squared
LEAST_MEAN = 2.0**-15
"""Of a row's mean of u² + |c|, as a part of the largest."""

Tensors = Mapping[str, Reals]


@dataclass(frozen=True)
class FittedLayer:
    """What least squares found for a layer.

    neurons  (intermediate, 3): c0, c1, c2 of the quadratic that stands for every neuron's activation
    scores   (2, heads): b and c of `causal`, for queries and keys over their scales
    scales   what rows of queries and keys are divided by: (heads,) and (groups,)
    """

    neurons: Reals
    scores: Reals
    scales: tuple[Reals, Reals]


@dataclass(frozen=True)
class Seen:
    """Of every norm, in the order in which they are applied: the least mean square of a row, as data show it."""

    least: tuple[float, ...]


def head_tops(matrix: Reals, gamma: Reals, size: int, bias: Reals | None = None) -> Reals:
    """‖W_h·(γ⊙n) + b_h‖ of every head, for every input; never below `LEAST_BOUND`."""
    found = []
    for start in range(0, len(matrix), size):
        rows = slice(start, start + size)
        off = 0.0 if bias is None else float(np.linalg.norm(bias[rows]))
        found.append(sigma(matrix[rows] * gamma) * math.sqrt(matrix.shape[1]) * SLACK + off)
    return np.maximum(found, LEAST_BOUND)


class Folding:
    """One decoder. `weights` and `rules` are what comes out."""

    def __init__(self, shape: DecoderShape, tensors: Tensors, fitted: list[FittedLayer], seen: Seen) -> None:
        self.shape, self.tensors, self.seen = shape, tensors, seen
        self.factor = shrink_factor(shape.hidden) * 2.0**_SCALE
        self.weights: dict[str, Reals] = {}
        self.top = float(np.max(np.linalg.norm(self.start(), axis=1)))
        tops, longest = [self.top], math.sqrt(shape.hidden) * SLACK
        for index, own in enumerate(fitted):
            self._attention(index, own)
            off = attention_moved(shape, self.weights, index, longest=longest, sums=_WEIGHTS_OFF)
            self.top += off / self.factor
            tops.append(self.top)
            self._feed_forward(index, own)
            self.top += feed_forward_moved(shape, self.weights, index, longest=longest) / self.factor
            tops.append(self.top)
        norms = [self._norm(top, least) for top, least in zip(tops, seen.least, strict=True)]
        form = CausalForm(mean_rule(LEAST_MEAN), denominator_rule(shape.positions))
        layers = tuple(DecoderLayerRules((norms[2 * i], norms[2 * i + 1]), form) for i in range(shape.layers))
        epsilon = float(tensors["epsilon"]) * 4.0**_SCALE
        self.rules = DecoderRules(layers, norms[-1], epsilon)

    def start(self) -> Reals:
        """Every row that a stream may begin with, centred where LayerNorm centres."""
        rows = np.asarray(self.tensors["embeddings"])
        if not self.shape.centred:
            return rows
        longest = float(np.max(np.linalg.norm(plain_centred(self.tensors["positions"]), axis=1)))
        rows = plain_centred(rows)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows * (1.0 + longest / np.maximum(lengths, 1e-12)))

    def _norm(self, top: float, least: float) -> InverseRule:
        """For rows of the stream up to `top`."""
        shrink, d = shrink_factor(self.shape.hidden), self.shape.hidden
        high = power_of_two_above(top**2 / d * (1.0 + 2.0**-8)) * 4.0**_SCALE
        low = max(_LOW * least * 4.0**_SCALE, high / WIDEST * 1.001)
        return wide_rule(low * shrink**3, high * shrink**3, gain=math.sqrt(shrink))

    def _get(self, index: int, name: str) -> Any:
        return self.tensors.get(f"layers.{index}.{name}")

    def _gamma(self, index: int, name: str) -> tuple[Reals, Reals]:
        gamma = self._get(index, name + ".weight")
        beta = self._get(index, name + ".bias")
        return gamma, np.zeros_like(gamma) if beta is None else beta

    def _linear(self, index: int, name: str, beta: Reals) -> tuple[Reals, Reals]:
        """W and what its product is shifted by, β included."""
        matrix, bias = self._get(index, name + ".weight"), self._get(index, name + ".bias")
        return matrix, matrix @ beta + (0.0 if bias is None else bias)

    def _into(self, matrix: Reals) -> Reals:
        """What is added to the stream, as the stream is held."""
        centred = plain_centred(matrix, axis=0) if self.shape.centred else matrix
        return np.asarray(self.factor * centred)

    def _attention(self, index: int, own: FittedLayer) -> None:
        shape, prefix = self.shape, f"layer.{index}."
        size, times = shape.size, shape.heads // shape.groups
        gamma, beta = self._gamma(index, "attention_norm")
        (q, q_off), (k, k_off), (v, v_off) = (self._linear(index, name, beta) for name in ("query", "key", "value"))
        for matrix, off, scale, what in ((q, q_off, own.scales[0], "query"), (k, k_off, own.scales[1], "key")):
            if np.any(head_tops(matrix, gamma, size, off) > _FULL * 1.02 * scale):
                raise CheckpointError(f"layer {index}: a {what} may be longer than what its head is scaled by")
        limits = np.array([[CausalForm.shift], [CausalForm.inner]])
        if not np.all(np.abs(own.scores) <= limits):
            raise CheckpointError(
                f"layer {index}: a head's numbers are beyond {CausalForm.shift:g} and {CausalForm.inner:g}, "
                "for which its scores are proved"
            )
        q, q_off = (x / _spread(own.scales[0], size, x.ndim) for x in (q, q_off))
        k, k_off = (x / _spread(own.scales[1], size, x.ndim) for x in (k, k_off))
        tops = head_tops(v, gamma, size)
        scaled = v / _spread(tops / _FULL, size, 2)
        output, bias = self._get(index, "attention_output.weight"), self._get(index, "attention_output.bias")
        heads = np.split(output, shape.heads, axis=1)
        groups = [h // times for h in range(shape.heads)]
        self.weights[prefix + "qkv.weight"] = np.concatenate([q, k, scaled]) * gamma
        self.weights[prefix + "scores"] = own.scores
        served = np.concatenate([head * (tops[g] / _FULL) for head, g in zip(heads, groups, strict=True)], axis=1)
        self.weights[prefix + "output.weight"] = self._into(served)
        values = np.split(v, shape.groups)
        added = sum(sigma(head @ (values[g] * gamma)) for head, g in zip(heads, groups, strict=True))
        self.top += added * math.sqrt(shape.hidden) * SLACK * _WEIGHTS_OFF
        if shape.centred:
            whole = np.repeat(v_off.reshape(shape.groups, size), times, axis=0).reshape(-1)
            off = output @ whole + (0.0 if bias is None else bias)
            self.weights[prefix + "qk.bias"] = np.concatenate([q_off, k_off])
            self.weights[prefix + "output.bias"] = self._into(off)
            self.top += float(np.linalg.norm(off))

    def _feed_forward(self, index: int, own: FittedLayer) -> None:
        shape, prefix = self.shape, f"layer.{index}."
        gamma, beta = self._gamma(index, "mlp_norm")
        gate, gate_off = self._linear(index, "gate", beta)
        down, bias = self._get(index, "down.weight"), self._get(index, "down.bias")
        c0, c1, c2 = own.neurons.T
        if np.any(c2 == 0.0):
            raise CheckpointError(f"layer {index}: a neuron's quadratic has no square")
        root = math.sqrt(shape.hidden) * SLACK
        reach = np.linalg.norm(gate * gamma, axis=1) * root
        middle = c1 / (2.0 * c2)
        large = np.maximum(reach + np.abs(gate_off + middle), LEAST_BOUND) / _FULL
        rest = c0 - c1**2 / (4.0 * c2)
        largest = np.maximum(np.abs(c2) * (_FULL * large) ** 2 + rest * np.sign(c2), np.abs(rest))
        if shape.gated:
            up, up_off = self._linear(index, "up", beta)
            if np.any(up_off):
                raise CheckpointError(f"layer {index}: a gated neuron with a bias beside its gate is not served")
            sizes = np.maximum(np.linalg.norm(up * gamma, axis=1) * root, LEAST_BOUND) / _FULL
            matrices = np.concatenate([gate / large[:, None], up / sizes[:, None]]) * gamma
            self.weights[prefix + "beside.weight"] = self._into((down * rest) @ (up * gamma))
            self.top += _product_top(down, largest, up * gamma) * root
            columns = down * (c2 * large**2 * sizes)
        else:
            matrices, columns = gate * gamma / large[:, None], down * (c2 * large**2)
            self.top += min(float(np.linalg.norm(down, axis=0) @ largest), sigma(down) * float(np.linalg.norm(largest)))
        self.weights[prefix + "up.weight"] = matrices
        self.weights[prefix + "up.bias"] = (gate_off + middle) / large
        self.weights[prefix + "down.weight"] = self._into(columns)
        if shape.centred:
            off = np.zeros(shape.hidden) if bias is None else bias
            off = off if shape.gated else off + down @ rest
            self.weights[prefix + "down.bias"] = self._into(off)
            self.top += float(np.linalg.norm(off))


def _spread(scales: Reals, size: int, axes: int) -> Reals:
    rows = np.repeat(scales, size)
    return rows[:, None] if axes == 2 else rows


def _product_top(down: Reals, largest: Reals, up: Reals) -> float:
    """A bound of ‖W2·(p ⊙ U·x)‖ for |p_j| <= P_j and ‖x‖ <= 1: the least of three that hold."""
    columns, rows = np.linalg.norm(down, axis=0) * largest, np.linalg.norm(up, axis=1)
    balance = np.sqrt(np.maximum(columns, 1e-12) / np.maximum(rows, 1e-12))
    return min(
        float(columns @ rows),
        sigma(down * largest) * sigma(up),
        sigma(down * (largest / balance)) * sigma(up * balance[:, None]),
    )


def with_hidden_bits(rules: DecoderRules, bits: int) -> DecoderRules:
    return replace(rules, hidden_bits=bits)
