"""A decoder as it was, in torch: its last hidden states, and texts that it writes itself.

Such texts are what functions are fitted to and what is measured with, where there are no others: nobody's data are
needed, and they are the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from comet_mpc.engine.share import Reals
from comet_mpc.models.streams.causal import rotation
from comet_mpc.models.streams.decoder import DecoderShape

_AT_ONCE = 100
"""Texts that are written or read at once."""


@dataclass
class _Past:
    """Keys and values of the positions so far, by layer."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    length: int = 0

    def extended(self, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if index in self.keys:
            k, v = torch.cat([self.keys[index], k], -2), torch.cat([self.values[index], v], -2)
        self.keys[index], self.values[index] = k, v
        return k, v


class Original:
    """tensors: by canonical names (`models.streams.folding`)"""

    def __init__(self, shape: DecoderShape, tensors: Mapping[str, Reals]) -> None:
        self.shape = shape
        self.tensors = {name: torch.tensor(np.asarray(value, np.float32)) for name, value in tensors.items()}

    def get(self, index: int, name: str) -> Tensor | None:
        return self.tensors.get(f"layers.{index}.{name}")

    def linear(self, index: int, name: str, x: Tensor) -> Tensor:
        weight = self.tensors[f"layers.{index}.{name}.weight"]
        return functional.linear(x, weight, self.get(index, f"{name}.bias"))

    def start(self, ids: Tensor, first: int = 0) -> Tensor:
        """Rows of tokens whose positions begin with `first`."""
        x = self.tensors["embeddings"][ids]
        places = self.tensors.get("positions")
        return x if places is None else x + places[first : first + ids.shape[1]]

    def normal(self, x: Tensor, name: str) -> Tensor:
        if self.shape.centred:
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt((x**2).mean(-1, keepdim=True) + float(self.tensors["epsilon"]))
        x = x * self.tensors[f"{name}.weight"]
        bias = self.tensors.get(f"{name}.bias")
        return x if bias is None else x + bias

    def heads(self, index: int, n: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v: (texts, heads or groups, positions, size)"""
        batch, count, _ = n.shape
        q, k, v = (
            self.linear(index, name, n).view(batch, count, -1, self.shape.size).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        if self.shape.theta:
            turns = rotation(np.arange(first, first + count), self.shape.size, self.shape.theta)
            cosines, sines = (torch.tensor(x, dtype=torch.float32) for x in turns)
            q, k = (x * cosines + turned(x) * sines for x in (q, k))
        return q, k, v

    def every_head(self, x: Tensor) -> Tensor:
        """Of keys or values, as many as there are queries."""
        return x.repeat_interleave(self.shape.heads // self.shape.groups, 1)

    def softmax(self, q: Tensor, k: Tensor) -> Tensor:
        """Of queries that are the last ones of the keys' positions; k: of every head"""
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.shape.size)
        return torch.softmax(scores.masked_fill(seen(scores) == 0, -torch.inf), -1)

    def attended(self, index: int, x: Tensor, past: _Past | None = None) -> Tensor:
        """What attention adds, before its last matrix."""
        first = past.length if past else 0
        q, k, v = self.heads(index, self.normal(x, f"layers.{index}.attention_norm"), first)
        if past is not None:
            k, v = past.extended(index, k, v)
        return merged(self.softmax(q, self.every_head(k)) @ self.every_head(v))

    def active(self, index: int, rows: Tensor) -> Tensor:
        """What the feed-forward part adds, before its last matrix; rows: normalised"""
        gate = self.linear(index, "gate", rows)
        return functional.silu(gate) * self.linear(index, "up", rows) if self.shape.gated else gelu(gate)

    def layer(self, index: int, x: Tensor, past: _Past | None = None) -> Tensor:
        x = x + self.linear(index, "attention_output", self.attended(index, x, past))
        rows = self.normal(x, f"layers.{index}.mlp_norm")
        return x + self.linear(index, "down", self.active(index, rows))

    @torch.no_grad()
    def states(self, ids: Tensor, past: _Past | None = None) -> Tensor:
        """The last hidden states of texts, normalised."""
        x = self.start(ids, past.length if past else 0)
        for index in range(self.shape.layers):
            x = self.layer(index, x, past)
        if past is not None:
            past.length += ids.shape[1]
        return self.normal(x, "last_norm")

    def logits(self, states: Tensor) -> Tensor:
        return functional.linear(states, self.tensors.get("head", self.tensors["embeddings"]))

    @torch.no_grad()
    def write(
        self, count: int, length: int, begin: int, seed: int, told: Callable[[int], None] = lambda done: None
    ) -> Tensor:
        """Texts of the model's own, (count, length): after the token `begin`, drawn as its probabilities say. What
        follows the end of a text is another text, so that every row is full.

        told: how many are written by now
        """
        generator, texts = torch.Generator().manual_seed(seed), []
        for done in range(0, count, _AT_ONCE):
            size = min(_AT_ONCE, count - done)
            ids, past = torch.full((size, 1), begin), _Past()
            while ids.shape[1] < length:
                states = self.states(ids[:, past.length :], past)
                likely = torch.softmax(self.logits(states[:, -1]), -1)
                ids = torch.cat([ids, torch.multinomial(likely, 1, generator=generator)], 1)
                told(done + size * ids.shape[1] // length)
            texts.append(ids)
        return torch.cat(texts)


def turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def seen(scores: Tensor) -> Tensor:
    """1 where a position may look at another, for the last rows of a text."""
    rows, count = scores.shape[-2:]
    return torch.tril(torch.ones(rows, count), count - rows)


def gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def merged(context: Tensor) -> Tensor:
    """(texts, positions, all heads)"""
    return context.transpose(1, 2).flatten(2)
