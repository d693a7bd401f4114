"""Small decoders with random weights, folded, within the bounds that their rules claim."""

from __future__ import annotations

import numpy as np

from comet_mpc.engine.share import Reals
from comet_mpc.functions.layer_norm import shrink_factor
from comet_mpc.functions.row_rule import wide_rule
from comet_mpc.models.streams.causal import CausalForm, denominator_rule, mean_rule
from comet_mpc.models.streams.decoder import DecoderLayerRules, DecoderRules, DecoderShape, decoder_weights

GATED = DecoderShape(2, 24, 2, 1, 12, 32, 50, 32)
PLAIN = DecoderShape(2, 24, 2, 2, 12, 32, 50, 32, theta=0.0, gated=False, centred=True)


def small_rules(shape: DecoderShape) -> DecoderRules:
    shrink = shrink_factor(shape.hidden)
    norm = wide_rule(2.0**-6 * shrink**3, 2.0**7 * shrink**3, gain=shrink**0.5)
    form = CausalForm(mean_rule(2.0**-8), denominator_rule(16))
    layer = DecoderLayerRules((norm, norm), form)
    return DecoderRules((layer,) * shape.layers, norm)


def small_weights(shape: DecoderShape, seed: int = 0) -> dict[str, Reals]:
    generator = np.random.default_rng(seed)
    made = {}
    for name, size in decoder_weights(shape).items():
        values = generator.standard_normal(size)
        if name.endswith("scores"):
            made[name] = np.abs(values) * np.array([0.02, 0.01])[:, None] + np.array([0.05, 0.0])[:, None]
        elif name.endswith("bias"):
            made[name] = 0.02 * values
        elif name.endswith(("qkv.weight", "up.weight")):
            made[name] = 0.5 * values / (np.linalg.norm(values, axis=1, keepdims=True) * np.sqrt(shape.hidden))
            if name.endswith("qkv.weight"):  # rows of a head together are no longer than 1
                made[name] *= 1.2 / np.sqrt(shape.size)
        else:
            made[name] = values / np.sqrt(shape.hidden) * (6.0 if name.endswith("down.weight") else 1.0)
        if shape.centred and name.endswith(("output.weight", "down.weight", "output.bias", "down.bias")):
            made[name] = made[name] - made[name].mean(axis=0, keepdims=True)
    return made


def small_rows(shape: DecoderShape, count: int, seed: int = 1) -> Reals:
    values = np.random.default_rng(seed).standard_normal((1, count, shape.hidden))
    if shape.centred:
        values -= values.mean(axis=-1, keepdims=True)
    return values * shrink_factor(shape.hidden)
