"""Images at the client: read as the model wants them, and refused before they are decoded if they are too large."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image as Pillow

from comet_mpc.errors import ConfigurationError
from comet_mpc.models.images import reading
from comet_mpc.models.images.format import ImageFormat
from comet_mpc.models.images.reading import read_image
from support.toy_vision import some_images

FORMAT = ImageFormat(height=8, width=12, patch=4)


def _png(array: np.ndarray) -> bytes:
    made = io.BytesIO()
    Pillow.fromarray(array).save(made, "PNG")
    return made.getvalue()


def test_patches_are_what_a_convolution_sees() -> None:
    (image,) = some_images(1)
    rows = read_image(image, FORMAT).rows
    assert rows.shape == (6, 48)
    expected = image[4:8, 8:12].astype(np.float64).transpose(2, 0, 1).reshape(-1) / 256.0  # the last of six
    np.testing.assert_array_equal(rows[5], expected)


def test_a_file_its_bytes_an_array_and_an_image_are_the_same(tmp_path: Path) -> None:
    (image,) = some_images(1)
    path = tmp_path / "image.png"
    path.write_bytes(_png(image))
    expected = read_image(image, FORMAT).rows
    for given in (path, path.read_bytes(), Pillow.fromarray(image)):
        np.testing.assert_array_equal(read_image(given, FORMAT).rows, expected)  # type: ignore[arg-type]


def test_the_middle_is_cut_out_of_what_was_made_smaller() -> None:
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = 255
    square = ImageFormat(height=8, width=8, patch=4, shortest=10, resample="bicubic")
    assert np.min(read_image(wide, square).rows) == 255 / 256


@pytest.mark.parametrize("grey", [np.full((8, 12), 7, np.uint8), np.full((30, 30), 7, np.uint8)])
def test_grey_is_a_colour(grey: np.ndarray) -> None:
    np.testing.assert_array_equal(read_image(grey, FORMAT).rows, 7 / 256)


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((8, 12, 4), np.uint8),
        np.zeros((8, 12, 3)),
        np.zeros((0, 12, 3), np.uint8),
        b"not an image",
        _png(some_images(1)[0])[:200],
        Path("no such file.png"),
        [[1, 2], [3]],
        Pillow.open(io.BytesIO(_png(np.random.default_rng(1).integers(0, 256, (80, 120, 3), np.uint8))[:2000])),
    ],
)
def test_what_is_no_image_is_a_typed_error(bad: object) -> None:
    with pytest.raises(ConfigurationError):
        read_image(bad, FORMAT)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_colours_of_more_than_a_byte_are_refused_and_not_made_white(dtype: type) -> None:
    """Pillow makes 255 of all that is above it."""
    deep: np.ndarray = np.full((8, 12), 300, dtype)
    images: list[Any] = [Pillow.fromarray(deep), *([_png(deep)] if dtype is np.uint16 else [])]
    for image in images:
        with pytest.raises(ConfigurationError, match="more than 8 bits a colour"):
            read_image(image, FORMAT)


def test_a_large_grey_array_is_refused_before_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "repeat", lambda *_, **__: pytest.fail("it was copied"))
    with pytest.raises(ConfigurationError, match="million pixels"):
        read_image(np.broadcast_to(np.uint8(3), (100_000, 100_000)), FORMAT)


def _bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9_000, 50_000], ids=["by us", "by Pillow"])
def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    """Pillow itself refuses only what is more than twice as large."""
    decoded: list[object] = []
    monkeypatch.setattr(Pillow.Image, "load", lambda self: decoded.append(self))
    with pytest.raises(ConfigurationError, match="million pixels"):
        read_image(_bomb(side, side), FORMAT)
    assert not decoded


def test_a_narrow_image_does_not_become_a_large_one() -> None:
    """1 x 60,000 pixels, made as wide as the model wants, would be a billion."""
    tall = ImageFormat(height=224, width=224, patch=14, shortest=256)
    with pytest.raises(ConfigurationError, match="too narrow"):
        read_image(np.zeros((60_000, 1, 3), np.uint8), tall)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LARGEST_FILE", 100)
    path = tmp_path / "large.png"
    path.write_bytes(b"\x89" * 101)
    with pytest.raises(ConfigurationError, match="are read"):
        read_image(path, FORMAT)


@pytest.mark.parametrize("changed", [{"patch": 5}, {"height": 5000}, {"shortest": 4}, {"resample": "nearest"}])
def test_a_format_that_a_server_sends_is_checked(changed: dict[str, object]) -> None:
    known = msgspec.to_builtins(FORMAT) | changed
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(known, ImageFormat)
