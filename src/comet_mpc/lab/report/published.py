"""The paper's tables of cost and its appendix: its numbers, ours beside them, and a sentence on why they differ."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from comet_mpc.lab.bench.published import BUMBLEBEE_CALLS, EVERY, LINEAR, TOTAL_SECONDS
from comet_mpc.lab.report.grid import Grid, wrapped
from comet_mpc.lab.report.records import Record, Results, sources_of
from comet_mpc.units import human_bytes

_OURS = "ours"


# Costs: tables 3 and 4 -------------------------------------------------------------------------------------


def cost_grids(results: Results) -> list[Grid]:
    """Tables 3 and 4: every function by every method, all of them together, and with the matrices the whole model."""
    columns = ["function", "method", "paper GB", "GB online", "offline", "rounds", "paper s", "s", "× ours", "error"]
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
        grid.note = wrapped(
            "× ours: bytes online, bytes in all, seconds online. Keys of the connection, where there is no third "
            f"party, are in every row once. {' '.join(reasons)}"
        )
        grids.append(grid)
    return grids


def amount(records: Iterable[Record], *keys: str) -> Any:
    """Of several functions together: keys of the connection, which belong to what is prepared, are theirs in common."""
    found = list(records)
    shared = max((record.get("key_bytes", 0) for record in found), default=0) if "offline_bytes" in keys else 0
    return sum(record[key] for record in found for key in keys) + shared


def _cost_line(what: str, members: list[Record], ours: list[Record], paper_seconds: float | None = None) -> list[str]:
    """Of one function, or of several together, and how many times as much that is as ours."""
    first = members[0]

    def total(key: str) -> Any:
        return amount(members, key)

    def times(*keys: str) -> str:
        return f"{amount(members, *keys) / amount(ours, *keys):.3g}"

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
