"""An image as a model takes it, from a file, its bytes, an array, or an image of Pillow. All of it at the client.

Sizes are checked before anything is decoded: a small file may claim a picture that fills the memory. Arrays of exactly
the model's size need no Pillow.
"""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from comet_mpc.errors import ConfigurationError, needs_extra
from comet_mpc.models.images.format import Image, ImageFormat, Patches
from comet_mpc.units import human_bytes

Pixels = npt.NDArray[np.uint8]

LARGEST_FILE = 64 << 20
MOST_PIXELS = 64_000_000
"""Of an image before it is made smaller: 192 MB."""
_TOO_MANY = f"is too large: images of up to {MOST_PIXELS // 1_000_000} million pixels are read"
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")


def read_image(image: Image, wanted: ImageFormat, *, number: int = 1) -> Patches:
    """number: by which errors name it"""
    name = f"image {number}"
    if isinstance(image, Path):
        name = str(image)
        image = _file(image)
    pixels = _decoded(image, wanted, name) if isinstance(image, bytes) else _from_array(image, wanted, name)
    return Patches(wanted.cut(pixels))


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_FILE:
                raise ConfigurationError(
                    f"{path} has {human_bytes(size)}: images of up to {human_bytes(LARGEST_FILE)} are read"
                )
            return file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read the image {path}: {error.strerror}") from error


def _decoded(data: bytes, wanted: ImageFormat, name: str) -> Pixels:
    with needs_extra("images"):
        from PIL import Image as Pillow
        from PIL import ImageOps
    if len(data) > LARGEST_FILE:
        raise ConfigurationError(f"{name}: images of up to {human_bytes(LARGEST_FILE)} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own limits are higher
            opened = Pillow.open(io.BytesIO(data), formats=_FORMATS)
        _check_pillow(opened, name)
        return _resized(ImageOps.exif_transpose(opened).convert("RGB"), wanted)
    except ConfigurationError:
        raise
    except Pillow.DecompressionBombError as error:
        raise ConfigurationError(f"{name} {_TOO_MANY}") from error
    except Exception as error:  # a decoder meets anything, and raises many kinds of errors
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> ConfigurationError:
    formats = ", ".join(_FORMATS)
    return ConfigurationError(
        f"{name} cannot be read as an image ({type(error).__name__}): give a whole {formats} file"
    )


def _check_pillow(image: Any, name: str) -> None:
    """Of an image that may not be decoded yet. Pillow would cut colours of more than 8 bits off at 255."""
    width, height = image.size
    _check_size(width, height, name)
    if image.mode.partition(";")[0] in ("I", "F"):
        raise ConfigurationError(f"{name} has more than 8 bits a colour ({image.mode}): save it with 8")


def _check_size(width: int, height: int, name: str) -> None:
    if width * height == 0:
        raise ConfigurationError(f"{name} has no pixels")
    if width * height > MOST_PIXELS:
        raise ConfigurationError(f"{name} {_TOO_MANY}: it has {width}x{height}")


def _from_array(image: Any, wanted: ImageFormat, name: str) -> Pixels:
    try:
        if hasattr(image, "convert"):  # Pillow's
            _check_pillow(image, name)
            image = image.convert("RGB")
        array = np.asarray(image)
    except (OSError, ValueError, SyntaxError) as error:  # it was cut off, or lists are of unequal lengths
        raise _unreadable(name, error) from error
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3):
        raise ConfigurationError(
            f"{name} is an array of {array.dtype} with shape {array.shape}: expected bytes (uint8) from 0 to 255, "
            "(height, width, 3) or (height, width)"
        )
    _check_size(array.shape[1], array.shape[0], name)
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    if array.shape[:2] == (wanted.height, wanted.width):
        return np.asarray(array)
    with needs_extra("images"):
        from PIL import Image as Pillow
    return _resized(Pillow.fromarray(np.ascontiguousarray(array)), wanted)


def _resized(image: Any, wanted: ImageFormat) -> Pixels:
    """Stretched, or made smaller and cut: as the model's own preparation does it."""
    from PIL import Image as Pillow

    how = {"bilinear": Pillow.Resampling.BILINEAR, "bicubic": Pillow.Resampling.BICUBIC}[wanted.resample]
    if not wanted.shortest:
        return np.asarray(image.resize((wanted.width, wanted.height), how))
    width, height = image.size
    short, long = sorted((width, height))
    long = max(wanted.shortest, wanted.shortest * long // short)
    if long * wanted.shortest > MOST_PIXELS:
        raise ConfigurationError(f"an image of {width}x{height} pixels is too narrow for this model")
    size = (wanted.shortest, long) if width <= height else (long, wanted.shortest)
    left, top = (size[0] - wanted.width) // 2, (size[1] - wanted.height) // 2
    box = (left, top, left + wanted.width, top + wanted.height)
    return np.asarray(image.resize(size, how).crop(box))
