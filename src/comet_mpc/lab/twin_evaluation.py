"""A dev set through the plaintext fixed-point twin of the served program, and how answers compare with the model's.

It shows what fixed point does to a model, without a network or a peer. The twin rounds to nearest; real parties round
at random to one of the two neighbours, so they differ from the model by about half as much again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.twin import run_twin
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.served import Query, ServedModel
from comet_mpc.models.tasks import Example, Task

__all__ = ["compared", "evaluate_twin", "texts_of"]

Reals = npt.NDArray[np.float64]

_TOKENS = 1024
"""What is computed at once, with padding: bounds memory."""


def texts_of(examples: Sequence[Example]) -> list[str | tuple[str, str]]:
    return [example.first if example.second is None else (example.first, example.second) for example in examples]


def compared(found: Reals, plain: Reals, examples: Sequence[Example], task: Task | None = None) -> dict[str, Any]:
    """Answers beside the plaintext model's, as numbers that JSON can carry.

    `examples`, `logit_difference` (of an example: its largest; median, quantile 99 % and largest over them), for a
    classification `agreement` (of labels), `accuracy` and `plain_accuracy`, with a task `scores` and `plain_scores`.
    """
    difference = np.max(np.abs(found - plain), axis=1)
    quantiles = {"median": 0.5, "99 %": 0.99, "largest": 1.0}
    report: dict[str, Any] = {
        "examples": len(examples),
        "logit_difference": {name: float(np.quantile(difference, at)) for name, at in quantiles.items()},
    }
    labels = np.array([example.label for example in examples])
    if plain.shape[1] > 1:
        chosen, wanted = found.argmax(axis=1), plain.argmax(axis=1)
        report["agreement"] = float(np.mean(chosen == wanted))
        report["accuracy"], report["plain_accuracy"] = (float(np.mean(x == labels)) for x in (chosen, wanted))
    if task is not None:
        report["scores"], report["plain_scores"] = task.score(found, labels), task.score(plain, labels)
    return report


def evaluate_twin(
    model: ServedModel,
    examples: Sequence[Example],
    *,
    task: Task | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Runs the examples through the twin and in real arithmetic, by the same rules: `compared`, and `truncated`."""
    if not examples:
        raise ConfigurationError("there are no examples to evaluate")
    shape = (len(examples), model.shape.labels)
    found, plain = np.empty(shape), np.empty(shape)
    truncated = done = 0
    for places, query in _queries(model, texts_of(examples)):
        found[places], plain[places] = _twin_logits(model, query), model.plain_logits(query)
        truncated, done = truncated + sum(query.truncated), done + len(places)
        if progress is not None:
            progress(done, len(examples))
    return compared(found, plain, examples, task) | {"truncated": truncated}


def _queries(model: ServedModel, texts: Sequence[str | tuple[str, str]]) -> Iterator[tuple[list[int], Query]]:
    """Texts of one bucket together, with their places."""
    buckets: dict[int, list[int]] = {}
    for place, text in enumerate(texts):
        buckets.setdefault(model.encode([text]).bucket, []).append(place)
    for bucket, places in buckets.items():
        size = max(1, _TOKENS // bucket)
        for start in range(0, len(places), size):
            part = places[start : start + size]
            yield part, model.encode([texts[place] for place in part], bucket)


def _twin_logits(model: ServedModel, query: Query) -> Reals:
    program = model.answer(query.batch, query.bucket, query)
    logits = run_twin(lambda session: program(session, model.weights()))
    assert logits is not None
    return logits
