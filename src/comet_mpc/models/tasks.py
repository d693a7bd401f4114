"""Tasks: what a data set's answers are, and the metrics of a model's, as the paper reports GLUE's. No torch.

GLUE's tasks are found by name. Anybody's own data is for a model with certain labels (`own_data`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from comet_mpc.engine.share import Reals
from comet_mpc.errors import TaskDataError, did_you_mean
from comet_mpc.models.heads import Kind


@dataclass(frozen=True)
class Example:
    first: str
    second: str | None
    label: float = math.nan
    """The class's index, or the score of a regression; NaN: nobody has said."""
    tags: tuple[int, ...] = ()
    """For a tagger: the index of the label of every word, words being what spaces separate."""


@dataclass(frozen=True)
class Task:
    name: str
    pairs: bool
    labels: tuple[str, ...]
    """As in the file, in the order of their indices. One name: a regression."""
    metric: str
    length: int
    """Tokens after which recipes cut texts."""
    words: tuple[str, ...] = ()
    """What the labels mean, where the file has only numbers; a model may use these names instead."""
    scores: tuple[float, float] = (-math.inf, math.inf)
    """The ends of a regression's labels."""
    own: bool = False
    """Not one of GLUE's: its files are in the directory itself."""
    kind: Kind = "label"
    plain: bool = False
    """Nobody has labelled the texts: a model is compared with its teacher."""
    columns: tuple[str, ...] = ()
    """Of the file: one or two with the texts, then, unless it is plain, the one with the answers."""

    @property
    def regression(self) -> bool:
        return self.kind == "label" and len(self.labels) == 1

    def score(self, outputs: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float]:
        """All of the task's numbers, in per cent. The first is the one that the paper reports.

        outputs  logits of shape (examples, classes), or (examples, 1) for a regression; a tagger's are (examples,
                 tokens, classes), with labels (examples, tokens) below 0 where they do not count; embeddings are
                 (texts, hidden), of pairs first all first texts, with their similarities or a teacher's embeddings
        """
        found, wanted = np.asarray(outputs, np.float64), np.asarray(labels, np.float64)
        if not np.all(np.isfinite(found)):
            return {self.metric: float("nan")}
        if self.kind == "embedding":
            return _similarity(found, wanted)
        if self.kind == "tokens":
            counted = wanted >= 0
            right = found.argmax(axis=-1)[counted] == wanted[counted]
            return {"accuracy": 100 * float(np.mean(right)) if right.size else 0.0}
        if found.shape != (len(wanted), len(self.labels)):
            raise TaskDataError(
                f"{self.name}: outputs have shape {found.shape}, expected {(len(wanted), len(self.labels))}"
            )
        if self.regression:
            return _correlations(found[:, 0], wanted)
        chosen = found.argmax(axis=1)
        scores = {"accuracy": 100 * float(np.mean(chosen == wanted))}
        if self.metric == "matthews":
            return {"matthews": 100 * _pearson(chosen.astype(np.float64), wanted), **scores}
        return scores


TASKS = {
    task.name: task
    for task in (
        Task("RTE", True, ("entailment", "not_entailment"), "accuracy", 128),
        Task("MRPC", True, ("0", "1"), "accuracy", 64, ("not_equivalent", "equivalent")),
        Task("STS-B", True, ("score",), "pearson_spearman", 64, scores=(0.0, 5.0)),
        Task("CoLA", False, ("0", "1"), "matthews", 32, ("unacceptable", "acceptable")),
        Task("SST-2", False, ("0", "1"), "accuracy", 64, ("negative", "positive")),
    )
}


def find_task(name: str) -> Task:
    """By its name, in any case and with or without the dash."""
    wanted = name.lower().replace("-", "").replace("_", "")
    for task in TASKS.values():
        if task.name.lower().replace("-", "") == wanted:
            return task
    near = did_you_mean(name, TASKS) or f". The tasks: {', '.join(TASKS)}. For your own data, leave out --task"
    raise TaskDataError(f"unknown task {name!r}{near}")


def with_labels(examples: list[Example], task: Task, labels: tuple[str, ...]) -> list[Example]:
    """The examples with their labels' indices in a model's `labels`, which may be in another order or upper case.

    Labels that say nothing (0, 1, … or LABEL_0, LABEL_1, …) are taken in the task's order.
    """
    count = len(task.labels)
    names = [name.lower() for name in labels]
    if count == len(labels) and (
        task.regression or names == [str(i) for i in range(count)] or names == [f"label_{i}" for i in range(count)]
    ):
        return examples
    for known in (task.labels, task.words):
        if sorted(names) == sorted(name.lower() for name in known):
            place = [float(names.index(name.lower())) for name in known]
            return [replace(example, label=place[int(example.label)]) for example in examples]
    expected = ", ".join(task.labels) + (f" ({', '.join(task.words)})" if task.words else "")
    raise TaskDataError(
        f"the model's labels are {', '.join(labels)}, {task.name}'s are {expected}: "
        f"make a new head with `comet unify --task {task.name}`"
    )


def words_of(encoding: Encoding, most: int | None = None) -> tuple[tuple[int, int, int], ...]:
    """The words of a text as its tokenizer sees them: the place of each one's first token, and where its characters
    begin and end. Special tokens belong to no word, and of a pair only the first text counts.

    most: tokens to look at
    """
    found: dict[int, tuple[int, int, int]] = {}
    facts = zip(encoding.word_ids, encoding.sequence_ids, encoding.offsets, strict=True)
    for token, (word, sequence, (start, end)) in enumerate(islice(facts, most)):
        if word is not None and sequence == 0:
            first, begin, _ = found.get(word, (token, start, end))
            found[word] = first, begin, end
    return tuple(found.values())


def token_tags(example: Example, words: tuple[tuple[int, int, int], ...]) -> dict[int, int]:
    """The tags of those tokens that begin a word of the example."""
    starts = {match.start(): tag for match, tag in zip(re.finditer(r"\S+", example.first), example.tags, strict=False)}
    return {token: starts[begin] for token, begin, _ in words if begin in starts}


def _similarity(found: Reals, wanted: Reals) -> dict[str, float]:
    """Cosines of pairs beside their similarities; or with a teacher's embeddings, which is best."""
    unit = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
    if wanted.ndim == 1:
        half = len(unit) // 2
        return _correlations((unit[:half] * unit[half:]).sum(axis=1), wanted[:half])
    other = wanted / np.maximum(np.linalg.norm(wanted, axis=1, keepdims=True), 1e-9)
    return {"cosine": 100 * float(np.mean((unit * other).sum(axis=1)))}


def _correlations(found: Reals, wanted: Reals) -> dict[str, float]:
    pearson, spearman = _pearson(found, wanted), _pearson(_ranks(found), _ranks(wanted))
    return {"pearson_spearman": 50 * (pearson + spearman), "pearson": 100 * pearson, "spearman": 100 * spearman}


def _pearson(x: Reals, y: Reals) -> float:
    """Correlation; of two binary vectors it is Matthews' coefficient. 0 where one of them is constant."""
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else 0.0


def _ranks(values: Reals) -> Reals:
    """Ranks with ties averaged."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse], np.float64)
