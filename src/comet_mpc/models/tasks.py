"""Labelled data sets: reading their files, and their metrics as the paper reports GLUE's. No torch.

A data set is a directory with train.tsv and dev.tsv: a header row, then `sentence1 [sentence2] label`, split on tabs
only, no quoting, UTF-8. GLUE's are found by name, each in a folder of its own; anybody's own has the labels of the
model it is for, or, for a regression, a column `score` instead of `label`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from comet_mpc.errors import TaskDataError

__all__ = ["TASKS", "Example", "Task", "find_task", "own_task", "read_split", "with_labels"]

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    first: str
    second: str | None
    label: float
    """The class's index, or the score of a regression."""


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

    @property
    def regression(self) -> bool:
        return len(self.labels) == 1

    @property
    def columns(self) -> list[str]:
        return [
            "sentence1",
            *(["sentence2"] if self.pairs else []),
            "score" if self.own and self.regression else "label",
        ]

    def file(self, directory: Path, split: str) -> Path:
        return Path(directory) / ("" if self.own else self.name) / f"{split}.tsv"

    def score(self, outputs: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float]:
        """All of the task's numbers, in per cent. The first is the one that the paper reports.

        outputs  logits of shape (examples, classes), or (examples, 1) for a regression
        """
        found, wanted = np.asarray(outputs, np.float64), np.asarray(labels, np.float64)
        if found.shape != (len(wanted), len(self.labels)):
            raise TaskDataError(
                f"{self.name}: outputs have shape {found.shape}, expected {(len(wanted), len(self.labels))}"
            )
        if not np.all(np.isfinite(found)):
            return {self.metric: float("nan")}
        if self.regression:
            pearson, spearman = _pearson(found[:, 0], wanted), _pearson(_ranks(found[:, 0]), _ranks(wanted))
            return {"pearson_spearman": 50 * (pearson + spearman), "pearson": 100 * pearson, "spearman": 100 * spearman}
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
    raise TaskDataError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}")


def own_task(directory: Path, labels: tuple[str, ...]) -> Task:
    """A data set of one's own, in `directory` itself, for a model with these labels (one: a regression)."""
    regression = len(labels) == 1
    metric = "pearson_spearman" if regression else "accuracy"
    task = Task(Path(directory).resolve().name, False, labels, metric, 128, own=True)
    for split in ("train", "dev"):
        path = task.file(directory, split)
        if path.exists():
            header, _, _ = path.read_bytes().partition(b"\n")
            return replace(task, pairs=b"sentence2" in header)
    raise TaskDataError(
        f"{directory} has neither train.tsv nor dev.tsv: give the directory of a data set, or --task for one of GLUE's"
    )


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


def read_split(directory: Path, task: Task, split: str, limit: int | None = None) -> list[Example]:
    """The rows of one file. A malformed row raises TaskDataError with its number; the header is row 1."""
    path = task.file(directory, split)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskDataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TaskDataError(f"{path} is not UTF-8: byte {error.start}") from error
    header, *rows = text.removesuffix("\n").split("\n")
    if header.rstrip("\r").split("\t") != task.columns:
        raise TaskDataError(f"{path}: row 1: expected the columns {', '.join(task.columns)}")
    if not rows:
        raise TaskDataError(f"{path}: there are no rows below the header")
    return [_example(path, number, row, task) for number, row in enumerate(rows[:limit], start=2)]


def _example(path: Path, number: int, row: str, task: Task) -> Example:
    fields = row.rstrip("\r").split("\t")
    expected = 3 if task.pairs else 2
    if len(fields) != expected:
        raise TaskDataError(f"{path}: row {number}: {len(fields)} columns, expected {expected}")
    *texts, label = fields
    if not all(text.strip() for text in texts):
        raise TaskDataError(f"{path}: row {number}: a sentence is empty")
    if task.regression:
        try:
            value = float(label)
        except ValueError:
            value = float("nan")
        low, high = task.scores
        if not (math.isfinite(value) and low <= value <= high):
            within = f" from {low:g} to {high:g}" if math.isfinite(high) else ""
            raise TaskDataError(f"{path}: row {number}: the {task.columns[-1]} is not a number{within}")
    elif label in task.labels:
        value = float(task.labels.index(label))
    else:
        raise TaskDataError(f"{path}: row {number}: the label is not one of {', '.join(task.labels)}")
    return Example(texts[0], texts[1] if task.pairs else None, value)


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
