"""What fixed point makes of a decoder's weights: ranges are proved for the numbers that are served.

A weight that is small for its fraction bits may be served twice as large, and all of them may be rounded the same way.
So what a part may add to the stream is bounded with what rounding adds to it; and queries, keys, values and neurons,
which the protocol takes up to 1, are looked at as they are served.

With Δ for what rounding moves, ‖(W + ΔW)·(a + Δa) - W·a‖ <= ‖ΔW·a‖ + ‖(W + ΔW)·Δa‖.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError
from comet_mpc.models.bounds import sigma
from comet_mpc.models.streams.decoder import DecoderShape, fraction_of

Weights = Mapping[str, Reals]


def served(weights: Weights, name: str) -> Reals:
    """A folded weight as it is encoded."""
    unit = 2.0 ** -fraction_of(name)
    return np.asarray(np.rint(np.asarray(weights[name]) / unit) * unit)


def attention_moved(shape: DecoderShape, weights: Weights, index: int, *, longest: float, sums: float) -> float:
    """By how much more attention may add to the stream, as it is held, than its weights say before they are rounded.

    longest: of normalised rows; sums: what weights of attention add up to at most
    """
    prefix, size, groups = f"layer.{index}.", shape.size, shape.groups
    rows, output = served(weights, prefix + "qkv.weight"), served(weights, prefix + "output.weight")
    bias = np.zeros(len(rows))
    if prefix + "qk.bias" in weights:
        bias[: (shape.heads + groups) * size] = served(weights, prefix + "qk.bias")
    reach = np.array([sigma(part) * longest for part in np.split(rows, len(rows) // size)])
    reach += np.linalg.norm(bias.reshape(-1, size), axis=1)
    _check(reach, index, "a query, a key or a value")
    moved_rows, moved = rows - weights[prefix + "qkv.weight"], output - weights[prefix + "output.weight"]
    values, moved_values = reach[-groups:], np.split(moved_rows, len(rows) // size)[-groups:]
    own = [head * groups // shape.heads for head in range(shape.heads)]
    wholes, parts = (np.split(matrix, shape.heads, axis=1) for matrix in (output, moved))
    total = sum(sigma(part) * sigma(moved_values[group]) for group, part in zip(own, wholes, strict=True)) * longest
    by_heads = sum(sigma(part) * values[group] for group, part in zip(own, parts, strict=True))
    total += min(by_heads, sigma(moved) * float(np.linalg.norm(values[own])))
    return float(sums * total) + _bias_moved(weights, prefix + "output.bias")


def feed_forward_moved(shape: DecoderShape, weights: Weights, index: int, *, longest: float) -> float:
    """The same of a layer's neurons."""
    prefix, m = f"layer.{index}.", shape.intermediate
    up, bias, down = (served(weights, prefix + name) for name in ("up.weight", "up.bias", "down.weight"))
    moved_up = up - weights[prefix + "up.weight"]
    moved_bias = np.zeros(len(up))
    moved_bias[:m] = bias - weights[prefix + "up.bias"]
    reach = np.linalg.norm(up, axis=1) * longest
    reach[:m] += np.abs(bias)
    _check(reach, index, "a neuron")
    each = np.linalg.norm(moved_up, axis=1) * longest + np.abs(moved_bias)
    together = np.array([sigma(part) * longest for part in np.split(moved_up, len(up) // m)])
    together[0] += np.linalg.norm(moved_bias)
    active, moved, length = reach[:m] ** 2, 2.0 * each[:m], 2.0 * together[0]
    if shape.gated:  # h²·u, and h and u are within 1
        active, moved, length = active * reach[m:], moved + each[m:], length + together[1]
    total = _reach(down - weights[prefix + "down.weight"], active, float(np.linalg.norm(active)))
    total += _reach(down, moved, min(float(np.linalg.norm(moved)), float(length)))
    if shape.gated:
        total += sigma(served(weights, prefix + "beside.weight") - weights[prefix + "beside.weight"]) * longest
    return total + _bias_moved(weights, prefix + "down.bias")


def _check(reach: Reals, index: int, what: str) -> None:
    if float(np.max(reach)) > 1.0:
        raise CheckpointError(f"layer {index}: {what} may leave its range once it is rounded to fixed point")


def _reach(matrix: Reals, largest: Reals, length: float) -> float:
    """‖matrix·x‖ for |x_j| <= largest_j and ‖x‖ <= length."""
    return min(float(np.linalg.norm(matrix, axis=0) @ largest), sigma(matrix) * length)


def _bias_moved(weights: Weights, name: str) -> float:
    return float(np.linalg.norm(served(weights, name) - weights[name])) if name in weights else 0.0
