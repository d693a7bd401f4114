"""The secure Transformer: a post-LayerNorm encoder and its classification head, in the certified form.

A layer, in terms of the normalised rows n of the LayerNorm before it (its γ and β are folded into what follows):

    q, k, v = W·n + b                    n is given to the server once; one message for all that is made of it
    x       = Wo·attention(q, k, v) + bo + (γ⊙n + β)
    n       = layer_norm(x)
    x       = W2·smu(W1·n + b1) + b2 + (γ⊙n + β)      row j of W1 divided by its bound B_j, column j of W2 multiplied
    n       = layer_norm(x)

All sums of a layer have the same fraction bits in the same ring (`_SUM`, `_RING`), so nothing is truncated before it is
opened, and most truncations are free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from comet_mpc.activation import Smu, smu, smu_rule, tanh_like, tanh_like_rule
from comet_mpc.attention import AttentionForm, attention, certified_form
from comet_mpc.errors import ShapeError
from comet_mpc.inverse_sqrt import InverseSqrtRule
from comet_mpc.normalization import layer_norm, layer_norm_rule
from comet_mpc.rules import MinimaxRule
from comet_mpc.session import Given, Session, Weight
from comet_mpc.share import SERVER, WORD, Share

__all__ = ["SHAPES", "EncoderRules", "EncoderShape", "certified_rules", "classify", "encoder_weights"]

_RING = 56  # the ring of everything that a weight is applied to
_ROWS = 18  # fraction bits of what is given to the server
_WEIGHT = 14  # fraction bits of weights
_SUM = _ROWS + _WEIGHT


@dataclass(frozen=True)
class EncoderShape:
    """The public dimensions of a model."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    labels: int = 2

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ShapeError(f"{self.heads} heads do not divide {self.hidden} hidden units")


SHAPES = {
    "minilm": EncoderShape(6, 384, 12, 1536),
    "bert-base": EncoderShape(12, 768, 12, 3072),
    "roberta-base": EncoderShape(12, 768, 12, 3072),
    "bert-large": EncoderShape(24, 1024, 16, 4096),
}


@dataclass(frozen=True)
class EncoderRules:
    """The public rules of a model. Upper ends hold for every input (they come from the weights)."""

    activation: Smu
    activation_rule: InverseSqrtRule
    attention: AttentionForm
    variance: InverseSqrtRule
    pooler: MinimaxRule
    value_bound: float
    """|v| of attention's values."""
    residual_bound: float
    """|x| before a LayerNorm."""
    logit_bound: float


def certified_rules(
    hidden: int,
    steps: int,
    *,
    row_steps: int = 6,
    variance: tuple[float, float] = (2.0**-5, 2.0**6),
    norms: tuple[float, float] = (2.0**-3, 2.0**8),
    value_bound: float = 32.0,
    residual_bound: float = 128.0,
    pooler_bound: float = 16.0,
    logit_bound: float = 64.0,
) -> EncoderRules:
    """Universal coefficients for activations and scores; the ranges of row quantities as given."""
    form = Smu(1.0 / 16.0)
    return EncoderRules(
        activation=form,
        activation_rule=smu_rule(form, _SLACK, steps),
        attention=certified_form(steps, row_steps=row_steps, norm_interval=norms),
        variance=layer_norm_rule(hidden, *variance, row_steps),
        pooler=tanh_like_rule(pooler_bound, row_steps),
        value_bound=value_bound,
        residual_bound=residual_bound,
        logit_bound=logit_bound,
    )


_SLACK = 1.0 + 2.0**-6
"""LayerNorm's output has norm √d up to its rule's error, so a neuron normalised by its bound stays within this."""


def encoder_weights(shape: EncoderShape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of everything the server holds, in the order in which it is used."""
    d, m = shape.hidden, shape.intermediate
    names: dict[str, tuple[int, ...]] = {}
    for layer in range(shape.layers):
        prefix = f"layer.{layer}."
        names[prefix + "qkv.weight"], names[prefix + "qkv.bias"] = (3 * d, d), (3 * d,)
        names[prefix + "threshold"] = (shape.heads,)
        names[prefix + "output.weight"], names[prefix + "output.bias"] = (d, d), (d,)
        names[prefix + "up.weight"], names[prefix + "up.bias"] = (m, d), (m,)
        names[prefix + "down.weight"], names[prefix + "down.bias"] = (d, m), (d,)
        for skip in ("first", "second"):
            names[prefix + skip + ".gamma"] = (d,)
    names["pooler.weight"], names["pooler.bias"] = (d, d), (d,)
    names["classifier.weight"], names["classifier.bias"] = (shape.labels, d), (shape.labels,)
    return names


def _linear(session: Session, rows: Given, weights: Mapping[str, Weight], name: str, bound: float) -> Share:
    """W·x + b with the server's weight and bias; `bound` is certified by the caller."""
    product = session.linear(rows, weights[name + ".weight"], bound=bound)
    return _add_bias(session, product, weights[name + ".bias"]).bounded(bound)


def _add_bias(session: Session, product: Share, bias: Weight) -> Share:
    values = None if bias.values is None else bias.values * 2.0**-bias.fraction
    return product + session.private(SERVER, bias.shape, product.fraction, bias.gain, values, product.width)


def _heads(share: Share, heads: int) -> Share:
    """(tokens, heads·d) -> (heads, tokens, d)."""
    tokens, size = share.shape
    return share.reshape(tokens, heads, size // heads).transpose(1, 0, 2)


def _layer(
    session: Session,
    rows: Share,
    mask: Share,
    shape: EncoderShape,
    rules: EncoderRules,
    weights: Mapping[str, Weight],
    prefix: str,
) -> Share:
    tokens, d = rows.shape
    norm_top = rules.attention.norms.high if rules.attention.norms is not None else rules.value_bound**2
    with session.part("linear"):
        given = session.give(rows)
        sizes = max(math.sqrt(norm_top), rules.value_bound)
        qkv = _linear(session, given, weights, prefix + "qkv", sizes)
        skip = session.scale(given, weights[prefix + "first.gamma"], bound=rules.residual_bound / 2)
    q, k, v = (_heads(qkv[:, i * d : (i + 1) * d], shape.heads) for i in range(3))
    threshold = weights[prefix + "threshold"]
    values = None if threshold.values is None else (threshold.values * 2.0**-threshold.fraction).reshape(-1, 1, 1)
    context = attention(
        session,
        q.bounded(math.sqrt(norm_top)),
        k.bounded(math.sqrt(norm_top)),
        v.bounded(rules.value_bound),
        rules.attention,
        thresholds=session.private(SERVER, (shape.heads, 1, 1), 24, 1.0, values),
        mask=mask,
        fraction=_ROWS,
        width=_RING,
    )
    with session.part("linear"):
        flat = context.transpose(1, 0, 2).reshape(tokens, d)
        summed = _linear(session, session.give(flat), weights, prefix + "output", rules.residual_bound / 2) + skip
    rows = layer_norm(session, summed, rules.variance, fraction=_ROWS, width=_RING)
    with session.part("linear"):
        given = session.give(rows)
        up = _linear(session, given, weights, prefix + "up", _SLACK)
        skip = session.scale(given, weights[prefix + "second.gamma"], bound=rules.residual_bound / 2)
    active = smu(session, up, rules.activation, rules.activation_rule, fraction=_ROWS, width=_RING)
    with session.part("linear"):
        summed = _linear(session, session.give(active), weights, prefix + "down", rules.residual_bound / 2) + skip
    return layer_norm(session, summed, rules.variance, fraction=_ROWS, width=_RING)


def classify(
    session: Session, rows: Share, mask: Share, shape: EncoderShape, rules: EncoderRules, weights: Mapping[str, Weight]
) -> Share:
    """Logits (1, labels) from normalised embeddings (tokens, hidden) and a mask (tokens,) of 0 and 1.

    β of every LayerNorm is in the bias that follows it: of the next linear layer, and of the sum it skips to.
    """
    for layer in range(shape.layers):
        with session.part(f"layer {layer}"):
            rows = _layer(session, rows, mask, shape, rules, weights, f"layer.{layer}.")
    with session.part("head"):
        first = rows[0:1]
        pooled = _linear(session, session.give(first), weights, "pooler", math.sqrt(rules.pooler.high - 1.0))
        pooled = session.truncate_to(pooled, 12, WORD)
        squashed = tanh_like(session, pooled, rules.pooler, fraction=_ROWS)
        logits = _linear(session, session.give(squashed.narrow(_RING)), weights, "classifier", rules.logit_bound)
        return session.truncate_to(logits, 16)
