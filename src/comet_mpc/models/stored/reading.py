"""Files of anybody's models: tensors and JSON, every key and shape accounted for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from comet_mpc.errors import CheckpointError
from comet_mpc.models.checkpoint import Tensor, Tensors

SCALE = ".scale"
"""After the name of an int8 tensor: of its scales, one per row."""
_FLOATS = ("F16", "F32")


def account_for(got: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], where: object) -> None:
    """Every tensor is expected, every expected one is there and has its shape."""
    missing, extra = sorted(expected.keys() - got.keys()), sorted(got.keys() - expected.keys())
    if missing or extra:
        raise CheckpointError(f"{where}: tensors do not fit the model: missing {_few(missing)}; unknown {_few(extra)}")
    for name, shape in expected.items():
        if got[name] != shape:
            raise CheckpointError(f"{where}: {name} has shape {got[name]}, expected {shape}")


def _few(names: list[str]) -> str:
    return "none" if not names else ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def read_tensors(path: Path) -> Tensors:
    """All tensors as float32."""
    try:
        with safe_open(path, framework="np") as file:
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            tensors = {
                name: tensor
                for name, kind in kinds.items()
                if (tensor := _tensor(path, name, kind, kinds, file.get_tensor)) is not None
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read (truncated, damaged or missing): {error}") from error
    check_finite(path, tensors)
    return tensors


def _tensor(
    path: Path, name: str, kind: str, kinds: Mapping[str, str], read: Callable[[str], npt.NDArray[Any]]
) -> Tensor | None:
    """One of them, read once; None for what is no weight of its own."""
    if kind == "I8":
        scale = read(name + SCALE).astype(np.float32) if kinds.get(name + SCALE) in _FLOATS else None
        value = read(name)
        if scale is None or scale.shape != value.shape[:1]:
            raise CheckpointError(f"{path}: {name} is int8 and needs {name}{SCALE} with one number per row")
        return np.asarray(value.astype(np.float32) * scale[:, None])
    if kind in _FLOATS:
        scales = name.endswith(SCALE) and kinds.get(name.removesuffix(SCALE)) == "I8"
        return None if scales else read(name).astype(np.float32, copy=False)
    if kind == "I64":  # Hugging Face stores position ids
        return None
    raise CheckpointError(f"{path}: {name} has type {kind}, expected float32, float16, or int8 with scales")


def check_finite(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    for name, value in tensors.items():
        if not np.all(np.isfinite(value)):
            raise CheckpointError(f"{path}: {name} has values that are not finite")


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(_no_checkpoint(path)) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return content


def _no_checkpoint(path: Path) -> str:
    """What to say of a file of a checkpoint that is not there."""
    if not path.parent.exists():
        return f"no such directory: {path.parent}"
    if not path.parent.is_dir():
        return f"{path.parent} is a file: a checkpoint is a directory with {path.name}"
    return f"{path.parent} is not a checkpoint: it has no {path.name}"
