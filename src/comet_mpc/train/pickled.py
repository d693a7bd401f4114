"""Weights from an old `pytorch_model.bin`, of which torch reads nothing but numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from comet_mpc.errors import CheckpointError
from comet_mpc.models.checkpoint import Tensors, check_finite


def read_pickled(path: Path) -> Tensors:
    """All tensors of real numbers, as float32."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        floats = {name: value for name, value in found.items() if value.is_floating_point()}
        tensors: Tensors = {name: np.array(value.float().numpy(), np.float32) for name, value in floats.items()}
    except Exception as error:  # torch has no type of its own for a damaged or dangerous file
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    check_finite(path, tensors)
    return tensors
