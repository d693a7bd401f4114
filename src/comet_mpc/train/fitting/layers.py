"""A model brought near its original in closed form: no labels, no gradients, minutes.

Layer by layer, with the layers below already fitted,

    scores      the numbers of every head: what it averages is nearest to what softmax would have averaged
    neurons     the polynomial of every neuron: nearest to GeLU where the neuron's values are
    matrices    right behind either: the sum that LayerNorm takes is the original's, as far as a linear map can make it

and in the end the classifier. The sum may be a stream that LayerNorms only read (`models.streams`). All are least
squares over the tokens of some texts, or the patches of images (`fitting.least_squares`). Of a text, only its hidden
states are kept from layer to layer, in both models; everything else is computed again, batch by batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from comet_mpc.functions.attention import LARGEST_SOFTNESS
from comet_mpc.functions.neurons import LARGEST_MIDDLE
from comet_mpc.models.bounds import activation_bounds, head_bounds, norm_before
from comet_mpc.models.fitted.first import USUAL_SOFTNESS
from comet_mpc.models.fitted.numbers import curved
from comet_mpc.models.fitted.quartics import MOST_SHIFTED, bent
from comet_mpc.progress import Tick, silent
from comet_mpc.train.batches import Batch
from comet_mpc.train.fitting.least_squares import Attended, Limits, Polynomials, Regression, first_heads, fit_heads
from comet_mpc.train.model import UnifiedModel

_RIDGE = 800.0
"""Tokens that an old matrix counts for, at the mean square of what is multiplied with it."""
_CLASSIFIER_RIDGE = 100.0
_LEAST_SOFTNESS = 2.0**-11
"""c over the square of a head's bound."""
_SOFTNESS = {4: USUAL_SOFTNESS, 8: 8.0}
"""c over the mean of |q|², at most, by the power of scores."""
_LEAST_ARGUMENT = {4: 0.16, 8: 0.4}
"""z + b of a head, usually: its weights ((z + b)/2)^power are then within 2^-14 or 2^-17 of the largest possible, where
the protocol divides by their mean accurately."""
_MOST_KEPT = 1 << 27
"""Numbers that are kept from one pass over the tokens to the next."""
_ROUNDER = 1e-2
"""Of the mean variance of queries and keys, added in every direction before they are balanced."""
_NEURON_ROWS = 16_384
"""Tokens that polynomials are fitted to."""
_SCORES = 100_000
"""Scores of every head that its numbers are fitted to."""
_GUARD = {2: 1e-3, 4: 1e-5}
"""How much the value at a neuron's bound counts, by the polynomial's degree (`Polynomials.solve`). It costs next to
nothing, and keeps what the certificate has to allow for small."""


@dataclass
class _Stream:
    """A batch on its way through both models."""

    mine: Tensor
    theirs: Tensor
    mask: Tensor

    @property
    def tokens(self) -> Tensor:
        return self.mask.bool()

    @property
    def columns(self) -> Tensor:
        return self.mask[:, None, None, :].to(self.mine.dtype)


def can_fit(model: UnifiedModel, teacher: UnifiedModel) -> bool:
    """The same encoder in another form."""
    mine, theirs = model.config, teacher.config
    same = all(
        getattr(mine.encoder, name) == getattr(theirs.encoder, name)
        for name in ("architecture", "hidden", "layers", "heads", "intermediate")
    )
    return same and (mine.activation, mine.attention) != (theirs.activation, theirs.attention)


def fit_to_teacher(model: UnifiedModel, teacher: UnifiedModel, batches: Sequence[Batch], tick: Tick = silent) -> None:
    """All of it at once. The model trains afterwards, if it did before."""
    was = model.training
    for _ in Fitting(model, teacher, batches).run(tick=tick):
        pass
    model.train(was)


class Fitting:
    """Fits `model`, a form of `teacher`, in place: layer by layer, then its head. Both evaluate as they are set to."""

    def __init__(
        self, model: UnifiedModel, teacher: UnifiedModel, batches: Sequence[Batch], clock: Clock = time.monotonic
    ) -> None:
        self.model, self.teacher = model.eval(), teacher.eval()
        self.layers: list[Any] = list(model.layers)
        self.originals: list[Any] = list(teacher.layers)
        self.clock, self.solving = clock, 0.0
        """Seconds that do not depend on the number of tokens, so far."""
        with torch.no_grad():
            self.streams = [self._begin(batch) for batch in batches]

    def _begin(self, batch: Batch) -> _Stream:
        (mine, mask), (theirs, _) = (each.begin(*batch.inputs) for each in (self.model, self.teacher))
        return _Stream(mine, theirs, mask)

    def run(self, done: int = 0, tick: Tick = silent) -> Iterator[int]:
        """Fits what is left after `done` layers, and gives the number of layers that are fitted, after each of them.

        The head comes last: done is one more than there are layers if nothing is left.
        """
        parts = 4 * len(self.layers) * len(self.streams)
        with torch.no_grad():
            for index in range(len(self.layers) if done <= len(self.layers) else 0):
                at = [4 * index * len(self.streams)]

                def step(at: list[int] = at) -> None:
                    at[0] += 1
                    tick(min(at[0], parts - 1), parts)

                if index >= done:
                    self._fit_layer(index, step)
                    yield index + 1
                else:
                    for stream in self.streams:
                        self._pass(index, stream)
            if done <= len(self.layers):
                self._fit_classifier()
        tick(parts, parts)

    # One layer ------------------------------------------------------------------------------------------------

    def _fit_layer(self, index: int, step: Callable[[], None]) -> None:
        config = self.model.config
        self._fit_inputs(index, ("query", "key", "value"), norm_before(index))
        if config.attention.kind == "fitted":
            self._balance(index)
            self._fit_heads(index)
        elif config.attention.cosine:
            self._centre_thresholds(index)
        self._fit_matrix(index, "attention_output", "attention_norm", _attend, step)
        self._fit_inputs(index, ("up",), f"layers.{index}.attention_norm")
        if config.activation.kind == "fitted":
            self._fit_neurons(index)
        self._fit_matrix(index, "down", "output_norm", _activate, step)

    def _fit_inputs(self, index: int, names: tuple[str, ...], norm: str) -> None:
        """Matrices that rows go into: what they give is nearest to what the original's give of its own rows."""
        own, others = ([getattr(each[index], name) for name in names] for each in (self.layers, self.originals))
        found = Regression(torch.cat([part.weight for part in own]))
        for stream in self.streams:
            theirs = self.teacher.read(norm, stream.theirs[stream.tokens])
            wanted = torch.cat([part(theirs) for part in others], dim=1)
            x = self.model.read(norm, stream.mine[stream.tokens])
            found.add(x, wanted, torch.ones(len(x)))
        began = self.clock()
        weight, bias = found.solve(_RIDGE)
        self.solving += self.clock() - began
        sizes = [len(part.bias) for part in own]
        for part, w, b in zip(own, weight.split(sizes), bias.split(sizes), strict=True):
            part.weight.copy_(w)
            part.bias.copy_(b)

    def _pass(self, index: int, stream: _Stream) -> None:
        """Through a layer that is fitted already."""
        for matrix, norm, features in (
            ("attention_output", "attention_norm", _attend),
            ("down", "output_norm", _activate),
        ):
            self._normalise(index, matrix, norm, features, stream)

    def _normalise(self, index: int, matrix: str, norm: str, features: _Features, stream: _Stream) -> None:
        for name, model in (("mine", self.model), ("theirs", self.teacher)):
            layer: Any = model.layers[index]
            x = getattr(stream, name)
            total = x + getattr(layer, matrix)(features(model, index, x, stream))
            setattr(stream, name, model.added(f"layers.{index}.{norm}", total))

    def _fit_matrix(self, index: int, matrix: str, norm: str, features: _Features, step: Callable[[], None]) -> None:
        """LayerNorm divides every row by its deviation, so its error counts relative to that."""
        own, other = getattr(self.layers[index], matrix), getattr(self.originals[index], matrix)
        found, seen, room = Regression(own.weight), list[Tensor | None](), _MOST_KEPT
        for stream in self.streams:
            tokens, theirs = stream.tokens, stream.theirs
            stream.theirs = theirs + other(features(self.teacher, index, theirs, stream))
            x, total = features(self.model, index, stream.mine, stream), stream.theirs[tokens]
            found.add(x[tokens], total - stream.mine[tokens], 1.0 / total.var(dim=1))
            room -= x.numel()
            seen.append(x if room >= 0 else None)
            step()
        began = self.clock()
        weight, bias = found.solve(_RIDGE)
        self.solving += self.clock() - began
        own.weight.copy_(weight)
        own.bias.copy_(bias)
        name = f"layers.{index}.{norm}"
        for at, stream in enumerate(self.streams):
            kept, seen[at] = seen[at], None
            x = features(self.model, index, stream.mine, stream) if kept is None else kept
            stream.mine = self.model.added(name, stream.mine + own(x))
            stream.theirs = self.teacher.added(name, stream.theirs)
            step()

    # Heads ----------------------------------------------------------------------------------------------------

    def _balance(self, index: int) -> None:
        """Shorter queries and keys with the same weights: keys without their mean, which a softmax does not feel, and
        q·k = (S·q)·(S⁻¹·k) with the S for which both vary alike."""
        layer = self.layers[index]
        size = layer.query.weight.shape[0] // layer.heads
        rows = torch.cat([stream.mine[stream.tokens] for stream in self.streams])
        rows = self.model.read(norm_before(index), rows)
        for h in range(layer.heads):
            part = slice(h * size, (h + 1) * size)
            q, k = (m.weight[part].double() for m in (layer.query, layer.key))
            queries, keys = ((rows @ m.weight[part].T + m.bias[part]).double() for m in (layer.query, layer.key))
            mean = keys.mean(0)
            root, inverse = _balanced(queries.T @ queries / len(queries), (keys - mean).T @ (keys - mean) / len(keys))
            layer.query.weight[part], layer.query.bias[part] = root @ q, root @ layer.query.bias[part].double()
            layer.key.weight[part], layer.key.bias[part] = inverse @ k, inverse @ (layer.key.bias[part] - mean)

    def _fit_heads(self, index: int) -> None:
        layer = self.layers[index]
        batches = [self._attended(index, stream) for stream in self._some_streams()]
        power = self.model.config.attention.power
        start = first_heads(batches, power, _SOFTNESS[power], _LEAST_ARGUMENT[power])
        found = fit_heads(batches, start, Limits.of(start, *(self._softness(index, part) for part in ("query", "key"))))
        ones = torch.ones_like(found.shift)
        layer.scores.copy_(torch.cat([torch.stack([ones, found.shift], dim=1), found.offsets], dim=1))
        layer.softness.copy_(torch.stack([found.query_softness, found.key_softness], dim=1))

    def _some_streams(self) -> list[_Stream]:
        """Some texts of every length, with so many scores in all."""
        share, chosen = _SCORES / len(self.streams), []
        for stream in self.streams:
            texts = max(1, int(share / stream.mask.shape[1] ** 2))
            chosen.append(_Stream(*(part[:texts] for part in (stream.mine, stream.theirs, stream.mask))))
        return chosen

    def _attended(self, index: int, stream: _Stream) -> Attended:
        own, other = self.layers[index], self.originals[index]
        mine, rows = (
            model.read(norm_before(index), x) for model, x in ((self.model, stream.mine), (self.teacher, stream.theirs))
        )
        q, k, v = (own.split(part(mine)) for part in (own.query, own.key, own.value))
        theirs, keys = (other.split(part(rows)) for part in (other.query, other.key))
        n = stream.mask.shape[1]
        scores = theirs @ keys.transpose(-1, -2) / math.sqrt(theirs.shape[-1])
        bias = self.teacher.position_bias(n)
        scores = (scores if bias is None else scores + bias).masked_fill(stream.columns == 0, -torch.inf)
        return Attended(q, k, v, self.model.position_bias(n), torch.softmax(scores, dim=-1), stream.mask)

    def _softness(self, index: int, part: str) -> tuple[Tensor, Tensor]:
        """The least and the most that is allowed of every head."""
        own = getattr(self.layers[index], part)
        norm: Any = self.model.get_submodule(norm_before(index))
        w, b, gamma, beta = (p.double().numpy() for p in (own.weight, own.bias, norm.weight, norm.bias))
        square = torch.from_numpy(head_bounds(w, b, gamma, beta, self.model.config.encoder.heads) ** 2)
        return _LEAST_SOFTNESS * square, 0.999 * LARGEST_SOFTNESS * square

    def _centre_thresholds(self, index: int) -> None:
        """Every head's threshold at its mean cosine: neither all tokens are far below it, nor all above."""
        layer = self.layers[index]
        total, count = torch.zeros(layer.heads), 0.0
        for stream in self.streams:
            rows = self.model.read(norm_before(index), stream.mine)
            q, k = (F.normalize(layer.split(part(rows)), dim=-1) for part in (layer.query, layer.key))
            pairs = stream.columns * stream.columns.transpose(-1, -2)
            total = total + (q @ k.transpose(-1, -2) * pairs).sum((0, 2, 3))
            count += float(pairs.sum())
        layer.thresholds.copy_(total / count)

    # Neurons --------------------------------------------------------------------------------------------------

    def _fit_neurons(self, index: int) -> None:
        layer, name = self.layers[index], f"layers.{index}.attention_norm"
        up, norm, degree = layer.up, layer.attention_norm, self.model.config.activation.degree
        found = Polynomials(layer.neurons["scale"], degree)
        for stream in self.streams:
            h = up(self.model.read(name, stream.mine[stream.tokens]))
            found.add(h, F.gelu(h))
            if found.rows >= _NEURON_ROWS:
                break
        bound = activation_bounds(up.weight, up.bias, norm.weight, norm.bias)
        if degree == 4:
            coefficients = found.within(bound, _GUARD[degree], 0.999 * MOST_SHIFTED, 0.999 * LARGEST_MIDDLE)
        else:
            coefficients = found.solve(bound, _GUARD[degree])
        mend, scale = (curved if degree == 2 else bent), layer.neurons["scale"].double().numpy()
        coefficients = torch.from_numpy(mend(coefficients.numpy(), scale, bound.double().numpy()))
        layer.neurons["coefficients"].copy_(coefficients)

    # The head -------------------------------------------------------------------------------------------------

    def _fit_classifier(self) -> None:
        """To the original's logits, from what the pooler gives, if there is one."""
        own, other, last = self.model, self.teacher, norm_before(len(self.layers))
        if own.classifier is None or other.classifier is None:
            return
        found = Regression(own.classifier.weight)
        for stream in self.streams:
            mine, theirs = (model.read(last, x) for model, x in ((own, stream.mine), (other, stream.theirs)))
            x = own.pooled(mine, stream.mask, self.layers[-1].output_norm)
            wanted = other.classifier(other.pooled(theirs, stream.mask, self.originals[-1].output_norm))
            if own.config.head.kind == "tokens":
                x, wanted = x[stream.tokens], wanted[stream.tokens]
            found.add(x, wanted, torch.ones(len(x)))
        weight, bias = found.solve(_CLASSIFIER_RIDGE)
        own.classifier.weight.copy_(weight)
        own.classifier.bias.copy_(bias)


def _balanced(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """S and its inverse, symmetric, with S·Q·S = S⁻¹·K·S⁻¹ for Q and K, both made a little rounder."""
    first, second = (m + _ROUNDER * m.diagonal().mean() * torch.eye(len(m), dtype=m.dtype) for m in (queries, keys))
    half, back = _power(first, 0.5), _power(first, -0.5)
    mean = back @ _power(half @ second @ half, 0.5) @ back
    return _power(mean, 0.5), _power(mean, -0.5)


def _power(matrix: Tensor, power: float) -> Tensor:
    values, vectors = torch.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * values.clamp_min(1e-30) ** power) @ vectors.T


Clock = Callable[[], float]
_Features = Callable[[UnifiedModel, int, Tensor, _Stream], Tensor]


def _attend(model: UnifiedModel, index: int, x: Tensor, stream: _Stream) -> Tensor:
    layer: Any = model.layers[index]
    name = norm_before(index)
    before: Any = model.get_submodule(name)
    rows = model.read(name, x)
    found: Tensor = layer.attend(model, rows, before, stream.columns, model.position_bias(x.shape[1]))
    return found


def _activate(model: UnifiedModel, index: int, x: Tensor, stream: _Stream) -> Tensor:
    layer: Any = model.layers[index]
    found: Tensor = layer.activate(model, model.read(f"layers.{index}.attention_norm", x))
    return found
