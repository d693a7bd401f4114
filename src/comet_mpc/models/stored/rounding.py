"""What fixed point makes of an encoder's sums: rows that LayerNorm takes stay in its interval with served weights.

Tops of intervals are proved from weights before they are rounded, with some room (`certify`). Weights far below their
last digit may be served twice as large, all in one direction: then the room is not enough, and the model is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from comet_mpc.engine import Weight
from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError
from comet_mpc.functions.layer_norm import largest_norm
from comet_mpc.models.bounds import head_bounds, longest_row, sigma
from comet_mpc.models.checkpoint import FITTED, CometConfig
from comet_mpc.models.transformer import EncoderRules

ROOM = 0.02
"""Of a row's largest norm, for rounding of weights. Tops have 5 % of room, so norms 2.4 %."""


class Moved(NamedTuple):
    """By how much longer rows may be for it, behind a layer's attention and behind its neurons."""

    attention: float
    neurons: float


def moved(config: CometConfig, real: Mapping[str, Reals], fixed: Mapping[str, Weight], layer: int) -> Moved:
    """Of a layer. real: its folded weights; fixed: those that are served"""
    e, prefix = config.encoder, f"layer.{layer}."
    served: dict[str, Reals] = {
        name: np.asarray(fixed[name].fixed() * 2.0 ** -fixed[name].fraction, np.float64) for name in real
    }
    off: dict[str, Reals] = {name: served[name] - real[name] for name in real}
    longest, ones, zeros = longest_row(e.hidden), np.ones(e.hidden), np.zeros(e.hidden)
    values, bias = served[prefix + "qkv.weight"][-e.hidden :], served[prefix + "qkv.bias"][-e.hidden :]
    if not e.stream:
        bias = bias + values.sum(axis=1)  # they are applied to n + 1
    reach = head_bounds(values, bias, ones, zeros, e.heads)
    output, output_off = (np.split(each[prefix + "output.weight"], e.heads, axis=1) for each in (served, off))
    values_off = np.split(off[prefix + "qkv.weight"][-e.hidden :], e.heads)
    attention = min(
        sum(sigma(part) * size for part, size in zip(output_off, reach, strict=True)),
        sigma(off[prefix + "output.weight"]) * float(np.linalg.norm(reach)),
    )
    by_values = zip(output, values_off, strict=True)
    attention += sum(sigma(whole) * sigma(part) for whole, part in by_values) * 2.0 * longest
    neurons, largest, slope = len(served[prefix + "up.bias"]), 1.0 + config.activation.mu, 2.0
    if config.activation.kind == FITTED and config.activation.degree == 4:
        largest, slope = 4.0, 8.0
    down, each = off[prefix + "down.weight"], np.linalg.norm(off[prefix + "up.weight"], axis=1) * longest
    added = min(float(np.linalg.norm(down, axis=0).sum()), sigma(down) * neurons**0.5) * largest
    lengths = float(np.linalg.norm(each)), sigma(off[prefix + "up.weight"]) * longest
    added += sigma(served[prefix + "down.weight"]) * slope * (min(lengths) + _length(off, prefix + "up.bias"))
    if prefix + "second.weight" in off:
        added += sigma(off[prefix + "second.weight"]) * longest
    return Moved(
        attention + _length(off, prefix + "output.bias") + _largest(off, prefix + "first.gamma") * longest,
        added + _length(off, prefix + "down.bias") + _largest(off, prefix + "second.gamma") * longest,
    )


def check_moved(rules: EncoderRules, hidden: int, found: Sequence[Moved]) -> None:
    """Raises where a row may leave a LayerNorm's interval."""
    behind = [rule for layer in rules.layers for rule in layer.variances]
    if rules.last is not None:  # a stream: a rule is of the LayerNorm before its part, and what is added adds up
        behind = [*behind[1:], rules.last]
    total = 0.0
    for index, (part, rule) in enumerate(zip([part for own in found for part in own], behind, strict=True)):
        total = part if rules.last is None else total + part
        if total > ROOM * largest_norm(hidden, rule):
            raise CheckpointError(
                f"layer {index // 2}: what its {('attention', 'neurons')[index % 2]} add may leave the range behind it "
                "once weights are rounded to fixed point: they are too small for their digits"
            )


def _length(off: Mapping[str, Reals], name: str) -> float:
    return float(np.linalg.norm(off[name])) if name in off else 0.0


def _largest(off: Mapping[str, Reals], name: str) -> float:
    return float(np.max(np.abs(off[name]))) if name in off else 0.0
