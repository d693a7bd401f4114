"""A data set evaluated beside the plaintext model: inside the protocol, or by the plaintext fixed-point twin.

`evaluate_securely` shows correctness and cost between real processes over TLS on this machine, or through a client of
a running service. `evaluate_twin` shows what fixed point does to a model, without a network or a second party. The twin
rounds to nearest; real parties round at random to one of the two neighbours, so their answers differ from the model's
by about half as much again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.twin import run_twin
from comet_mpc.errors import ConfigurationError
from comet_mpc.lab.service import local_service
from comet_mpc.models.served import Query, ServedModel
from comet_mpc.models.tasks import Example, Task
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER
from comet_mpc.service.client import Client
from comet_mpc.service.prediction import Prediction

__all__ = ["Progress", "compared", "evaluate_securely", "evaluate_twin", "silent", "texts_of"]

Reals = npt.NDArray[np.float64]
Progress = Callable[[int, int], object]
"""Is told (done, of all)."""

_TOKENS = 1024
"""How many the twin computes at once, with padding: bounds memory."""


def silent(done: int, total: int) -> None:
    """A Progress that tells nobody."""


def texts_of(examples: Sequence[Example]) -> list[str | tuple[str, str]]:
    """Their texts, or pairs of texts."""
    if not examples:
        raise ConfigurationError("there are no examples to evaluate")
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


def evaluate_securely(
    model: ServedModel,
    examples: Sequence[Example],
    *,
    limit: int | None = None,
    task: Task | None = None,
    client: Client | None = None,
    source: Source = DEALER,
    batch: int = 4,
    group: int = 16,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Runs the examples (the first `limit` of them) privately and in the clear, and compares.

    model   for the plaintext answers; without a client, it is also served
    task    for its metrics besides accuracy, of both
    source  of randomness, without a client

    Returns what `compared` does, `truncated`, and bytes, rounds and seconds in all.
    """
    chosen = list(examples[:limit])
    texts = texts_of(chosen)
    start = time.monotonic()
    predictions: list[Prediction] = []
    with contextlib.ExitStack() as stack:
        if client is None:
            address, keys, directory = stack.enter_context(local_service(model, source, batch=batch))
            # without a third party it would only compete with the queries
            ready = None if source.has_third_party else 0
            cache = directory / "cache"
            client = stack.enter_context(Client(address, keys=keys, cache=cache, batch=batch, ready=ready))
        for place in range(0, len(texts), group):
            predictions += client.classify(texts[place : place + group])
            progress(len(predictions), len(texts))
    seconds = time.monotonic() - start
    plain = np.concatenate([model.plain_logits(model.encode([text])) for text in texts])
    secure = np.array([prediction.logits for prediction in predictions])
    runs = list({id(prediction.cost): prediction.cost for prediction in predictions}.values())
    totals = ("online_bytes", "offline_bytes", "rounds", "online_seconds", "offline_seconds")
    return (
        compared(secure, plain, chosen, task)
        | {
            "source": predictions[0].cost.source,
            "truncated": sum(prediction.truncated for prediction in predictions),
            "runs": len(runs),
        }
        | {name: sum(getattr(run, name) for run in runs) for name in totals}
        | {"seconds": seconds}
    )


def evaluate_twin(
    model: ServedModel, examples: Sequence[Example], *, task: Task | None = None, progress: Progress = silent
) -> dict[str, Any]:
    """Runs the examples through the twin and in real arithmetic, by the same rules: `compared`, and `truncated`."""
    texts = texts_of(examples)
    shape = (len(examples), model.shape.labels)
    found, plain = np.empty(shape), np.empty(shape)
    truncated = done = 0
    for places, query in _queries(model, texts):
        found[places], plain[places] = _twin_logits(model, query), model.plain_logits(query)
        truncated, done = truncated + sum(query.truncated), done + len(places)
        progress(done, len(examples))
    return compared(found, plain, examples, task) | {"truncated": truncated}


def _queries(model: ServedModel, texts: Sequence[str | tuple[str, str]]) -> Iterator[tuple[list[int], Query]]:
    """Texts of one bucket together, with their places."""
    buckets: dict[int, list[int]] = {}
    for place, text in enumerate(texts):
        buckets.setdefault(model.bucket_of(text), []).append(place)
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
