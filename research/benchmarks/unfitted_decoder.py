"""A checkpoint of a decoder whose functions are fitted to nothing: it writes nonsense, at what the model costs.

    python research/benchmarks/unfitted_decoder.py MODEL OUT [--context 32] [--random]
    python research/benchmarks/conversations.py OUT --name MODEL --texts 2 --tokens 4

Weights are the model's, or random ones of its sizes, and ranges are proved as ever. For models whose fitting takes
hours.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from comet_mpc.models.streams.folding import FittedLayer, head_tops
from comet_mpc.models.writing.stored import DecoderConfig, save_decoder
from comet_mpc.train import PreparedWriter, WriterRecipe, prepare_writer

_ROOM = 0.98
_SPREAD = 0.3
_LEAST = 2.0**-6
"""Mean square of a row, as if it had been seen."""


def unfitted(made: PreparedWriter) -> list[FittedLayer]:
    """About SiLU near zero, and nearly even weights of attention."""
    shape, found = made.shape, []
    for index in range(shape.layers):
        scales = [
            head_tops(
                np.asarray(made.tensors[f"layers.{index}.{name}.weight"]),
                np.asarray(made.tensors[f"layers.{index}.attention_norm.weight"]),
                shape.size,
            )
            / _ROOM
            for name in ("query", "key")
        ]
        neurons = np.tile([0.02, 0.5, 0.12], (shape.intermediate, 1))
        scores = np.array([[0.05] * shape.heads, [0.01] * shape.heads])
        found.append(FittedLayer(neurons, scores, (scales[0], scales[1])))
    return found


def randomised(tensors: dict[str, Any]) -> dict[str, Any]:
    """Other matrices of the same sizes. Norms scale by 1."""
    generator, found = np.random.default_rng(0), dict(tensors)
    for name, value in tensors.items():
        if name.startswith("layers."):
            found[name] = (
                _SPREAD * generator.standard_normal(value.shape) / np.sqrt(value.shape[-1])
                if value.ndim == 2
                else np.ones_like(value)
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--random", action="store_true")
    given = parser.parse_args()
    made = prepare_writer(given.model, WriterRecipe(context=given.context, length=8))
    if given.random:
        made = replace(made, tensors=randomised(made.tensors))
    config = DecoderConfig(
        decoder=made.shape, tied="head" not in made.tensors, epsilon=float(made.tensors["epsilon"]), ends=made.ends,
        seen=(_LEAST,) * (2 * made.shape.layers + 1),
    )  # fmt: skip
    save_decoder(given.out, config, made.tensors, unfitted(made), tokenizer=made.tokenizer)


if __name__ == "__main__":
    main()
