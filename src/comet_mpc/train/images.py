"""Images to fit and calibrate a model on, without labels: a directory of files, or arrays in a .npy file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from comet_mpc.errors import TaskDataError
from comet_mpc.models.checkpoint import CometConfig
from comet_mpc.models.images.format import Image
from comet_mpc.models.images.reading import read_image
from comet_mpc.models.tasks import Task
from comet_mpc.progress import Tick
from comet_mpc.train.batches import Encoded

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_HELD_OUT = 5
"""Every so many images one is for comparison."""


def images_task(path: Path, config: CometConfig) -> Task:
    """A model of images is compared with what it was made from."""
    kind = config.head.kind
    metric = "cosine" if kind == "embedding" else "accuracy"
    return Task(path.name, False, config.encoder.labels, metric, 0, own=True, kind=kind, plain=True)


def read_images(config: CometConfig, path: Path, split: str, limit: int | None, tick: Tick) -> Encoded:
    """Those of a split: every fifth is for comparison (dev), all others are to learn from."""
    wanted = config.encoder.image
    assert wanted is not None  # whoever asks has looked
    found = [one for i, one in enumerate(_images(path)) if (i % _HELD_OUT == _HELD_OUT - 1) == (split == "dev")]
    found = found[: limit or len(found)]
    if not found:
        raise TaskDataError(f"{path} has too few images: give at least {_HELD_OUT}")
    rows = []
    for i, image in enumerate(found):
        tick(i, len(found), "")
        rows.append(read_image(image, wanted, number=i + 1).rows)
    return Encoded(rows, [[] for _ in rows], np.full(len(rows), np.nan, np.float32), 0)


def _images(path: Path) -> list[Image]:
    if path.is_dir():
        found: list[Image] = [one for one in sorted(path.rglob("*")) if one.suffix.lower() in _ENDINGS]
        if not found:
            raise TaskDataError(f"{path} has no images: expected files that end in {', '.join(_ENDINGS)}")
        return found
    try:
        arrays = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise TaskDataError(f"{path}: expected a directory of images, or a .npy file with arrays of bytes") from error
    if not isinstance(arrays, np.ndarray) or arrays.ndim not in (3, 4):
        raise TaskDataError(f"{path}: expected arrays (images, height, width, 3) of bytes")
    return list(arrays)
