"""The files of a Comet checkpoint: config.json with a section `comet`, model.safetensors and tokenizer.json.

Weights are float32 or float16, or int8 with one scale per row in `<name>.scale`.

Beside the section, config.json has `checksums`: SHA-256 of the section and of the other two files. A file that was
changed since is refused by name. Checkpoints of older versions have none, and are loaded all the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from comet_mpc.errors import CheckpointError
from comet_mpc.files import atomic_write
from comet_mpc.models.checkpoint import CometConfig, Tensors, tensor_shapes
from comet_mpc.models.stored.reading import SCALE, account_for, read_json, read_tensors

TENSORS, TOKENIZER = "model.safetensors", "tokenizer.json"


def load_checkpoint(directory: Path) -> tuple[CometConfig, Tensors]:
    """The configuration and all tensors as float32. `certify.check_ranges` checks what it claims."""
    content, config = _read_config(directory)
    return config, load_tensors(directory, content, tensor_shapes(config))


def load_tensors(directory: Path, content: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]) -> Tensors:
    """All tensors as float32, each accounted for, unless they or the section `comet` were changed since.

    content: of config.json
    """
    weights = Path(directory) / TENSORS
    tensors = read_tensors(weights)
    account_for({name: value.shape for name, value in tensors.items()}, expected, weights)
    checksums = _checksums(directory, content)
    if checksums.get("comet", _digest(content["comet"])) != _digest(content["comet"]):
        raise CheckpointError(
            f"{Path(directory) / 'config.json'}: section `comet` was changed since it was written: it is damaged, "
            "or somebody has edited it; if that was on purpose, remove `comet` from `checksums`"
        )
    with weights.open("rb") as file:
        _check_sum(weights, checksums, hashlib.file_digest(file, "sha256").hexdigest())
    return tensors


def read_config(directory: Path) -> CometConfig:
    """The configuration alone."""
    return _read_config(directory)[1]


def _read_config(directory: Path) -> tuple[dict[str, Any], CometConfig]:
    path = Path(directory) / "config.json"
    content = read_json(path)
    if "comet" not in content:
        raise CheckpointError(_not_converted(Path(directory), content))
    if isinstance(content["comet"], dict) and "decoder" in content["comet"]:
        raise CheckpointError(f"{directory} is a model that writes: serve it, and ask it with `comet generate`")
    try:
        return content, msgspec.convert(content["comet"], CometConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{path}: section `comet`: {error}") from error


def _not_converted(directory: Path, content: Mapping[str, Any]) -> str:
    if "model_type" not in content:
        return f"{directory} is not a Comet checkpoint: its config.json has no section `comet`"
    return (
        f"{directory} is a Hugging Face model. Convert it for private serving first: "
        f"comet adopt {directory} {directory.name}-comet --data ROWS.csv"
    )


def read_tokenizer(directory: Path) -> bytes:
    """The file of the tokenizer, as it was written."""
    path = Path(directory) / TOKENIZER
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read as a tokenizer: {error.strerror}") from error
    if (config := path.with_name("config.json")).exists():
        _check_sum(path, _checksums(directory, read_json(config)), hashlib.sha256(data).hexdigest())
    return data


def _checksums(directory: Path, content: Mapping[str, Any]) -> dict[str, str]:
    try:
        return msgspec.convert(content.get("checksums", {}), dict[str, str])
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{Path(directory) / 'config.json'}: section `checksums`: {error}") from error


def _check_sum(path: Path, checksums: Mapping[str, str], found: str) -> None:
    if checksums.get(path.name, found) != found:
        raise CheckpointError(
            f"{path} is damaged: its checksum is not the one in config.json; get the checkpoint again from its source"
        )


def _digest(section: object) -> str:
    return hashlib.sha256(json.dumps(section, sort_keys=True).encode()).hexdigest()


def save_checkpoint(
    directory: Path,
    config: CometConfig,
    tensors: Mapping[str, npt.NDArray[Any]],
    *,
    tokenizer: bytes | None = None,
    half: bool = False,
    int8: tuple[str, ...] = (),
) -> None:
    """Writes a checkpoint, one whole file after the other, config.json with its checksums last.

    tokenizer  the file of a tokenizer; None: the one that is there, if there is one, stays
    half       float16
    int8       names of matrices that are stored in int8
    """
    expected = tensor_shapes(config)
    account_for({name: value.shape for name, value in tensors.items()}, expected, directory)
    stored: dict[str, npt.NDArray[Any]] = {}
    for name in expected:
        value = np.asarray(tensors[name], dtype=np.float32, order="C")
        if not np.all(np.isfinite(value)):
            raise CheckpointError(f"{name} has values that are not finite: nothing was saved")
        if name in int8:
            scale = np.maximum(np.abs(value).max(axis=1) / 127.0, 1e-8).astype(np.float32)
            stored[name] = np.rint(value / scale[:, None]).astype(np.int8)
            stored[name + SCALE] = scale
        else:
            stored[name] = value.astype(np.float16) if half else value
    if tokenizer is not None:
        with atomic_write(Path(directory) / TOKENIZER) as file:
            file.write(tokenizer)
    with atomic_write(Path(directory) / TENSORS) as file:
        file.write(save(stored))
    save_config(directory, config)


def save_config(directory: Path, config: CometConfig) -> None:
    """Writes config.json alone: other intervals for the same weights, or what the model scored."""
    save_section(directory, config.encoder.architecture, msgspec.to_builtins(config, str_keys=True))


def save_section(directory: Path, kind: str, section: object) -> None:
    """Writes config.json, with the checksums of all that is there. kind: of the model, for people"""
    checksums = {"comet": _digest(section)}
    for path in (Path(directory) / TENSORS, Path(directory) / TOKENIZER):
        if path.exists():
            with path.open("rb") as stored:
                checksums[path.name] = hashlib.file_digest(stored, "sha256").hexdigest()
    content = {"model_type": kind, "comet": section, "checksums": checksums}
    with atomic_write(Path(directory) / "config.json") as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def checkpoint_digest(config: CometConfig, tensors: Mapping[str, npt.NDArray[Any]], tokenizer: bytes = b"") -> str:
    """SHA-256 over all that an answer depends on: the section `comet`, every tensor's name, shape and values, and the
    file of the tokenizer."""
    parts = (msgspec.json.encode(config, order="sorted"), tensors_digest(tensors).encode(), tokenizer)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def tensors_digest(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 over every tensor's name, shape and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = np.ascontiguousarray(tensors[name], dtype="<f4")
        digest.update(f"{name}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
