"""Texts to fit a decoder to: those that it writes itself, or people's own."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from comet_mpc.errors import TaskDataError
from comet_mpc.files import atomic_write
from comet_mpc.models.own_data import read_texts
from comet_mpc.models.tokenizers.texts import TextTokenizer
from comet_mpc.progress import Tick
from comet_mpc.train.decoders.original import Original

BATCH = 32
"""Texts that are written together; each batch is kept, for a run that is resumed."""


def written(
    original: Original, kept: Path, count: int, length: int, *, begin: int, seed: int, tick: Tick
) -> torch.Tensor:
    """Texts of the model's own (`Original.write`), (count, length).

    kept: a directory for batches; those that are there are not written again
    """
    kept.mkdir(parents=True, exist_ok=True)
    batches: list[torch.Tensor] = []
    for number, size in enumerate(_sizes(count)):
        path = kept / f"texts-{seed}-{number}-{size}x{length}.npy"
        found = _kept(path, size, length)
        if found is None:
            told = partial(_told, tick, BATCH * number, count)
            found = original.write(size, length, begin, seed + number, told)
            with atomic_write(path) as file:
                file.write(_stored(found))
        batches.append(found)
    tick(count, count)
    return torch.cat(batches)


def _told(tick: Tick, before: int, count: int, done: int) -> None:
    tick(before + done, count)


def _sizes(count: int) -> Iterator[int]:
    for start in range(0, count, BATCH):
        yield min(BATCH, count - start)


def _stored(ids: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, ids.numpy().astype(np.int32))
    return buffer.getvalue()


def _kept(path: Path, size: int, length: int) -> torch.Tensor | None:
    if not path.exists():
        return None
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError):
        return None  # damaged: it is written again
    return torch.tensor(found, dtype=torch.long) if found.shape == (size, length) else None


def own_texts(path: Path, columns: Sequence[str], tokenizer: TextTokenizer, length: int, most: int) -> torch.Tensor:
    """People's own texts, one after the other, in rows of `length` tokens; about so many tokens at most."""
    if len(columns) > 1:
        raise TaskDataError("a model that writes takes single texts: name one column with --text")
    found: list[int] = []
    for number, text in enumerate(read_texts(path, columns[0] if columns else ""), start=1):
        found += tokenizer.encode(text, 1 << 20, number=number).ids.tolist()
        if len(found) >= most:
            break
    rows = len(found) // length
    if not rows:
        raise TaskDataError(f"{path} has {len(found)} tokens, and a single row of {length} is needed at least")
    return torch.tensor(found[: rows * length]).reshape(rows, length)
