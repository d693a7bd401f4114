"""A data set evaluated beside the plaintext model: inside the protocol, or by the plaintext fixed-point twin.

`evaluate_securely` shows correctness and cost between real processes over TLS on this machine, or through a client of
a running service. `evaluate_twin` shows what fixed point does to a model, without a network or a second party. The twin
rounds to nearest; real parties round at random to one of the two neighbours, so their answers differ from the model's
by about half as much again.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from comet_mpc.engine.share import Reals
from comet_mpc.engine.twin import run_twin
from comet_mpc.errors import ConfigurationError
from comet_mpc.local.service import local_service
from comet_mpc.models.heads import Kind
from comet_mpc.models.queries import Query
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tasks import Example, Task, token_tags
from comet_mpc.offline.source import Progress, Source
from comet_mpc.offline.sources import DEALER
from comet_mpc.progress import silent
from comet_mpc.service.client import Asks, Client
from comet_mpc.service.prediction import Answer, Embedding, Prediction, Tagging

Answers = Sequence[Reals] | Reals
"""One of each text, as rows of one array or apart."""

_TOKENS = 1024
"""How many the twin computes at once, with padding: bounds memory."""


def texts_of(examples: Sequence[Example], kind: Kind = "label") -> list[str | tuple[str, str]]:
    """Their texts, or pairs of texts. For embeddings the two of a pair are texts of their own, all first ones first."""
    if not examples:
        raise ConfigurationError("there are no examples to evaluate")
    if kind == "embedding":
        return [*(e.first for e in examples), *(e.second for e in examples if e.second is not None)]
    return [example.first if example.second is None else (example.first, example.second) for example in examples]


def compared(found: Answers, plain: Answers, examples: Sequence[Example], task: Task | None = None) -> dict[str, Any]:
    """Answers beside the plaintext model's, as numbers that JSON can carry.

    `examples`, `logit_difference` (of an example: its largest; median, quantile 99 % and largest over them), for a
    classification `agreement` (of labels), `accuracy` and `plain_accuracy`, with a task `scores` and `plain_scores`.
    """
    difference = np.array([np.max(np.abs(one - other)) for one, other in zip(found, plain, strict=True)])
    quantiles = {"median": 0.5, "99 %": 0.99, "largest": 1.0}
    report: dict[str, Any] = {
        "examples": len(examples),
        "logit_difference": {name: float(np.quantile(difference, at)) for name, at in quantiles.items()},
    }
    labels = np.array([example.label for example in examples])
    if plain[0].ndim == 1 and len(plain[0]) > 1:
        chosen, wanted = (np.argmax(x, axis=1) for x in (found, plain))
        report["agreement"] = float(np.mean(chosen == wanted))
        report["accuracy"], report["plain_accuracy"] = (float(np.mean(x == labels)) for x in (chosen, wanted))
    if task is not None and not task.plain:
        report["scores"], report["plain_scores"] = (task.score(np.array(x), labels) for x in (found, plain))
    return report


def compared_tags(
    model: ServedModel, found: Answers, plain: Answers, examples: Sequence[Example], task: Task | None
) -> dict[str, Any]:
    """The same of a tagger, whose answers have a row for each token: `agreement` counts all tokens."""
    longest = max(map(len, found))
    labels = np.full((len(examples), longest), -1.0)
    shape = (*labels.shape, model.shape.labels)
    padded = np.zeros(shape), np.zeros(shape)
    for row, example in enumerate(examples):
        for token, tag in token_tags(example, model.tokens([example.first])[0].words).items():
            labels[row, token] = tag
        for whole, parts in zip(padded, (found, plain), strict=True):
            whole[row, : len(parts[row])] = parts[row]
    flat = [np.concatenate(x) for x in (found, plain)]
    report = compared(found, plain, examples)
    report["agreement"] = float(np.mean(flat[0].argmax(axis=1) == flat[1].argmax(axis=1)))
    report["tokens"] = len(flat[0])
    if task is not None and not task.plain:
        report["scores"], report["plain_scores"] = (task.score(x, labels) for x in padded)
    return report


def compared_embeddings(
    found: Answers, plain: Answers, examples: Sequence[Example], task: Task | None
) -> dict[str, Any]:
    """The same of embeddings: `cosine` with those of the plaintext model, smallest and mean."""
    pairs = [
        (one / np.linalg.norm(one), other / np.linalg.norm(other)) for one, other in zip(found, plain, strict=True)
    ]
    cosines = np.array([float(one @ other) for one, other in pairs])
    report: dict[str, Any] = {
        "examples": len(examples),
        "texts": len(pairs),
        "cosine": {"smallest": float(cosines.min()), "mean": float(cosines.mean())},
    }
    if task is not None and not task.plain:
        labels = np.array([example.label for example in examples] * 2)
        report["scores"], report["plain_scores"] = (task.score(np.array(x), labels) for x in (found, plain))
    return report


def _report(
    model: ServedModel, found: Answers, plain: Answers, examples: Sequence[Example], task: Task | None
) -> dict[str, Any]:
    match model.config.head.kind:
        case "tokens":
            return compared_tags(model, found, plain, examples, task)
        case "embedding":
            return compared_embeddings(found, plain, examples, task)
        case "label":
            return compared(found, plain, examples, task)


def _values(answer: Answer) -> Reals:
    if isinstance(answer, Embedding):
        return np.array(answer.vector)
    assert isinstance(answer, Prediction | Tagging)
    return np.array(answer.logits)


def _plain(model: ServedModel, text: str | tuple[str, str]) -> Reals:
    """The plaintext model's answer; of a tagger, without padding."""
    query = model.encode([text])
    answer = model.plain_logits(query)[0]
    return np.asarray(answer[: int(query.mask.sum())] if model.config.head.kind == "tokens" else answer)


def evaluate_securely(
    model: ServedModel,
    examples: Sequence[Example],
    *,
    task: Task | None = None,
    client: Asks | None = None,
    source: Source = DEALER,
    batch: int = 4,
    group: int = 16,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Runs the examples privately and in the clear, and compares.

    model   for the plaintext answers; without a client, it is also served
    task    for its metrics besides accuracy, of both
    source  of randomness, without a client
    group   texts that are asked for at a time

    Returns what `compared` does, `truncated`, and bytes, rounds and seconds in all.
    """
    texts = texts_of(examples, model.config.head.kind)
    start = time.monotonic()
    predictions: list[Answer] = []
    with contextlib.ExitStack() as stack:
        if client is None:
            address, keys, directory = stack.enter_context(local_service(model, source, batch=batch))
            # without a third party it would only compete with the queries
            ready = None if source.has_third_party else 0
            cache = directory / "cache"
            client = stack.enter_context(Client(address, keys=keys, cache=cache, batch=batch, ready=ready))
        done = itertools.count(1)

        def told(index: int, answer: Answer) -> None:
            progress(next(done), len(texts))

        for index in range(0, len(texts), group):
            predictions += client.ask(texts[index : index + group], told=told)
    seconds = time.monotonic() - start
    plain = [_plain(model, text) for text in texts]
    secure = [_values(prediction) for prediction in predictions]
    runs = list({id(prediction.cost): prediction.cost for prediction in predictions}.values())
    totals = ("online_bytes", "offline_bytes", "rounds", "online_seconds", "offline_seconds")
    return (
        _report(model, secure, plain, examples, task)
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
    texts = texts_of(examples, model.config.head.kind)
    answers: dict[int, tuple[Reals, Reals]] = {}
    truncated = 0
    for indices, query in _queries(model, texts):
        both = _twin_logits(model, query), model.plain_logits(query)
        for row, index in enumerate(indices):
            used = int(query.mask[row].sum()) if model.config.head.kind == "tokens" else None
            answers[index] = both[0][row][:used], both[1][row][:used]
        truncated += sum(query.truncated)
        progress(len(answers), len(texts))
    found, plain = zip(*(answers[index] for index in range(len(texts))), strict=True)
    return _report(model, found, plain, examples, task) | {"truncated": truncated}


def _queries(model: ServedModel, texts: Sequence[str | tuple[str, str]]) -> Iterator[tuple[list[int], Query]]:
    """Texts of one bucket together, with their indices."""
    tokens, buckets = model.tokens(texts), dict[int, list[int]]()
    for index, one in enumerate(tokens):
        buckets.setdefault(model.fitting(one.length), []).append(index)
    for bucket, indices in buckets.items():
        size = max(1, _TOKENS // bucket)
        for start in range(0, len(indices), size):
            part = indices[start : start + size]
            yield part, model.query([tokens[index] for index in part], bucket)


def _twin_logits(model: ServedModel, query: Query) -> Reals:
    program = model.answer(query.batch, query.bucket, query)
    logits = run_twin(lambda session: program(session, model.weights()))
    assert logits is not None
    return logits
