"""Which drawings there are, and from which records each is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from statistics import mean

from comet_mpc.lab.report.accuracy import Run, runs
from comet_mpc.lab.report.charts import Axis, Bars, Point, Scatter, Series
from comet_mpc.lab.report.records import Record, Results
from comet_mpc.units import human_bytes, human_seconds

__all__ = ["accuracy_drawings", "cost_drawings", "peer_drawings", "rule_drawings"]


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _size(value: float) -> str:
    return human_bytes(value).replace(".00", "").replace(".0 ", " ")


def _time(value: float) -> str:
    return human_seconds(value).replace(".00", "").replace(".0 ", " ")


def _sources(records: Iterable[Record]) -> list[str]:
    return list(dict.fromkeys(record.source for record in records))


def _grouped(records: Iterable[Record], key: Callable[[Record], str]) -> list[tuple[str, list[Record]]]:
    """In the order of first appearance."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return list(groups.items())


# Rules -----------------------------------------------------------------------------------------------------


def rule_drawings(results: Results) -> list[Scatter]:
    """Errors of 1/sqrt against bytes, and along the interval."""
    records = results.of("rule")
    sources = list(dict.fromkeys(name for record in records for name in record["costs"]))
    online = _error_against(records, "online bytes", lambda costs: max(c["online_bytes"] for c in costs.values()))
    totals = [_error_against(records, f"bytes in all, randomness from the {name}", _total(name)) for name in sources]
    return [online, *totals, *_curves(records)]


Costs = dict[str, dict[str, int]]
"""By source of randomness."""


def _total(source: str) -> Callable[[Costs], float]:
    return lambda costs: costs[source]["online_bytes"] + costs[source]["offline_bytes"]


def _name(record: Record) -> str:
    return str(record["rule"]) if record["private"] else f"{record['rule']} (not private)"


def _error_against(records: list[Record], what: str, amount: Callable[[Costs], float]) -> Scatter:
    series = []
    for name, group in _grouped(records, _name):
        points = [
            Point(
                amount(record["costs"]),
                record["max_relative_error"],
                f"{record.rule}, {_size(amount(record['costs']))}, error {_percent(record['max_relative_error'])}",
                "" if record.get("steps") is None else str(record["steps"]),
            )
            for record in group
            if record["max_relative_error"] is not None
        ]
        series.append(Series(name, sorted(points, key=lambda point: point.x)))
    elements = f" for {records[0]['elements']:,} values" if records else ""
    return Scatter(
        f"1/sqrt: error against {what}",
        Axis(f"{what}{elements}", log=True, show=_size),
        Axis("largest relative error", log=True, show=_percent),
        series,
        "The number at a point is that of its steps. Left and low is good.",
        _sources(records),
    )


def _curves(records: list[Record]) -> list[Scatter]:
    """One of all rules with their usual numbers of steps, and one for each that is recorded with several."""
    drawn, single = [], []
    for name, group in _grouped(records, _name):
        if len(group) > 1 and group[0]["private"]:
            drawn.append(_curve_drawing(name, [(record.rule.partition(", ")[2], record) for record in group]))
        single += [(record.rule if record["private"] else name, record) for record in group if record.get("usual")]
    return [*([_curve_drawing("every rule as it is used", single)] if single else []), *drawn]


def _curve_drawing(title: str, curves: list[tuple[str, Record]]) -> Scatter:
    series = [
        Series(name, [Point(t, max(error, 1e-6)) for t, error in record["curve"]], dots=False)
        for name, record in curves
    ]
    return Scatter(
        f"Error along the interval: {title}",
        Axis("t", log=True),
        Axis("relative error of 1/sqrt(t)", log=True, show=_percent),
        series,
        sources=_sources(record for _, record in curves),
    )


# Costs -----------------------------------------------------------------------------------------------------


def cost_drawings(results: Results) -> list[Scatter | Bars]:
    """Whole models and single operations."""
    models = results.of("model")
    return [*_against_length(models), *_by_operation(models), _phases(models), *_methods(results.of("operation"))]


def _whole(record: Record) -> str:
    """What must be equal for a line over lengths."""
    network = f", {record['network']}" if record.get("network") else ""
    return f"{record['model']}, {record['layers']} layers, {record.rule}, {record['source']}{network}"


def _against_length(models: list[Record]) -> list[Scatter]:
    lines = [
        (name, sorted(group, key=lambda record: int(record["tokens"])))
        for name, group in _grouped((record for record in models if record["batch"] == 1), _whole)
        if len({record["tokens"] for record in group}) > 1
    ]
    amounts = (("online_bytes", "online"), ("offline_bytes", "offline"))
    series = [
        Series(
            what if len(lines) == 1 else f"{name}: {what}",
            [Point(r["tokens"], r[key], f"{r['tokens']} tokens, {_size(r[key])}") for r in group],
        )
        for name, group in lines
        for key, what in amounts
    ]
    times = [
        Series(name, [Point(r["tokens"], r["seconds"], f"{r['tokens']} tokens, {_time(r['seconds'])}") for r in group])
        for name, group in lines
    ]
    title = f": {lines[0][0]}" if len(lines) == 1 else ""
    sources = _sources(record for _, group in lines for record in group)
    tokens = Axis("tokens", log=True, ticks=sorted({r["tokens"] for _, group in lines for r in group}))
    return [
        Scatter(f"Bytes against length{title}", tokens, Axis("bytes", log=True, show=_size), series, sources=sources),
        Scatter(
            f"Time against length{title}", tokens, Axis("online time", log=True, show=_time), times, sources=sources
        ),
    ]


def _short(record: Record) -> str:
    tokens = str(record["tokens"]) if record["batch"] == 1 else f"{record['batch']}×{record['tokens']}"
    return f"{record['model']}/{record['layers']}, {tokens}, {record.rule}, {record['source']}"


def _order(record: Record) -> tuple[str, int, int, str, str]:
    return record["model"], -record["layers"], record["batch"] * record["tokens"], record["source"], record.rule


def _by_operation(models: list[Record]) -> list[Bars]:
    """What a model's bytes and processor time are for, each model at its middle length."""
    chosen = [record for record in models if record["tokens"] == 128 and not record.get("network")] or models
    rows = [(_short(record), record) for record in sorted(chosen, key=_order) if record["batch"] == 1]
    sizes = [(name, {c["operation"]: float(c["online_bytes"]) for c in record["operations"]}) for name, record in rows]
    times = [(name, {c["operation"]: sum(c["cpu_seconds"]) for c in record["operations"]}) for name, record in rows]
    sources = _sources(record for _, record in rows)
    return [
        Bars("Online bytes by operation", Axis("online bytes", show=_size), sizes, sources=sources),
        Bars("Processor time by operation", Axis("CPU, both parties", show=_time), times, sources=sources),
    ]


def _phases(models: list[Record]) -> Bars:
    rows = [
        (_short(record), {"online": float(record["online_bytes"]), "offline": float(record["offline_bytes"])})
        for record in sorted(models, key=_order)
        if not record.get("network")
    ]
    note = "offline: before the text exists, by the dealer or between the two parties."
    return Bars("Offline against online", Axis("bytes", show=_size), rows, note, _sources(models))


def _methods(operations: list[Record]) -> list[Scatter]:
    """For every operation with several methods: its error against its bytes."""
    drawn = []
    for operation, group in groupby(
        sorted(operations, key=lambda record: str(record["operation"])), key=lambda record: str(record["operation"])
    ):
        members = list(group)
        by_method = _grouped(members, lambda record: str(record["method"]))
        if len(by_method) < 2:
            continue
        series = [
            Series(
                method if records[0]["private"] else f"{method} (not private)",
                [
                    Point(
                        record["online_bytes"],
                        record["max_abs_error"],
                        f"{record.rule} {_size(record['online_bytes'])}, error {record['max_abs_error']:.1e}",
                        method,
                    )
                    for record in records
                ],
                line=len(records) > 1,
            )
            for method, records in by_method
        ]
        size = "×".join(map(str, members[0]["shape"]))
        note = "Error: the largest, against the function that the method stands for. Training makes up for some."
        axes = Axis("online bytes", log=True, show=_size), Axis("error", log=True, show=lambda v: f"{v:.0e}")
        drawn.append(Scatter(f"{operation} {size}: error against bytes", *axes, series, note, _sources(members)))
    return drawn


def peer_drawings(results: Results) -> list[Bars]:
    """One encoder layer by every system."""
    found = [record for record in results.of("peer") if record["task"] == "layer"]
    found.sort(key=lambda record: int(record["online_bytes"]) + int(record["offline_bytes"] or 0))
    names = [f"{record['system']}, {record['tokens']}" for record in found]
    sizes: list[tuple[str, dict[str, float]]] = [
        (name, {"online": record["online_bytes"], "offline": record["offline_bytes"] or 0})
        for name, record in zip(names, found, strict=True)
    ]
    times: list[tuple[str, dict[str, float]]] = [
        (name, {"CPU": record["cpu_seconds"]}) for name, record in zip(names, found, strict=True)
    ]
    note = (
        "System and tokens. Offline bytes of CrypTen and SPU SEMI2K are not counted by them; CHEETAH has no such phase."
    )
    sources = _sources(found)
    return [
        Bars("One BERT-base layer: bytes by system", Axis("bytes", show=_size), sizes, note, sources),
        Bars("One BERT-base layer: processor time by system", Axis("CPU, both", show=_time), times, sources=sources),
    ]


# Accuracy --------------------------------------------------------------------------------------------------


def accuracy_drawings(results: Results) -> list[Scatter]:
    """What a model loses against what it costs by plan, where there is a plan for the same rule and steps."""
    found = runs(results)
    drawn = []
    for encoder in dict.fromkeys(run.encoder for run in found):
        plans = [record for record in results.of("plan") if record["model"] == encoder]
        mine = [run for run in found if run.encoder == encoder]
        for what, amount in _AMOUNTS:
            series = _losses(mine, plans, amount)
            if series:
                drawn.append(
                    Scatter(
                        f"{encoder}: score, less unmodified, against {what}",
                        Axis(f"{what} of a text, planned", log=True, show=_size),
                        Axis("points gained or lost", show=lambda value: f"{value:+g}", low=_LOWEST),
                        series,
                        "One point per rule and number of steps; means over seeds. What lost more than "
                        f"{-_LOWEST:g} points is in the tables only.",
                        [*_sources(run.record for run in mine), *_sources(plans)],
                    )
                )
    return drawn


_LOWEST = -6.0
_AMOUNTS: tuple[tuple[str, Callable[[Record], int]], ...] = (
    ("online bytes", lambda plan: int(plan["online_bytes"])),
    ("bytes in all", lambda plan: int(plan["online_bytes"]) + int(plan["offline_bytes"])),
)


def _losses(found: list[Run], plans: list[Record], amount: Callable[[Record], int]) -> list[Series]:
    """By task, what was trained through a rule; and the mean over tasks."""
    cost = {_rule_of(plan): amount(plan) for plan in plans}
    base = {(run.task, run.seed): run.score for run in found if run.stage == "unmodified" and run.rule is None}
    differences: dict[str, dict[str, list[float]]] = {}
    for run in found:
        trained = run.rule is None and run.stage.startswith("certified") and "undistilled" not in run.stage
        if trained and (run.task, run.seed) in base and _rule_of(run.record) in cost:
            by_rule = differences.setdefault(run.task, {}).setdefault(_rule_of(run.record), [])
            by_rule.append(run.score - base[run.task, run.seed])
    averages = {task: {rule: mean(values) for rule, values in by.items()} for task, by in differences.items()}
    everywhere = {
        rule: mean(by[rule] for by in averages.values())
        for rule in cost
        if len(averages) > 1 and all(rule in by for by in averages.values())
    }
    if everywhere:
        averages["mean over tasks"] = everywhere
    return [
        Series(
            task, [Point(cost[rule], value, f"{rule}: {value:+.2f}", rule) for rule, value in by.items()], line=False
        )
        for task, by in averages.items()
    ]


def _rule_of(record: Record) -> str:
    return record.rule.removeprefix("minimax, ")
