"""ViT and DINOv2 as Hugging Face stores them: read into the tensors of a Comet checkpoint.

The checkpoint's input is a byte over 256, so what was done to pixels is in its matrix: with x = (byte/255 - mean)/std,
P·x + b = (P·256/(255·std))·(byte/256) + (b - P·mean/std). LayerScale is in the matrices that it scales. Positions are
interpolated for other sizes of images as the original does it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError
from comet_mpc.models.checkpoint import ActivationChoice, AttentionChoice, CometConfig, Encoder, Tensors, tensor_shapes
from comet_mpc.models.heads import Head, Kind
from comet_mpc.models.images.format import ImageFormat
from comet_mpc.models.stored.reading import account_for, read_json

VISION = ("vit", "dinov2")
_ATTENTION = {
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "attention_output": "attention.output.dense",
}
_PARTS = {
    "vit": _ATTENTION | {"up": "intermediate.dense", "down": "output.dense"},
    "dinov2": _ATTENTION | {"up": "mlp.fc1", "down": "mlp.fc2"},
}
_NORMS = {"vit": ("layernorm_before", "layernorm_after"), "dinov2": ("norm1", "norm2")}
_SCALES = {"attention_output": "layer_scale1.lambda1", "down": "layer_scale2.lambda1"}
_CUBIC = -0.75  # of the usual bicubic kernel
_LARGEST = 4096  # tokens


def load_vision(
    directory: Path, foreign: Mapping[str, Any], stored: Tensors, kind: Kind | None = None, size: int | None = None
) -> tuple[CometConfig, Tensors]:
    """A model in its unmodified form. size: of images, in pixels, if not that which the model was trained with

    With a classifier it gives labels, unless `kind` is an embedding, and else the final state of [CLS].
    """
    path, architecture = directory / "config.json", str(foreign["model_type"])
    _check(path, foreign)
    bare = {name.removeprefix(f"{architecture}."): value for name, value in stored.items()}
    labelled = "classifier.weight" in bare and kind != "embedding"
    if kind == "tokens" or (kind == "label" and not labelled):
        raise CheckpointError(f"{path}: a model of images gives the labels that it was trained for, or embeddings")
    image, (mean, deviation) = _format(directory, foreign, size)
    encoder = _encoder(path, foreign, image, _labels(path, foreign, len(bare["classifier.weight"])) if labelled else ())
    config = CometConfig(
        encoder=encoder,
        activation=ActivationChoice(kind="gelu", normalised=False),
        attention=AttentionChoice(kind="softmax", power=1, cosine=False),
        pooler="none",
        head=Head(kind="label" if labelled else "embedding"),
    )
    tensors = _Reader(directory, bare, config).tensors(mean, deviation, foreign.get("image_size", image.height))
    account_for({name: value.shape for name, value in tensors.items()}, tensor_shapes(config), directory)
    return config, tensors


def _check(path: Path, foreign: Mapping[str, Any]) -> None:
    """Refuses what would be read without an error and mean something else."""
    expected = {"hidden_act": "gelu", "use_swiglu_ffn": False, "num_channels": 3, "problem_type": None}
    for name, value in expected.items():
        found = foreign.get(name, value)
        if found != value and not (name == "problem_type" and found == "single_label_classification"):
            raise CheckpointError(f"{path}: {name} is {found!r}, expected {value!r}")
    for each in foreign.get("architectures") or ():
        if not str(each).endswith(("Model", "ForImageClassification", "ForMaskedImageModeling", "Backbone")):
            raise CheckpointError(f"{path}: the model is a {each}, expected an encoder or a classifier of images")


def _encoder(path: Path, foreign: Mapping[str, Any], image: ImageFormat, labels: tuple[str, ...]) -> Encoder:
    try:
        hidden = foreign["hidden_size"]
        inner = foreign["intermediate_size"] if foreign["model_type"] == "vit" else hidden * foreign["mlp_ratio"]
        sizes = {
            "architecture": foreign["model_type"], "vocabulary": 0, "positions": 1 + image.patches, "types": 0,
            "hidden": hidden, "layers": foreign["num_hidden_layers"], "heads": foreign["num_attention_heads"],
            "intermediate": inner, "epsilon": foreign["layer_norm_eps"], "padding": 0, "labels": labels,
            "image": msgspec.to_builtins(image),
        }  # fmt: skip
        return msgspec.convert(sizes, Encoder)
    except KeyError as error:
        raise CheckpointError(f"{path}: {error} is missing") from error
    except (msgspec.ValidationError, TypeError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _labels(path: Path, foreign: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Names of the classes; a name that comes twice gets its number."""
    names = foreign.get("id2label") or {str(i): str(i) for i in range(count)}
    try:
        found = [str(names[str(i)]) for i in range(count)]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: id2label does not number {count} labels from 0") from error
    return tuple(name if found.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(found))


def _format(directory: Path, foreign: Mapping[str, Any], size: int | None) -> tuple[ImageFormat, tuple[Reals, Reals]]:
    """How images are prepared; and the mean and deviation of colours."""
    path = directory / "preprocessor_config.json"
    known = read_json(path) if path.exists() else {}
    side, patch = foreign.get("image_size"), foreign.get("patch_size")
    if not isinstance(side, int) or not isinstance(patch, int):
        raise CheckpointError(f"{directory / 'config.json'}: image_size and patch_size are not whole numbers")
    crop, resized = known.get("crop_size", side), known.get("size", side)
    taken = _side(crop) if known.get("do_center_crop") else _side(resized)
    shortest = 0
    if known.get("do_center_crop"):
        shortest = _side(resized)
    if size is not None:
        shortest = round(shortest * size / taken)
        taken = size
    resample = {2: "bilinear", 3: "bicubic"}.get(known.get("resample", 2))
    if resample is None or abs(known.get("rescale_factor", 1 / 255) * 255 - 1) > 1e-6:
        raise CheckpointError(f"{path}: resample or rescale_factor is not one that is known")
    normal = known.get("do_normalize", True)
    try:
        mean, deviation = (
            np.array(known.get(name) or [0.5] * 3, np.float64) if normal else np.full(3, usual)
            for name, usual in (("image_mean", 0.0), ("image_std", 1.0))
        )
        numbers = {"height": taken, "width": taken, "patch": patch, "shortest": shortest, "resample": resample}
        image = msgspec.convert(numbers, ImageFormat)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        hint = f": choose a multiple of {patch} with --image-size" if size is not None or taken % patch else ""
        raise CheckpointError(f"{path}: {error}{hint}") from error
    if mean.shape != (3,) or deviation.shape != (3,) or not np.all(deviation > 0.0) or image.patches >= _LARGEST:
        raise CheckpointError(f"{path}: colours have no mean and deviation, or an image has {image.patches} patches")
    return image, (mean, deviation)


def _side(size: Any) -> int:
    """Of a square; the shorter one of a rectangle."""
    if isinstance(size, Mapping):
        size = size.get("shortest_edge") or min(size.get("height", 0), size.get("width", 0))
    return size if isinstance(size, int) else 0


class _Reader:
    """Takes tensors by their names, and notices those that nobody takes."""

    def __init__(self, directory: Path, bare: Tensors, config: CometConfig) -> None:
        self._directory, self._left, self._config = directory, dict(bare), config

    def take(self, name: str, shape: tuple[int, ...]) -> Reals:
        found = self._left.pop(name, None)
        if found is None or found.shape != shape:
            what = "missing" if found is None else f"of shape {found.shape}"
            raise CheckpointError(f"{self._directory}: {name} is {what}, expected {shape}")
        return found.astype(np.float64)

    def tensors(self, mean: Reals, deviation: Reals, trained: int) -> Tensors:
        config = self._config
        e, image = config.encoder, config.encoder.image
        assert image is not None
        made: dict[str, Reals] = self._embeddings(image, mean, deviation, trained)
        for i in range(e.layers):
            made |= self._layer(i)
        last = f"layers.{e.layers - 1}.output_norm"
        made |= {f"{last}.{part}": self.take(f"layernorm.{part}", (e.hidden,)) for part in ("weight", "bias")}
        if e.labels:
            made["classifier.weight"] = self.take("classifier.weight", (len(e.labels), e.hidden))
            made["classifier.bias"] = self.take("classifier.bias", (len(e.labels),))
        unused = ("embeddings.mask_token", "pooler.", "classifier.", "decoder.")
        if left := [name for name in self._left if not name.startswith(unused)]:
            raise CheckpointError(f"{self._directory}: tensors do not fit the model: unknown {', '.join(left[:5])}")
        return {name: made[name].astype(np.float32) for name in tensor_shapes(config) if name in made}

    def _embeddings(self, image: ImageFormat, mean: Reals, deviation: Reals, trained: int) -> dict[str, Reals]:
        d, p = self._config.encoder.hidden, image.patch
        grid = trained // p
        matrix = self.take("embeddings.patch_embeddings.projection.weight", (d, 3, p, p))
        bias = self.take("embeddings.patch_embeddings.projection.bias", (d,))
        first = self.take("embeddings.cls_token", (1, 1, d))[0]
        places = self.take("embeddings.position_embeddings", (1, 1 + grid**2, d))[0]
        scaled = matrix / deviation[:, None, None]
        bias = bias - (scaled * mean[:, None, None]).sum(axis=(1, 2, 3))
        rest = interpolated(places[1:].reshape(grid, grid, d), image.grid).reshape(-1, d)
        return {
            "embeddings.patches": (scaled * (256.0 / 255.0)).reshape(d, -1),
            "embeddings.positions": np.concatenate([first + places[:1], rest + bias]),
        }

    def _layer(self, index: int) -> dict[str, Reals]:
        e = self._config.encoder
        made: dict[str, Reals] = {}
        d, m, source, target = e.hidden, e.intermediate, f"encoder.layer.{index}.", f"layers.{index}."
        before = "embeddings.norm" if not index else f"layers.{index - 1}.output_norm"
        for name, theirs in zip((before, f"{target}attention_norm"), _NORMS[e.architecture], strict=True):
            made |= {f"{name}.{part}": self.take(f"{source}{theirs}.{part}", (d,)) for part in ("weight", "bias")}
        for part, theirs in _PARTS[e.architecture].items():
            shape = {"up": (m, d), "down": (d, m)}.get(part, (d, d))
            matrix = self.take(f"{source}{theirs}.weight", shape)
            given = f"{source}{theirs}.bias" in self._left  # queries, keys and values may have none
            bias = self.take(f"{source}{theirs}.bias", shape[:1]) if given else np.zeros(shape[0])
            if part in _SCALES and e.architecture == "dinov2":
                scale = self.take(f"{source}{_SCALES[part]}", (d,))
                matrix, bias = matrix * scale[:, None], bias * scale
            made[f"{target}{part}.weight"], made[f"{target}{part}.bias"] = matrix, bias
        return made


def interpolated(table: Reals, grid: tuple[int, int]) -> Reals:
    """(rows, columns, d) -> (*grid, d) by bicubic interpolation, without antialiasing and with half a pixel's offset:
    as torch's `interpolate` does it."""
    if table.shape[:2] == grid:
        return table
    rows, columns = (_cubic(before, after) for before, after in zip(table.shape[:2], grid, strict=True))
    return np.asarray(np.einsum("ai,bj,ijd->abd", rows, columns, table, optimize=True))


def _cubic(before: int, after: int) -> npt.NDArray[np.float64]:
    """The matrix (after, before) of one axis."""
    matrix = np.zeros((after, before))
    for i in range(after):
        at = (i + 0.5) * before / after - 0.5
        start = math.floor(at)
        for j in range(start - 1, start + 3):
            matrix[i, min(max(j, 0), before - 1)] += _kernel(abs(at - j))
    return matrix


def _kernel(x: float) -> float:
    if x <= 1.0:
        return (_CUBIC + 2.0) * x**3 - (_CUBIC + 3.0) * x**2 + 1.0
    return _CUBIC * (x**3 - 5.0 * x**2 + 8.0 * x - 4.0) if x < 2.0 else 0.0
