"""Small checkpoints with random weights, for tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from comet_mpc.models.checkpoint import ActivationChoice, AttentionChoice, CometConfig, Encoder, tensor_shapes
from comet_mpc.models.fitted.first import first_functions

__all__ = ["CERTIFIED", "UNMODIFIED", "small_model"]

UNMODIFIED = (
    ActivationChoice(kind="gelu", normalised=False),
    AttentionChoice(kind="softmax", power=1, cosine=False),
    "tanh",
)
CERTIFIED = (ActivationChoice(), AttentionChoice(), "algebraic")


def small_model(
    form: tuple[ActivationChoice, AttentionChoice, str] = CERTIFIED, *, architecture: str = "bert", seed: int = 0
) -> tuple[CometConfig, dict[str, npt.NDArray[np.float32]]]:
    """Two layers, hidden 24, 3 heads."""
    activation, attention, pooler = form
    encoder = Encoder(
        architecture=architecture,  # type: ignore[arg-type]
        vocabulary=50,
        positions=20,
        types=0 if architecture in ("distilbert", "mpnet") else 2,
        hidden=24,
        layers=2,
        heads=3,
        intermediate=40,
        epsilon=1e-12,
        padding=0 if architecture in ("bert", "distilbert") else 1,
        buckets=32 if architecture == "mpnet" else 0,
    )
    config = CometConfig(encoder=encoder, activation=activation, attention=attention, pooler=pooler)  # type: ignore[arg-type]
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        value = generator.standard_normal(shape) * (0.3 if len(shape) > 1 else 0.1)
        tensors[name] = np.asarray(value + (1.0 if name.endswith("norm.weight") else 0.0), np.float32)
    for i in range(encoder.layers):
        tensors |= {name: value.astype(np.float32) for name, value in first_functions(config, tensors, i).items()}
    return config, tensors
