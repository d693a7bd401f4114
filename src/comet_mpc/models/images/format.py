"""Which pixels of an image a model is given, and how they are cut into patches: public, as a tokenizer is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from comet_mpc.engine.share import Reals

PIXEL = 8
"""Fraction bits of a pixel, whose byte b stands for b/256: exact, and less than 1."""
Image = Path | bytes | npt.NDArray[Any]
"""A file, its bytes, or an array (height, width, 3) or (height, width) of bytes. Pillow's images are arrays, too."""
_Side = Annotated[int, msgspec.Meta(gt=0, le=4096)]


@dataclass(frozen=True, eq=False)
class Patches:
    """An image as the model reads it. Private to the client."""

    rows: Reals
    """(patches, numbers)."""

    def __repr__(self) -> str:
        return "Patches(…)"


class ImageFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """height × width pixels in RGB, in square patches, row by row."""

    height: _Side
    width: _Side
    patch: _Side
    shortest: Annotated[int, msgspec.Meta(ge=0, le=8192)] = 0
    """The shorter side of an image before its middle is cut out. 0: it is stretched to height × width."""
    resample: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        if self.height % self.patch or self.width % self.patch:
            raise ValueError(f"{self.height}x{self.width} pixels do not divide into patches of {self.patch}")
        if self.shortest and self.shortest < max(self.height, self.width):
            raise ValueError(f"a shorter side of {self.shortest} leaves no {self.height}x{self.width} to cut out")

    @property
    def grid(self) -> tuple[int, int]:
        """Patches in a column and in a row."""
        return self.height // self.patch, self.width // self.patch

    @property
    def patches(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def numbers(self) -> int:
        """In a patch."""
        return 3 * self.patch**2

    def cut(self, pixels: npt.NDArray[np.uint8]) -> Reals:
        """(height, width, 3) bytes -> (patches, numbers): by colour, then row by row, as convolutions do."""
        (rows, columns), size = self.grid, self.patch
        parts = pixels.reshape(rows, size, columns, size, 3).transpose(0, 2, 4, 1, 3)
        return np.asarray(parts.reshape(self.patches, self.numbers) * 2.0**-PIXEL)
