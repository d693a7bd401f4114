"""Fits a decoder's functions where the data are, layer by layer, without training.

Every neuron's SiLU (or GELU) becomes a quadratic, weighted by what it is multiplied with. A head's softmax becomes
v⁴/Σv⁴ of guarded scores (`streams.causal`), whose two numbers follow the softmax's weights. The matrices right behind
either are chosen again, by least squares towards the original's sums, and near the old ones (`_RIDGE`): so they take
back what the functions before them, and the layers below, have put in.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from comet_mpc.engine.share import Reals
from comet_mpc.files import atomic_write
from comet_mpc.models.streams.causal import CausalForm
from comet_mpc.models.streams.decoder import DecoderShape
from comet_mpc.models.streams.folding import FittedLayer, Seen
from comet_mpc.train.decoders.original import Original, gelu
from comet_mpc.train.decoders.student import Heads, Student

_STEPS = 200
_ROWS = 8  # texts of a step
_TEXTS = 48  # that scores are fitted to
_AT_ONCE = 25  # texts
_SHIFT = 0.12  # |b|
_INNER = 0.1  # |c|
_LEAST_CURVATURE = 1e-3
_RIDGE = 2000.0
"""Tokens that an old matrix counts for, at the mean square of what is multiplied with it."""


@dataclass
class Fitted:
    """What was found: the layers, and what the norms have seen."""

    layers: list[FittedLayer]
    seen: Seen


class Fitting:
    """Carries the texts that are fitted to through both models, layer by layer."""

    def __init__(self, shape: DecoderShape, tensors: Mapping[str, Reals], form: CausalForm) -> None:
        self.shape, self.form = shape, form
        self.original, self.student = Original(shape, tensors), Student(shape, tensors, form)
        self._least: list[float] = []

    @property
    def tensors(self) -> dict[str, Reals]:
        """Of what was fitted, as they are folded."""
        return self.student.folded()

    @torch.no_grad()
    def run(self, ids: Tensor, told: Callable[[int], None] = lambda layers: None, kept: Path | None = None) -> Fitted:
        """ids: texts to fit to, (texts, tokens). told: how many layers are fitted by now

        kept: a file for what was fitted so far, which is not fitted again
        """
        texts = hashlib.sha256(ids.numpy().tobytes()).hexdigest()
        mine = self.student.start(ids)
        theirs, begin = mine.clone(), 0
        if kept is not None and (found := _read(kept, texts)) is not None:
            mine, theirs, begin = found["mine"], found["theirs"], found["layers"]
            self._restore(found)
        for index in range(begin, self.shape.layers):
            told(index)
            self._attention(index, mine, theirs)
            self._feed_forward(index, mine, theirs)
            if kept is not None:
                with atomic_write(kept) as file:
                    state = {"texts": texts, "layers": index + 1, "mine": mine, "theirs": theirs}
                    torch.save(state | self._state(index + 1), file)
        told(self.shape.layers)
        self._look(mine)
        return Fitted(self.student.layers(), Seen(tuple(self._least)))

    def _state(self, layers: int) -> dict[str, Any]:
        """What was found of the first layers."""
        student = self.student
        matrices = [f"layers.{i}.{name}.weight" for i in range(layers) for name in ("attention_output", "down")]
        return {
            "matrices": {name: student.tensors[name] for name in matrices},
            "neurons": dict(student.neurons),
            "scores": {index: (own.b, own.c, own.query, own.key) for index, own in student.scores.items()},
            "least": [*self._least],
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.student.tensors |= state["matrices"]
        self.student.neurons |= state["neurons"]
        self.student.scores |= {index: Heads(*parts) for index, parts in state["scores"].items()}
        self._least = [*state["least"]]

    @torch.no_grad()
    def states(self, ids: Tensor, layers: list[FittedLayer] | None) -> Tensor:
        """The last hidden states of texts, by these functions and the fitted matrices, or exactly."""
        if layers is None:
            return self.original.states(ids)
        self.student.place(layers)
        return self.student.served_states(ids)

    def weights(self, z: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """What a head averages by, of guarded scores."""
        return self.student.weights(z, Heads(b, c, b, b))

    @torch.no_grad()
    def looked_at(self, ids: Tensor) -> Seen:
        """What the norms of the served form see of texts."""
        least: list[float] = []
        for part in _parts(ids):
            self._least = []
            x = self.student.start(part)
            for index in range(self.shape.layers):
                self._look(x)
                x = self.student.attending(index, x)
                self._look(x)
                x = self.student.fed_forward(index, x)
            self._look(x)
            least = [min(pair) for pair in zip(least or self._least, self._least, strict=True)]
        return Seen(tuple(least))

    def _look(self, x: Tensor) -> None:
        rows = x - x.mean(-1, keepdim=True) if self.shape.centred else x
        self._least.append(float((rows**2).mean(-1).min()))

    # Attention ----------------------------------------------------------------------------------------------------

    def _attention(self, index: int, mine: Tensor, theirs: Tensor) -> None:
        """Both models' streams after it, in place."""
        student, name = self.student, f"layers.{index}.attention_norm"
        self._look(mine)
        longest = torch.stack([self._longest(index, part) for part in _parts(mine)]).amax(0)
        student.scores[index] = Heads(torch.zeros(1), torch.zeros(1), *student.scaled(index, longest))
        q, k, _ = student.heads(index, student.normal(mine[:_TEXTS], name))
        z = student.guarded(q, k, student.scores[index])
        self._fit_scores(index, z, self.original.softmax(q, student.every_head(k)))
        self._add(
            index, "attention_output", mine, theirs,
            lambda x: student.weighted(index, student.normal(x, name)), lambda x: self.original.attended(index, x),
        )  # fmt: skip

    def _longest(self, index: int, part: Tensor) -> Tensor:
        """|q| and |k| at most, of all heads one after the other."""
        q, k, _ = self.student.heads(index, self.student.normal(part, f"layers.{index}.attention_norm"))
        return torch.cat([rows.norm(dim=-1).amax((0, 2)) for rows in (q, k)])

    def _fit_scores(self, index: int, z: Tensor, wanted: Tensor) -> None:
        """b and c of every head: from (1 + x/8)^8, which is nearly exp(x)."""
        heads = self.student.scores[index]
        times = self.shape.heads // self.shape.groups
        slope = heads.query * heads.key.repeat_interleave(times, 0) / math.sqrt(self.shape.size)
        begin, scale = (8.0 / slope).clamp(max=0.5 * _SHIFT), 2.0**self.form.scale
        raw = [torch.zeros(self.shape.heads, 1, 1, requires_grad=True) for _ in range(2)]

        def real() -> Heads:
            b = (begin * torch.exp(raw[0])).clamp(max=_SHIFT)
            return Heads(b, (raw[1] * (scale * b) ** 2).clamp(-_INNER, _INNER), heads.query, heads.key)

        with torch.enable_grad():
            optimiser = torch.optim.Adam(raw, lr=0.03)
            for step in range(_STEPS):
                start = step * _ROWS % max(1, len(z) - _ROWS + 1)
                rows = slice(start, start + _ROWS)
                loss = ((self.student.weights(z[rows], real()) - wanted[rows]) ** 2).sum(-1).mean()
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        found = real()
        self.student.scores[index] = Heads(found.b.detach(), found.c.detach(), found.query, found.key)

    # The feed-forward part ------------------------------------------------------------------------------------------

    def _feed_forward(self, index: int, mine: Tensor, theirs: Tensor) -> None:
        student, name = self.student, f"layers.{index}.mlp_norm"
        self._look(mine)
        self.student.neurons[index] = self._fit_neurons(index, mine)
        self._add(
            index, "down", mine, theirs,
            lambda x: student.quadratic(index, student.normal(x, name)),
            lambda x: self.original.active(index, self.original.normal(x, name)),
        )  # fmt: skip

    def _fit_neurons(self, index: int, mine: Tensor) -> Tensor:
        """(intermediate, 3) by weighted least squares."""
        gram = torch.zeros(self.shape.intermediate, 3, 3, dtype=torch.float64)
        right = torch.zeros(self.shape.intermediate, 3, dtype=torch.float64)
        for part in _parts(mine):
            rows = self.student.normal(part, f"layers.{index}.mlp_norm").flatten(0, 1)
            g = self.student.linear(index, "gate", rows).double()
            weight = self.student.linear(index, "up", rows).double() ** 2 if self.shape.gated else torch.ones_like(g)
            wanted = functional.silu(g) if self.shape.gated else gelu(g)
            powers = [torch.ones_like(g), g, g**2]
            heavy = [power * weight for power in powers]
            gram += torch.stack([torch.stack([(p * h).sum(0) for h in heavy], -1) for p in powers], -2)
            right += torch.stack([(h * wanted).sum(0) for h in heavy], -1)
        gram = gram + 1e-9 * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(3)
        found = torch.linalg.solve(gram, right[..., None])[..., 0]
        small = found[:, 2].abs() < _LEAST_CURVATURE
        found[:, 2] = torch.where(small, torch.full_like(found[:, 2], _LEAST_CURVATURE), found[:, 2])
        return found.float()

    # What is added to the stream ------------------------------------------------------------------------------------

    def _add(
        self,
        index: int,
        name: str,
        mine: Tensor,
        theirs: Tensor,
        made: Callable[[Tensor], Tensor],
        exact: Callable[[Tensor], Tensor],
    ) -> None:
        """Chooses the matrix behind `made` again, and adds what each model adds to its stream, in place."""
        old = self.original.tensors[f"layers.{index}.{name}.weight"]
        bias = self.original.get(index, f"{name}.bias")
        gram = torch.zeros(old.shape[1], old.shape[1], dtype=torch.float64)
        off = torch.zeros(old.shape[1], old.shape[0], dtype=torch.float64)
        kept = []
        for x, y in zip(_parts(mine), _parts(theirs), strict=True):
            y += self.original.linear(index, name, exact(y))
            kept.append(made(x))
            rows = kept[-1].flatten(0, 1).double()
            lacking = (y - x).flatten(0, 1).double() - functional.linear(rows, old.double())
            gram += rows.T @ rows
            off += rows.T @ (lacking if bias is None else lacking - bias.double())
        count = mine.shape[0] * mine.shape[1]
        ridge = _RIDGE * gram.diagonal().mean() / count * torch.eye(len(gram), dtype=torch.float64)
        new = (old.double() + torch.linalg.solve(gram + ridge, off).T).float()
        self.student.tensors[f"layers.{index}.{name}.weight"] = new
        for x, rows in zip(_parts(mine), kept, strict=True):
            x += self.student.linear(index, name, rows)


def _parts(x: Tensor) -> Iterator[Tensor]:
    """Views of some texts each."""
    return (x[start : start + _AT_ONCE] for start in range(0, len(x), _AT_ONCE))


def _read(kept: Path, texts: str) -> dict[str, Any] | None:
    """What was fitted before, to these very texts."""
    if not kept.exists():
        return None
    try:
        found = torch.load(kept, weights_only=True)
    except Exception:  # damaged in any way: all is fitted again
        return None
    return dict(found) if found["texts"] == texts else None
