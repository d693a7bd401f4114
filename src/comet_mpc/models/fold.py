"""A checkpoint's weights as the protocol wants them, and the model they make in the clear.

With γ, β of the LayerNorm whose output a layer reads, W·(γ⊙n + β) + b = (W·diag(γ))·n + (W·β + b). Queries and keys
are divided by their heads' bounds, neurons by theirs, and W₂ multiplied: exact in real arithmetic, and it publishes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Weight
from comet_mpc.errors import CheckpointError
from comet_mpc.functions.activation import Smu
from comet_mpc.models.bounds import SLACK, activation_bounds, power_of_two_above
from comet_mpc.models.certify import normalised_neurons, normalised_queries
from comet_mpc.models.checkpoint import CometConfig, Tensors
from comet_mpc.models.transformer import EncoderRules, EncoderShape, position_buckets

__all__ = ["check_fixed", "fold", "neuron_scale", "plain_states"]

Reals = npt.NDArray[np.float64]


def fold(config: CometConfig, tensors: Tensors) -> tuple[dict[str, Reals], tuple[float, ...], float]:
    """Folded weights, and public bounds of attention's values and of the logits."""
    e = config.encoder

    def get(name: str) -> tuple[Reals, Reals]:
        return tensors[name + ".weight"].astype(np.float64), tensors[name + ".bias"].astype(np.float64)

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
        folded[target + "qkv.weight"] = np.concatenate([w * gamma for w, _ in parts])
        folded[target + "qkv.bias"] = np.concatenate([w @ beta + b for w, b in parts])
        folded[target + "threshold"] = _thresholds(config, tensors, i)
        output, bias = get(source + "attention_output")
        folded[target + "output.weight"], folded[target + "output.bias"] = output, bias + beta
        folded[target + "first.gamma"] = gamma
        gamma, beta = get(source + "attention_norm")
        if config.activation.normalised:
            up, up_bias, down = normalised_neurons(tensors, i)
        else:
            scale, (up, up_bias), down = neuron_scale(config, i), get(source + "up"), get(source + "down")[0]
            up, up_bias, down = up / scale, up_bias / scale, down * scale
        folded[target + "up.weight"], folded[target + "up.bias"] = up * gamma, up @ beta + up_bias
        folded[target + "down.weight"], folded[target + "down.bias"] = down, get(source + "down")[1] + beta
        folded[target + "second.gamma"] = gamma
        gamma, beta = get(source + "output_norm")
    pooler, bias = get("pooler")
    folded["pooler.weight"], folded["pooler.bias"] = pooler * gamma, pooler @ beta + bias
    folded["classifier.weight"], folded["classifier.bias"] = get("classifier")
    row_sums = np.abs(folded["classifier.weight"]).sum(axis=1) + np.abs(folded["classifier.bias"])
    return folded, tuple(value_bounds), power_of_two_above(1.1 * float(np.max(row_sums)))


def _thresholds(config: CometConfig, tensors: Tensors, layer: int) -> Reals:
    """(heads, 1); with relative positions (heads, buckets), their bias taken off. In the certified form they are
    clamped, so that scores keep their range whatever the bias is: `unified` trains the same."""
    e = config.encoder
    thresholds = np.zeros((e.heads, max(1, e.buckets)))
    if e.buckets:
        thresholds -= tensors["relative_positions"].astype(np.float64).T
    if not config.attention.cosine:
        return thresholds
    return np.clip(thresholds + tensors[f"layers.{layer}.thresholds"].astype(np.float64)[:, None], -1.0, 1.0)


def neuron_scale(config: CometConfig, layer: int) -> float:
    """What neurons that are not normalised are divided by: a power of two above all that calibration allows."""
    return power_of_two_above(math.sqrt(config.sites[f"layers.{layer}.activation"].rule.high))


def check_fixed(shape: EncoderShape, rules: EncoderRules, fixed: Mapping[str, Weight]) -> None:
    """Proves the bounds again for the weights as they are served, rounded to fixed point.

    n has norm √d·(1 + SLACK) at most and mean zero; coordinates of queries and keys are rounded once more.
    """
    d = shape.hidden
    size = math.sqrt(d) * (1.0 + SLACK)

    def real(name: str) -> Reals:
        weight = fixed[name]
        assert weight.values is not None
        return np.asarray(weight.values * 2.0**-weight.fraction)

    def centred(matrix: Reals) -> Reals:
        return np.asarray(matrix - matrix.mean(axis=-1, keepdims=True))

    for i in range(shape.layers):
        layer = f"layer.{i}."
        weight, bias = real(layer + "qkv.weight"), real(layer + "qkv.bias")
        limits = {"value": (weight[2 * d :], bias[2 * d :], rules.layers[i].value_bound)}
        limits["up"] = (real(layer + "up.weight"), real(layer + "up.bias"), 1.0 + 2.0**-8 - 2.0**-12)
        for name, (rows, shift, limit) in limits.items():
            if float(np.max(np.linalg.norm(centred(rows), axis=1) * size + np.abs(shift))) > limit:
                raise CheckpointError(f"layer {i}: rounded to fixed point, {name} may leave its certified range")
        head = d // shape.heads
        limit = rules.layers[i].query_bound - math.sqrt(head) * 2.0**-13
        for start in range(0, 2 * d, head):
            rows, shift = weight[start : start + head], bias[start : start + head]
            if float(np.linalg.norm(centred(rows), 2)) * size + float(np.linalg.norm(shift)) > limit:
                raise CheckpointError(f"layer {i}: rounded to fixed point, a query or key may leave its range")
    bound = math.sqrt(rules.pooler.high - 1.0)
    if (
        float(np.max(np.linalg.norm(centred(real("pooler.weight")), axis=1) * size + np.abs(real("pooler.bias"))))
        > bound
    ):
        raise CheckpointError("rounded to fixed point, the pooler may leave its certified range")


def plain_states(
    rows: Reals,
    mask: Reals,
    shape: EncoderShape,
    rules: EncoderRules,
    w: Mapping[str, Reals],
    *,
    exact: bool = False,
) -> list[Reals]:
    """`transformer.classify` in real arithmetic, through its rules or with exact functions.

    The normalised rows after every layer, then the logits.
    """

    def root(rule: object, t: Reals) -> Reals:
        """1/sqrt(t)."""
        return np.asarray(1.0 / np.sqrt(t) if exact or not callable(rule) else rule(t))

    def norm(x: Reals, rule: object) -> Reals:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True) + rules.epsilon
        if exact or not callable(rule):
            return np.asarray(centred / np.sqrt(variance))
        shrink = shape.hidden / 2 ** math.ceil(math.log2(shape.hidden))
        return np.asarray(centred * shrink * rule(variance * shrink**3))

    def smu(x: Reals, form: Smu, rule: object) -> Reals:
        t = form.factor * x**2 + np.square(form.mu)
        return np.asarray(0.5 * (1.0 + form.alpha) * x + 0.5 * t * root(rule, t))

    def linear(x: Reals, name: str) -> Reals:
        return np.asarray(x @ w[name + ".weight"].T + w[name + ".bias"])

    d = shape.hidden
    batch, tokens, _ = rows.shape
    places = position_buckets(tokens, shape.buckets)
    states = []
    for i in range(shape.layers):
        layer, own, form = f"layer.{i}.", rules.layers[i], rules.layers[i].attention
        qkv = (
            linear(rows, layer + "qkv")
            .reshape(batch, tokens, 3, shape.heads, d // shape.heads)
            .transpose(2, 0, 3, 1, 4)
        )
        q, k, v = qkv
        if form.cosine:
            q, k = (z * root(form.norms, (z**2).sum(axis=-1, keepdims=True)) for z in (q, k))
        else:
            q = q / math.sqrt(q.shape[-1])
        scores = (q @ k.swapaxes(-1, -2) - w[layer + "threshold"][:, places]) / form.score_scale
        r = smu(scores, form.smu, form.scores) ** form.power * mask[:, None, None, :]
        scale = 2.0 ** math.ceil(math.log2(tokens))
        reciprocal = root(form.denominators, (r.sum(axis=-1, keepdims=True) + form.floor) / scale)
        context = (r @ v / scale * reciprocal**2).transpose(0, 2, 1, 3).reshape(rows.shape)
        rows = norm(linear(context, layer + "output") + w[layer + "first.gamma"] * rows, own.variances[0])
        active = smu(linear(rows, layer + "up"), own.activation, own.activation_rule)
        rows = norm(linear(active, layer + "down") + w[layer + "second.gamma"] * rows, own.variances[1])
        states.append(rows)
    pooled = linear(rows[:, 0], "pooler")
    squashed = pooled * root(rules.pooler, 1.0 + pooled**2)
    return [*states, linear(squashed, "classifier")]
