"""Tokenised texts in batches, and what a model makes of them: logits, scores, arguments of its inverse square roots."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor

from comet_mpc.engine.share import Reals
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.heads import Kind
from comet_mpc.models.tasks import Example, Task, token_tags, words_of
from comet_mpc.progress import Tick, silent
from comet_mpc.train.model import UnifiedModel


@dataclass(frozen=True)
class Encoded:
    """Tokenised examples; or images, whose `ids` are the pixels of their patches."""

    ids: list[Any]
    types: list[list[int]]
    labels: npt.NDArray[np.float32]
    """One number each; of a tagger one for each token, below 0 where it does not count; of embeddings a similarity, of
    pairs the same for both texts, or a teacher's vector."""
    truncated: int
    """How many texts were longer than the model takes, and cut."""
    wanted: npt.NDArray[np.float32] | None = None
    """A teacher's answers, if they were computed beforehand (a small student's teacher takes most of the time)."""

    def __len__(self) -> int:
        return len(self.ids)

    def content(self, *more: Any) -> bytes:
        """What tells sets of texts or images apart. more: what else belongs to it"""
        rows = [self.ids, self.types, *more]
        return json.dumps(rows, default=lambda pixels: sha256(pixels.tobytes()).hexdigest()).encode()

    def batch(self, rows: list[int], model: UnifiedModel) -> Batch:
        """Some rows, padded to the longest of them. Images have one size."""
        if model.config.encoder.image is not None:
            pixels = torch.tensor(np.stack([self.ids[row] for row in rows]), dtype=torch.float32)
            mask = torch.ones(len(rows), 1 + pixels.shape[1]).long()  # [CLS] is not given
            labels = torch.tensor(self.labels[rows])
            wanted = None if self.wanted is None else torch.tensor(self.wanted[rows])
            return Batch(ids=pixels, mask=mask, types=None, labels=labels, wanted=wanted)
        longest = max(len(self.ids[row]) for row in rows)

        def padded(lists: list[list[int]], filler: int) -> Tensor:
            return torch.tensor([lists[row] + [filler] * (longest - len(lists[row])) for row in rows])

        encoder = model.config.encoder
        return Batch(
            ids=padded(self.ids, encoder.padding),
            mask=torch.arange(longest).lt(torch.tensor([[len(self.ids[row])] for row in rows])).long(),
            types=padded(self.types, 0) if encoder.types > 1 else None,
            labels=torch.tensor(self.labels[rows] if self.labels.ndim < 2 else self.labels[rows, :longest]),
            wanted=None if self.wanted is None else torch.tensor(self.wanted[rows]),
        )

    def shuffled(self, size: int, generator: np.random.Generator) -> list[list[int]]:
        """The rows of an epoch's batches, each of texts of similar length."""
        order = generator.permutation(len(self))
        pool = 32 * size
        batches = []
        for at in range(0, len(order), pool):
            rows = sorted(order[at : at + pool].tolist(), key=lambda row: len(self.ids[row]))
            batches += [rows[i : i + size] for i in range(0, len(rows), size)]
        return [batches[i] for i in generator.permutation(len(batches))]


def first_rows(data: Encoded, count: int) -> Encoded:
    return _rows(data, np.arange(min(count, len(data))))


def hold_out(data: Encoded, count: int, seed: int = 0) -> tuple[Encoded, Encoded]:
    """The data without `count` rows drawn by the seed, and those rows: the same ones for a teacher and its student."""
    if not 0 < count < len(data):
        raise ConfigurationError(f"{count} rows cannot be held out of {len(data)}: there must be rows left to train on")
    held = np.zeros(len(data), np.bool_)
    held[np.random.default_rng(seed).permutation(len(data))[:count]] = True
    return _rows(data, np.flatnonzero(~held)), _rows(data, np.flatnonzero(held))


def _rows(data: Encoded, places: npt.NDArray[np.intp]) -> Encoded:
    ids, types = ([lists[place] for place in places] for lists in (data.ids, data.types))
    wanted = None if data.wanted is None else data.wanted[places]
    return replace(data, ids=ids, types=types, labels=data.labels[places], wanted=wanted)


@dataclass(frozen=True)
class Batch:
    ids: Tensor
    mask: Tensor
    types: Tensor | None
    labels: Tensor
    wanted: Tensor | None = None

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a model takes: ids, mask and types."""
        return self.ids, self.mask, self.types


def make_tokenizer(content: bytes) -> Tokenizer:
    """From a tokenizer.json."""
    tokenizer = Tokenizer.from_str(content.decode())
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, examples: list[Example], length: int, kind: Kind = "label") -> Encoded:
    """Token ids, each text cut after `length` tokens. For embeddings, the two of a pair are texts of their own: first
    all first ones, then all second ones."""
    apart = kind == "embedding" and examples[0].second is not None
    texts: list[str | tuple[str, str]] = [e.first if e.second is None else (e.first, e.second) for e in examples]
    if apart:
        texts = [*(e.first for e in examples), *(e.second or "" for e in examples)]
    tokenizer.enable_truncation(length)
    found = tokenizer.encode_batch(texts)
    truncated = sum(bool(one.overflowing) for one in found)
    labels = np.array([e.label for e in examples] * (1 + apart), dtype=np.float32)
    if kind == "tokens":
        labels = np.full((len(found), max(len(f.ids) for f in found)), -100.0, np.float32)
        for row, (example, encoding) in enumerate(zip(examples, found, strict=True)):
            for token, tag in token_tags(example, words_of(encoding)).items():
                labels[row, token] = tag
    return Encoded([f.ids for f in found], [f.type_ids for f in found], labels, truncated)


def answered(data: Encoded, outputs: Reals, task: Task) -> Encoded:
    """The texts with a teacher's answers in the place of labels."""
    labels = outputs.astype(np.float32)
    if task.kind == "tokens":
        labels = outputs.argmax(axis=-1).astype(np.float32)
        for row, ids in enumerate(data.ids):
            labels[row, len(ids) :] = -100.0
    elif task.kind == "label":
        labels = (outputs[:, 0] if task.regression else outputs.argmax(axis=-1)).astype(np.float32)
    return replace(data, labels=labels)


def predict(model: UnifiedModel, data: Encoded, *, size: int = 64, tick: Tick = silent) -> Reals:
    """Answers to all examples, in their order, in the model's present mode."""
    was = model.training
    order = sorted(range(len(data)), key=lambda row: len(data.ids[row]))
    config = model.config
    tokens = (len(data.ids[order[-1]]),) if config.head.kind == "tokens" else ()
    out = np.zeros((len(data), *tokens, len(config.encoder.labels) or config.encoder.hidden))
    model.eval()
    tick(0, len(order), "")
    with torch.no_grad():
        for at in range(0, len(order), size):
            rows = order[at : at + size]
            found = model(*data.batch(rows, model).inputs)[0].double().numpy()
            if tokens:
                out[rows, : found.shape[1]] = found
            else:
                out[rows] = found
            tick(min(at + size, len(order)), len(order), "")
    model.train(was)
    return out


def moved_by_rounding(model: UnifiedModel, data: Encoded, *, tick: Tick = silent) -> Reals:
    """How far every answer moves, at most, when the neurons round as the parties do, in the model's present mode."""
    exact = predict(model, data, tick=tick)
    model.rounds = True
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noise to measure with, of a result that should be the same every time
        moved = np.abs(predict(model, data, tick=tick) - exact)
    model.rounds = False
    return np.asarray(moved.reshape(len(data), -1).max(axis=1))


Samples = dict[str, list[Reals]]


def sample(seen: Samples, site: str, values: Tensor, most: int) -> None:
    """Some of a batch's values, the extremes always among them."""
    flat = values.detach().double().numpy().reshape(-1)
    kept = flat[:: max(1, len(flat) // most)]
    seen.setdefault(site, []).append(np.concatenate([kept, [flat.min(), flat.max()]]))


def observe(model: UnifiedModel, data: Encoded, *, most: int = 20_000, tick: Tick = silent) -> dict[str, Reals]:
    """What every inverse square root is taken of, site by site: a sample per batch, its extremes always included."""
    seen: Samples = {}
    model.probe = lambda site, t: sample(seen, site, t, most)
    predict(model, data, tick=tick)
    model.probe = None
    return {site: np.concatenate(parts) for site, parts in seen.items()}


def quantiles(values: dict[str, Reals]) -> dict[str, tuple[float, ...]]:
    """Smallest, 1 %, median, 99 % and largest, site by site."""
    return {
        site: tuple(float(q) for q in np.quantile(found, (0, 0.01, 0.5, 0.99, 1))) for site, found in values.items()
    }
