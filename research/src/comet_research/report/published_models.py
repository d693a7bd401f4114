"""The paper's tables of accuracy (1, 2 and 5): its scores, ours beside them, and what every form loses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import mean, variance

from comet_research.bench.published_models import (
    ACCURACY_TABLES,
    TASK_ORDER,
    UNMODIFIED,
    AccuracyTable,
    Row,
    command_of,
    short_stage,
)
from comet_research.report.accuracy import TrainedModel, runs, shown
from comet_research.report.grid import Grid, wrapped
from comet_research.report.records import Results

_ABSENT = "-"
_ENCODER = "minilm"
"""What is not there yet is of this one."""

Stages = dict[str, list[TrainedModel]]
"""Models of one encoder, by the name of their row."""


@dataclass(frozen=True)
class Difference:
    """In points, on the mean over so many tasks; runs: how many models of all tasks and seeds that is of."""

    points: float
    tasks: int
    runs: int

    def __str__(self) -> str:
        return f"{self.points:+.2f} ({self.tasks} of {len(TASK_ORDER)})"


@dataclass(frozen=True)
class Trained:
    """What was trained for these tables, by encoder. main: the encoder whose rows are all shown, be it as dashes."""

    encoders: Mapping[str, Stages]
    main: str

    def losses(self, number: str, encoder: str | None = None) -> dict[str, Difference]:
        """What each row of a table loses to the unmodified model that it was distilled from: over the tasks and seeds
        that all rows of the encoder have, but for rows that nobody has trained yet."""
        stages = self.encoders[encoder or self.main]
        rows = [row.stage for row in ACCURACY_TABLES[number].rows if row is not UNMODIFIED]
        found = {stage: _by_run(stages[stage]) for stage in rows if stage in stages}
        common = set.intersection(*(set(each) for each in found.values())) if found else set()
        return {stage: _over_tasks({run: by[run] for run in common}) for stage, by in found.items() if common}

    def chance(self, difference: Difference) -> float:
        """By how much it may be off: two standard errors, from what other seeds of the same rows and tasks change."""
        changes = []
        for found in self.encoders[self.main].values():
            by_task: dict[str, list[float]] = {}
            for (task, _), lost in _by_run(found).items():
                by_task.setdefault(task, []).append(lost)
            changes += [variance(lost) for lost in by_task.values() if len(lost) > 1]
        return 2.0 * math.sqrt(mean(changes) / difference.runs) if changes else math.inf


Where = tuple[str, int]
"""A task and a seed."""


def _by_run(found: Iterable[TrainedModel]) -> dict[Where, float]:
    return {(run.task, run.seed): run.difference for run in found if run.difference is not None}


def _over_tasks(differences: Mapping[Where, float]) -> Difference:
    by_task: dict[str, list[float]] = {}
    for task, seed in sorted(differences):
        by_task.setdefault(task, []).append(differences[task, seed])
    return Difference(mean(map(mean, by_task.values())), len(by_task), len(differences))


def trained_for_tables(results: Results) -> Trained:
    """Of every encoder, the rows of one recipe."""
    encoders: dict[str, Stages] = {}
    for run in runs(results):
        if run.trained and run.held_out:
            encoders.setdefault(run.encoder, {}).setdefault(run.stage, []).append(run)
    encoders = encoders or {_ENCODER: {}}
    main = max(encoders, key=lambda name: (_short_rows(encoders[name]), len(encoders[name])))
    unlike = {name for name in encoders if _short_rows(encoders[main]) and not _short_rows(encoders[name])}
    names = {name: f"{name}, full training" if name in unlike else name for name in encoders}
    return Trained({names[name]: _one_recipe(stages) for name, stages in encoders.items()}, main)


def _short_rows(stages: Stages) -> int:
    return sum(name.startswith(short_stage("")) for name in stages)


def _one_recipe(stages: Stages) -> Stages:
    """The rows that were trained as all of a table are, if there are any; else those of models to be served."""
    table_rows = [row for table in ACCURACY_TABLES.values() for row in table.rows]
    short = {row.stage: stages[name] for row in table_rows if (name := short_stage(row.stage)) in stages}
    plain = {UNMODIFIED.stage: stages[UNMODIFIED.stage]} if UNMODIFIED.stage in stages else {}
    return plain | short if short else stages


def accuracy_grids(results: Results) -> list[Grid]:
    """Every row of every table; one that nobody has trained yet is a dash, and the note says which command does."""
    trained = trained_for_tables(results)
    return [_accuracy_grid(number, table, trained) for number, table in ACCURACY_TABLES.items()]


def _accuracy_grid(number: str, table: AccuracyTable, trained: Trained) -> Grid:
    columns = ["model", "whose", *TASK_ORDER, "mean difference"]
    grid = Grid(f"The paper's table {number}: {table.title}", columns, left=2)
    losses = {encoder: trained.losses(number, encoder) for encoder in trained.encoders}
    for row in table.rows:
        grid.rows += [[row.name, f"paper, {model}", *line] for model, line in _paper_lines(row)]
        for encoder, stages in trained.encoders.items():
            found = stages.get(row.stage, [])
            if not found and encoder != trained.main:
                continue
            scores = (shown(run.score for run in found if run.task == task) for task in TASK_ORDER)
            difference = "" if row is UNMODIFIED else str(losses[encoder].get(row.stage, _ABSENT))
            grid.rows.append([row.name, encoder, *(score or _ABSENT for score in scores), difference])
            grid.sources += [run.record.source for run in found]
    note = (
        f"{table.why} ± is the standard deviation over seeds. The mean difference is to the unmodified model that a "
        "row was distilled from, over the tasks and seeds that all rows of an encoder have."
    )
    if any(_ABSENT in line for line in grid.rows):
        note += f" {_ABSENT}: not run; {command_of(number)} does, and says first how long it takes."
    grid.note = wrapped(note)
    return grid


def paper_losses(row: Row) -> list[float]:
    """What the row loses in the paper, model by model, on the mean over tasks."""
    return [
        mean(score - other for score, other in zip(scores, UNMODIFIED.paper[model], strict=True))
        for model, scores in row.paper.items()
    ]


def _paper_lines(row: Row) -> Iterator[tuple[str, list[str]]]:
    for (model, scores), lost in zip(row.paper.items(), paper_losses(row), strict=True):
        yield model, [*(f"{score:.2f}" for score in scores), "" if row is UNMODIFIED else f"{lost:+.2f}"]
