"""From a checkpoint's weights to its public rules: intervals whose tops hold for every input.

    site                        t                                       interval
    activation                  h² + μ², |h| <= 1 by B_j                one for all models, both ends certified
    scores                      s² + μ², |s| <= 1 (halved)              one for all models, both ends certified
    norms                       ‖q‖²/B², B the head's bound             [2^-12, 1], top certified
    denominators                Σ R / 2^⌈log2 n⌉                        [2^-14, top of R], top certified
    embeddings.norm,            variance                                top from the weights, rounded up to a power of
    layers.i.attention_norm,                                            two; the low end 2^-12 of it, or what
    layers.i.output_norm                                                calibration asks for
    output.norm                 mean square of an embedding             the same, where embeddings have length 1
    pooler                      1 + x²                                  [1, 1 + B²], both ends certified

Scaling row j of W₁ by 1/B_j and column j of W₂ by B_j (`fold.normalised_neurons`), and queries and keys by their heads'
bounds (`fold.normalised_queries`), costs nothing and publishes nothing: the scales are the server's.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from comet_mpc.errors import CheckpointError, RuleError
from comet_mpc.functions.activation import argument_interval, smu_rule, tanh_like_rule
from comet_mpc.functions.attention import LARGEST_SOFTNESS, denominator_rule, fitted_denominator_rule, norm_rule
from comet_mpc.functions.layer_norm import layer_norm_rule, shrink_factor, wide_layer_norm_rule
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.neurons import Quartics, Square
from comet_mpc.functions.rule import PRECISION, InverseRule, Rule, Smu
from comet_mpc.functions.rules import make_rule
from comet_mpc.functions.weighing import LARGEST_ACTIVATED
from comet_mpc.models.bounds import (
    SLACK,
    Weights,
    activation_bounds,
    attention_norm_top,
    attention_step,
    embedding_norm_top,
    image_norm,
    output_norm_top,
    polynomial_norm_top,
    power_of_two_above,
    quadratic_norm_top,
    state_top,
)
from comet_mpc.models.checkpoint import FITTED, CometConfig, Site
from comet_mpc.models.fitted.numbers import Quadratics, largest_weight, relative_softness
from comet_mpc.models.fitted.quartics import Depressed, polynomials
from comet_mpc.threads import small_matrices

Told = Callable[[int, int], None]
Tensors = Mapping[str, npt.NDArray[np.float32]]

_RATIO = 2.0**-12
"""Low end of a row quantity's interval over its top, unless calibration asks for another."""
_ROW_STEPS = 6
"""Of row quantities whose interval is too wide for a rule of few steps, or not certified."""
_WIDEST = 2.0**-22
"""The least such ratio. Some encoders have a few tokens that are hundreds of times longer than the others."""
_MARGIN = 1.05
_SMALLEST_TOP = 0.25
_NORMS = (_RATIO, (1.0 + SLACK) ** 2)
_UNIT = 1.0 + 2.0**-8
"""|x| of a normalised neuron and of a halved score, with room for rounding."""
_BELOW = 1.2
"""What was seen least over a calibrated low end, below which a value only costs accuracy."""


def smu_rules(config: CometConfig, precision: int = PRECISION) -> tuple[Rule, Rule]:
    """Of activations, with so many fraction bits, and of scores, by the configuration's kind of rule."""
    activation, scores = (
        smu_rule(form, _UNIT, config.steps, name=config.rule, emphasis=config.emphasis, precision=bits)
        for form, bits in zip(_smus(config), (precision, PRECISION), strict=True)
    )
    if not activation.certified:
        raise CheckpointError("a certified form needs rules whose ranges and errors are proved")
    return activation, scores


def universal_rules(config: CometConfig, precision: int = PRECISION) -> dict[str, Rule]:
    """Rules that do not depend on the weights. precision: of neurons (`root_rule`).

    The denominators' top follows from what the scores' rule can give. Where steps are counted they get one more, since
    their interval is wider. Fitted functions are no rules: they have none.
    """
    rules: dict[str, Rule] = {}
    if {"activation", "scores"} & _rule_sites(config):
        both = dict(zip(("activation", "scores"), smu_rules(config, precision), strict=True))
        rules = {name: rule for name, rule in both.items() if name in _rule_sites(config)}
    steps = config.row_steps + 1 if config.row_steps else None
    if config.attention.kind == FITTED:
        return rules
    return rules | {
        "norms": norm_rule(*_NORMS, config.row_steps or None),
        "denominators": denominator_rule(_largest_weight(config, rules["scores"]), steps),
    }


def _rule_sites(config: CometConfig) -> set[str]:
    """Where the form takes roots, beside those of rows."""
    sites = {"activation"} if config.activation.kind == "smu" or config.pooler == "smu" else set[str]()
    return sites | ({"scores"} if config.attention.kind == "smu" else set())


def fitted_attention_rules(config: CometConfig, tensors: Tensors) -> dict[str, Rule]:
    """Rules of rows that fitted attention needs: the softness of heads and the largest of their weights, both to a
    power of two, are what their intervals say of the model."""
    e = config.encoder
    least = min(float(np.min(relative_softness(tensors, i, e.heads))) for i in range(e.layers))
    low = 2.0 ** math.floor(math.log2(min(max(least, _RATIO), 0.25)))
    top, steps = largest_weight(tensors, e.layers, e.heads), config.row_steps
    return {
        "norms": norm_rule(low, _NORMS[1] + LARGEST_SOFTNESS, steps or None),
        "denominators": fitted_denominator_rule(top, config.attention.power, steps + 1 if steps else None),
    }


def _smus(config: CometConfig) -> tuple[Smu, Smu]:
    """Of neurons and of scores, both of which are within ±_UNIT."""
    return Smu(config.activation.mu, config.activation.alpha), Smu(config.attention.mu / 2.0)


def _largest_weight(config: CometConfig, scores: Rule) -> float:
    """smu(s)² at most, by that rule; 2^-10 is more than rounding adds there, at the interval's upper end."""
    largest = float(_smus(config)[1](_UNIT)) + _root_error(scores) / 2.0 + 2.0**-10
    if largest > LARGEST_ACTIVATED:
        raise CheckpointError(
            f"attention's mu is too large, or its rule too coarse: smu(s) may reach {largest:.3g} times its range, "
            f"{LARGEST_ACTIVATED:g} is allowed"
        )
    return largest**2


def _root_error(rule: Rule) -> float:
    """max |root - sqrt(t)| over the interval, in real arithmetic."""
    return rule.root_error * float(np.sqrt(rule.high))


def norm_sites(config: CometConfig) -> list[str]:
    """LayerNorms, in the order of evaluation, and what scales an embedding."""
    parts = ("attention_norm", "output_norm")
    layers = [f"layers.{i}.{part}" for i in range(config.encoder.layers) for part in parts]
    return ["embeddings.norm", *layers, *(["output.norm"] if config.head.unit else [])]


def _silent(done: int, total: int) -> None:
    """Nobody wants to know how far it is."""


def variance_tops(
    config: CometConfig, tensors: Tensors, activation: Rule | None, denominators: InverseRule, told: Told = _silent
) -> dict[str, float]:
    """The largest variance before every LayerNorm, for every input, by these rules.

    With pre-normalised blocks: of what the stream begins with, and all that was added to it.
    """
    e, weights, error = config.encoder, Weights(tensors), _weight_error(denominators)
    if e.stream:
        norm = image_norm(weights["embeddings.patches"], weights["embeddings.positions"])
        tops = {"embeddings.norm": norm**2 / e.hidden}
    else:
        tables = [weights[f"embeddings.{part}"] for part in ("words", "positions", *(("types",) if e.types else ()))]
        tops = {"embeddings.norm": embedding_norm_top(tables)}
    for i in range(e.layers):
        told(i, e.layers)
        layer, (gamma, beta) = f"layers.{i}", weights.before(i)
        value, output = weights.pair(f"{layer}.value"), weights.pair(f"{layer}.attention_output")
        neurons = _neurons_top(config, tensors, i, activation)
        if e.stream:
            norm += attention_step(value, output, gamma, beta, e.heads, weight_error=error)
            attention = norm**2 / e.hidden
            norm += math.sqrt(e.hidden * neurons)
            neurons = norm**2 / e.hidden
        else:
            attention = attention_norm_top(value, output, gamma, beta, e.heads, weight_error=error)
        tops |= {f"{layer}.attention_norm": attention, f"{layer}.output_norm": neurons}
    told(e.layers, e.layers)
    if config.head.unit:  # a mean of a text's states is no longer than the longest of them
        tops["output.norm"] = state_top(*weights.before(e.layers))
    return tops


def _weight_error(denominators: InverseRule) -> float:
    """By how much more than 1 attention's weights may add up to."""
    return (1.0 + denominators.error + denominators.rounding) ** 2 - 1.0


def _neurons_top(config: CometConfig, tensors: Tensors, index: int, rule: Rule | None) -> float:
    """The variance behind a layer's neurons; with a stream, of what they add. rule: of smu, if that is their form"""
    weights, layer = Weights(tensors), f"layers.{index}"
    gamma, beta = weights.pair(f"{layer}.attention_norm")
    skips = not config.encoder.stream
    up, down = weights.pair(f"{layer}.up"), weights.pair(f"{layer}.down")
    if config.activation.kind == FITTED and config.activation.degree == 4:
        found = Depressed.of(tensors, index)
        off = np.abs(found.leading) * Quartics.rounding + found.off
        own_polynomials = polynomials(tensors, index)
        return polynomial_norm_top(up, down, gamma, beta, own_polynomials, activation_error=off, skips=skips)
    if config.activation.kind == FITTED:
        own = Quadratics.of(tensors, index)
        shift = own.shift(activation_bounds(*up, gamma, beta), index)
        scale = np.abs(own.curvature) * activation_bounds(up[0], up[1] + shift, gamma, beta) ** 2
        quadratics = (own.constant, own.slope, own.curvature)
        return quadratic_norm_top(
            up, down, gamma, beta, quadratics, activation_error=scale * Square.rounding, skips=skips
        )
    if rule is None:
        raise CheckpointError("no rule for the neurons")
    error = 0.5 * (_root_error(rule) + rule.root_rounding * math.sqrt(rule.high)) + 2.0**-11
    scale = activation_bounds(*up, gamma, beta)
    middle = scale * Smu(config.activation.mu, config.activation.alpha)((up[0] @ beta + up[1]) / scale)
    return output_norm_top(up, down, gamma, beta, middle, activation_error=scale * error, skips=skips)


def _interval_tops(
    config: CometConfig, tensors: Tensors, activation: Rule | None, denominators: InverseRule, told: Told = _silent
) -> dict[str, float]:
    """Tops of the LayerNorms' intervals, with room for weights that are rounded to fixed point, and for the rounding of
    a row's coordinates."""
    return {
        name: max(power_of_two_above(_MARGIN * (top + config.encoder.epsilon)), _SMALLEST_TOP)
        for name, top in variance_tops(config, tensors, activation, denominators, told).items()
    }


def _pooler_top(config: CometConfig, tensors: Tensors) -> float:
    """|x| at most, with room for rounding."""
    weights = Weights(tensors)
    bounds = activation_bounds(*weights.pair("pooler"), *weights.before(config.encoder.layers))
    return power_of_two_above(_MARGIN * float(np.max(bounds)) + 2.0**-5)


def _check_form(config: CometConfig) -> None:
    activation, attention = config.activation, config.attention
    computed = activation.kind in ("smu", FITTED) and attention.kind in ("smu", FITTED)
    if not (computed and activation.normalised and attention.cosine):
        raise CheckpointError(
            "only the certified form can be certified: smu or fitted functions, normalised neurons, cosine attention"
        )
    if activation.trainable or attention.trainable or attention.power == 1:
        raise CheckpointError("the certified form has power 2 (or fitted scores) and fixed α and μ")


@small_matrices()
def certify(
    config: CometConfig,
    tensors: Tensors,
    lows: Mapping[str, float] | None = None,
    precision: int = PRECISION,
    told: Told = _silent,
) -> CometConfig:
    """The configuration with a rule for every site.

    lows       smallest variances by site, from calibration
    precision  of neurons (`root_rule`)
    told       how many layers are proved, which takes most of the time, and of how many
    """
    _check_form(config)
    rules = universal_rules(config, precision)
    if config.attention.kind == FITTED:
        rules |= fitted_attention_rules(config, tensors)
    sites = {
        name: Site.of(rule, certified_high=True, certified_low=name in ("activation", "scores"))
        for name, rule in rules.items()
    }
    _check_scores(sites["norms"].inverse, config.encoder.hidden // config.encoder.heads)
    tops = _interval_tops(config, tensors, rules.get("activation"), sites["denominators"].inverse, told)
    for name, high in tops.items():
        low = max(min((lows or {}).get(name, high * _RATIO), high / 4), high * _WIDEST)
        rule = _variance_rule(config, low, high)
        _check_length(name, rule)
        sites[name] = Site.of(rule, certified_high=True, certified_low=False)
    if config.pooler == "algebraic":
        pooler = tanh_like_rule(_pooler_top(config, tensors), config.row_steps or None)
        sites["pooler"] = Site.of(pooler, certified_high=True, certified_low=True)
    return msgspec.structs.replace(config, sites=sites)


def _variance_rule(config: CometConfig, low: float, high: float) -> InverseRule:
    """In as few steps as there can be, or, where the interval is too wide for that, by tables; or in counted steps."""
    hidden = config.encoder.hidden
    if not config.row_steps:
        low = 2.0 ** math.floor(math.log2(low))
        with contextlib.suppress(RuleError):
            return layer_norm_rule(hidden, low, high)
        return wide_layer_norm_rule(hidden, low, high)
    steps = config.row_steps + max(0, math.ceil(0.5 * math.log2(high * _RATIO / low)))
    rule = layer_norm_rule(hidden, low, high, steps)
    while rule.overshoot - 1.0 > SLACK and low < high / 8:  # a wide interval in few steps is not accurate enough
        low *= 2.0
        rule = layer_norm_rule(hidden, low, high, steps)
    return rule


def _check_length(name: str, rule: InverseRule) -> None:
    """What every bound relies on: a LayerNorm's result is at most SLACK longer than √d."""
    if rule.overshoot - 1.0 > SLACK:
        raise CheckpointError(
            f"{name}: its rule errs by up to {rule.overshoot - 1.0:.2%}, allowed are {SLACK:.2%}: use more row steps"
        )


def _check_scores(norms: InverseRule, size: int) -> None:
    """Normalised queries and keys, rounded, still give scores within the interval of the scores' rule."""
    if (norms.overshoot + 2.0**-12 * math.sqrt(size) + 2.0**-13) ** 2 > 1.0 + 2.0**-7:
        raise CheckpointError("norms: the rule is not accurate enough for scores within [-1, 1]: use more row steps")


def calibrated(
    config: CometConfig,
    tensors: Tensors,
    seen: Mapping[str, tuple[float, ...]],
    *,
    margin: float = 2.0,
    precision: int = PRECISION,
    told: Told = _silent,
) -> CometConfig:
    """Intervals after a look at data. `seen`: five quantiles of t by site (`Site.seen`), a layer's own or universal.

    Certified form: tops stay certified from the weights, LayerNorms' low ends follow the data; precision: of neurons.
    Other forms: the top is the largest value seen times `margin`, which some other input may exceed.
    """
    if not config.certifiable:
        sites = {
            name: Site.of(rule, certified_high=False, certified_low=False, seen=quantiles)
            for name, quantiles in seen.items()
            if (rule := _calibrated_rule(config, name, seen, margin)) is not None
        }
        return msgspec.structs.replace(config, sites=sites)
    config = msgspec.structs.replace(config, row_steps=0)  # rules of today, whatever the checkpoint had
    names, shrink = norm_sites(config), shrink_factor(config.encoder.hidden) ** 3
    lows = {name: quantiles[0] / (1.5 * shrink) for name, quantiles in seen.items() if name in names}
    sites = dict(certify(config, tensors, lows, precision, told).sites)
    for name, q in seen.items():
        key = name if name in sites else name.rsplit(".", 1)[1]
        old = sites[key].seen or q
        merged = (min(old[0], q[0]), min(old[1], q[1]), (old[2] + q[2]) / 2, max(old[3], q[3]), max(old[4], q[4]))
        sites[key] = msgspec.structs.replace(sites[key], seen=merged)
    return msgspec.structs.replace(config, sites=sites)


def _calibrated_rule(
    config: CometConfig, name: str, seen: Mapping[str, tuple[float, ...]], margin: float
) -> Rule | None:
    """A rule for what was seen, and a margin: not certified. None for a site that only the certified form has.

    A denominator is a mean over the padded length, which is another for every batch: its top is that of the scores.
    """
    quantiles = seen[name]
    high, part, steps = quantiles[4] * margin, name.rsplit(".", 1)[-1], config.row_steps or _ROW_STEPS
    if part in ("activation", "scores"):
        low = max(quantiles[1] / _BELOW, high * 2.0**-9)
        return make_rule(config.rule, low, high, config.steps, root=True, emphasis=config.emphasis)
    if part == "denominators":
        score = math.sqrt(seen[name.replace(part, "scores")][4] * margin)
        high = 1.05 * score**config.attention.power + config.attention.floor
        return minimax_rule(max(quantiles[0] / (2.0 * _BELOW), high * _RATIO / 4), high, steps + 1)
    if part == "pooler":
        return tanh_like_rule(math.sqrt(max(high, 2.0) - 1.0), steps)
    if name in norm_sites(config):
        hidden = config.encoder.hidden
        shrink = shrink_factor(hidden) ** 3
        low, high = max(quantiles[0] / _BELOW, high * _RATIO) / shrink, high / shrink
        return layer_norm_rule(hidden, low, high, steps)
    return None


def check_ranges(config: CometConfig, tensors: Tensors, told: Told = _silent) -> None:
    """Proves again, from the weights and the very rules of the file, what the configuration claims. Fits nothing.

    Raises CheckpointError where it does not hold. The rules need not be those that `certify` would make today.
    told: how many layers are done, of how many
    """
    if not config.certified:
        raise CheckpointError(
            "the checkpoint is not in the certified form: not every range holds for every input, so it cannot be "
            "served. Make a certified one with `comet unify --form certified` and `comet finetune`"
        )
    _check_form(config)
    expected = {*_rule_sites(config), "norms", "denominators", *norm_sites(config)}
    expected |= {"pooler"} if config.pooler == "algebraic" else set()
    if expected != config.sites.keys():
        raise CheckpointError(f"sites are {sorted(config.sites)}, expected {sorted(expected)}")
    for name, site in config.sites.items():
        try:
            (site.rule if name in ("activation", "scores") else site.rule.inverse()).check()
        except RuleError as error:
            raise CheckpointError(f"{name}: {error}") from error
        if name.endswith("norm"):
            _check_length(name, site.inverse)
    for name, (low, high) in _intervals_in_force(config, tensors, told).items():
        rule = config.sites[name].rule
        if rule.high < high * (1.0 - 1e-9):
            raise CheckpointError(
                f"{name}: the interval's top is {rule.high:g}, but the weights allow {high:g}: "
                "run `comet calibrate` to certify the checkpoint again"
            )
        if rule.low > low * (1.0 + 1e-9):
            raise CheckpointError(f"{name}: the interval begins at {rule.low:g}, but smaller values occur")
    _check_scores(config.sites["norms"].inverse, config.encoder.hidden // config.encoder.heads)
    for i in range(config.encoder.layers):
        if config.attention.kind != FITTED and float(np.max(np.abs(tensors[f"layers.{i}.thresholds"]))) > 1.0:
            raise CheckpointError(f"layers.{i}.thresholds exceed 1: scores would leave their interval")


def _intervals_in_force(config: CometConfig, tensors: Tensors, told: Told) -> dict[str, tuple[float, float]]:
    """What every t can be, given the weights and what the configuration's own rules can give. Low ends that depend on
    the data are ∞: below their interval a value only costs accuracy."""
    sites, own = config.sites, _rule_sites(config)
    intervals = zip(("activation", "scores"), _smus(config), strict=True)
    both = {name: argument_interval(form, _UNIT) for name, form in intervals if name in own}
    activation = sites["activation"].rule if "activation" in own else None
    tops = _interval_tops(config, tensors, activation, sites["denominators"].inverse, told)
    tops = {name: top * shrink_factor(config.encoder.hidden) ** 3 for name, top in tops.items()}
    if config.attention.kind == FITTED:
        top = largest_weight(tensors, config.encoder.layers, config.encoder.heads)
        tops |= {"norms": _NORMS[1] + LARGEST_SOFTNESS, "denominators": top}
    else:
        tops |= {"norms": _NORMS[1], "denominators": _largest_weight(config, sites["scores"].rule)}
    if config.pooler == "algebraic":
        tops["pooler"] = 1.0 + _pooler_top(config, tensors) ** 2
    return both | {name: (math.inf, top) for name, top in tops.items()}
