"""The paper's tables of cost and its appendix: its numbers, ours beside them, and a sentence on why they differ."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from comet_mpc.units import human_bytes
from comet_research.bench.published import BUMBLEBEE_CALLS, LAYER, LINEAR
from comet_research.report.grid import Grid, wrapped
from comet_research.report.records import Record, Results, sources_of

_OURS = "ours"
_KEYS = {"offline_bytes": "key_bytes", "offline_seconds": "key_seconds"}
"""Where a record has the keys of the connection beside what is prepared."""
_COSTS = (("online_bytes", "offline_bytes"), ("seconds", "offline_seconds"))


# Costs: tables 3 and 4 -------------------------------------------------------------------------------------


def cost_grids(results: Results) -> list[Grid]:
    """Tables 3 and 4: every function by every method, the three together, the matrices, and the whole model."""
    columns = ["function", "method", "paper GB", "GB online", "offline", "rounds"]
    columns += ["paper s", "s online", "s offline", "× ours", "error"]
    grids = []

    def which(record: Record) -> tuple[str, str, int]:
        return str(record["table"]), str(record["model"]), int(record["tokens"])

    for (table, model, tokens), group in groupby(sorted(results.of("published"), key=which), key=which):
        members = list(group)
        sources = sources_of(members)
        grid = Grid(f"The paper's table {table}, {model}, {tokens} tokens", columns, left=2, sources=sources)
        by_method: dict[str, list[Record]] = {}
        for record in members:
            by_method.setdefault(record["method"], []).append(record)
        functions = list(dict.fromkeys(record["function"] for record in members))
        single = [name for name in functions if name not in (LINEAR, LAYER)]
        lines = {**{name: [name] for name in single}, "all three": single, LINEAR: [LINEAR], "whole model": [LAYER]}
        for name, wanted in lines.items():
            found = {method: [r for r in records if r["function"] in wanted] for method, records in by_method.items()}
            ours = found.get(_OURS, [])
            grid.rows += [_cost_line(name, these, ours) for these in found.values() if these]
        reasons = dict.fromkeys(f"{record['function']}: {record['why']}" for record in members)
        grid.note = wrapped(
            "× ours: bytes online, bytes in all, seconds online, seconds in all. Keys of the connection, where there "
            f"is no third party, are in every row once. {' '.join(reasons)}"
        )
        grids.append(grid)
    return grids


def amount(records: Iterable[Record], *keys: str) -> Any:
    """Of several functions together: keys of the connection, which belong to what is prepared, are theirs in common."""
    found = list(records)
    shared = [_KEYS[key] for key in keys if key in _KEYS]
    once = sum(max((record.get(key, 0) for record in found), default=0) for key in shared)
    return sum(record[key] for record in found for key in keys) + once


def _cost_line(what: str, members: list[Record], ours: list[Record]) -> list[str]:
    """Of one function, or of several together, and how many times as much that is as ours."""
    first = members[0]

    def total(key: str) -> Any:
        return amount(members, key)

    def times(*keys: str) -> str:
        value = amount(members, *keys) / amount(ours, *keys)
        return f"{value:.2g}" if value < 10 else f"{value:.0f}"

    def told(key: str) -> float | None:
        return None if any(record[key] is None for record in members) else total(key)

    size, seconds = told("paper_bytes"), told("paper_seconds")
    both = [(online,) if alone else (online, offline) for online, offline in _COSTS for alone in (True, False)]
    ratios = "" if not ours or first["method"] == _OURS else ", ".join(times(*keys) for keys in both)
    return [
        what,
        first["method"] if first["private"] else f"{first['method']} (not private)",
        "" if size is None else f"{size / 1e9:.2f}",
        f"{total('online_bytes') / 1e9:.2f}",
        human_bytes(total("offline_bytes")),
        str(total("rounds")),
        "" if seconds is None else f"{seconds:.1f}",
        f"{total('seconds'):.1f}",
        f"{total('offline_seconds'):.1f}",
        ratios,
        f"{first['max_abs_error']:.1e}" if len(members) == 1 and first["function"] != LAYER else "",
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
            size = BUMBLEBEE_CALLS * (
                record["online_bytes"] + (record["offline_bytes"] or 0)
            )  # each with keys of its own
            what = [
                f"GeLU by {record['system']}, {BUMBLEBEE_CALLS} calls",
                f"{record['tokens']} tokens, no third party",
            ]
            cpu = _number(BUMBLEBEE_CALLS * record["cpu_seconds"])
            grid.rows.append([*what, f"{_number(size / 1e6)} MB in all, {cpu} CPU s"])
            grid.sources.append(record.source)
    grid.sources = list(dict.fromkeys(grid.sources))
    reasons = dict.fromkeys(f"The paper: {record['paper']}. {record['why']}" for record in stated)
    grid.note = "\n\n".join(wrapped(reason) for reason in reasons)
    return grid
