"""A checkpoint's weights in another form: as the protocol wants them, and with other non-linear steps (`in_form`).

With γ, β of the LayerNorm whose output a layer reads, W·(γ⊙n + β) + b = (W·diag(γ))·n + (W·β + b). Queries and keys
are divided by their heads' bounds, neurons by theirs, and W₂ multiplied: exact in real arithmetic, and it publishes
nothing. `plain_states` is the model they make in the clear.

The first matrices of a layer are applied to n + m, m the padding mask (`transformer`). n has mean 0, so rows with the
mean b/d give W·n + b·m: values are zero where m is. Those of queries, keys and neurons have the mean 0, and the bias
takes off γ again from γ⊙(n + m).

What is normalised is wanted as v = C(x)·d/2^k, C z = z - mean(z). With x = W·f + γ⊙n + b that is (C·W·d/2^k)·f, in
the weights, and C(γ⊙n + b)·d/2^k, of which the parties take off the mean (`blocks.Sum`). b is centred all the same, so
that the mean stays small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Weight
from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError
from comet_mpc.functions.attention import plain_attention
from comet_mpc.functions.layer_norm import largest_norm, plain_centred, plain_normalise, shrink_factor
from comet_mpc.functions.rule import InverseRule, plain_inverse_sqrt
from comet_mpc.models.blocks import MEAN_BOUND, LayerRules, position_buckets
from comet_mpc.models.bounds import SLACK, Weights, activation_bounds, head_bounds, power_of_two_above
from comet_mpc.models.checkpoint import (
    FITTED,
    ActivationChoice,
    AttentionChoice,
    CometConfig,
    Tensors,
    tensor_shapes,
)
from comet_mpc.models.fitted.first import first_functions
from comet_mpc.models.fitted.numbers import neurons_as_squares, relative_softness, score_numbers
from comet_mpc.models.fitted.quartics import neurons_as_quartics
from comet_mpc.models.heads import Head, Pooler
from comet_mpc.models.transformer import EncoderRules, EncoderShape

_SCORES = 64.0
"""What scores of Softmax* begin within, made of a softmax's; real texts reach about a tenth of it."""


def fold(
    config: CometConfig, tensors: Tensors, taken: Callable[[dict[str, Reals], int], None] | None = None
) -> tuple[dict[str, Reals], tuple[float, ...], float]:
    """Folded weights, and public bounds of attention's values and of the answers.

    taken: is given the weights, layer by layer, and then nothing of them is kept here; nor is a matrix of that layer
    read again. The head's are of the layer after the last
    """
    e, get, shrink = config.encoder, Weights(tensors).pair, shrink_factor(config.encoder.hidden)
    skips = not e.stream
    folded: dict[str, Reals] = {}
    value_bounds = []
    gamma, beta = get("embeddings.norm")
    for i in range(e.layers):
        source, target = f"layers.{i}.", f"layer.{i}."
        parts = [
            normalised_queries(tensors, i, part, e.heads) if config.attention.cosine else get(source + part)
            for part in ("query", "key")
        ]
        parts.append(get(source + "value"))
        value_bounds.append(power_of_two_above(1.05 * float(np.max(activation_bounds(*parts[2], gamma, beta)))))
        matrices = [plain_centred(w * gamma) for w, _ in parts]
        shifts = [w @ beta + b for w, b in parts]
        if skips:  # there may be padding
            matrices[2], shifts[2] = matrices[2] + shifts[2][:, None] / e.hidden, np.zeros(e.hidden)
        folded[target + "qkv.weight"], folded[target + "qkv.bias"] = np.concatenate(matrices), np.concatenate(shifts)
        folded[target + "threshold"] = _thresholds(config, tensors, i)
        output, bias = get(source + "attention_output")
        folded[target + "output.weight"] = shrink * plain_centred(output, axis=0)
        folded[target + "output.bias"] = plain_centred(bias + beta - gamma) if skips else shrink * plain_centred(bias)
        if skips:
            folded[target + "first.gamma"] = gamma
        gamma, beta = get(source + "attention_norm")
        if config.attention.kind == FITTED:
            folded[target + "softness"] = relative_softness(tensors, i, e.heads)
            folded[target + "constants"] = score_numbers(tensors, i)[1]
        folded |= _feed_forward(config, tensors, i, gamma, beta)
        gamma, beta = get(source + "output_norm")
        if taken is not None:
            taken(folded, i)
            folded = {}
    head, bound = _folded_head(config, tensors, gamma, beta)
    folded |= head
    if taken is not None:
        taken(folded, e.layers)
        folded = {}
    return folded, tuple(value_bounds), power_of_two_above(1.1 * bound)


def _feed_forward(config: CometConfig, tensors: Tensors, layer: int, gamma: Reals, beta: Reals) -> dict[str, Reals]:
    """A layer's second part. γ, β: of the LayerNorm before it"""
    get, target, skips = Weights(tensors).pair, f"layer.{layer}.", not config.encoder.stream
    shrink, bias = shrink_factor(len(gamma)), get(f"layers.{layer}.down")[1]
    if config.activation.kind == FITTED and config.activation.degree == 4:
        own = neurons_as_quartics(tensors, layer)
        matrix = own.matrix + np.eye(len(gamma)) if skips else own.matrix
        bias = bias + own.bias + matrix @ beta
        return {
            f"{target}up.weight": plain_centred(own.up * gamma),
            f"{target}up.bias": own.up @ beta + own.up_bias,
            f"{target}offsets": own.offsets,
            f"{target}second.weight": shrink * plain_centred(plain_centred(matrix * gamma), axis=0),
            f"{target}down.weight": shrink * plain_centred(own.down, axis=0),
            f"{target}down.bias": shrink * plain_centred(bias),
        }
    up, up_bias, down, constant = _neurons(config, tensors, layer)
    bias = bias + constant
    return {
        f"{target}up.weight": plain_centred(up * gamma),
        f"{target}up.bias": up @ beta + up_bias,
        f"{target}down.weight": shrink * plain_centred(down, axis=0),
        f"{target}down.bias": plain_centred(bias + beta) if skips else shrink * plain_centred(bias),
    } | ({f"{target}second.gamma": gamma} if skips else {})


def _neurons(config: CometConfig, tensors: Tensors, layer: int) -> tuple[Reals, Reals, Reals, Reals | float]:
    """W₁, b₁, W₂ and a part of b₂, as the protocol's neurons want them."""
    if config.activation.kind == FITTED:
        return neurons_as_squares(tensors, layer)
    if config.activation.normalised:
        return *normalised_neurons(tensors, layer), 0.0
    get, scale, source = Weights(tensors).pair, neuron_scale(config, layer), f"layers.{layer}."
    (up, bias), (down, _) = get(source + "up"), get(source + "down")
    return up / scale, bias / scale, down * scale, 0.0


def fold_tables(tables: Mapping[str, npt.NDArray[np.float32]], first_position: int) -> dict[str, Reals]:
    """Embedding tables that stay at the server: every row centred and times d/2^k, as their sum is normalised."""
    rows = [tables["words"], *([tables["types"]] if "types" in tables else [])]
    shrink = shrink_factor(rows[0].shape[1])
    symbols, positions = np.concatenate(rows).astype(np.float64), tables["positions"].astype(np.float64)
    return {
        "embeddings.weight": shrink * plain_centred(symbols).T,
        "embeddings.positions": shrink * np.roll(plain_centred(positions), -first_position, axis=0),
    }


def fold_image(patches: npt.NDArray[np.float32], positions: npt.NDArray[np.float32]) -> dict[str, Reals]:
    """The same of an image: what the stream begins with."""
    shrink = shrink_factor(patches.shape[0])
    return {
        "embeddings.weight": shrink * plain_centred(patches.astype(np.float64), axis=0),
        "embeddings.positions": shrink * plain_centred(positions.astype(np.float64)),
    }


def _folded_head(config: CometConfig, tensors: Tensors, gamma: Reals, beta: Reals) -> tuple[dict[str, Reals], float]:
    """The head's weights, from γ and β of the last LayerNorm on, and what every coordinate of an answer is within."""
    if config.head.kind == "embedding":
        size = math.sqrt(len(gamma))
        bound = size if config.head.unit else float(np.max(np.abs(gamma) * size * (1.0 + SLACK) + np.abs(beta)))
        scale = shrink_factor(len(gamma)) if config.head.unit else 1.0
        return {"embedding.gamma": scale * gamma, "embedding.bias": scale * beta}, bound
    matrix, bias = Weights(tensors).pair("classifier")
    if config.pooler == "none":
        bound = float(np.max(activation_bounds(matrix, bias, gamma, beta)))
        return {"classifier.weight": matrix * gamma, "classifier.bias": matrix @ beta + bias}, bound
    pooler, shift = Weights(tensors).pair("pooler")
    largest = 1.0
    if config.pooler == "smu":
        scale = activation_bounds(pooler, shift, gamma, beta)
        pooler, shift, matrix = pooler / scale[:, None], shift / scale, matrix * scale
        largest = 1.0 + config.activation.mu
    return {
        "pooler.weight": pooler * gamma,
        "pooler.bias": pooler @ beta + shift,
        "classifier.weight": matrix,
        "classifier.bias": bias,
    }, float(np.max(largest * np.abs(matrix).sum(axis=1) + np.abs(bias)))


def _thresholds(config: CometConfig, tensors: Tensors, layer: int) -> Reals:
    """(heads, 1); with relative positions (heads, buckets), their bias taken off. In the certified form they are
    clamped, so that scores keep their range whatever the bias is: `train.model` trains the same."""
    e = config.encoder
    thresholds = np.zeros((e.heads, max(1, e.buckets)))
    if e.buckets:
        thresholds -= tensors["relative_positions"].astype(np.float64).T
    if not config.attention.cosine:
        return thresholds
    if config.attention.kind == FITTED:
        return np.clip(thresholds - score_numbers(tensors, layer)[0][:, None], -1.0, 1.0)
    return np.clip(thresholds + tensors[f"layers.{layer}.thresholds"].astype(np.float64)[:, None], -1.0, 1.0)


def neuron_scale(config: CometConfig, layer: int) -> float:
    """What neurons that are not normalised are divided by: a power of two above all that calibration allows."""
    return power_of_two_above(math.sqrt(config.sites[f"layers.{layer}.activation"].rule.high))


def _real(weight: Weight) -> Reals:
    return np.asarray(weight.fixed() * 2.0**-weight.fraction)


def check_fixed(shape: EncoderShape, rules: EncoderRules, fixed: Mapping[str, Weight]) -> None:
    """Proves the bounds again for the weights as they are served, rounded to fixed point.

    γ and β are in the weights, so n itself is what they are applied to; coordinates of queries and keys are rounded
    once more.
    """
    d = shape.hidden
    ones, zeros = np.ones(d), np.zeros(d)

    def real(name: str) -> tuple[Reals, Reals]:
        return _real(fixed[name + ".weight"]), _real(fixed[name + ".bias"])

    def check(where: str, matrix: Reals, bias: Reals, limit: float) -> None:
        if float(np.max(activation_bounds(matrix, bias, ones, zeros))) > limit:
            raise CheckpointError(f"{where} may leave its certified range once it is rounded to fixed point")

    for i in range(shape.layers):
        own, layer = rules.layers[i], f"layer.{i}."
        matrix, bias = real(layer + "qkv")
        if not shape.stream:
            bias = bias + matrix.sum(axis=1)  # they are applied to n + 1
            _check_skips(fixed, layer)
        if layer + "second.weight" in fixed:
            _check_added(fixed, layer, largest_norm(d, own.variances[1]))
        check(f"layer {i}: value", matrix[2 * d :], bias[2 * d :], own.value_bound)
        check(f"layer {i}: up", *real(layer + "up"), 1.0 + 2.0**-8 - 2.0**-12)
        limit = own.query_bound - math.sqrt(d // shape.heads) * 2.0**-13
        if np.max(head_bounds(matrix[: 2 * d], bias[: 2 * d], ones, zeros, 2 * shape.heads)) > limit:
            raise CheckpointError(f"layer {i}: a query or key may leave its range once it is rounded to fixed point")
    if rules.head.pooler is not None:
        check("the pooler", *real("pooler"), math.sqrt(rules.head.pooler.high - 1.0))
    elif rules.head.activation is not None:
        check("the pooler", *real("pooler"), 1.0 + 2.0**-8 - 2.0**-12)
    elif shape.labels:
        check("the classifier", *real("classifier"), rules.head.bound)


def _check_added(fixed: Mapping[str, Weight], layer: str, limit: float) -> None:
    """What is added to the products of a layer's neurons is within the bound that is claimed for it."""
    if float(np.max(np.abs(_real(fixed[layer + "down.bias"])))) > limit:
        raise CheckpointError(f"{layer}down.bias is too large for the range behind it")


def _check_skips(fixed: Mapping[str, Weight], layer: str) -> None:
    """|Σ(γ⊙n + b)|/2^k is within the bound that `blocks.Sum` claims; n + 1 in place of n in the first part."""
    for name, other in (("first.gamma", "output.bias"), ("second.gamma", "down.bias")):
        if layer + name not in fixed:  # a matrix, whose product is centred, in its place
            continue
        gamma, bias = _real(fixed[layer + name]), _real(fixed[layer + other])
        d = len(gamma)
        largest = np.linalg.norm(gamma) / math.sqrt(d) * (1.0 + SLACK) + abs(gamma.mean()) + abs(bias.mean())
        if shrink_factor(d) * float(largest) > MEAN_BOUND:
            raise CheckpointError(f"{layer}{name} is too large: the mean of what it scales may leave its range")


def _linear(weights: Mapping[str, Reals], x: Reals, name: str) -> Reals:
    return np.asarray(x @ weights[name + ".weight"].T + weights[name + ".bias"])


def plain_states(
    rows: Reals,
    mask: Reals,
    shape: EncoderShape,
    rules: EncoderRules,
    weights: Mapping[str, Reals],
    *,
    exact: bool = False,
) -> list[Reals]:
    """`transformer.forward` in real arithmetic, through its rules or with exact functions.

    The normalised rows after every layer, then the answers.
    """
    shrink = shrink_factor(rows.shape[-1])

    def normalised(x: Reals, name: str, skip: str, rule: InverseRule | None) -> Reals:
        if skip + ".weight" in weights:
            added = rows @ weights[skip + ".weight"].T + weights[name + ".bias"]
        else:
            added = shrink * plain_centred(weights[skip + ".gamma"] * rows + weights[name + ".bias"])
        return plain_normalise(x @ weights[name + ".weight"].T + added, rule, epsilon=rules.epsilon)

    states, bits = [], mask[..., None]
    rows = rows * bits
    for i, own in enumerate(rules.layers):
        layer, (first, second) = f"layer.{i}.", (None, None) if exact else own.variances
        rows = rows + bits
        context = _plain_context(rows, mask, shape, own, weights, i, exact=exact)
        rows = normalised(context, layer + "output", layer + "first", first)
        active = _plain_active(rows, own, weights, i, exact=exact)
        rows = normalised(active, layer + "down", layer + "second", second)
        rows = rows * bits if i + 1 < shape.layers else rows
        states.append(rows)
    return [*states, _plain_head(rows, mask, shape, rules, weights, exact)]


def plain_stream_states(
    stream: Reals, shape: EncoderShape, rules: EncoderRules, weights: Mapping[str, Reals], *, exact: bool = False
) -> list[Reals]:
    """The same of pre-normalised blocks (`streams`): the stream after every layer, then the answers."""
    mask, states = np.ones(stream.shape[:2]), []

    def normalised(rule: InverseRule | None) -> Reals:
        return plain_normalise(stream, None if exact else rule, epsilon=rules.epsilon)

    for i, own in enumerate(rules.layers):
        layer, (first, second) = f"layer.{i}.", own.variances
        context = _plain_context(normalised(first), mask, shape, own, weights, i, exact=exact)
        stream = stream + _linear(weights, context, layer + "output")
        active = _plain_active(normalised(second), own, weights, i, exact=exact)
        linear = normalised(second) @ weights[layer + "second.weight"].T if own.neurons.constants else 0.0
        stream = stream + _linear(weights, active, layer + "down") + linear
        states.append(stream)
    return [*states, _plain_head(normalised(rules.last), mask, shape, rules, weights, exact)]


def _plain_context(
    rows: Reals,
    mask: Reals,
    shape: EncoderShape,
    own: LayerRules,
    weights: Mapping[str, Reals],
    index: int,
    *,
    exact: bool,
) -> Reals:
    """Every head's averages of values, side by side."""
    (batch, tokens, d), layer = rows.shape, f"layer.{index}."
    qkv = _linear(weights, rows, layer + "qkv").reshape(batch, tokens, 3, shape.heads, d // shape.heads)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    thresholds = weights[layer + "threshold"][:, position_buckets(tokens, shape.buckets)]
    constants, softness = (weights.get(layer + name) for name in ("constants", "softness"))
    context = plain_attention(
        q, k, v, own.attention, thresholds, mask, exact=exact, constants=constants, softness=softness
    )
    return np.asarray(context.transpose(0, 2, 1, 3).reshape(rows.shape))


def _plain_active(rows: Reals, own: LayerRules, weights: Mapping[str, Reals], index: int, *, exact: bool) -> Reals:
    """What a layer's neurons give."""
    neurons = _linear(weights, rows, f"layer.{index}.up")
    return np.asarray(own.neurons(neurons, weights.get(f"layer.{index}.offsets"), exact=exact))


def _plain_head(
    rows: Reals, mask: Reals, shape: EncoderShape, rules: EncoderRules, weights: Mapping[str, Reals], exact: bool
) -> Reals:
    """`heads.respond` in real arithmetic."""
    head, own, linear = shape.head, rules.head, partial(_linear, weights)
    if head.kind == "tokens":
        return linear(rows, "classifier")
    state = rows[:, 0]
    if head.pooling == "mean":
        state = (rows * (mask / mask.sum(axis=1, keepdims=True))[..., None]).sum(axis=1)
    if head.kind == "embedding":
        vector = state * weights["embedding.gamma"] + weights["embedding.bias"]
        if own.length is None:
            return vector
        return plain_normalise(vector, None if exact else own.length, epsilon=rules.epsilon)
    if shape.pooler != "none":
        state = linear(state, "pooler")
        if own.activation is not None:
            state = own.activation[0](state, None if exact else own.activation[1])
        else:
            state = state * plain_inverse_sqrt(1.0 + state**2, None if exact else own.pooler)
    return linear(state, "classifier")


def normalised_neurons(tensors: Tensors, layer: int) -> tuple[Reals, Reals, Reals]:
    """W₁/B, b₁/B and W₂·B: what the server serves, so that the protocol sees every neuron in [-1, 1]."""
    weights = Weights(tensors)
    (w1, b1), w2 = weights.pair(f"layers.{layer}.up"), weights[f"layers.{layer}.down.weight"]
    bound = activation_bounds(w1, b1, *weights.pair(f"layers.{layer}.attention_norm"))
    return w1 / bound[:, None], b1 / bound, w2 * bound


def normalised_queries(tensors: Tensors, layer: int, part: str, heads: int) -> tuple[Reals, Reals]:
    """W/B and b/B of `query` or `key`, B the head's bound: every row of every head has a norm of at most 1."""
    weights = Weights(tensors)
    w, b = weights.pair(f"layers.{layer}.{part}")
    bound = np.repeat(head_bounds(w, b, *weights.before(layer), heads), len(w) // heads)
    return w / bound[:, None], b / bound


def in_form(
    config: CometConfig,
    tensors: Mapping[str, npt.NDArray[np.float32]],
    *,
    activation: ActivationChoice,
    attention: AttentionChoice,
    pooler: Pooler,
    labels: tuple[str, ...],
    head: Head | None = None,
    rule: str = "minimax",
    steps: int = 4,
    seed: int = 0,
) -> tuple[CometConfig, dict[str, npt.NDArray[np.float32]]]:
    """The same encoder with other non-linear steps. What it has not got (thresholds, a head) is made anew.

    Softmax* does not change when all scores of a head are multiplied by a number, but for μ and the floor. So the
    queries of a softmax are multiplied, head by head: scores begin within ±_SCORES, and one μ or floor suits all heads.
    """
    encoder = msgspec.structs.replace(config.encoder, labels=labels)
    changed = msgspec.structs.replace(
        config, encoder=encoder, activation=activation, attention=attention, pooler=pooler,
        head=config.head if head is None else head, rule=rule, steps=steps, sites={}, scores={},
    )  # fmt: skip
    generator = np.random.default_rng(seed)
    made: dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in tensor_shapes(changed).items():
        old = tensors.get(name)
        if old is not None and old.shape == shape:
            made[name] = np.asarray(old, np.float32)
            if name == "relative_positions" and attention.kind != "softmax":
                # biases of a softmax go up to 10 and more; beyond 1 a cosine score has no use for them, nor a gradient
                made[name] = made[name] / np.maximum(1.0, np.abs(made[name]).max(axis=0))
        elif name.rpartition(".")[2] in ("scale", "coefficients", "scores", "softness"):
            continue  # made below, from weights in the new form
        elif name in ("pooler.weight", "classifier.weight"):
            made[name] = (0.02 * generator.standard_normal(shape)).astype(np.float32)
        else:
            start = {"alpha": activation.alpha, "mu": activation.mu}.get(name.rsplit(".", 1)[1], 0.0)
            made[name] = np.full(shape, attention.mu if name.endswith("attention.mu") else start, np.float32)
    if config.attention.kind == "softmax" and attention.kind != "softmax" and not attention.cosine:
        for i in range(encoder.layers):
            factor = _SCORES / _score_bounds(tensors, i, encoder.heads)
            rows = np.repeat(factor, encoder.hidden // encoder.heads).astype(np.float32)
            for name, by in ((f"layers.{i}.query.weight", rows[:, None]), (f"layers.{i}.query.bias", rows)):
                made[name] = made[name] * by
    for i in range(encoder.layers):
        for name, first in first_functions(changed, made, i).items():
            made.setdefault(name, first.astype(np.float32))
    return changed, {name: made[name] for name in tensor_shapes(changed)}


def _score_bounds(tensors: Mapping[str, npt.NDArray[np.float32]], layer: int, heads: int) -> Reals:
    """|q·k|/√d per head, for every input."""
    weights = Weights(tensors)
    pairs = [weights.pair(f"layers.{layer}.{part}") for part in ("query", "key")]
    q, k = (head_bounds(*pair, *weights.before(layer), heads) for pair in pairs)
    return np.asarray(q * k / math.sqrt(len(pairs[0][1]) / heads))
