"""A decoder in the form that is served, in torch: polynomials for its activations and its attention.

    p(g) = c0 + c1·g + c2·g²                    for every neuron's SiLU or GELU
    R    = (u² + c)⁴, u = 2^e·(q̂·k̂ + b)         for a head's exp, q̂ and k̂ guarded (`models.streams.causal`)

All of it is differentiable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from comet_mpc.engine.share import Reals
from comet_mpc.models.streams.causal import CausalForm, Guard
from comet_mpc.models.streams.decoder import DecoderShape
from comet_mpc.models.streams.folding import FittedLayer, head_tops
from comet_mpc.train.decoders.original import Original, merged, seen

_ROOM = 0.98  # of what a head is scaled by


@dataclass
class Heads:
    """b and c of a layer's heads, (heads, 1, 1) each, and what their queries and keys are divided by."""

    b: Tensor
    c: Tensor
    query: Tensor
    key: Tensor
    """(heads or groups, 1, 1)"""


class Student(Original):
    """An `Original` whose layers up to now were given other functions: the rest is as it was."""

    def __init__(self, shape: DecoderShape, tensors: Mapping[str, Reals], form: CausalForm) -> None:
        super().__init__(shape, tensors)
        self.form = form
        self.neurons: dict[int, Tensor] = {}
        """(intermediate, 3): c0, c1, c2"""
        self.scores: dict[int, Heads] = {}

    def guarded(self, q: Tensor, k: Tensor, heads: Heads) -> Tensor:
        """q̂·k̂ of every head."""
        both = []
        for rows, scale in ((q, heads.query), (k, heads.key)):
            x = rows / scale
            both.append(x * guard(self.form.guard, (x**2).sum(-1, keepdim=True)))
        return both[0] @ self.every_head(both[1]).transpose(-1, -2)

    def sums(self, z: Tensor, heads: Heads) -> Tensor:
        """R of positions that a row may read, of rows brought to one size."""
        u = 2.0**self.form.scale * (z + heads.b)
        size = ((u**2 + heads.c.abs()) * seen(z)).sum(-1, keepdim=True)
        return ((u**2 + heads.c) * seen(z) / size) ** 4

    def weights(self, z: Tensor, heads: Heads) -> Tensor:
        r = self.sums(z, heads)
        return r / (r.sum(-1, keepdim=True) + 1e-30)

    def weighted(self, index: int, n: Tensor) -> Tensor:
        """What attention makes of normalised rows, before its last matrix."""
        q, k, v = self.heads(index, n)
        return merged(self.weights(self.guarded(q, k, self.scores[index]), self.scores[index]) @ self.every_head(v))

    def quadratic(self, index: int, rows: Tensor) -> Tensor:
        """What is multiplied by the last matrix of the feed-forward part."""
        gate, (c0, c1, c2) = self.linear(index, "gate", rows), self.neurons[index].T
        value = c0 + gate * (c1 + gate * c2)
        return value * self.linear(index, "up", rows) if self.shape.gated else value

    def attending(self, index: int, x: Tensor) -> Tensor:
        """The stream after a layer's attention in its new form."""
        return x + self.linear(
            index, "attention_output", self.weighted(index, self.normal(x, _norm(index, "attention")))
        )

    def fed_forward(self, index: int, x: Tensor) -> Tensor:
        """And after the rest of that layer."""
        return x + self.linear(index, "down", self.quadratic(index, self.normal(x, _norm(index, "mlp"))))

    def served_states(self, ids: Tensor) -> Tensor:
        x = self.start(ids)
        for index in range(self.shape.layers):
            x = self.fed_forward(index, self.attending(index, x))
        return self.normal(x, "last_norm")

    def scaled(self, index: int, longest: Tensor) -> tuple[Tensor, Tensor]:
        """What queries and keys are divided by: what is proved of them, or what brings usual ones below the guard.

        longest: of what occurs, of all heads' queries and then of all keys
        """
        found = []
        for name, rows in (("query", longest[: self.shape.heads]), ("key", longest[self.shape.heads :])):
            most = rows.double().numpy() / self.form.guard.seen
            found.append(torch.tensor(np.maximum(self.tops(index, name), most), dtype=torch.float32)[:, None, None])
        return found[0], found[1]

    def tops(self, index: int, name: str) -> Reals:
        """‖W·n + b‖ of every head, for every input, with room to spare."""
        gamma, beta = (self.get(index, f"attention_norm.{part}") for part in ("weight", "bias"))
        matrix, bias = (self.get(index, f"{name}.{part}") for part in ("weight", "bias"))
        assert gamma is not None
        assert matrix is not None
        off = torch.zeros(len(matrix)) if bias is None else bias
        off = off if beta is None else off + matrix @ beta
        whole = [x.detach().double().numpy() for x in (matrix, gamma, off)]
        return head_tops(whole[0], whole[1], self.shape.size, whole[2]) / _ROOM

    def place(self, layers: Sequence[FittedLayer]) -> None:
        """Takes functions that were fitted."""
        for index, own in enumerate(layers):
            self.neurons[index] = torch.tensor(own.neurons, dtype=torch.float32)
            parts = (*own.scores, *own.scales)
            self.scores[index] = Heads(*(torch.tensor(x, dtype=torch.float32)[:, None, None] for x in parts))

    def layers(self) -> list[FittedLayer]:
        """As they are folded."""
        found = []
        for index in range(self.shape.layers):
            own = self.scores[index]
            b, c, q, k = (x.detach().double().numpy().reshape(-1) for x in (own.b, own.c, own.query, own.key))
            found.append(FittedLayer(self.neurons[index].detach().double().numpy(), np.stack([b, c]), (q, k)))
        return found

    def folded(self) -> dict[str, Reals]:
        """Its tensors, as they are folded."""
        return {name: value.detach().double().numpy() for name, value in self.tensors.items()}


def guard(own: Guard, t: Tensor) -> Tensor:
    a, b, c, d = own.coefficients
    return a + t * (b + t * (c + t * d))


def _norm(index: int, part: str) -> str:
    return f"layers.{index}.{part}_norm"
