"""Fits a decoder's functions where the data are, layer by layer, without training.

Every neuron's SiLU (or GELU) becomes a quadratic, weighted by what it is multiplied with. A head's softmax becomes
v⁴/Σv⁴ of guarded scores (`streams.causal`), whose two numbers follow the softmax's weights. The weights stay as they
are: least squares on the matrices too, with a few thousand tokens, was further from the original on other texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from comet_mpc.engine.share import Reals
from comet_mpc.models.streams.causal import CausalForm, Guard, rotation
from comet_mpc.models.streams.decoder import DecoderShape
from comet_mpc.models.streams.folding import FittedLayer, Seen, head_tops

_STEPS = 250
_ROWS = 10  # texts of a step
_SHIFT = 0.12  # |b|
_LEAST_CURVATURE = 1e-3


@dataclass
class Fitted:
    """What was found: the layers, and what the norms have seen."""

    layers: list[FittedLayer]
    seen: Seen


class Fitting:
    """Carries the texts that are fitted to through the layers, each as it is fitted."""

    def __init__(self, shape: DecoderShape, tensors: Mapping[str, Reals], form: CausalForm) -> None:
        self.shape, self.form = shape, form
        self.tensors = dict(tensors)
        self._torch = {name: torch.tensor(np.asarray(value, np.float32)) for name, value in tensors.items()}
        self._least: list[float] = []

    def _get(self, index: int, name: str) -> torch.Tensor | None:
        return self._torch.get(f"layers.{index}.{name}")

    def _linear(self, index: int, name: str, x: torch.Tensor) -> torch.Tensor:
        weight = self._torch[f"layers.{index}.{name}.weight"]
        return functional.linear(x, weight, self._get(index, f"{name}.bias"))

    def start(self, ids: torch.Tensor) -> torch.Tensor:
        x = self._torch["embeddings"][ids]
        return x if "positions" not in self._torch else x + self._torch["positions"][: ids.shape[1]]

    def normal(self, x: torch.Tensor, name: str) -> torch.Tensor:
        if self.shape.centred:
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt((x**2).mean(-1, keepdim=True) + float(self._torch["epsilon"]))
        x = x * self._torch[f"{name}.weight"]
        bias = self._torch.get(f"{name}.bias")
        return x if bias is None else x + bias

    def _look(self, x: torch.Tensor) -> None:
        rows = x - x.mean(-1, keepdim=True) if self.shape.centred else x
        self._least.append(float((rows**2).mean(-1).min()))

    # Attention ----------------------------------------------------------------------------------------------------

    def heads(self, index: int, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shape, (batch, count, _) = self.shape, n.shape
        q, k, v = (
            self._linear(index, name, n).view(batch, count, -1, shape.size).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        if shape.theta:
            turns = rotation(np.arange(count), shape.size, shape.theta)
            cosines, sines = (torch.tensor(x, dtype=torch.float32) for x in turns)
            q, k = (
                x * cosines + torch.cat([-x[..., shape.size // 2 :], x[..., : shape.size // 2]], -1) * sines
                for x in (q, k)
            )
        k, v = (x.repeat_interleave(shape.heads // shape.groups, 1) for x in (k, v))
        return q, k, v

    def _softmax(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.shape.size)
        return torch.softmax(scores.masked_fill(_causal(scores) == 0, -torch.inf), -1)

    def scales(self, index: int, q: torch.Tensor, k: torch.Tensor) -> tuple[Reals, Reals]:
        """Of every head's rows: what is proved of them, or what brings those that occur below the guard's turn."""
        gamma = self.tensors[f"layers.{index}.attention_norm.weight"]
        beta = self.tensors.get(f"layers.{index}.attention_norm.bias")
        times, found = self.shape.heads // self.shape.groups, []
        for name, rows in (("query", q), ("key", k[:, ::times])):
            matrix = self.tensors[f"layers.{index}.{name}.weight"]
            bias = self.tensors.get(f"layers.{index}.{name}.bias", np.zeros(len(matrix)))
            off = bias if beta is None else bias + matrix @ beta
            tops = head_tops(matrix, gamma, self.shape.size, off) / 0.98
            most = rows.norm(dim=-1).amax((0, 2)).double().numpy() / self.form.guard.seen
            found.append(np.maximum(tops, most))
        return found[0], found[1]

    def guarded(self, q: torch.Tensor, k: torch.Tensor, scales: tuple[Reals, Reals]) -> torch.Tensor:
        """z of guarded queries and keys."""
        times = self.shape.heads // self.shape.groups
        both = []
        for rows, scale in ((q, scales[0]), (k, np.repeat(scales[1], times))):
            x = rows / torch.tensor(scale, dtype=torch.float32)[:, None, None]
            both.append(x * _guard(self.form.guard, (x**2).sum(-1, keepdim=True)))
        return both[0] @ both[1].transpose(-1, -2)

    def weights(self, z: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        u = 2.0**self.form.scale * (z + b)
        r = (u**2 + c) ** 4 * _causal(z)
        return r / (r.sum(-1, keepdim=True) + 1e-30)

    def fit_scores(
        self, z: torch.Tensor, wanted: torch.Tensor, scales: tuple[Reals, Reals]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """b and c, (heads, 1, 1): from (1 + x/8)^8, which is nearly exp(x)."""
        times, shape = self.shape.heads // self.shape.groups, self.shape
        slope = torch.tensor(scales[0] * np.repeat(scales[1], times) / math.sqrt(shape.size), dtype=torch.float32)
        begin = (8.0 / slope).clamp(max=0.5 * _SHIFT)[:, None, None]
        raw = [torch.zeros(shape.heads, 1, 1, requires_grad=True) for _ in range(2)]

        def real() -> tuple[torch.Tensor, torch.Tensor]:
            b = (begin * torch.exp(raw[0])).clamp(max=_SHIFT)
            return b, (raw[1] * (2.0**self.form.scale * b) ** 2).clamp(-0.1, 0.1)

        with torch.enable_grad():
            optimiser = torch.optim.Adam(raw, lr=0.03)
            for step in range(_STEPS):
                start = step * _ROWS % max(1, len(z) - _ROWS + 1)
                rows = slice(start, start + _ROWS)
                loss = ((self.weights(z[rows], *real()) - wanted[rows]) ** 2).sum(-1).mean()
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        b, c = real()
        return b.detach(), c.detach()

    # The feed-forward part ------------------------------------------------------------------------------------------

    def fit_neurons(self, gate: torch.Tensor, up: torch.Tensor | None) -> torch.Tensor:
        """(intermediate, 3) by weighted least squares."""
        activation = functional.silu if self.shape.gated else _gelu
        g = gate.flatten(0, 1).double()
        weight = torch.ones_like(g) if up is None else up.flatten(0, 1).double() ** 2
        powers = [torch.ones_like(g), g, g**2]
        gram = torch.stack([torch.stack([(p * q * weight).sum(0) for q in powers], -1) for p in powers], -2)
        gram = gram + 1e-9 * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(3)
        wanted = activation(g) * weight
        right = torch.stack([(p * wanted).sum(0) for p in powers], -1)
        found = torch.linalg.solve(gram, right[..., None])[..., 0]
        small = found[:, 2].abs() < _LEAST_CURVATURE
        found[:, 2] = torch.where(small, torch.full_like(found[:, 2], _LEAST_CURVATURE), found[:, 2])
        return found

    # All of it ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run(self, ids: torch.Tensor, told: Callable[[int], None] = lambda layer: None) -> Fitted:
        """ids: texts to fit to, (texts, tokens)"""
        fitted, layers = self.start(ids), []
        for index in range(self.shape.layers):
            fitted, layer = self._layer(index, fitted)
            layers.append(layer)
            told(index)
        self._look(fitted)
        return Fitted(layers, Seen(tuple(self._least)))

    def _layer(self, index: int, fitted: torch.Tensor) -> tuple[torch.Tensor, FittedLayer]:
        self._look(fitted)
        q, k, v = self.heads(index, self.normal(fitted, f"layers.{index}.attention_norm"))
        scales = self.scales(index, q, k)
        z = self.guarded(q, k, scales)
        b, c = self.fit_scores(z, self._softmax(q, k), scales)
        context = _merged(self.weights(z, b, c) @ v)
        fitted = fitted + self._linear(index, "attention_output", context)
        self._look(fitted)
        rows = self.normal(fitted, f"layers.{index}.mlp_norm")
        gate, up = self._linear(index, "gate", rows), self._linear(index, "up", rows) if self.shape.gated else None
        neurons = self.fit_neurons(gate, up)
        active = _quadratic(neurons.float(), gate) * (1.0 if up is None else up)
        fitted = fitted + self._linear(index, "down", active)
        scores = torch.cat([b, c], -1)[:, 0].T.double().numpy()
        return fitted, FittedLayer(neurons.numpy(), scores, scales)

    def _active(self, index: int, rows: torch.Tensor) -> torch.Tensor:
        gate = self._linear(index, "gate", rows)
        return functional.silu(gate) * self._linear(index, "up", rows) if self.shape.gated else _gelu(gate)

    @torch.no_grad()
    def states(self, ids: torch.Tensor, layers: list[FittedLayer] | None) -> torch.Tensor:
        """The last hidden states of texts, by fitted functions, or exactly."""
        x = self.start(ids)
        for index in range(self.shape.layers):
            q, k, v = self.heads(index, self.normal(x, f"layers.{index}.attention_norm"))
            if layers is None:
                weights = self._softmax(q, k)
            else:
                b, c = (torch.tensor(part, dtype=torch.float32)[:, None, None] for part in layers[index].scores)
                weights = self.weights(self.guarded(q, k, layers[index].scales), b, c)
            x = x + self._linear(index, "attention_output", _merged(weights @ v))
            rows = self.normal(x, f"layers.{index}.mlp_norm")
            if layers is None:
                active = self._active(index, rows)
            else:
                gate = self._linear(index, "gate", rows)
                active = _quadratic(torch.tensor(layers[index].neurons, dtype=torch.float32), gate)
                active = active * self._linear(index, "up", rows) if self.shape.gated else active
            x = x + self._linear(index, "down", active)
        return self.normal(x, "last_norm")


def _turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _causal(scores: torch.Tensor) -> torch.Tensor:
    return torch.tril(torch.ones(scores.shape[-2:]))


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


def _guard(guard: Guard, t: torch.Tensor) -> torch.Tensor:
    a, b, c, d = guard.coefficients
    return a + t * (b + t * (c + t * d))


def _merged(context: torch.Tensor) -> torch.Tensor:
    return context.transpose(1, 2).flatten(2)


def _quadratic(coefficients: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return coefficients[:, 0] + x * (coefficients[:, 1] + x * coefficients[:, 2])
