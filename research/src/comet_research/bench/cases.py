"""Which operations are measured, by which methods, on which inputs.

A method computes the same kind of thing by other means, and may have a domain of its own: inputs are drawn inside
it, and its error is taken against the exact function that it stands for. The module is long because it is a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

import comet_research.functions  # noqa: F401 -- registers their names
from comet_mpc.engine import Session, Weight
from comet_mpc.engine.share import CLIENT, Reals, Share, concatenate, ring_width
from comet_mpc.errors import ConfigurationError
from comet_mpc.functions.activation import smu, smu_rule
from comet_mpc.functions.attention import AttentionForm, attention, certified_form, paper_form, plain_attention
from comet_mpc.functions.layer_norm import layer_norm, layer_norm_rule
from comet_mpc.functions.root_rule import DEGREES
from comet_mpc.functions.rule import Smu, inverse_sqrt
from comet_mpc.functions.rules import make_rule
from comet_research.functions import baselines

Values = Mapping[str, Reals]
Shares = Mapping[str, Share]
Weights = Mapping[str, Weight]
T = TypeVar("T")

HIDDEN, INNER, HEADS, HEAD = 768, 3072, 12, 64
"""One layer of BERT-base."""
MATRICES = ((3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
"""Of a layer: queries, keys and values, which share their input; what follows attention; to the neurons and back."""

_SEED = 2024
_FRACTION = 12
_SCORES = 4.0  # |q·k/√d| in the forms that need a claim


@dataclass(frozen=True)
class Case:
    operation: str
    method: str
    tokens: int = 128
    steps: int = 3
    seed: int = _SEED
    matrix: tuple[int, int] = (INNER, HIDDEN)
    """Of the operation linear: outputs and inputs."""


@dataclass(frozen=True)
class Built:
    """A case as a program. `draw` makes the client's values, `share` their shares of the same names, `draw_weights` the
    server's part."""

    shape: tuple[int, ...]
    domain: str
    draw: Callable[[np.random.Generator], dict[str, Reals]]
    share: Callable[[Session, Values], dict[str, Share]]
    program: Callable[[Session, Shares, Weights], Share]
    reference: Callable[[Values, Values], Reals]
    leaks: bool = False
    steps: int | None = None
    weights: tuple[Weight, ...] = ()
    """Without values: name, shape, scale and gain."""
    draw_weights: Callable[[np.random.Generator], dict[str, Reals]] = field(default=lambda generator: {})


Maker = Callable[[Case], Built]


def _rounded(values: Reals, fraction: int) -> Reals:
    return np.rint(values * 2.0**fraction) * 2.0**-fraction


def _unary(
    shape: tuple[int, ...],
    interval: tuple[float, float],
    domain: str,
    apply: Callable[[Session, Share], Share],
    reference: Callable[[Reals], Reals],
    *,
    fraction: int = _FRACTION,
    logarithmic: bool = False,
    leaks: bool = False,
    steps: int | None = None,
) -> Built:
    """A function of one tensor, uniform (or log-uniform) in an interval."""
    low, high = interval

    def draw(generator: np.random.Generator) -> dict[str, Reals]:
        ends = (math.log(low), math.log(high)) if logarithmic else interval
        drawn = generator.uniform(*ends, shape)
        return {"x": np.clip(_rounded(np.exp(drawn) if logarithmic else drawn, fraction), low, high)}

    return Built(
        shape,
        domain,
        draw,
        lambda session, values: {"x": session.private(CLIENT, shape, fraction, max(-low, high), values.get("x"))},
        lambda session, shares, _: apply(session, shares["x"]),
        lambda values, _: reference(values["x"]),
        leaks,
        steps,
    )


def _inverse_sqrt(name: str, iterations: int | None = None, interval: tuple[float, float] = (1 / 16, 16.0)) -> Maker:
    def make(case: Case) -> Built:
        steps = case.steps if iterations is None else iterations
        rule = make_rule(name, *interval, steps).inverse()
        return _unary(
            (case.tokens, INNER),
            interval,
            f"t in [{interval[0]:g}, {interval[1]:g}]",
            lambda session, t: session.truncate_to(inverse_sqrt(session, t, rule), 14),
            lambda t: 1.0 / np.sqrt(t),
            fraction=16,
            logarithmic=True,
            leaks=name == "paper",
            steps=steps,
        )

    return make


def _activation(apply: Callable[[Session, Share], Share], bound: float, reference: Callable[[Reals], Reals]) -> Maker:
    return lambda case: _unary((case.tokens, INNER), (-bound, bound), f"|x| <= {bound:g}", apply, reference)


_ACTIVATIONS = {
    "paper": (Smu(1 / 4), 3.0),
    "exponential": (Smu(1 / 4), 3.0),
    "taylor7": (Smu(1 / 2), 1.1),
    "taylor2": (Smu(1 / 2), 1.1),
}
"""Forms and ranges in which the rules of others converge."""


def _smu(name: str, iterations: int | None = None) -> Maker:
    """The certified form, whose neurons are normalised, or the paper's."""
    paper = name == "paper"
    form, bound = _ACTIVATIONS.get(name, (Smu(1 / 16), 1.0))

    def make(case: Case) -> Built:
        steps = case.steps if iterations is None else iterations
        rule = smu_rule(form, bound, steps, name=name)
        return _unary(
            (case.tokens, INNER),
            (-bound, bound),
            f"|x| <= {bound:g}, mu {form.mu:g}",
            lambda session, x: smu(session, x, form, rule, fraction=_FRACTION),
            form,
            leaks=paper,
            steps=None if name in DEGREES else steps,
        )

    return make


def _gelu(x: Reals) -> Reals:
    return np.asarray(0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0))))


def _gelu_of_tanh(x: Reals) -> Reals:
    return np.asarray(0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))))


_ATTENDED = ("q", "k", "v", "mask")


def _attention(
    case: Case,
    apply: Callable[[Session, Share, Share, Share, Share], Share],
    reference: Callable[[Reals, Reals, Reals, Reals], Reals],
    domain: str,
    *,
    unit: bool = False,
    steps: int | None = None,
    leaks: bool = False,
) -> Built:
    """From shares of q, k, v and the padding mask to the context. unit: norms of q and k are at most 1."""
    shape = (HEADS, case.tokens, HEAD)
    fractions = {"q": 18 if unit else _FRACTION, "k": 18 if unit else _FRACTION, "v": _FRACTION}
    bounds = {"q": 1.0 if unit else 3.0, "k": 1.0 if unit else 3.0, "v": 3.0}

    def draw(generator: np.random.Generator) -> dict[str, Reals]:
        values = {name: np.clip(generator.normal(0.0, 0.7, shape), -3.0, 3.0) for name in fractions}
        largest = np.max(np.abs(values["q"] @ values["k"].swapaxes(-1, -2))) / math.sqrt(HEAD)
        values["q"] *= min(1.0, 0.99 * _SCORES / largest)  # what is claimed of scores holds
        if unit:
            for name in ("q", "k"):
                values[name] /= 1.001 * np.max(np.linalg.norm(values[name], axis=-1))
        values = {name: _rounded(array, fractions[name]) for name, array in values.items()}
        mask = (np.arange(case.tokens) < math.ceil(0.75 * case.tokens)).astype(np.float64)
        return {**values, "v": values["v"] * mask[:, None], "mask": mask}  # values of padding are zero

    def share(session: Session, values: Values) -> dict[str, Share]:
        shares = {n: session.private(CLIENT, shape, fractions[n], bounds[n], values.get(n)) for n in fractions}
        return {**shares, "mask": session.private(CLIENT, (case.tokens,), 0, 1.0, values.get("mask"))}

    return Built(
        shape,
        domain,
        draw,
        share,
        lambda session, shares, _: apply(session, *(shares[name] for name in _ATTENDED)),
        lambda values, _: reference(*(values[name] for name in _ATTENDED)),
        leaks=leaks,
        steps=steps,
    )


def _formed_attention(
    make_form: Callable[[int], AttentionForm],
    domain: str,
    *,
    unit: bool = False,
    iterations: int | None = None,
    leaks: bool = False,
) -> Maker:
    def make(case: Case) -> Built:
        steps = case.steps if iterations is None else iterations
        form = make_form(steps)
        return _attention(
            case,
            lambda session, q, k, v, m: attention(session, q, k, v, form, mask=m, fraction=_FRACTION),
            lambda q, k, v, m: plain_attention(q, k, v, form, mask=m),
            domain,
            unit=unit,
            steps=steps,
            leaks=leaks,
        )

    return make


def _unified_attention(name: str, iterations: int, mu: float = _SCORES / 16) -> Maker:
    """s-Softmax* with the roots of its scores by a rule of others."""
    return _formed_attention(
        lambda steps: paper_form(steps, mu=mu, score_bound=_SCORES, name=name),
        f"|q·k/√d| <= {_SCORES:g}, mu {mu:g}",
        iterations=iterations,
        leaks=name == "paper",
    )


def _baseline_attention(apply: Callable[..., Share], weigh: Callable[[Reals], Reals]) -> Maker:
    """Attention whose weights are in proportion to `weigh` of the scores."""

    def exact(q: Reals, k: Reals, v: Reals, mask: Reals) -> Reals:
        weights = weigh(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) * mask
        return np.asarray(weights @ v / weights.sum(axis=-1, keepdims=True))

    return lambda case: _attention(
        case,
        lambda session, q, k, v, m: apply(session, q, k, v, score_bound=_SCORES, mask=m),
        exact,
        f"|q·k/√d| <= {_SCORES:g}",
    )


def _layer_norm(name: str, steps: int | None = None, variances: tuple[float, float] = (0.15, 24.0)) -> Maker:
    def make(case: Case) -> Built:
        shape = (case.tokens, HIDDEN)
        rule = layer_norm_rule(HIDDEN, *variances, steps, name=name)

        def draw(generator: np.random.Generator) -> dict[str, Reals]:
            low, high = 0.5 * math.log(1.6 * variances[0]), 0.5 * math.log(variances[1] / 1.5)
            spread = np.exp(generator.uniform(low, high, (case.tokens, 1)))
            return {"x": np.clip(_rounded(spread * generator.normal(0.0, 1.0, shape) + 0.1, _FRACTION), -31.0, 31.0)}

        def exact(values: Values, _: Values) -> Reals:
            x = values["x"]
            return np.asarray((x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-12))

        return Built(
            shape,
            f"variance in [{variances[0]:g}, {variances[1]:g}]",
            draw,
            lambda session, values: {"x": session.private(CLIENT, shape, _FRACTION, 32.0, values.get("x"))},
            lambda session, shares, _: layer_norm(session, shares["x"], rule, fraction=_FRACTION),
            exact,
            leaks=name == "paper",
            steps=steps if rule.counted_steps is None else rule.counted_steps,
        )

    return make


def _linear(case: Case) -> Built:
    outputs, inputs = case.matrix
    shape = (case.tokens, inputs)
    weight = Weight("linear", case.matrix, 16, INNER / 32)
    cut = ring_width(_FRACTION, 8.0 * weight.gain)

    def draw(generator: np.random.Generator) -> dict[str, Reals]:
        return {"x": np.clip(_rounded(generator.normal(0.0, 1.0, shape), _FRACTION), -8.0, 8.0)}

    def draw_weights(generator: np.random.Generator) -> dict[str, Reals]:
        return {"linear": _rounded(np.clip(generator.normal(0.0, 0.02, weight.shape), -0.1, 0.1), 16)}

    def program(session: Session, shares: Shares, weights: Weights) -> Share:
        given = session.give(shares["x"].narrow(cut + weight.fraction))
        return session.truncate(session.linear(given, weights["linear"]), weight.fraction, cut)  # free, as in a model

    return Built(
        shape,
        f"|x| <= 8, W {outputs}×{inputs}",
        draw,
        lambda session, values: {"x": session.private(CLIENT, shape, _FRACTION, 8.0, values.get("x"))},
        program,
        lambda values, weights: values["x"] @ weights["linear"].T,
        weights=(weight,),
        draw_weights=draw_weights,
    )


def _layer(method: str, row_method: str | None = None) -> Maker:
    """All that a layer has, in its order, as one program for which one bundle is prepared.

    Every part has inputs of its own, since methods have domains of their own: costs do not depend on inputs.
    row_method: of the LayerNorms, if another
    """

    def make(case: Case) -> Built:
        norm = replace(case, operation="layer_norm", method=row_method or method)
        attend, activate = (replace(case, operation=name, method=method) for name in ("attention", "activation"))
        project, merge, up, down = (
            replace(case, operation="linear", method="server_weights", matrix=matrix) for matrix in MATRICES
        )
        return _together([build(part) for part in (project, attend, merge, norm, up, activate, down, norm)])

    return make


def _together(parts: Sequence[Built]) -> Built:
    """Several programs as one. Its result is all of theirs in a row, its shape the first one's."""

    def all_of(found: Iterable[Mapping[str, T]]) -> dict[str, T]:
        return {f"{place}.{name}": value for place, one in enumerate(found) for name, value in one.items()}

    def own(found: Mapping[str, T], place: int) -> dict[str, T]:
        """What is a part's, by the names that it knows."""
        start = f"{place}."
        return {name.removeprefix(start): value for name, value in found.items() if name.startswith(start)}

    def program(session: Session, shares: Shares, weights: Weights) -> Share:
        results = [part.program(session, own(shares, i), own(weights, i)) for i, part in enumerate(parts)]
        return concatenate([result.reshape(result.count) for result in results], axis=0)

    return Built(
        parts[0].shape,
        "those of its parts",
        lambda generator: all_of(part.draw(generator) for part in parts),
        lambda session, values: all_of(part.share(session, own(values, i)) for i, part in enumerate(parts)),
        program,
        lambda values, weights: np.concatenate(
            [part.reference(own(values, i), own(weights, i)).ravel() for i, part in enumerate(parts)]
        ),
        leaks=any(part.leaks for part in parts),
        weights=tuple(replace(each, name=f"{i}.{each.name}") for i, part in enumerate(parts) for each in part.weights),
        draw_weights=lambda generator: all_of(part.draw_weights(generator) for part in parts),
    )


def _pair(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    fraction: int,
    inner: int,
    multiply: Callable[[Session, Share, Share], Share],
    reference: Callable[[Reals, Reals], Reals],
) -> Built:
    """A product of two tensors of the client's, |x|, |y| <= 4; sums have `inner` terms."""
    width = ring_width(2 * fraction, 16.0 * inner)
    named = dict(zip("xy", shapes, strict=True))

    def draw(generator: np.random.Generator) -> dict[str, Reals]:
        return {name: _rounded(generator.uniform(-4.0, 4.0, shape), fraction) for name, shape in named.items()}

    def share(session: Session, values: Values) -> dict[str, Share]:
        return {
            name: session.private(CLIENT, shape, fraction, 4.0, values.get(name)).narrow(width)
            for name, shape in named.items()
        }

    return Built(
        shapes[0],
        f"|x|, |y| <= 4, y {'×'.join(map(str, shapes[1]))}",
        draw,
        share,
        lambda session, shares, _: session.truncate_to(multiply(session, shares["x"], shares["y"]), fraction),
        lambda values, _: reference(values["x"], values["y"]),
    )


def _matmul(case: Case) -> Built:
    shapes = ((HEADS, case.tokens, HEAD), (HEADS, HEAD, case.tokens))
    return _pair(shapes, _FRACTION, HEAD, lambda session, x, y: session.matmul(*session.open(x, y)), np.matmul)


def _multiply(case: Case) -> Built:
    shape = (case.tokens * 8192,)

    def product(session: Session, x: Share, y: Share) -> Share:
        left, right = session.open(x, y)
        return session.product(left, right)

    return _pair((shape, shape), 16, 1, product, np.multiply)


def _truncation(case: Case) -> Built:
    limit = 2.0**20
    return _unary(
        (case.tokens * 8192,),
        (-limit, limit),
        "|x| <= 2^20, 32 to 16 bits",
        lambda session, x: session.truncate(x, 16),
        lambda x: x,
        fraction=32,
    )


_TAYLOR = (1 / 4, 7 / 4)  # the series around 1 is of use between 0 and 2

OPERATIONS: Mapping[str, Mapping[str, Maker]] = {
    "inverse_sqrt": {
        "minimax": _inverse_sqrt("minimax"),
        "paper": _inverse_sqrt("paper", 4),
        "exponential": _inverse_sqrt("exponential", 10),
        "exponential3": _inverse_sqrt("exponential", 3),
        "taylor7": _inverse_sqrt("taylor7", 2, _TAYLOR),
        "taylor2": _inverse_sqrt("taylor2", 8, _TAYLOR),
        "table": _inverse_sqrt("table", 1),
        "reference": _inverse_sqrt("reference", 8),
    },
    "activation": {
        "minimax": _smu("minimax"),
        "linear": _smu("linear"),
        "quadratic": _smu("quadratic"),
        "quartic": _smu("quartic"),
        "table": _smu("table", 1),
        "paper": _smu("paper", 4),
        "exponential": _smu("exponential", 10),
        "taylor7": _smu("taylor7", 2),
        "taylor2": _smu("taylor2", 8),
        "gelu_tanh": _activation(baselines.gelu_tanh, baselines.GELU_TANH_BOUND, _gelu_of_tanh),
        "gelu_piecewise": _activation(baselines.gelu_piecewise, baselines.GELU_PIECEWISE_BOUND, _gelu),
        "gelu_erf": _activation(baselines.gelu_erf, baselines.GELU_ERF_BOUND, _gelu),
        "quad": _activation(baselines.quad, 4.0, lambda x: np.asarray(0.125 * x**2 + 0.25 * x + 0.5)),
    },
    "attention": {
        "minimax": _formed_attention(certified_form, "|q|, |k| <= 1", unit=True),
        "quadratic": _formed_attention(
            lambda steps: certified_form(steps, name="quadratic"), "|q|, |k| <= 1", unit=True
        ),
        "paper_form": _formed_attention(
            lambda steps: paper_form(steps, mu=_SCORES / 16, score_bound=_SCORES), f"|q·k/√d| <= {_SCORES:g}"
        ),
        "paper": _unified_attention("paper", 4, _SCORES / 2),
        "exponential": _unified_attention("exponential", 10),
        "taylor7": _unified_attention("taylor7", 2, _SCORES / 2),
        "taylor2": _unified_attention("taylor2", 8, _SCORES / 2),
        "table": _unified_attention("table", 1),
        "softmax": _baseline_attention(baselines.softmax_attention, np.exp),
        "quad2": _baseline_attention(baselines.quad2_attention, lambda s: (s + baselines.QUAD2_SHIFT) ** 2),
    },
    "layer_norm": {
        "minimax": _layer_norm("minimax"),
        "exponential": _layer_norm("exponential", 10),
        "table": _layer_norm("table", 1),
        "paper": _layer_norm("paper", 4),
        "taylor7": _layer_norm("taylor7", 2, (0.6, 4.0)),
        "taylor2": _layer_norm("taylor2", 8, (0.6, 4.0)),
    },
    "linear": {"server_weights": _linear},
    "layer": {
        "minimax": _layer("minimax"),
        "quadratic": _layer("quadratic", "minimax"),
        "paper": _layer("paper"),
        "exponential": _layer("exponential"),
        "taylor7": _layer("taylor7"),
        "taylor2": _layer("taylor2"),
        "table": _layer("table"),
    },
    "matmul": {"triple": _matmul},
    "multiply": {"triple": _multiply},
    "truncation": {"exact": _truncation},
}


def choose(operations: list[str], methods: list[str], *, tokens: int = 128, steps: int = 3) -> list[Case]:
    """The cases with these operations and methods; an empty list stands for all."""
    for name in operations:
        if name not in OPERATIONS:
            raise ConfigurationError(f"unknown operation {name!r}: choose from {', '.join(OPERATIONS)}")
    chosen = {name: makers for name, makers in OPERATIONS.items() if not operations or name in operations}
    known = list(dict.fromkeys(method for makers in chosen.values() for method in makers))
    for name in methods:
        if name not in known:
            raise ConfigurationError(f"unknown method {name!r} of {', '.join(chosen)}: choose from {', '.join(known)}")
    if not 1 <= tokens <= 256:
        raise ConfigurationError(f"{tokens} tokens: choose 1 to 256")
    return [
        Case(operation, method, tokens, steps)
        for operation, makers in chosen.items()
        for method in makers
        if not methods or method in methods
    ]


def build(case: Case) -> Built:
    """The program of a case."""
    return OPERATIONS[case.operation][case.method](case)
