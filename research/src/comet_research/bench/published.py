"""The paper's tables of cost, measured again on this engine: its numbers, ours, and why they differ.

Every function is measured at the size of one encoder layer, between real processes, and counted as often as the model
has it: an activation, an attention and two LayerNorms a layer. Attention has its two products in it, which the paper's
"Softmax" has not; they are the same for all methods. So are the matrices of the weights. The whole model is measured as
a layer in one piece, all functions and matrices in one bundle, and counted as often as there are layers; methods take
turns, so that what disturbs the machine disturbs all of them. The keys of a connection are counted once. BERT-base and
RoBERTa-base have one shape, so what the protocol costs is the same for both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from comet_mpc.engine.share import Reals
from comet_mpc.local.processes import Crew
from comet_mpc.offline.sources import DEALER, PAIR
from comet_mpc.progress import Tick, silent
from comet_research.bench.cases import MATRICES, Case
from comet_research.bench.operations import Record, measure, measure_in_turn
from comet_research.functions.flooding import Flooding, fast_inverse_sqrt, float_bits, flooded_shares

LAYERS = 12
LINEAR, EVERY = "linear", "every"
"""The function that is the same for every method, and what is then said of the method."""
LAYER = "layer"
"""All of them in one piece, counted as a whole model."""
BUMBLEBEE_CALLS = 14
"""Of GeLU, in the paper's comparison with BumbleBee."""
_REPEAT = 3
_COUNT = {"layer_norm": 2, "activation": 1, "attention": 1, LINEAR: 1, LAYER: 1}
_SOURCES = {"3": DEALER, "4": PAIR}
_OURS = {"layer_norm": "minimax", "activation": "quadratic", "attention": "quadratic", LAYER: "quadratic"}

Published = Mapping[str, tuple[float, float]]
"""By function: seconds and GB."""


def _row(*numbers: float) -> Published:
    names = ("layer_norm", "activation", "attention")
    return {name: (numbers[2 * i], numbers[2 * i + 1]) for i, name in enumerate(names)}


TABLES: Mapping[str, Mapping[str, Mapping[str, Published]]] = {
    "3": {
        "bert-base": {
            "exponential": _row(12.19, 2.14, 34.1, 6.28, 17.8, 3.28),
            "taylor7": _row(13.6, 2.33, 32.6, 5.82, 16.2, 3.19),
            "taylor2": _row(10.5, 2.03, 29.6, 5.57, 15.8, 3.09),
            "paper": _row(3.32, 0.94, 7.92, 1.83, 5.7, 1.58),
            "ours": {},
        },
        "roberta-base": {
            "exponential": _row(14.19, 2.6, 36.3, 7.4, 18.2, 3.34),
            "taylor7": _row(13.9, 2.32, 34.7, 7.31, 17.6, 3.19),
            "taylor2": _row(13.3, 2.21, 30.9, 6.4, 15.1, 3.1),
            "paper": _row(5.81, 1.59, 9.1, 1.88, 6.9, 1.79),
            "ours": {},
        },
    },
    "4": {
        "bert-base": {
            "table": _row(48.2, 7.45, 134.3, 14.9, 82.6, 8.85),
            "paper": _row(15.3, 3.03, 26.8, 4.05, 20.4, 3.56),
            "ours": {},
        },
        "roberta-base": {
            "table": _row(52.3, 7.8, 127.9, 13.83, 77.6, 8.03),
            "paper": _row(14.2, 2.8, 28.5, 4.3, 18.9, 3.28),
            "ours": {},
        },
    },
}
"""By table, model and method."""

TOTAL_SECONDS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "3": {
        "bert-base": {"exponential": 74.8, "taylor7": 73.2, "taylor2": 70.6, "paper": 29.8},
        "roberta-base": {"exponential": 79.3, "taylor7": 75.7, "taylor2": 73.1, "paper": 34.8},
    },
    "4": {"bert-base": {"table": 289.6, "paper": 82.4}, "roberta-base": {"table": 290.1, "paper": 92.1}},
}
"""Of the whole model, in the paper."""

_WHY = {
    LINEAR: "The same for every method: the server knows its weights, so a product costs its input alone.",
    "layer_norm": "There is one root a row, so LayerNorm needs few bytes for it here, whatever the guess.",
    "activation": "A value is opened once here and truncated for a bit; CrypTen opens both operands of every product.",
    "attention": "Ours has both matrix products in it, and divides after the product with V.",
    LAYER: "All functions and matrices of a layer in one piece, twelve times; no embeddings, skips and head.",
}


class PublishedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One function of a whole model by one method. Bytes are both parties' together."""

    record: str = "published"
    table: str
    model: str
    function: str
    method: str
    private: bool
    tokens: int
    online_bytes: int
    offline_bytes: int
    """From a dealer; in table 4 between the two parties. Without the keys of the connection."""
    key_bytes: int = 0
    """Of the connection: once for a whole model, however many functions it has; so with their time below."""
    rounds: int
    seconds: float
    """Online, of all layers in a row."""
    offline_seconds: float = 0.0
    key_seconds: float = 0.0
    cpu_seconds: float
    """Online, the busier party's."""
    offline_cpu_seconds: float = 0.0
    """Both parties' together."""
    key_cpu_seconds: float = 0.0
    max_abs_error: float
    paper_seconds: float | None
    paper_bytes: float | None
    why: str
    repeat: int = 1
    """Runs of a function, of which times are the median."""


def measure_table(
    crew: Crew,
    table: str,
    tokens: int,
    known: Iterable[PublishedRecord] = (),
    progress: Tick = silent,
) -> Iterator[PublishedRecord]:
    """Every function by every method of a table that is not known yet, as it comes."""
    methods = list(dict.fromkeys(method for rows in TABLES[table].values() for method in rows))
    done = {
        (record.model, record.function, record.method, record.tokens)
        for record in known
        if record.table == table and record.repeat == _REPEAT
    }
    wanted = {
        (function, method): models
        for function in _COUNT
        for method in ([EVERY] if function == LINEAR else methods)
        if (models := [model for model in TABLES[table] if (model, function, method, tokens) not in done])
    }
    source, places = _SOURCES[table], itertools.count()
    layers = {method: _case(LAYER, method, tokens) for function, method in wanted if function == LAYER}
    total = len(wanted) + (_REPEAT - 1) * len(layers)

    def tell(case: Case) -> None:
        progress(next(places), total, f"{case.operation} by {case.method}")

    for (function, method), models in wanted.items():
        if function != LAYER:
            case = _case(function, method, tokens)
            tell(case)
            cases = [replace(case, matrix=matrix) for matrix in MATRICES] if function == LINEAR else [case]
            parts = [measure(crew, each, _REPEAT, source) for each in cases]
            yield from _published(table, function, method, tokens, models, parts)
    in_turn = measure_in_turn(crew, list(layers.values()), _REPEAT, source, tell)
    for method, whole in zip(layers, in_turn, strict=True):
        yield from _published(table, LAYER, method, tokens, wanted[LAYER, method], [whole])


def _case(function: str, method: str, tokens: int) -> Case:
    return Case(function, {"ours": _OURS.get(function, ""), EVERY: "server_weights"}.get(method, method), tokens)


def _published(
    table: str, function: str, method: str, tokens: int, models: Sequence[str], parts: Sequence[Record]
) -> Iterator[PublishedRecord]:
    """What was measured, beside what the paper says of each of the models."""
    costs = whole_cost(parts, LAYERS * _COUNT[function])
    for model in models:
        seconds, size = TABLES[table][model].get(method, {}).get(function, (None, None))
        if function == LAYER:
            seconds = TOTAL_SECONDS[table][model].get(method)
        yield PublishedRecord(
            table=table, model=model, function=function, method=method, private=parts[0].private, tokens=tokens,
            paper_seconds=seconds, paper_bytes=None if size is None else size * 1e9, why=_WHY[function],
            repeat=_REPEAT, **costs,
        )  # fmt: skip


def whole_cost(parts: Sequence[Record], times: int) -> dict[str, Any]:
    """What these cost together, each so many times."""

    def total(of: Callable[[Record], float]) -> Any:
        return times * sum(map(of, parts))

    return {
        "online_bytes": total(lambda one: one.online_bytes),
        "offline_bytes": total(lambda one: one.offline_bytes - one.key_bytes),
        "key_bytes": max(one.key_bytes for one in parts),
        "rounds": total(lambda one: one.rounds),
        "seconds": total(lambda one: one.seconds),
        "offline_seconds": total(lambda one: one.offline_seconds - one.key_seconds),
        "key_seconds": max(one.key_seconds for one in parts),
        "cpu_seconds": total(lambda one: one.cpu_seconds),
        "offline_cpu_seconds": total(
            lambda one: sum(one.offline_cpu_seconds_by_party) - sum(one.key_cpu_seconds_by_party)
        ),
        "key_cpu_seconds": max(sum(one.key_cpu_seconds_by_party) for one in parts),
        "max_abs_error": max(one.max_abs_error for one in parts),
    }


class AppendixRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A statement of the paper's appendix, and a number for it."""

    record: str = "appendix"
    statement: str
    setting: str
    paper: str
    measured: float
    unit: str
    why: str


def measure_appendix(crew: Crew, tokens: int) -> list[AppendixRecord]:
    """Share exponents, flooding on and off, MPCFormer's quadratics, BumbleBee's pieces."""
    return [*_exponents(), *_leaks(), *_floods(), *_functions(crew, tokens)]


SAME_EXPONENT, EXPONENTS_APART = "both shares have the same exponent", "their exponents differ"
SHARE_TELLS = "one share tells x = 2 from x = 1"
GUESS_SPAN = "largest guess by smallest (1/sqrt: 10)"
OFF_AFTER_STEPS = "1/sqrt is off by more than 5 % after 4 steps"
FLOODED = "flooded"
_SPREADS = (4.0, 64.0, 8192.0)


def _exponents() -> Iterator[AppendixRecord]:
    """How near the exponent fields of two flooded shares are."""
    generator = np.random.default_rng(1)
    x = generator.uniform(0.01, 20.0, 100_000)
    for spread in _SPREADS:
        client, server = flooded_shares(x, Flooding(spread=spread), generator.random(x.shape))
        apart = np.abs((float_bits(client) >> 23) - (float_bits(server) >> 23))
        for statement, paper, measured, unit in (
            (SAME_EXPONENT, "both are 140 in its example", float(np.mean(apart == 0)), "of all pairs"),
            (EXPONENTS_APART, "about equal; up to 5 does no harm", float(apart.max()), "at most"),
        ):
            yield AppendixRecord(
                statement=statement, setting=f"F = 8192, r in [0, {spread:g}), x in [0.01, 20]", paper=paper,
                measured=measured, unit=unit,
                why="x - F - r is below the power of two F wherever r < x, so its exponent is one less.",
            )  # fmt: skip


def _leaks() -> Iterator[AppendixRecord]:
    """How often one flooded share alone tells two values apart: it is one that the other value cannot have."""
    generator = np.random.default_rng(3)
    for spread in _SPREADS:
        uniform = generator.random(1_000_000)
        lower, _ = flooded_shares(np.full(uniform.shape, 1.0), Flooding(spread=spread), uniform)
        upper, _ = flooded_shares(np.full(uniform.shape, 2.0), Flooding(spread=spread), uniform)
        yield AppendixRecord(
            statement=SHARE_TELLS, setting=f"F = 8192, r in [0, {spread:g})",
            paper="nothing is exposed except the sign", measured=float(np.mean(upper > lower.max())),
            unit="of all shares",
            why="A share is x less a number of a known range, so near the ends of that range it says what x is not.",
        )  # fmt: skip


def _floods() -> Iterator[AppendixRecord]:
    """The guess and, after four Newton steps, 1/sqrt: from flooded shares, from others, and from one party's number."""
    x = np.geomspace(0.1, 10.0, 2001)
    generator = np.random.default_rng(2)
    guesses = {FLOODED: _double(*flooded_shares(x, Flooding(), generator.random(x.shape)), Flooding())}
    for size in (16.0, 1024.0):
        mask = generator.uniform(-size, size, x.shape)
        plain = Flooding(flood=1.0, typical_exponent=127)
        guesses[f"not flooded, masks up to {size:g}"] = _double(x - mask, mask, plain)
    guesses["one party, no shares"] = fast_inverse_sqrt(x).astype(np.float64)
    why = "The mantissas of the two shares add up to 2r - x, not to x: with flooding the guess is a constant."
    for setting, y in guesses.items():
        span = float(y.max() / y.min()) if y.min() > 0 else math.inf
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(4):
                y = y * (1.5 - 0.5 * x * y**2)
            error = np.abs(y * np.sqrt(x) - 1.0)
        wrong = float(np.mean(~(error < 0.05)))
        for statement, measured, unit in (
            (GUESS_SPAN, span, "times"),
            (OFF_AFTER_STEPS, wrong, "of all x"),
        ):
            if math.isfinite(measured):
                yield AppendixRecord(
                    statement=statement, setting=f"{setting}, x in [0.1, 10]", paper="flooding recovers the model",
                    measured=measured, unit=unit, why=why,
                )  # fmt: skip


def _double(client: Reals, server: Reals, flooding: Flooding) -> Reals:
    """The guess of two parties with these shares."""
    bits = -(float_bits(client) // 4) - float_bits(server) // 4 + flooding.server_constant
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def _functions(crew: Crew, tokens: int) -> Iterator[AppendixRecord]:
    """The functions of MPCFormer and BumbleBee on this engine, without a third party, and ours."""
    quadratics = "MPCFormer 27.7 s and Comet 29.8 s for a whole model"
    pieces = "BumbleBee's GeLU 28.9 s and Comet's 19.2 s, 14 calls each"
    why = {
        quadratics: "On one engine their activation is cheaper and their attention is not. They keep no range; both "
        "need distillation.",
        pieces: "Which piece a value belongs to takes look-ups here; ours has one piece, and a model trained for it.",
    }
    for function, method, calls, paper in (
        ("activation", "quad", LAYERS, quadratics),
        ("activation", "quadratic", LAYERS, quadratics),
        ("attention", "quad2", LAYERS, quadratics),
        ("attention", "quadratic", LAYERS, quadratics),
        ("activation", "gelu_piecewise", BUMBLEBEE_CALLS, pieces),
        ("activation", "quadratic", BUMBLEBEE_CALLS, pieces),
    ):
        one = measure(crew, Case(function, method, tokens), source=PAIR)
        prepared = calls * (one.offline_bytes - one.key_bytes) + one.key_bytes
        online = calls * one.online_bytes
        for what, size in (("online", online), ("in all", online + prepared)):
            yield AppendixRecord(
                statement=f"{function} by {method}, {calls} calls", setting=f"{tokens} tokens, no third party",
                paper=paper, measured=size / 1e6, unit=f"MB {what}", why=why[paper],
            )  # fmt: skip
