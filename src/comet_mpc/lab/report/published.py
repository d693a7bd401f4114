"""The paper's tables: its numbers, ours beside them, and a sentence on why they differ."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from statistics import mean
from typing import Any

from comet_mpc.lab.bench.published import EVERY, LINEAR, TOTAL_SECONDS
from comet_mpc.lab.bench.published_models import (
    ACCURACY_TABLES,
    TASK_ORDER,
    UNMODIFIED,
    AccuracyTable,
    Row,
    command_of,
    short_stage,
)
from comet_mpc.lab.report.accuracy import Run, runs, shown
from comet_mpc.lab.report.grid import Grid
from comet_mpc.lab.report.records import Record, Results, sources_of
from comet_mpc.units import human_bytes

_WIDTH = 116
_ABSENT = "-"
_OURS = "ours"
_CALLS = 14
"""Of GeLU, in the paper's comparison with BumbleBee."""
_ENCODER = "minilm"
"""What is not there yet is of this one."""

Stages = dict[str, list[Run]]
"""Models of one encoder, by the name of their row."""


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, _WIDTH))


# Accuracy: tables 1, 2 and 5 -------------------------------------------------------------------------------


def accuracy_grids(results: Results) -> list[Grid]:
    """Every row of every table; one that nobody has trained yet is a dash, and the note says which command does."""
    encoders: dict[str, Stages] = {}
    for run in runs(results):
        if run.trained and run.held_out:
            encoders.setdefault(run.encoder, {}).setdefault(run.stage, []).append(run)
    encoders = encoders or {_ENCODER: {}}
    main = max(encoders, key=lambda name: (_short_rows(encoders[name]), len(encoders[name])))
    chosen = {name: _one_recipe(stages) for name, stages in encoders.items()}
    return [_accuracy_grid(number, table, chosen, main) for number, table in ACCURACY_TABLES.items()]


def _short_rows(stages: Stages) -> int:
    return sum(name.startswith(short_stage("")) for name in stages)


def _one_recipe(stages: Stages) -> Stages:
    """The rows that were trained as all of a table are, if there are any; else those of models to be served."""
    table_rows = [row for table in ACCURACY_TABLES.values() for row in table.rows]
    short = {row.stage: stages[name] for row in table_rows if (name := short_stage(row.stage)) in stages}
    plain = {UNMODIFIED.stage: stages[UNMODIFIED.stage]} if UNMODIFIED.stage in stages else {}
    return plain | short if short else stages


def _accuracy_grid(number: str, table: AccuracyTable, encoders: dict[str, Stages], main: str) -> Grid:
    """main: the encoder whose rows are all there, be it as dashes. Of others, what there is."""
    columns = ["model", "whose", *TASK_ORDER, "mean difference"]
    grid = Grid(f"The paper's table {number}: {table.title}", columns, left=2)
    everywhere = {encoder: _in_all_rows(table, stages) for encoder, stages in encoders.items()}
    for row in table.rows:
        grid.rows += [[row.name, f"paper, {model}", *line] for model, line in _paper_lines(row)]
        for encoder, stages in encoders.items():
            found = stages.get(row.stage, [])
            if not found and encoder != main:
                continue
            scores = (shown(run.score for run in found if run.task == task) for task in TASK_ORDER)
            difference = "" if row is UNMODIFIED else _mean_difference(found, everywhere[encoder]) or _ABSENT
            grid.rows.append([row.name, encoder, *(score or _ABSENT for score in scores), difference])
            grid.sources += [run.record.source for run in found]
    note = (
        f"{table.why} ± is the standard deviation over seeds. The mean difference is to the unmodified model that a "
        "row was distilled from, over the tasks and seeds that all rows of an encoder have."
    )
    if any(_ABSENT in line for line in grid.rows):
        note += f" {_ABSENT}: not run; {command_of(number)} does, and says first how long it takes."
    grid.note = _wrapped(note)
    return grid


def _in_all_rows(table: AccuracyTable, stages: Stages) -> set[tuple[str, int]]:
    """Tasks and seeds that all rows have, but for rows that nobody has trained yet."""
    found = [stages[row.stage] for row in table.rows if row is not UNMODIFIED and row.stage in stages]
    return set.intersection(*({(run.task, run.seed) for run in each} for each in found)) if found else set()


def _mean_difference(found: list[Run], compared: set[tuple[str, int]]) -> str:
    by_task: dict[str, list[float]] = {}
    for run in found:
        if run.difference is not None and (run.task, run.seed) in compared:
            by_task.setdefault(run.task, []).append(run.difference)
    means = [mean(values) for values in by_task.values()]
    return f"{mean(means):+.2f} ({len(means)} of {len(TASK_ORDER)})" if means else ""


def _paper_lines(row: Row) -> Iterator[tuple[str, list[str]]]:
    for model, scores in row.paper.items():
        base = UNMODIFIED.paper[model]
        difference = mean(score - other for score, other in zip(scores, base, strict=True))
        yield model, [*(f"{score:.2f}" for score in scores), "" if row is UNMODIFIED else f"{difference:+.2f}"]


# Costs: tables 3 and 4 -------------------------------------------------------------------------------------


def cost_grids(results: Results) -> list[Grid]:
    """Tables 3 and 4: every function by every method, all of them together, and with the matrices the whole model."""
    columns = ["function", "method", "paper GB", "GB online", "offline", "rounds", "paper s", "s", "× ours", "error"]
    grids = []
    found = sorted(results.of("published"), key=lambda record: (record["table"], record["model"]))
    for (table, model), group in groupby(found, key=lambda record: (str(record["table"]), str(record["model"]))):
        members = list(group)
        sources = sources_of(members)
        grid = Grid(f"The paper's table {table}, {model}", columns, left=2, sources=sources)
        by_method: dict[str, list[Record]] = {}
        for record in members:
            by_method.setdefault(record["method"], []).append(record)
        matrices = by_method.pop(EVERY, [])
        functions = dict.fromkeys(record["function"] for record in members if record["method"] != EVERY)
        for function in (*functions, None):
            lines = {
                name: [record for record in records if function in (None, record["function"])]
                for name, records in by_method.items()
            }
            ours = lines.get(_OURS, [])
            grid.rows += [_cost_line(function or "all three", found, ours) for found in lines.values() if found]
        if matrices:
            grid.rows.append(_cost_line(LINEAR, matrices, []))
            totals = TOTAL_SECONDS[table][model]
            grid.rows += [
                _cost_line("whole model", [*found, *matrices], [*by_method.get(_OURS, []), *matrices], totals.get(name))
                for name, found in by_method.items()
            ]
        reasons = dict.fromkeys(f"{record['function']}: {record['why']}" for record in members)
        grid.note = _wrapped(f"× ours: bytes online, bytes in all, seconds online. {' '.join(reasons)}")
        grids.append(grid)
    return grids


def _cost_line(what: str, members: list[Record], ours: list[Record], paper_seconds: float | None = None) -> list[str]:
    """Of one function, or of several together, and how many times as much that is as ours."""
    first = members[0]

    def total(key: str, of: list[Record] = members) -> Any:
        return sum(record[key] for record in of)

    def times(*keys: str) -> str:
        return f"{sum(map(total, keys)) / sum(total(key, ours) for key in keys):.3g}"

    told = all(record["paper_bytes"] is not None for record in members)
    seconds = total("paper_seconds") if told else paper_seconds
    ratios = (
        ""
        if not ours or first["method"] == _OURS
        else ", ".join((times("online_bytes"), times("online_bytes", "offline_bytes"), times("seconds")))
    )
    return [
        what,
        first["method"] if first["private"] else f"{first['method']} (not private)",
        f"{total('paper_bytes') / 1e9:.2f}" if told else "",
        f"{total('online_bytes') / 1e9:.2f}",
        human_bytes(total("offline_bytes")),
        str(total("rounds")),
        "" if seconds is None else f"{seconds:.1f}",
        f"{total('seconds'):.1f}",
        ratios,
        f"{first['max_abs_error']:.1e}" if len(members) == 1 else "",
    ]


# The appendix ----------------------------------------------------------------------------------------------


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def appendix_grid(results: Results) -> Grid:
    """Statements, and numbers for them."""
    stated = results.of("appendix")
    columns = ["statement", "setting", "measured"]
    grid = Grid("The paper's appendix", columns, left=2, sources=sources_of(stated))
    for record in stated:
        grid.rows.append([record["statement"], record["setting"], f"{_number(record['measured'])} {record['unit']}"])
    for record in results.of("peer"):
        if record["task"] == "activation" and record["third_party"] == "none":
            size = _CALLS * (record["online_bytes"] + (record["offline_bytes"] or 0))
            what = [f"GeLU by {record['system']}, {_CALLS} calls", f"{record['tokens']} tokens, no third party"]
            cpu = _number(_CALLS * record["cpu_seconds"])
            grid.rows.append([*what, f"{_number(size / 1e6)} MB in all, {cpu} CPU s"])
            grid.sources.append(record.source)
    grid.sources = list(dict.fromkeys(grid.sources))
    reasons = dict.fromkeys(f"The paper: {record['paper']}. {record['why']}" for record in stated)
    grid.note = "\n\n".join(_wrapped(reason) for reason in reasons)
    return grid
