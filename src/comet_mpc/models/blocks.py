"""Blocks: what a Transformer repeats, declared as structures with named parts.

A *part* (attention, feed-forward) says which weights it has and what it makes of normalised rows. A *block* puts parts
together: which come, in which order, and where rows are normalised. `PostNormBlock` is a layer of BERT and its like.
Another order of the same parts is another class here; another part needs `weights`, `least_ring` and `run`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.parts import Block
from comet_mpc.engine.share import SERVER, Share
from comet_mpc.functions.activation import smu
from comet_mpc.functions.attention import AttentionForm, attention
from comet_mpc.functions.layer_norm import layer_norm, padding_bits
from comet_mpc.functions.rule import InverseRule, Rule, Smu
from comet_mpc.models.heads import ROWS, linear

WEIGHTS = 14
"""Fraction bits of the matrices whose products are added up."""
SLACK = 1.0 + 2.0**-8
"""LayerNorm's output has norm √d up to its rule's error, so a neuron normalised by its bound stays within this."""
_CONTEXT = 15  # fraction bits of attention's output
_ACTIVE = 14  # and of the activation's, at least

Sizes = dict[str, tuple[int, ...]]
"""Shapes of weights by name."""


@dataclass(frozen=True)
class LayerRules:
    """The public rules of one layer. Upper ends hold for every input (they come from the weights)."""

    activation: Smu
    activation_rule: Rule
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

    mask            of padding, (batch, tokens): 1 for a token
    ring            of normalised rows and of what they are multiplied into: bits
    residual_bound  |x| before a LayerNorm
    """

    session: Session
    mask: Share
    weights: Mapping[str, Weight]
    ring: int
    residual_bound: float
    epsilon: float

    def narrower(self, fraction: int, weight: str) -> int:
        """The ring of x with `fraction` bits, if W·x is lifted to the scale of the rows before it is added to them."""
        return self.ring - (ROWS + WEIGHTS - fraction - self.weights[weight].fraction)


class Part(ABC):
    """A part of a block: W·f(x) + γ⊙x from normalised rows x, γ being what LayerNorm left to be multiplied by."""

    skip: str
    """The name of γ."""
    least_ring: int
    """Of the rows it takes, in bits: what it makes of them is then truncated for free."""
    least_before_odd: int
    """The same where that is truncated into an odd ring."""

    @classmethod
    def least(cls, session: Session) -> int:
        return cls.least_before_odd if session.odd else cls.least_ring

    @abstractmethod
    def weights(self) -> Sizes:
        """Its weights, γ aside, in the order in which they are used."""

    @abstractmethod
    def run(self, frame: Frame, rows: Share, rules: LayerRules, prefix: str) -> Share:
        """The sum, (batch, tokens, hidden). prefix: of its weights' names"""


@dataclass(frozen=True)
class Attention(Part):
    """Attention between all tokens. buckets: of relative positions, each with its own bias; 0 for none"""

    hidden: int
    heads: int
    buckets: int
    skip: str = "first"
    least_ring: int = 55
    least_before_odd: int = 56

    def weights(self) -> Sizes:
        d = self.hidden
        return {
            "qkv.weight": (3 * d, d),
            "qkv.bias": (3 * d,),
            "threshold": (self.heads, max(1, self.buckets)),
            "output.weight": (d, d),
            "output.bias": (d,),
        }

    def run(self, frame: Frame, rows: Share, rules: LayerRules, prefix: str) -> Share:
        session, mask, d, half = frame.session, frame.mask, self.hidden, frame.residual_bound / 2
        form, weights = rules.attention, frame.weights
        with session.part("linear"):
            given = session.give(rows + mask.reshape(*mask.shape, 1).lift(ROWS).narrow(rows.width))
            qkv = linear(session, given, weights, prefix + "qkv", max(rules.query_bound, rules.value_bound))
            skip = session.scale(given, weights[f"{prefix}{self.skip}.gamma"], bound=half)
        q, k, v = (self._split(qkv[..., i * d : (i + 1) * d]) for i in range(3))
        context = attention(
            session,
            q.bounded(rules.query_bound),
            k.bounded(rules.query_bound),
            v.bounded(rules.value_bound),
            form,
            thresholds=self._thresholds(session, weights[prefix + "threshold"], rows.shape[1], form.threshold_bound),
            mask=mask,
            fraction=_CONTEXT,
            width=frame.narrower(_CONTEXT, prefix + "output.weight"),
        )
        with session.part("linear"):
            given = session.give(context.transpose(0, 2, 1, 3).reshape(*rows.shape))
            return linear(session, given, weights, prefix + "output", half).lift(ROWS + WEIGHTS) + skip

    def _split(self, share: Share) -> Share:
        """(batch, tokens, heads·d) -> (batch, heads, tokens, d)."""
        batch, tokens, size = share.shape
        return share.reshape(batch, tokens, self.heads, size // self.heads).transpose(0, 2, 1, 3)

    def _thresholds(self, session: Session, weight: Weight, tokens: int, bound: float) -> Share:
        """What every head takes off its scores, relative positions included: the server's, nothing is sent."""
        pairs = position_buckets(tokens, self.buckets)
        values = None if weight.values is None else (weight.values * 2.0**-weight.fraction)[:, pairs]
        return session.private(SERVER, (self.heads, *pairs.shape), 24, bound, values)


@dataclass(frozen=True)
class FeedForward(Part):
    """Two matrices with an activation between them."""

    hidden: int
    intermediate: int
    skip: str = "second"
    least_ring: int = 53
    least_before_odd: int = 54

    def weights(self) -> Sizes:
        d, m = self.hidden, self.intermediate
        return {"up.weight": (m, d), "up.bias": (m,), "down.weight": (d, m), "down.bias": (d,)}

    def run(self, frame: Frame, rows: Share, rules: LayerRules, prefix: str) -> Share:
        session, weights, half = frame.session, frame.weights, frame.residual_bound / 2
        with session.part("linear"):
            given = session.give(rows)
            up = linear(session, given, weights, prefix + "up", rules.neuron_bound)
            skip = session.scale(given, weights[f"{prefix}{self.skip}.gamma"], bound=half)
        fraction = max(_ACTIVE, rules.activation_rule.precision)
        ring = frame.narrower(fraction, prefix + "down.weight")
        active = smu(session, up, rules.activation, rules.activation_rule, fraction=fraction, width=ring)
        with session.part("linear"):
            given = session.give(active)
            return linear(session, given, weights, prefix + "down", half).lift(ROWS + WEIGHTS) + skip


@dataclass(frozen=True)
class PostNormBlock:
    """x -> LayerNorm(part(x)), part by part: a layer of an encoder such as BERT.

    β of every LayerNorm is in the biases that follow it: of the next linear layer, and of the sum it skips to.
    """

    name: Block
    parts: tuple[Part, ...]

    @property
    def prefix(self) -> str:
        """Of its weights' names."""
        return f"{self.name.kind}.{self.name.index}."

    def weights(self) -> Sizes:
        """All its weights, by their whole names, in the order in which they are used."""
        sizes = {self.prefix + name: size for part in self.parts for name, size in part.weights().items()}
        hidden = next(iter(sizes.values()))[-1]
        return sizes | {f"{self.prefix}{part.skip}.gamma": (hidden,) for part in self.parts}

    def run(self, frame: Frame, rows: Share, rules: LayerRules, *, last: bool) -> Share:
        """The normalised rows (batch, tokens, hidden) after the block, from those before it.

        Rows of padding must be zero, where the mask is; so are those that come out, unless it is the last block, whose
        rows meet no attention any more.
        """
        session, first = frame.session, self.parts[0]
        rows = rows.narrow(max(frame.ring, first.least(session)))
        bits = None if last else padding_bits(session, frame.mask, rules.variances[-1])
        following = [*(part.least(session) for part in self.parts[1:]), 0 if last else first.least(session)]
        for part, least, rule in zip(self.parts, following, rules.variances, strict=True):
            summed = part.run(frame, rows, rules, self.prefix)
            keep = bits.result() if bits is not None and part is self.parts[-1] else None
            width = max(frame.ring, least)
            rows = layer_norm(session, summed, rule, epsilon=frame.epsilon, fraction=ROWS, width=width, keep=keep)
        return rows


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
