"""Where fine-tuning with a teacher begins: a closed form brings the new non-linear steps near the ones they replace.

Layer by layer, with the layers below already fitted, the matrices right after the new steps (after the attention and
after the activations) are chosen by least squares, so that the sum that LayerNorm takes is the teacher's as far as a
linear map can make it. Neurons on which the texts say little keep their weights. Thresholds of cosine attention start
at the heads' mean cosines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from comet_mpc.models.checkpoint import FITTED
from comet_mpc.progress import Tick, silent
from comet_mpc.train.model import UnifiedModel

_RIDGE = 800.0
"""Tokens that the old matrix counts for, at the mean square of what is multiplied with it."""

Inputs = tuple[Tensor, Tensor, Tensor | None]
"""ids, mask and types of a batch."""


def can_fit(model: UnifiedModel, teacher: UnifiedModel) -> bool:
    """The same encoder in another form."""
    mine, theirs = model.config, teacher.config
    same = all(
        getattr(mine.encoder, name) == getattr(theirs.encoder, name)
        for name in ("architecture", "hidden", "layers", "heads", "intermediate")
    )
    return same and (mine.activation, mine.attention) != (theirs.activation, theirs.attention)


@dataclass
class _Stream:
    """One batch on its way through a model."""

    model: UnifiedModel
    x: Tensor
    columns: Tensor
    bias: Tensor | None
    tokens: Tensor

    @staticmethod
    def begin(model: UnifiedModel, inputs: Inputs) -> _Stream:
        ids, mask, types = inputs
        x = model.normalise("embeddings.norm", model.embeddings.norm, model.embeddings(ids, types))
        return _Stream(model, x, mask[:, None, None, :].to(x.dtype), model.position_bias(ids.shape[1]), mask.bool())

    def context(self, index: int) -> Tensor:
        layers: Any = self.model.layers
        before = layers[index - 1].output_norm if index else self.model.embeddings.norm
        found: Tensor = layers[index].attend(self.model, self.x, before, self.columns, self.bias)
        return found

    def activated(self, index: int) -> Tensor:
        layer: Any = self.model.layers[index]
        found: Tensor = layer.activate(self.model, self.x)
        return found

    def normalise(self, index: int, part: str, total: Tensor) -> None:
        self.x = self.model.normalise(f"layers.{index}.{part}", getattr(self.model.layers[index], part), total)


def fit_to_teacher(model: UnifiedModel, teacher: UnifiedModel, batches: Sequence[Inputs], tick: Tick = silent) -> None:
    """Changes `attention_output`, `down` and `thresholds` of every layer. Both models evaluate as they are set to."""
    was = model.training
    model.eval()
    teacher.eval()
    with torch.no_grad():
        mine = [_Stream.begin(model, inputs) for inputs in batches]
        theirs = [_Stream.begin(teacher, inputs) for inputs in batches]
        for i in range(len(model.layers)):
            tick(i, len(model.layers))
            if model.config.attention.cosine and model.config.attention.kind != FITTED:
                _centre_thresholds(i, mine)
            _fit(i, "attention_output", "attention_norm", _Stream.context, mine, theirs)
            _fit(i, "down", "output_norm", _Stream.activated, mine, theirs)
    tick(len(model.layers), len(model.layers))
    model.train(was)


def _centre_thresholds(index: int, streams: Sequence[_Stream]) -> None:
    """Every head's threshold at its mean cosine: neither all tokens are far below it, nor all above."""
    layer: Any = streams[0].model.layers[index]
    total, count = torch.zeros(layer.heads), 0.0
    for stream in streams:
        q, k = (F.normalize(layer.split(part(stream.x)), dim=-1) for part in (layer.query, layer.key))
        pairs = (stream.columns * stream.columns.transpose(-1, -2)).to(q.dtype)
        total = total + (q @ k.transpose(-1, -2) * pairs).sum((0, 2, 3))
        count += float(pairs.sum())
    layer.thresholds.copy_(total / count)


def _fit(
    index: int,
    matrix: str,
    norm: str,
    features: Callable[[_Stream, int], Tensor],
    mine: Sequence[_Stream],
    theirs: Sequence[_Stream],
) -> None:
    """One matrix; afterwards all streams are behind the LayerNorm that follows it.

    LayerNorm divides every row by its deviation, so its error counts relative to that.
    """
    own, other = (getattr(streams[0].model.layers[index], matrix) for streams in (mine, theirs))
    inputs = [features(stream, index) for stream in mine]
    totals = [stream.x + other(features(stream, index)) for stream in theirs]
    missing = [total - stream.x for total, stream in zip(totals, mine, strict=True)]
    _least_squares(own, [
        (found[stream.tokens], gap[stream.tokens], 1.0 / total[stream.tokens].var(dim=1))
        for stream, found, gap, total in zip(mine, inputs, missing, totals, strict=True)
    ])  # fmt: skip
    for stream, found in zip(mine, inputs, strict=True):
        stream.normalise(index, norm, stream.x + own(found))
    for stream, total in zip(theirs, totals, strict=True):
        stream.normalise(index, norm, total)


def _least_squares(linear: nn.Linear, batches: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
    """y ≈ W·x + b over batches of (x, y, the weight of every row)."""
    total = sum(float(weight.sum()) for _, _, weight in batches)

    def mean(part: int) -> Tensor:
        return torch.stack([(batch[part] * batch[2][:, None]).sum(0).double() for batch in batches]).sum(0) / total

    x_mean, y_mean = mean(0), mean(1)
    old = linear.weight.double()
    gram, missing = old.new_zeros(old.shape[1], old.shape[1]), torch.zeros_like(old.T)
    for x, y, weight in batches:  # single precision within a batch: the ridge is far above its rounding
        x, y = x - x_mean.float(), y - y_mean.float()
        weighted = (x * (weight[:, None] / total)).T
        gram += (weighted @ x).double()
        missing += (weighted @ (y - x @ linear.weight.T)).double()
    ridge = _RIDGE / sum(len(x) for x, _, _ in batches)
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    new = old + torch.linalg.solve(gram, missing).T
    linear.weight.copy_(new)
    linear.bias.copy_(y_mean - new @ x_mean)
