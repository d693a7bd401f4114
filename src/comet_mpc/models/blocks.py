"""Blocks: what a Transformer repeats, declared as structures with named parts.

A *part* (attention, feed-forward) says which weights it has and what it makes of normalised rows. A *block* puts parts
together: which come, in which order, and where rows are normalised. `PostNormBlock` is a layer of BERT and its like.
Another order of the same parts is another class here; another part needs `weights`, `least_ring`, `product`
and `run`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Given, Session, Weight
from comet_mpc.engine.parts import Block
from comet_mpc.engine.share import SERVER, Reals, Share, ring_width
from comet_mpc.errors import ShapeError
from comet_mpc.functions.attention import AttentionForm, argument_bits, attention
from comet_mpc.functions.constants import Constants
from comet_mpc.functions.layer_norm import (
    SUMMANDS,
    Centred,
    Padding,
    largest_norm,
    normalise,
    normalised_mean,
    padding_bits,
    power_in,
)
from comet_mpc.functions.neurons import LARGEST_MIDDLE, Neurons
from comet_mpc.functions.rule import InverseRule
from comet_mpc.functions.weighing import LARGEST_OFFSET
from comet_mpc.models.heads import ROWS, WEIGHTS, Reads, linear, shifted

SLACK = 1.0 + 2.0**-8
"""LayerNorm's output has norm √d up to its rule's error, so a neuron normalised by its bound stays within this."""
SKIP_BOUND = 2.0**11
"""|γ⊙n + b|: what a twin would notice. Only its mean is ever truncated."""
MEAN_BOUND = 2.0**6
"""|Σ(γ⊙n + b)|/2^k, which `fold.check_fixed` proves for the weights that are served."""
_CONTEXT = 15  # fraction bits of attention's output

Sizes = dict[str, tuple[int, ...]]
"""Shapes of weights by name."""


@dataclass(frozen=True)
class LayerRules:
    """The public rules of one layer. Upper ends hold for every input (they come from the weights)."""

    neurons: Neurons
    attention: AttentionForm
    variances: tuple[InverseRule, InverseRule]
    """For the LayerNorm after each part."""
    value_bound: float
    """|v| of attention."""
    query_bound: float
    """|q| and |k|, coordinate by coordinate."""
    neuron_bound: float = SLACK
    """|x| that the activation is taken of."""


@dataclass(frozen=True)
class Frame:
    """What all blocks of a run have in common.

    mask      of padding, (batch, tokens): 1 for a token. None: there is no padding
    averages  the weights of a mean over a text's tokens, (batch, tokens), if it is read
    """

    session: Session
    mask: Share | None
    weights: Mapping[str, Weight]
    epsilon: float
    averages: Share | None = None

    def marked(self, rows: Share) -> Share:
        """n + m, m being the mask: of it a matrix can make W·n + b·m (`fold`)."""
        mask = self.mask
        return rows if mask is None else rows + mask.reshape(*mask.shape, 1).lift(ROWS).narrow(rows.width)

    def padding(self, rule: InverseRule) -> Padding | None:
        """Which rows a LayerNorm by that rule keeps; None: all."""
        return None if self.mask is None else padding_bits(self.session, self.mask, rule)


class Skipped(Protocol):
    """What is added to a part's product, once it is there."""

    def result(self) -> Share: ...


@dataclass(frozen=True)
class Ready:
    """A share that is there already."""

    share: Share

    def result(self) -> Share:
        return self.share


class Total(ABC):
    """What the product of a part is added to, and how the sum is held."""

    @property
    @abstractmethod
    def rows_ring(self) -> int:
        """The least ring of the rows that a part takes, in bits."""

    @abstractmethod
    def narrower(self, fraction: int, weight: Weight) -> int:
        """The ring of f with `fraction` bits, of which W·f is lifted to the scale of the sum."""

    @abstractmethod
    def skip(self, frame: Frame, rows: Given, gamma: str, bias: str) -> Skipped:
        """What W·f is added to, the bias included. rows: those that the part takes"""

    @abstractmethod
    def linear(self, frame: Frame, rows: Given, matrix: str, bias: str) -> Skipped:
        """The same with M·n, if a part adds what is linear in its rows."""

    @abstractmethod
    def with_product(self, frame: Frame, rows: Given, weight: str, skip: Share) -> Share:
        """W·f and what it is added to."""


@dataclass(frozen=True)
class Sum(Total):
    """How a sum W·f + γ⊙n + b is held before its LayerNorm: centred already, and times d/2^k (`Centred`).

    The server has centred W and b, and multiplied W by d/2^k (`fold`). So only γ⊙n + b has a mean, one number a row.
    """

    hidden: int
    rule: InverseRule
    """Of the LayerNorm."""

    @property
    def fraction(self) -> int:
        return ROWS + WEIGHTS + math.ceil(math.log2(self.hidden)) - power_in(self.hidden)

    @property
    def ring(self) -> int:
        """The narrowest that holds it, in bits, and the mean that is taken off."""
        return ring_width(self.fraction, max(largest_norm(self.hidden, self.rule), MEAN_BOUND))

    @property
    def rows_ring(self) -> int:
        """Of rows n from which γ⊙n comes into it: with room for the mean, before it is truncated."""
        return max(self.ring, ring_width(ROWS + WEIGHTS + math.ceil(math.log2(self.hidden)), MEAN_BOUND))

    def narrower(self, fraction: int, weight: Weight) -> int:
        """The ring of f with `fraction` bits, of which W·f is lifted to the scale of the sum."""
        return self.ring - (self.fraction - fraction - weight.fraction)

    def skip(self, frame: Frame, rows: Given, gamma: str, bias: str) -> Centred:
        """γ⊙n + b, centred."""
        session, weights = frame.session, frame.weights
        scaled = session.scale(rows, weights[gamma], bound=SKIP_BOUND, precision=SUMMANDS)
        return Centred.of(session, shifted(session, scaled, weights[bias], SKIP_BOUND), self.ring, MEAN_BOUND)

    def linear(self, frame: Frame, rows: Given, matrix: str, bias: str) -> Ready:
        """M·n + b, which the server has centred, γ⊙n included."""
        top = largest_norm(self.hidden, self.rule)
        product = frame.session.linear(rows, frame.weights[matrix], bound=top, precision=SUMMANDS)
        return Ready(shifted(frame.session, product, frame.weights[bias], top).lift(self.fraction))

    def with_product(self, frame: Frame, rows: Given, weight: str, skip: Share) -> Share:
        """W·f + γ⊙n + b."""
        top = largest_norm(self.hidden, self.rule)
        product = frame.session.linear(rows, frame.weights[weight], bound=top, precision=SUMMANDS)
        return product.lift(self.fraction) + skip


class Part(ABC):
    """A part of a block: W·f(x) + γ⊙x + b from normalised rows x, γ being what LayerNorm left to be multiplied by."""

    skip: str
    """The name of γ."""
    adds: bool = False
    """Whether it adds what is linear in its rows, by a matrix of that name in the place of γ."""

    @abstractmethod
    def least_rings(self, rules: LayerRules) -> tuple[int, int]:
        """Of the rows it takes, in bits: what it makes of them is then truncated for free, into a ring Z_2^w or into
        an odd one."""

    @abstractmethod
    def weights(self) -> Sizes:
        """Its weights, γ aside, in the order in which they are used."""

    def ring(self, frame: Frame, rules: LayerRules, total: Total, prefix: str) -> int:
        """Of the rows it takes, in bits: as wide as a product with its weights needs, and what is skipped."""
        name, bound = self.product(rules)
        product = ring_width(ROWS + frame.weights[prefix + name].fraction, bound * (1.0 + 2.0**-6))
        return max(product, total.rows_ring, self.least_rings(rules)[frame.session.odd])

    @abstractmethod
    def product(self, rules: LayerRules) -> tuple[str, float]:
        """The weight that is applied to the rows, and what their product is within, but for rounding."""

    @abstractmethod
    def run(self, frame: Frame, rows: Share, rules: LayerRules, total: Total, prefix: str) -> Share:
        """The sum, (batch, tokens, hidden), of one token if the part says so. prefix: of its weights' names"""


@dataclass(frozen=True)
class Attention(Part):
    """Attention between all tokens.

    buckets    of relative positions, each with its own bias; 0 for none
    first      only the first token of a text looks at the others: one row comes out, (batch, 1, hidden)
    constants  private numbers of a head by which its scores are weighed, beside its threshold; with some, its norms
               have a softness
    """

    hidden: int
    heads: int
    buckets: int
    first: bool = False
    constants: int = 0
    skip: str = "first"

    def weights(self) -> Sizes:
        d = self.hidden
        own = {"softness": (self.heads, 2), "constants": (self.heads, self.constants)} if self.constants else {}
        return {
            "qkv.weight": (3 * d, d),
            "qkv.bias": (3 * d,),
            "threshold": (self.heads, max(1, self.buckets)),
            **own,
            "output.weight": (d, d),
            "output.bias": (d,),
        }

    def least_rings(self, rules: LayerRules) -> tuple[int, int]:
        return 55, 56

    def product(self, rules: LayerRules) -> tuple[str, float]:
        return "qkv.weight", max(rules.query_bound, rules.value_bound)

    def run(self, frame: Frame, rows: Share, rules: LayerRules, total: Total, prefix: str) -> Share:
        session, d, form, weights = frame.session, self.hidden, rules.attention, frame.weights
        batch, tokens, _ = rows.shape
        asking = 1 if self.first else tokens
        with session.part("linear"):
            given = session.give(frame.marked(rows))
            top, precision = max(rules.query_bound, rules.value_bound), argument_bits(form, d // self.heads)
            qkv = linear(session, given, weights, prefix + "qkv", top, precision)
            skip = total.skip(frame, given, f"{prefix}{self.skip}.gamma", prefix + "output.bias")
        q, k, v = (self._split(qkv[..., i * d : (i + 1) * d]) for i in range(3))
        narrow = total.narrower(_CONTEXT, weights[prefix + "output.weight"])
        context = attention(
            session,
            q[:, :, :asking].bounded(rules.query_bound),
            k.bounded(rules.query_bound),
            v.bounded(rules.value_bound),
            form,
            thresholds=self._thresholds(session, weights[prefix + "threshold"], asking, tokens, form.threshold_bound),
            constants=self._constants(weights, prefix, form),
            softness=_real(weights[prefix + "softness"]) if form.soft else None,
            mask=frame.mask,
            fraction=_CONTEXT,
            width=max(narrow, ring_width(_CONTEXT, 2.0 * rules.value_bound)),
        )
        with session.part("linear"):
            given = session.give(context.transpose(0, 2, 1, 3).reshape(batch, asking, d))
            return total.with_product(frame, given, prefix + "output.weight", skip.result()[:, :asking])

    def _split(self, share: Share) -> Share:
        """(batch, tokens, heads·d) -> (batch, heads, tokens, d)."""
        batch, tokens, size = share.shape
        return share.reshape(batch, tokens, self.heads, size // self.heads).transpose(0, 2, 1, 3)

    def _thresholds(self, session: Session, weight: Weight, asking: int, tokens: int, bound: float) -> Share:
        """What every head takes off its scores, relative positions included: the server's, nothing is sent."""
        pairs, values = position_buckets(tokens, self.buckets)[:asking], _real(weight)
        shape = (self.heads, *pairs.shape)
        return session.private(SERVER, shape, 24, bound, None if values is None else values[:, pairs])

    def _constants(self, weights: Mapping[str, Weight], prefix: str, form: AttentionForm) -> Constants | None:
        """By which every head weighs its scores."""
        if not self.constants:
            return None
        values = _real(weights[prefix + "constants"])
        shape = (self.heads, 1, self.constants)
        return Constants(shape, LARGEST_OFFSET, None if values is None else values[:, None, :])


def _real(weight: Weight) -> Reals | None:
    """At the server; elsewhere nobody has them."""
    return None if weight.values is None else np.asarray(weight.values * 2.0**-weight.fraction)


@dataclass(frozen=True)
class FeedForward(Part):
    """Two matrices with an activation between them.

    constants  private numbers of a neuron; with some, what is linear in the rows comes by a matrix of its own
    """

    hidden: int
    intermediate: int
    constants: int = 0
    skip: str = "second"

    @property
    def adds(self) -> bool:  # type: ignore[override]
        return self.constants > 0

    def weights(self) -> Sizes:
        d, m = self.hidden, self.intermediate
        own = {"offsets": (m,), f"{self.skip}.weight": (d, d)} if self.constants else {}
        return {"up.weight": (m, d), "up.bias": (m,), **own, "down.weight": (d, m), "down.bias": (d,)}

    def least_rings(self, rules: LayerRules) -> tuple[int, int]:
        return rules.neurons.least_rings

    def product(self, rules: LayerRules) -> tuple[str, float]:
        return "up.weight", rules.neuron_bound

    def run(self, frame: Frame, rows: Share, rules: LayerRules, total: Total, prefix: str) -> Share:
        session, weights, neurons = frame.session, frame.weights, rules.neurons
        with session.part("linear"):
            given = session.give(rows)
            up = linear(session, given, weights, prefix + "up", rules.neuron_bound, neurons.argument)
            if self.constants:
                skip = total.linear(frame, given, f"{prefix}{self.skip}.weight", prefix + "down.bias")
            else:
                skip = total.skip(frame, given, f"{prefix}{self.skip}.gamma", prefix + "down.bias")
        ring = total.narrower(neurons.fraction, weights[prefix + "down.weight"])
        active = neurons.on_shares(session, up, self._offsets(weights, prefix), width=ring)
        with session.part("linear"):
            return total.with_product(frame, session.give(active), prefix + "down.weight", skip.result())

    def _offsets(self, weights: Mapping[str, Weight], prefix: str) -> Constants | None:
        """What every neuron adds to its square."""
        if not self.constants:
            return None
        return Constants((self.intermediate,), LARGEST_MIDDLE, _real(weights[prefix + "offsets"]))


@dataclass(frozen=True)
class PostNormBlock:
    """x -> LayerNorm(part(x)), part by part: a layer of an encoder such as BERT.

    β of every LayerNorm is in the biases that follow it: of the next linear layer, and of the sum it skips to.

    reads  what is made of its rows; None: another block reads them
    """

    name: Block
    parts: tuple[Part, ...]
    reads: Reads | None = None

    @property
    def prefix(self) -> str:
        """Of its weights' names."""
        return f"{self.name.kind}.{self.name.index}."

    def weights(self) -> Sizes:
        """All its weights, by their whole names, in the order in which they are used."""
        sizes = {self.prefix + name: size for part in self.parts for name, size in part.weights().items()}
        hidden = next(iter(sizes.values()))[-1]
        return sizes | {f"{self.prefix}{part.skip}.gamma": (hidden,) for part in self.parts if not part.adds}

    def _sums(self, rules: LayerRules) -> list[Sum]:
        hidden = next(iter(self.weights().values()))[-1]
        return [Sum(hidden, rule) for rule in rules.variances]

    def ring(self, frame: Frame, rules: LayerRules) -> int:
        """Of the rows it takes, in bits."""
        return self.parts[0].ring(frame, rules, self._sums(rules)[0], self.prefix)

    def run(self, frame: Frame, rows: Share, rules: LayerRules, width: int) -> Share:
        """The normalised rows (batch, tokens, hidden) after the block, from those before it; if they are the first
        tokens' or means, (batch, hidden). width: of their ring

        Rows of padding must be zero, where the mask is; so are those that come out for another block. A head does not
        look at them.
        """
        session, sums = frame.session, self._sums(rules)
        bits = frame.padding(rules.variances[-1]) if self.reads is None else None
        rings = [part.ring(frame, rules, total, self.prefix) for part, total in zip(self.parts, sums, strict=True)]
        rows = rows.narrow(rings[0])
        for part, total, following in zip(self.parts, sums, [*rings[1:], width], strict=True):
            summed = part.run(frame, rows, rules, total, self.prefix)
            if self.reads == "mean" and part is self.parts[-1]:
                return self._mean(frame, summed, total.rule, width)
            keep = bits if part is self.parts[-1] else None
            rows = normalise(
                session, summed, total.rule, epsilon=frame.epsilon, fraction=ROWS, width=following, keep=keep
            )
        return rows[:, 0] if self.reads == "first" else rows

    def _mean(self, frame: Frame, summed: Share, rule: InverseRule, width: int) -> Share:
        if frame.averages is None:
            raise ShapeError(f"{frame.session.here}: a mean over a text's tokens needs its weights")
        return normalised_mean(
            frame.session, summed, rule, frame.averages, epsilon=frame.epsilon, fraction=ROWS, width=width
        )


def position_buckets(tokens: int, buckets: int) -> npt.NDArray[np.int64]:
    """MPNet's bucket of every pair of positions, (tokens, tokens); without buckets one for all, (1, 1).

    Near distances have their own bucket, far ones share: exact up to a quarter of the buckets, logarithmic up to 128.
    """
    if not buckets:
        return np.zeros((1, 1), np.int64)
    half, exact = buckets // 2, buckets // 4
    distance = np.arange(tokens)[None, :] - np.arange(tokens)[:, None]
    far = np.log(np.maximum(np.abs(distance), exact) / exact) / math.log(128 / exact) * (half - exact)
    shared = np.minimum(exact + (far + 1e-6).astype(np.int64), half - 1)
    return np.asarray(np.where(np.abs(distance) < exact, np.abs(distance), shared) + half * (distance > 0))
