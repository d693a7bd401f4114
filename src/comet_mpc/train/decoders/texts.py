"""Texts to fit a decoder to: those that it writes itself, or people's own."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from comet_mpc.errors import CheckpointError, TaskDataError
from comet_mpc.files import atomic_write
from comet_mpc.models.own_data import read_texts
from comet_mpc.models.tokenizers.texts import TextTokenizer
from comet_mpc.progress import Tick

BATCH = 32
"""Texts that are written together; each batch is kept, for a run that is resumed."""


def written(directory: Path, kept: Path, count: int, length: int, *, begin: int, seed: int, tick: Tick) -> torch.Tensor:
    """Texts that a model writes by itself, (count, length), its own probabilities unchanged.

    kept: a directory for batches; those that are there are not written again
    """
    kept.mkdir(parents=True, exist_ok=True)
    batches: list[torch.Tensor] = []
    for number, size in enumerate(_sizes(count)):
        path = kept / f"texts-{seed}-{number}-{size}x{length}.npy"
        found = _kept(path, size, length)
        if found is None:
            found = _write(directory, size, length, begin, seed + number, tick, (BATCH * number, count))
            with atomic_write(path) as file:
                file.write(_stored(found))
        batches.append(found)
    tick(count, count)
    return torch.cat(batches)


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


@torch.no_grad()
def _write(
    directory: Path, size: int, length: int, begin: int, seed: int, tick: Tick, done: tuple[int, int]
) -> torch.Tensor:
    """One batch. What follows the end of a text is another text, so that every row is full."""
    try:
        model = AutoModelForCausalLM.from_pretrained(str(directory), local_files_only=True).float()
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{directory} cannot be run by transformers: {error}") from error
    torch.manual_seed(seed)
    ids, cache = torch.full((size, 1), begin), None
    for place in range(length - 1):
        out = model(ids[:, -1:], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        ids = torch.cat([ids, torch.multinomial(torch.softmax(out.logits[:, -1].float(), -1), 1)], 1)
        tick(done[0] + size * (place + 1) // length, done[1])
    return ids


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
