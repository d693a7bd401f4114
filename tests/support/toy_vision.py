"""A tiny certified vision Transformer with random weights, and images."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from comet_mpc.models.certify import certify
from comet_mpc.models.checkpoint import ActivationChoice, AttentionChoice, CometConfig, Encoder, tensor_shapes
from comet_mpc.models.fitted.first import first_functions
from comet_mpc.models.heads import Head
from comet_mpc.models.images.format import ImageFormat
from comet_mpc.models.stored.checkpoints import save_checkpoint

__all__ = ["make_vision_checkpoint", "some_images"]


def make_vision_checkpoint(
    directory: Path,
    *,
    image: ImageFormat | None = None,
    labels: tuple[str, ...] = ("cat", "dog"),
    head: Head | None = None,
    hidden: int = 32,
    layers: int = 2,
    power: Literal[4, 8] | None = None,
    seed: int = 0,
) -> Path:
    """Writes a checkpoint that `ServedModel.load` takes. power: of attention, if its functions are fitted"""
    head, image = head or Head(), image or ImageFormat(height=8, width=12, patch=4)
    config = CometConfig(
        encoder=Encoder(
            architecture="vit",
            vocabulary=0,
            positions=1 + image.patches,
            types=0,
            hidden=hidden,
            layers=layers,
            heads=2,
            intermediate=2 * hidden,
            epsilon=1e-6,
            padding=0,
            labels=() if head.kind == "embedding" else labels,
            image=image,
        ),
        activation=ActivationChoice(kind="fitted") if power else ActivationChoice(),
        attention=AttentionChoice(kind="fitted", power=power) if power else AttentionChoice(),
        head=head,
        pooler="none",
        rule="quadratic",
    )
    generator = np.random.default_rng(seed)
    tensors: dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in tensor_shapes(config).items():
        if name.endswith("norm.weight"):
            value = 1.0 + 0.1 * generator.standard_normal(shape)
        elif name.endswith(("bias", "thresholds")):
            value = 0.02 * generator.standard_normal(shape)
        elif name == "embeddings.positions":
            value = generator.standard_normal(shape)
        else:
            value = generator.standard_normal(shape) / np.sqrt(shape[-1])
        tensors[name] = np.asarray(value, np.float32)
    for i in range(layers if power else 0):
        first = first_functions(config, tensors, i)
        tensors |= {name: np.asarray(value, np.float32) for name, value in first.items()}
    directory.mkdir(parents=True, exist_ok=True)
    save_checkpoint(directory, certify(config, tensors), tensors)
    return directory


def some_images(count: int, height: int = 8, width: int = 12, seed: int = 0) -> list[npt.NDArray[np.uint8]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 256, (height, width, 3), dtype=np.uint8) for _ in range(count)]
