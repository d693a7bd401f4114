"""What is made of the last hidden states, and told to the client: labels of a text, of every token, or an embedding.

    kind        answer of a text                          from
    label       logits, one per label (or a score)        the first state (or the mean), perhaps through a pooler
    tokens      logits of every token                     every state
    embedding   a vector as long as a hidden state        the mean of the tokens' states (or the first), perhaps scaled

The mean over a text's tokens is taken with weights that the client alone knows: 1/n for a token, 0 for padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from comet_mpc.engine import Given, Session, Weight
from comet_mpc.engine.share import CLIENT, SERVER, Reals, Share, ring_width
from comet_mpc.errors import ShapeError
from comet_mpc.functions.activation import smu, tanh_like
from comet_mpc.functions.layer_norm import SUMMANDS, largest_norm, normalise
from comet_mpc.functions.rule import InverseRule, Rule, Smu

Kind = Literal["label", "tokens", "embedding"]

Reads = Literal["all", "first", "mean"]
"""What is made of a text's rows: all of them as they are, the first alone, or a mean."""

Pooler = Literal["tanh", "algebraic", "relu", "smu", "none"]
"""The layer between a text's state and its classifier: W·x + b, then tanh, x/sqrt(1 + x²), ReLU or smu; or no layer."""

ROWS = 18
"""Fraction bits of what is given to the server."""
WEIGHTS = 14
"""Fraction bits of the matrices whose products are added up, and of those of a head."""
_AVERAGES = 20  # fraction bits of a mean's weights
_POOLED = 12  # of what a pooler's tanh is taken of
_BESIDE_ANSWERS = 4  # bits that matter of an answer's last product, beside those that are told


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which answer a model gives."""

    kind: Kind = "label"
    pooling: Literal["first", "mean"] = "first"
    """A text's state: that of its first token, or the mean of all its tokens'."""
    unit: bool = False
    """An embedding is scaled to length 1. Inside the protocol to √d, so that its digits are worth those of a logit."""

    @property
    def reads(self) -> Reads:
        """What it wants of the last layer."""
        return "all" if self.kind == "tokens" else self.pooling


def usual_head(kind: Kind) -> Head:
    """Of a model that does not say more. Embeddings are means of length 1, as most of sentence-transformers' are."""
    return Head(kind=kind, pooling="mean", unit=True) if kind == "embedding" else Head(kind=kind)


@dataclass(frozen=True, kw_only=True)
class HeadRules:
    """The public rules of a head."""

    pooler: InverseRule | None = None
    """For 1 + x² of an algebraic pooler."""
    activation: tuple[Smu, Rule] | None = None
    """Of a pooler with smu."""
    length: InverseRule | None = None
    """For the mean square of an embedding that is scaled."""
    bound: float = 64.0
    """|answer|, coordinate by coordinate."""

    def largest(self, hidden: int) -> float:
        """What a product with the head's weights is within."""
        poolers = [1.0, 0.0 if self.pooler is None else math.sqrt(self.pooler.high - 1.0)]
        return max(self.bound, *poolers, 0.0 if self.length is None else largest_norm(hidden, self.length))

    def ring(self, hidden: int) -> int:
        """Of the states it takes, in bits."""
        return ring_width(ROWS + WEIGHTS, self.largest(hidden) * (1.0 + 2.0**-6))


def head_weights(head: Head, pooler: Pooler, hidden: int, labels: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what the server holds for it."""
    if head.kind == "embedding":
        return {"embedding.gamma": (hidden,), "embedding.bias": (hidden,)}
    names: dict[str, tuple[int, ...]] = {}
    if pooler != "none":
        names |= {"pooler.weight": (hidden, hidden), "pooler.bias": (hidden,)}
    return names | {"classifier.weight": (labels, hidden), "classifier.bias": (labels,)}


def input_averages(session: Session, mask: Reals | None, shape: tuple[int, int]) -> Share:
    """The client's weights of a mean, (batch, tokens), from its padding mask."""
    values = None if mask is None else mask / mask.sum(axis=1, keepdims=True)
    return session.private(CLIENT, shape, _AVERAGES, 1.0, values)


def linear(
    session: Session, rows: Given, weights: Mapping[str, Weight], name: str, bound: float, precision: int
) -> Share:
    """W·x + b with the server's weight and bias; `bound` is certified by the caller. precision: see `Session.matmul`"""
    product = session.linear(rows, weights[name + ".weight"], bound=bound, precision=precision)
    return shifted(session, product, weights[name + ".bias"], bound)


def shifted(session: Session, product: Share, bias: Weight, bound: float) -> Share:
    """x + b with the server's bias."""
    values = None if bias.values is None else bias.values * 2.0**-bias.fraction
    shift = session.private(SERVER, bias.shape, product.fraction, bound, values, product.width)
    return (product + shift).bounded(bound)


def respond(
    session: Session,
    states: Share,
    head: Head,
    pooler: Pooler,
    rules: HeadRules,
    weights: Mapping[str, Weight],
    answer_bits: int,
) -> Share:
    """The answers from what the head reads (`Head.reads`) of the last LayerNorm's rows, in its ring (`HeadRules`).

    answer_bits: fraction bits of them that will be told (`coarsened`)

    (batch, labels), (batch, tokens, labels) or (batch, hidden). Reveals nothing.
    """
    precision = answer_bits + _BESIDE_ANSWERS
    ring = rules.ring(states.shape[-1])
    state = states.narrow(ring)
    if head.kind == "embedding":
        return _embedding(session, state, rules, weights, ring, precision)
    if pooler != "none" and head.kind != "tokens":
        state = _pooled(session, state, rules, weights, ring)
    return linear(session, session.give(state), weights, "classifier", rules.bound, precision)


def _pooled(session: Session, state: Share, rules: HeadRules, weights: Mapping[str, Weight], ring: int) -> Share:
    if rules.activation is not None:
        form, rule = rules.activation
        pooled = linear(session, session.give(state), weights, "pooler", 1.0 + 2.0**-8, ROWS)
        return smu(session, pooled, form, rule, fraction=ROWS, width=ring)
    if rules.pooler is None:
        raise ShapeError(f"{session.here}: a pooler needs its rule")
    top = math.sqrt(rules.pooler.high - 1.0)
    pooled = linear(session, session.give(state), weights, "pooler", top, _POOLED)
    return tanh_like(session, session.truncate_to(pooled, _POOLED), rules.pooler, fraction=ROWS).narrow(ring)


def _embedding(
    session: Session, state: Share, rules: HeadRules, weights: Mapping[str, Weight], ring: int, precision: int
) -> Share:
    """γ⊙n + β, perhaps scaled to a mean square of 1: then γ and β are times d/2^k (`fold`), as `normalise` takes it."""
    top = rules.largest(state.shape[-1])
    precision = precision if rules.length is None else SUMMANDS
    scaled = session.scale(session.give(state), weights["embedding.gamma"], bound=top, precision=precision)
    vector = shifted(session, scaled, weights["embedding.bias"], top)
    if rules.length is None:
        return vector
    return normalise(session, vector, rules.length, fraction=ROWS, width=ring)


def coarsened(session: Session, answers: Share, bits: int) -> Share:
    """Answers with the digits that a client is told: `bits` fraction bits, off by less than 1.5 units.

    The last coin is not the client's alone (`Session.dither`). The ring is the narrowest that holds them: a client that
    deviates gets no more bits of an answer than that. Nothing is sent, but for one round where the ring is wider than
    what is left when the other bits are cut off.
    """
    shift = int(answers.fraction) - bits
    dithered = session.dither(answers, shift)
    _, exponent = math.frexp((dithered.bound + 2.0**-bits) * 2.0**bits)
    return session.truncate(dithered, shift, exponent + 2)
