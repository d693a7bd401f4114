"""Checkpoints of small decoders that write: random weights, functions fitted by hand, a tokenizer of letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from comet_mpc.engine.share import Reals
from comet_mpc.models.streams.decoder import DecoderShape
from comet_mpc.models.streams.folding import FittedLayer, head_tops
from comet_mpc.models.writing.stored import DecoderConfig, save_decoder, stored_shapes
from support.toy_writer import letters

LLAMA = DecoderShape(2, 24, 2, 1, 12, 32, 270, 48)
GPT2 = DecoderShape(2, 24, 2, 2, 12, 32, 270, 48, theta=0.0, gated=False, centred=True)
_FITTED = ("neurons", "scores", "scales.query", "scales.key")


def config_of(shape: DecoderShape, *, tied: bool = True, ends: tuple[int, ...] = (1, 2)) -> DecoderConfig:
    seen = (2.0**-6,) * (2 * shape.layers + 1)
    return DecoderConfig(decoder=shape, tied=tied, epsilon=1e-5, ends=ends, seen=seen)


def weights_of(config: DecoderConfig, seed: int = 0) -> dict[str, Reals]:
    """By canonical names. It writes letters, and not the same one for ever."""
    generator, made = np.random.default_rng(seed), dict[str, Any]()
    for name, size in stored_shapes(config).items():
        if name.endswith(_FITTED):
            continue
        value = generator.standard_normal(size)
        if "norm.weight" in name:
            value = 1.0 + 0.1 * value
        elif name.endswith("bias"):
            value = 0.1 * value
        elif name not in ("embeddings", "head"):
            value = value / np.sqrt(size[-1])
        made[name] = value
    made["embeddings"][:259] *= 0.3
    if "head" in made:  # a letter is followed by another one
        made["head"] = np.concatenate([made["embeddings"][:259], np.roll(made["embeddings"][259:], 3, axis=0)])
    return made


def layers_of(shape: DecoderShape, weights: dict[str, Reals]) -> list[FittedLayer]:
    """Quadratics and scores as least squares might find them."""
    found = []
    for i in range(shape.layers):
        gamma, beta = weights[f"layers.{i}.attention_norm.weight"], weights.get(f"layers.{i}.attention_norm.bias")
        scales = []
        for name in ("query", "key"):
            matrix = weights[f"layers.{i}.{name}.weight"]
            off = weights.get(f"layers.{i}.{name}.bias", np.zeros(len(matrix)))
            scales.append(head_tops(matrix, gamma, shape.size, off if beta is None else off + matrix @ beta) / 0.98)
        neurons = np.tile([0.02, 0.5, 0.12], (shape.intermediate, 1))
        scores = np.array([[0.05] * shape.heads, [0.01] * shape.heads])
        found.append(FittedLayer(neurons, scores, (scales[0], scales[1])))
    return found


def write_small(
    directory: Path, shape: DecoderShape = LLAMA, *, tied: bool = True, seed: int = 0, ends: tuple[int, ...] = (1, 2)
) -> Path:
    """A checkpoint of one."""
    config = config_of(shape, tied=tied, ends=ends)
    weights = weights_of(config, seed)
    save_decoder(directory, config, weights, layers_of(shape, weights), tokenizer=letters().text.encode())
    return directory
