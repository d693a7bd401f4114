"""Tables of what things cost: bytes, rounds, time, memory."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from comet_mpc.units import counted, human_bytes, human_seconds
from comet_research.report.grid import Grid, wrapped
from comet_research.report.records import Record, Results, sources_of


def _two(values: Iterable[float], unit: float = 1.0) -> str:
    """The client's and the server's."""
    scaled = [value / unit for value in values]
    return " / ".join(f"{v:.2f}" if v < 0.995 else f"{v:.1f}" if v < 9.95 else f"{v:.0f}" for v in scaled)


def _what(record: Record) -> str:
    layers = record.get("layers")
    return f"{record['model']}, {layers}" if isinstance(layers, int) else str(record["model"])


def model_grid(results: Results, source: str) -> Grid:
    """Whole models with randomness from this source: measured, then planned only."""
    measured = [r for r in results.of("model") if r["source"] == source and not r.get("network")]
    known = {(r["model"], r["tokens"], r["batch"], r.rule) for r in measured}
    planned = [
        r
        for r in results.of("plan")
        if r["source"] == source and (r["model"], r["tokens"], r["batch"], r.rule) not in known
    ]
    columns = ["model, layers", "tokens", "rule", "online", "rounds", "offline", "time", "CPU s", "offline CPU s", "GB"]
    grid = Grid(f"Whole models, randomness from the {source}", columns, left=1)
    for record in sorted(measured, key=_model_order):
        grid.rows.append(
            [
                _what(record),
                _tokens(record),
                record.rule,
                human_bytes(record["online_bytes"]),
                str(record["rounds"]),
                human_bytes(record["offline_bytes"]),
                human_seconds(record["seconds"]),
                _two(record["cpu_seconds"]),
                _two(record["offline_cpu_seconds"]),
                _two(record["peak_rss"], 1e9),
            ]
        )
    for record in sorted(planned, key=_model_order):
        bytes_and_rounds = [human_bytes(record["online_bytes"]), str(record["rounds"])]
        offline = human_bytes(record["offline_bytes"])
        rule = ", ".join(part for part in (record.rule, "planned") if part)
        grid.rows.append([_what(record), _tokens(record), rule, *bytes_and_rounds, offline, "", "", "", ""])
    grid.note = "CPU seconds and GB of memory: client / server. All processes shared two cores."
    grid.sources = sources_of([*measured, *planned])
    return grid


def _model_order(record: Record) -> tuple[str, int, int, str, str]:
    layers = record.get("layers")
    depth = -layers if isinstance(layers, int) else 0
    return record["model"], depth, record["batch"] * record["tokens"], record.get("network") or "", record.rule


def _tokens(record: Record) -> str:
    return str(record["tokens"]) if record["batch"] == 1 else f"{record['batch']} × {record['tokens']}"


def network_grid(results: Results) -> Grid:
    """Whole models over slower networks."""
    columns = ["model, layers", "network", "randomness from", "tokens", "rule"]
    columns += ["online", "rounds", "time", "offline", "offline time"]
    grid = Grid("Whole models over a slower network", columns, left=3)
    measured = sorted((record for record in results.of("model") if record.get("network")), key=_model_order)
    for record in measured:
        online = [human_bytes(record["online_bytes"]), str(record["rounds"]), human_seconds(record["seconds"])]
        offline = [human_bytes(record["offline_bytes"]), human_seconds(record["offline_seconds"])]
        where = [record["network"], f"the {record['source']}"]
        grid.rows.append([_what(record), *where, _tokens(record), record.rule, *online, *offline])
    grid.sources = sources_of(measured)
    return grid


def way_grid(results: Results) -> Grid:
    """The same program as it is planned for networks: what it takes there, without the compute."""
    columns = ["randomness from", "network", "rounds", "online", "offline", "time", "of it online", "usual program"]
    grid = Grid("BERT-base, 128 tokens, planned for its network", columns, left=2)
    planned = sorted(results.of("network plan"), key=lambda record: (record["source"], record["usual_seconds"]))
    for record in planned:
        online, offline = record["online_seconds"], record["offline_seconds"]
        seconds = [human_seconds(value) for value in (online + offline, online, record["usual_seconds"])]
        sizes = [human_bytes(record["online_bytes"]), human_bytes(record["offline_bytes"])]
        grid.rows.append([f"the {record['source']}", record["network"], str(record["rounds"]), *sizes, *seconds])
    grid.note = (
        "Time on the network, preparation included, without the compute. Last: by the program without --network."
    )
    grid.sources = sources_of(planned)
    return grid


def operation_grid(results: Results) -> Grid:
    """Every operation by every method, the cheapest online first."""
    columns = ["operation", "method", "online", "offline", "rounds", "CPU", "error", "relative"]
    grid = Grid("Single operations at the size of a BERT-base layer", columns, left=2)
    records = sorted(results.of("operation"), key=lambda record: record["operation"])
    for operation, group in groupby(records, key=lambda record: str(record["operation"])):
        for place, record in enumerate(sorted(group, key=lambda record: int(record["online_bytes"]))):
            size = "×".join(map(str, record["shape"]))
            steps = record.get("steps")
            method = str(record["method"]) + (f", {counted(steps, 'step')}" if steps else "")
            grid.rows.append(
                [
                    f"{operation} {size}" if not place else operation,
                    method if record["private"] else f"{method} (not private)",
                    human_bytes(record["online_bytes"]),
                    human_bytes(record["offline_bytes"]),
                    str(record["rounds"]),
                    human_seconds(record["cpu_seconds"]),
                    f"{record['max_abs_error']:.1e}",
                    f"{record['max_relative_error']:.1e}",
                ]
            )
    grid.note = "Bytes of both parties. CPU: the busier party. Errors: the largest, against the exact function."
    grid.sources = sources_of(records)
    return grid


def demo_grid(results: Results) -> Grid:
    """What the bundled model costs, by source."""
    columns = ["randomness from", "tokens", "online", "rounds", "offline", "time", "offline time"]
    grid = Grid("The bundled model, one text", columns)
    seen = set()
    for record in sorted(results.of("demo"), key=lambda record: (record["source"], record["bucket"])):
        key = (record["source"], record["bucket"], record["online_bytes"], record["offline_bytes"])
        if key in seen:
            continue
        seen.add(key)
        grid.rows.append(
            [
                f"the {record['source']}",
                str(record["bucket"]),
                human_bytes(record["online_bytes"]),
                str(record["rounds"]),
                human_bytes(record["offline_bytes"]),
                human_seconds(record["online_seconds"]),
                human_seconds(record["offline_seconds"]),
            ]
        )
    grid.note = "With keys of the connection, where a first text has more bytes offline than the next."
    grid.sources = sources_of(results.of("demo"))
    return grid


def profile_grid(results: Results) -> Grid:
    """Where the time of a query goes."""
    columns = ["query", "tokens", "online", "bytes need", "compute", "measured", "measured / needed"]
    grid = Grid("Where the time of a query goes", columns, sources=sources_of(results.of("profile")))
    for record in results.of("profile"):
        transfer = record["online_bytes"] / record["rate"]
        grid.rows.append(
            [
                record.name,
                str(record["tokens"]),
                human_bytes(record["online_bytes"]),
                human_seconds(transfer),
                human_seconds(max(record["compute_seconds"])),
                human_seconds(record["seconds"]),
                f"{record['ratio']:.2f}" if record.get("ratio") is not None else "",
            ]
        )
    return grid


def truncation_grid(results: Results) -> Grid:
    """Is truncation exact?"""
    columns = ["shift", "values", "wrapped around", "largest error", "mean error", "by chance"]
    grid = Grid("Truncation, in units of the last place", columns, sources=sources_of(results.of("truncation")))
    for record in results.of("truncation"):
        errors = [f"{record['max_error']:.4f}", f"{record['mean_error']:+.1e}", f"{record['standard_error']:.1e}"]
        grid.rows.append([str(record["shift"]), f"{record['values']:,}", str(record["wraps"]), *errors])
    return grid


def kernel_grid(results: Results) -> Grid:
    """Kernels of the best instructions, beside numpy."""
    best: dict[str, Record] = {}
    for record in results.of("kernel"):
        if record["kernel"] not in best or record["rate"] > best[record["kernel"]]["rate"]:
            best[record["kernel"]] = record
    grid = Grid("Kernels on one core", ["kernel", "instructions", "rate", "times numpy"], left=2)
    for name, record in best.items():
        times = record.get("times_numpy")
        rate = f"{record['rate']:.2f} {record['unit']}"
        grid.rows.append([name, str(record["isa"]), rate, "" if times is None else f"{times:.1f}"])
    grid.sources = sources_of(best.values())
    return grid


def peer_grids(results: Results) -> list[Grid]:
    """How many times ours others take; then every task by every system, those that give the most bytes last."""
    grids = [_ratio_grid(results)]
    columns = ["system", "online", "offline", "rounds", "time", "CPU", "memory", "error", "result", "third party"]
    found = sorted(results.of("peer"), key=lambda record: (record["task"] != "layer", record["task"], record["tokens"]))
    for (task, tokens), group in groupby(found, key=lambda record: (str(record["task"]), int(record["tokens"]))):
        members = sorted(group, key=lambda record: int(record["online_bytes"]) + int(record["offline_bytes"] or 0))
        what = {"layer": "One BERT-base layer", "two_layers": "Two layers"}.get(task, task)
        grid = Grid(f"{what}, {tokens} tokens, by system", columns, sources=sources_of(members))
        for record in members:
            offline = record["offline_bytes"]
            grid.rows.append(
                [
                    record["system"],
                    human_bytes(record["online_bytes"]),
                    "" if offline is None else human_bytes(offline),
                    f"{record['rounds']:,}",
                    human_seconds(record["seconds"]),
                    human_seconds(record["cpu_seconds"]),
                    human_bytes(record["peak_rss"]),
                    f"{record['max_abs_error']:.1e}",
                    "right" if record["right"] else "WRONG",
                    "none" if record["third_party"] == "none" else "yes",
                ]
            )
        grid.note = (
            "CPU: both parties, offline included. Error: against what a system means to compute, its public\n"
            "polynomials included. Rounds of SPU are messages of the busier party."
        )
        grids.append(grid)
    return grids


def _ratio_grid(results: Results) -> Grid:
    """Beside the one of ours that trusts as many: with a dealer, or without a third party."""
    columns = ["task", "system", "online bytes", "bytes in all", "time", "CPU", "memory", "result"]
    grid = Grid("Other systems: how many times ours", columns, left=2)
    found = {(record["task"], record["tokens"], record["system"]): record for record in results.of("peer")}
    for (task, tokens, system), record in sorted(found.items(), key=lambda item: (item[0][0] != "layer", *item[0])):
        ours = found.get((task, tokens, "comet-pair" if record["third_party"] == "none" else "comet"))
        if system.startswith("comet") or ours is None:
            continue
        pairs = (_amounts(each) for each in (record, ours))
        ratios = [f"{one / other:.3g}" for one, other in zip(*pairs, strict=True)]
        grid.rows.append([f"{task}, {tokens}", system, *ratios, "right" if record["right"] else "WRONG"])
        grid.sources += sources_of([record, ours])
    grid.sources = list(dict.fromkeys(grid.sources))
    grid.note = wrapped(
        "Task, and tokens. Ours with a dealer, or without a third party where the other needs none. Time and CPU are "
        "of everything, preparation included. CrypTen and SPU SEMI2K do not count what their third party sends."
    )
    return grid


def _amounts(record: Record) -> tuple[float, ...]:
    """Online bytes, bytes in all, seconds in all, CPU of both, memory."""
    online, offline = record["online_bytes"], record["offline_bytes"] or 0
    seconds = record["seconds"] + (record.get("offline_seconds") or 0.0)
    return online, online + offline, seconds, record["cpu_seconds"], record["peak_rss"]


def trial_grid(results: Results) -> Grid:
    """How often CrypTen is wrong inside the ranges that it is told."""
    columns = ["function", "whose", "values", "off by 5 %", "wrapped", "expected", "misread", "error else"]
    grid = Grid("Wrong results of CrypTen, with the plug-in and without", columns, left=2)
    for record in results.of("trial"):
        expected = "" if record["expected"] is None else f"{record['expected']:.1f}"
        whose = "Comet's plug-in" if record["variant"] == "certified" else "CrypTen"
        counts = [f"{record['values']:,}", str(record["off"]), str(record["wrapped"]), expected, str(record["misread"])]
        grid.rows.append([record["function"], whose, *counts, f"{record['worst_else']:.1e}"])
    grid.note = (
        "Off: by 0.05, or by 5 % of what is above 1. Wrapped: by more than 1000. CrypTen truncates locally, which\n"
        "wraps around with a chance of |v|·2^-32 for a product v; products here are of numbers up to 64. Misread:\n"
        "CrypTen decodes some negative numbers just above a whole one as if they were 1 less; not counted as off."
    )
    grid.sources = sources_of(results.of("trial"))
    return grid
