"""Reading data sets: GLUE's, a directory of one's own, or one file.

    directory  train.tsv and dev.tsv: a header row, then `sentence1 [sentence2] label`, split on tabs only, no quoting.
               A regression and pairs for embeddings have `score` instead of `label`, a tagger has `tags`: as many as
               there are words, with spaces between. Without that column the texts are plain.
    file       .csv or .tsv with a header and any columns, quoted as spreadsheets do; or .txt: one plain text per line.
               Every fifth row is for evaluation.

All of it is UTF-8.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from comet_mpc.errors import ConfigurationError, TaskDataError, did_you_mean
from comet_mpc.files import read_utf8
from comet_mpc.models.checkpoint import CometConfig
from comet_mpc.models.heads import Kind
from comet_mpc.models.tasks import Example, Task, find_task, with_labels
from comet_mpc.units import counted

_DEV = 5
"""One row in so many of a single file is for evaluation."""
_TEXTS = (("sentence1", "sentence2"), ("sentence1",), ("text",), ("sentence",), ("message",))
_ANSWERS = {"label": ("label", "class", "target", "score"), "tokens": ("tags", "ner_tags"), "embedding": ("score",)}
_LONGEST_FIELD = 1 << 27


def own_task(
    path: Path, labels: tuple[str, ...], kind: Kind = "label", *, texts: Sequence[str] = (), answer: str | None = None
) -> Task:
    """A data set of one's own, for a model with these labels (one: a regression).

    texts, answer: columns of a file, if they have other names than usual; the answer "": there is none.
    """
    path = Path(path)
    header = _header(path)
    found = tuple(texts) or next((names for names in _TEXTS if set(names) <= set(header)), ())
    usual = ("score",) if kind == "label" and len(labels) == 1 else _ANSWERS[kind]
    told = next((name for name in usual if name in header), "") if answer is None else answer
    for name in (*found, *([told] if told else [])):
        if header.count(name) != 1:
            raise TaskDataError(not_one_column(path, name, header))
    if not 1 <= len(found) <= 2:
        raise TaskDataError(
            f"{path}: which column has the texts? Name it with --text. Its columns: {', '.join(header)}"
        )
    graded = kind == "embedding" or len(labels) == 1
    metric = "cosine" if kind == "embedding" and not told else "pearson_spearman" if graded else "accuracy"
    if kind == "embedding" and len(found) == 1:
        told = ""  # one text alone is not similar to anything
    return Task(
        path.resolve().name, len(found) == 2, labels, metric, 128, own=True, kind=kind, plain=not told,
        columns=(*found, *([told] if told else [])),
    )  # fmt: skip


def task_of(path: Path, config: CometConfig, name: str | None = None) -> Task:
    """GLUE's task of that name, or one's own with the model's labels. Embeddings take any pairs and texts."""
    if not name:
        return own_task(path, config.encoder.labels, config.head.kind)
    task = find_task(name)
    if config.head.kind == "tokens":
        raise ConfigurationError(f"the model labels tokens, {task.name} labels texts")
    if config.head.kind == "embedding":
        task = replace(task, kind="embedding", labels=())
        return task if task.pairs else replace(task, plain=True, metric="cosine")
    return task


def not_one_column(path: Path, name: str, header: Sequence[str]) -> str:
    """What to say of a file that does not have exactly one column of this name."""
    if not header:
        return f"{path} is empty: the first line must name the columns"
    columns = f"Its columns: {', '.join(header)}"
    if name in header:
        return f"{path} has {header.count(name)} columns named {name!r}: rename all but one. {columns}"
    return f"{path} has no column {name!r}{did_you_mean(name, header) or '.'} {columns}"


def _header(path: Path) -> list[str]:
    if not path.exists():
        raise TaskDataError(f"no such file or directory: {path}")
    if path.is_file():
        return _table(path)[0]
    for split in ("train", "dev"):
        file = path / f"{split}.tsv"
        if file.exists():
            return _text(file).partition("\n")[0].rstrip("\r").split("\t")
    raise TaskDataError(
        f"{path} has neither train.tsv nor dev.tsv. --data takes a directory with both, a .csv, .tsv or .txt file, "
        "or, together with --task, a directory of GLUE tasks"
    )


def _text(path: Path) -> str:
    return read_utf8(path, TaskDataError)


def _table(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header of a single file, and its rows with the numbers of their lines."""
    content = _text(path)
    if path.suffix not in (".csv", ".tsv"):
        return ["text"], [(at, [line]) for at, line in enumerate(content.splitlines(), start=1) if line.strip()]
    before = csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(io.StringIO(content, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",")
    try:
        header = next(reader, [])
        return header, [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise TaskDataError(f"{path}: row {reader.line_num}: {error}") from error
    finally:
        csv.field_size_limit(before)


def read_texts(path: Path, column: str = "") -> list[str]:
    """One column of a single file, by default the first, or every line of plain text."""
    if not path.is_file():
        raise TaskDataError(f"{path} is not a file: give a .txt file of plain texts, or a .csv or .tsv file")
    header, rows = _table(path)
    if column and column not in header:
        raise TaskDataError(not_one_column(path, column, header))
    place = header.index(column) if column else 0
    return [row[place] for _, row in rows if len(row) > place and row[place].strip()]


def read_split(
    directory: Path, task: Task, split: str, limit: int | None = None, *, spread: bool = False
) -> list[Example]:
    """The rows for training ("train") or for evaluation ("dev"). limit: the first so many, or spread over the file.

    A malformed row raises TaskDataError with its number; the header is row 1.
    """
    path = Path(directory)
    columns = task.columns or ("sentence1", *(("sentence2",) if task.pairs else ()), "label")
    if path.is_file():
        header, rows = _table(path)
        if len(rows) < 2 * _DEV:
            raise TaskDataError(f"{path} has {counted(len(rows), 'row')}: at least {2 * _DEV} are needed")
        rows = [row for at, row in enumerate(rows, start=1) if (at % _DEV == 0) == (split == "dev")]
    else:
        path = path / ("" if task.own else task.name) / f"{split}.tsv"
        first, *lines = _text(path).removesuffix("\n").split("\n")
        header = first.rstrip("\r").split("\t")
        if tuple(header) != columns:
            raise TaskDataError(f"{path}: row 1: expected the columns {', '.join(columns)}")
        rows = [(at, line.rstrip("\r").split("\t")) for at, line in enumerate(lines, start=2)]
        if not rows:
            raise TaskDataError(f"{path}: there are no rows below the header")
    places = [header.index(name) for name in columns]
    if limit is not None:
        count = min(limit, len(rows))
        rows = [rows[at * len(rows) // count if spread else at] for at in range(count)]
    return [_example(path, number, row, len(header), places, task) for number, row in rows]


def read_examples(
    config: CometConfig, data: Path, task: Task, split: str, limit: int | None = None, *, spread: bool = False
) -> list[Example]:
    """The rows of a split, with the indices of their labels in the model's."""
    rows = read_split(data, task, split, limit, spread=spread)
    return with_labels(rows, task, config.encoder.labels) if task.kind == "label" and not task.plain else rows


def _example(path: Path, number: int, row: list[str], width: int, places: list[int], task: Task) -> Example:
    where = f"{path}: row {number}"
    if len(row) != width:
        raise TaskDataError(f"{where}: {len(row)} columns, expected {width}")
    fields = [row[place] for place in places]
    texts = fields[: 1 + task.pairs]
    if not all(text.strip() for text in texts):
        raise TaskDataError(f"{where}: a sentence is empty")
    made = Example(texts[0], texts[1] if task.pairs else None)
    if task.plain:
        return made
    answer = fields[-1]
    if task.kind == "tokens":
        tags = answer.split()
        if len(tags) != len(texts[0].split()):
            raise TaskDataError(f"{where}: {len(tags)} tags for {len(texts[0].split())} words")
        return replace(made, tags=tuple(_index(where, tag, task) for tag in tags))
    if task.kind == "label" and not task.regression:
        return replace(made, label=float(_index(where, answer, task)))
    try:
        value = float(answer)
    except ValueError:
        value = math.nan
    low, high = task.scores
    if not (math.isfinite(value) and low <= value <= high):
        within = f" from {low:g} to {high:g}" if math.isfinite(high) else ""
        raise TaskDataError(f"{where}: the {'score' if task.own else 'label'} is not a number{within}")
    return replace(made, label=value)


def _index(where: str, label: str, task: Task) -> int:
    """By name, in any case; or by number, if a model's labels are not numbers themselves."""
    if label in task.labels:
        return task.labels.index(label)
    names = [name.lower() for name in task.labels]
    if task.own and label.lower() in names:
        return names.index(label.lower())
    if task.own and label.isdecimal() and int(label) < len(names):
        return int(label)
    raise TaskDataError(f"{where}: the label is not one of {', '.join(task.labels)}")
