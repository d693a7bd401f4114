"""The paper's tables: its numbers, ours beside them, and a sentence on why they differ."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby
from statistics import mean
from typing import Any

from comet_mpc.lab.bench.published_models import (
    ACCURACY_TABLES,
    TASK_ORDER,
    UNMODIFIED,
    AccuracyTable,
    Row,
    command_of,
)
from comet_mpc.lab.report.accuracy import Trained, shown, trained
from comet_mpc.lab.report.grid import Grid
from comet_mpc.lab.report.records import Record, Results, sources_of
from comet_mpc.units import human_bytes

_WIDTH = 116
_ABSENT = "-"
_CALLS = 14
"""Of GeLU, in the paper's comparison with BumbleBee."""
_ENCODER = "minilm"
"""What is not there yet is of this one."""


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, _WIDTH))


# Accuracy: tables 1, 2 and 5 -------------------------------------------------------------------------------


def accuracy_grids(results: Results) -> list[Grid]:
    """Every row of every table; one that nobody has trained yet is a dash, and the note says which command does."""
    encoders = [encoder for encoder in trained(results) if encoder.held_out] or [Trained(_ENCODER, True)]
    return [_accuracy_grid(number, table, encoders) for number, table in ACCURACY_TABLES.items()]


def _accuracy_grid(number: str, table: AccuracyTable, encoders: list[Trained]) -> Grid:
    columns = ["model", "whose", *TASK_ORDER, "mean difference"]
    grid = Grid(f"The paper's table {number}: {table.title}", columns, left=2)
    for row in table.rows:
        grid.rows += [[row.name, f"paper, {model}", *line] for model, line in _paper_lines(row)]
        for encoder in encoders:
            scores = encoder.stages.get(row.stage, {})
            cells = [shown(scores.get(task, {}).values()) or _ABSENT for task in TASK_ORDER]
            base = row is UNMODIFIED
            difference = "" if base else encoder.mean_difference(row.stage, UNMODIFIED.stage) or _ABSENT
            grid.rows.append([row.name, encoder.name, *cells, difference])
            grid.sources += encoder.sources.get(row.stage, [])
    note = f"{table.why} The mean difference is to unmodified, over the tasks that have both."
    if any(_ABSENT in line for line in grid.rows):
        note += f" {_ABSENT}: not run; {command_of(number)} does, and says first how long it takes."
    grid.note = _wrapped(note)
    return grid


def _paper_lines(row: Row) -> Iterator[tuple[str, list[str]]]:
    for model, scores in row.paper.items():
        base = UNMODIFIED.paper[model]
        difference = mean(score - other for score, other in zip(scores, base, strict=True))
        yield model, [*(f"{score:.2f}" for score in scores), "" if row is UNMODIFIED else f"{difference:+.2f}"]


# Costs: tables 3 and 4 -------------------------------------------------------------------------------------


def cost_grids(results: Results) -> list[Grid]:
    """Tables 3 and 4: every function by every method, and all of them together."""
    columns = ["function", "method", "paper GB", "GB online", "offline", "rounds", "paper s", "s", "error"]
    grids = []
    found = sorted(results.of("published"), key=lambda record: (record["table"], record["model"]))
    for (table, model), group in groupby(found, key=lambda record: (str(record["table"]), str(record["model"]))):
        members = list(group)
        sources = sources_of(members)
        grid = Grid(f"The paper's table {table}, {model}", columns, left=2, sources=sources)
        grid.rows = [_cost_line(record["function"], [record]) for record in members]
        by_method: dict[str, list[Record]] = {}
        for record in members:
            by_method.setdefault(record["method"], []).append(record)
        grid.rows += [_cost_line("all three", records) for records in by_method.values()]
        reasons = dict.fromkeys(f"{record['function']}: {record['why']}" for record in members)
        grid.note = _wrapped(" ".join(reasons))
        grids.append(grid)
    return grids


def _cost_line(what: str, records: Iterable[Record]) -> list[str]:
    """Of one function, or of several together."""
    members = list(records)
    first = members[0]

    def total(key: str) -> Any:
        return sum(record[key] for record in members)

    told = all(record["paper_bytes"] is not None for record in members)
    return [
        what,
        first["method"] if first["private"] else f"{first['method']} (not private)",
        f"{total('paper_bytes') / 1e9:.2f}" if told else "",
        f"{total('online_bytes') / 1e9:.2f}",
        human_bytes(total("offline_bytes")),
        str(total("rounds")),
        f"{total('paper_seconds'):.1f}" if told else "",
        f"{total('seconds'):.1f}",
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
