"""GLUE tasks: reading their files, and their metrics as the paper reports them. No torch.

A directory has one folder per task with train.tsv and dev.tsv: a header row, then `sentence1 [sentence2] label`, split
on tabs only, no quoting, UTF-8.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from comet_mpc.errors import TaskDataError

__all__ = ["TASKS", "Example", "Task", "find_task", "read_split"]

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

    @property
    def regression(self) -> bool:
        return len(self.labels) == 1

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
        Task("MRPC", True, ("0", "1"), "accuracy", 64, ("different", "paraphrase")),
        Task("STS-B", True, ("score",), "pearson_spearman", 64),
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


def read_split(directory: Path, task: Task, split: str, limit: int | None = None) -> list[Example]:
    """The rows of one file. A malformed row raises TaskDataError with its number; the header is row 1."""
    path = Path(directory) / task.name / f"{split}.tsv"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TaskDataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TaskDataError(f"{path} is not UTF-8: byte {error.start}") from error
    columns = ["sentence1", *(["sentence2"] if task.pairs else []), "label"]
    header, *rows = text.removesuffix("\n").split("\n")
    if header.rstrip("\r").split("\t") != columns:
        raise TaskDataError(f"{path}: row 1: expected the columns {', '.join(columns)}")
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
        if not 0.0 <= value <= 5.0:
            raise TaskDataError(f"{path}: row {number}: the label is not a number from 0 to 5")
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
