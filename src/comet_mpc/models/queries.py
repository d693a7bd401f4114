"""Texts as a run of the program takes them: of one bucket, as many as a power of two, padded and embedded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.share import Reals
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.checkpoint import CometConfig
from comet_mpc.models.images.format import Image, Patches
from comet_mpc.models.tokenizers.texts import Text, Tokens

Ids = npt.NDArray[np.int64]

Input = Text | Image
"""What a model is asked about."""

BUCKETS = (16, 32, 64, 128, 256, 512)
"""Public lengths that texts are padded to; the server learns the bucket, not the length."""


@dataclass(frozen=True)
class Query:
    """Texts of one bucket, or images, as the program takes them. Private to the client."""

    rows: Reals
    """Normalised embeddings; with private embeddings, one-hot rows of words and types. Of images the pixels of patches,
    which have no row for [CLS]."""
    mask: Reals
    truncated: tuple[bool, ...]
    """Whether a text was longer than the model takes."""
    tokens: tuple[int, ...] = ()
    """How many tokens each text has, before it was cut."""
    words: tuple[tuple[tuple[int, int, int], ...], ...] = ()
    """The words of each text: the index of the first token, and the characters from, and to before which it goes."""

    def __repr__(self) -> str:
        return f"Query(batch={self.rows.shape[0]}, bucket={self.rows.shape[1]})"

    @property
    def tokens_only(self) -> Reals:
        """The rows, zero where they are padding."""
        return np.asarray(self.rows * self.mask[..., None])

    @property
    def batch(self) -> int:
        return int(self.rows.shape[0])

    @property
    def bucket(self) -> int:
        return int(self.mask.shape[1])


@dataclass(frozen=True, eq=False)
class TextRun:
    """A run of the program: its texts or images, which are encoded already, and their indices among all of them."""

    bucket: int
    indices: list[int]
    tokens: Sequence[Tokens] | Sequence[Patches]

    def __repr__(self) -> str:
        return f"TextRun({len(self.indices)} texts of {self.bucket} tokens)"


def text_only(given: Input) -> Text:
    """For a model of texts."""
    if isinstance(given, str) or (isinstance(given, tuple) and all(isinstance(part, str) for part in given)):
        return given
    raise ConfigurationError(f"this model takes texts, not images: got {type(given).__name__}")


def image_only(given: Input) -> Image:
    """For a model of images. A string is a text, never a file's name: texts come from anybody, as over HTTP."""
    if isinstance(given, (str, tuple)):
        raise ConfigurationError("this model takes images, not texts: give a Path, the bytes of a file, or an array")
    return given


def image_query(patches: Sequence[Patches], bucket: int) -> Query:
    """Images as the program takes them. bucket: rows of each, [CLS] included"""
    count = len(patches)
    rows = np.stack([one.rows for one in patches])
    nothing: tuple[tuple[int, int, int], ...] = ()
    return Query(
        rows,
        np.ones((count, bucket)),
        truncated=(False,) * count,
        tokens=(bucket,) * count,
        words=(nothing,) * count,
    )


def _check_ids(ids: Ids, vocabulary: int) -> None:
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        raise ConfigurationError(f"a token id is outside the vocabulary of {vocabulary}")


def one_hot(config: CometConfig, ids: Ids, types: Ids) -> Reals:
    """Rows with a one for the word and a one for the type."""
    e = config.encoder
    _check_ids(ids, e.vocabulary)
    rows = np.zeros((*ids.shape, e.vocabulary + e.types))
    np.put_along_axis(rows, ids[..., None], 1.0, axis=-1)
    if e.types:
        np.put_along_axis(rows, e.vocabulary + np.minimum(types, e.types - 1)[..., None], 1.0, axis=-1)
    return rows


def embedded(config: CometConfig, tables: Mapping[str, npt.NDArray[np.float32]], ids: Ids, types: Ids) -> Reals:
    """Normalised embeddings, without γ and β, which the server has folded into its first layer.

    Whatever the tables are, every row can be encoded (`transformer.input_rows`), so that no text ends a run that was
    asked for. The tables were finite half precision numbers, so that sums and squares are finite; ε is above 0; and a
    normalised row is within √d but for rounding, which is cut off.
    """
    e = config.encoder
    _check_ids(ids, e.vocabulary)
    x = tables["words"][ids].astype(np.float64) + tables["positions"][e.first_position + np.arange(ids.shape[1])]
    if e.types:
        x = x + tables["types"][np.minimum(types, e.types - 1)]
    centred = x - x.mean(axis=-1, keepdims=True)
    top = math.sqrt(e.hidden)
    normalised = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + e.epsilon)
    return np.asarray(np.clip(normalised, -top, top))
