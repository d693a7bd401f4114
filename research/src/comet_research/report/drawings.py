"""Which drawings there are, and from which records each is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from comet_mpc.models.transformer import SHAPES
from comet_mpc.units import human_bytes, human_seconds
from comet_research.report.charts import Axis, Bars, Point, Scatter, Series
from comet_research.report.records import Record, Results, sources_of


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def readable_size(value: float) -> str:
    return human_bytes(value).replace(".00", "").replace(".0 ", " ")


def _time(value: float) -> str:
    return human_seconds(value).replace(".00", "").replace(".0 ", " ")


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
                f"{record.rule}, {readable_size(amount(record['costs']))}, "
                f"error {_percent(record['max_relative_error'])}",
                name if record.get("steps") is None else str(record["steps"]),
            )
            for record in group
            if record["max_relative_error"] is not None
        ]
        series.append(Series(name, sorted(points, key=lambda point: point.x)))
    elements = f" for {records[0]['elements']:,} values" if records else ""
    return Scatter(
        f"1/sqrt: error against {what}",
        Axis(f"{what}{elements}", log=True, show=readable_size),
        Axis("largest relative error", log=True, show=_percent),
        series,
        "The number at a point is that of its steps; polynomials give the root itself. Left and low is good.",
        sources_of(records),
    )


def _curves(records: list[Record]) -> list[Scatter]:
    """One of all rules with their usual numbers of steps, and one for each that is recorded with several."""
    drawn, single, polynomials = [], [], []
    for name, group in _grouped(records, _name):
        if len(group) > 1 and group[0]["private"]:
            drawn.append(_curve_drawing(name, [(record.rule.partition(", ")[2], record) for record in group]))
        usual = [(record.rule if record["private"] else name, record) for record in group if record.get("usual")]
        if group[0].get("function") == "sqrt":
            polynomials += usual
        else:
            single += usual
    first = [("every rule as it is used", single), ("the root by one polynomial", polynomials)]
    return [*(_curve_drawing(title, curves) for title, curves in first if curves), *drawn]


def _curve_drawing(title: str, curves: list[tuple[str, Record]]) -> Scatter:
    series = [
        Series(name, [Point(t, max(error, 1e-6)) for t, error in record["curve"]], dots=False)
        for name, record in curves
    ]
    return Scatter(
        f"Error along the interval: {title}",
        Axis("t", log=True),
        Axis("relative error of the root", log=True, show=_percent),
        series,
        sources=sources_of(record for _, record in curves),
    )


def distribution_drawings(results: Results) -> list[Scatter]:
    """What activations and LayerNorms get, a line per layer."""
    drawn = []
    for title, group in _grouped(
        results.of("distribution"), lambda r: f"{r['model']}, {r['task']}: what goes into {_PLURAL[r['what']]}"
    ):
        count = min(len(group), _MOST_LINES)
        chosen = [group[place * len(group) // count] for place in range(count)]
        series = [
            Series(
                record["site"].removeprefix("layers.").replace(".", ", ").replace("_", " "),
                [Point(x, y) for x, y in record["curve"] if y > 0],
                dots=False,
            )
            for record in chosen
        ]
        note = f"{group[0]['rows']} texts; layers counted from 0. 999 of 1000 values are drawn."
        axes = Axis("value"), Axis("density", log=True, show=lambda value: f"{value:.0e}")
        drawn.append(Scatter(title, *axes, series, note, sources_of(group)))
    return drawn


_PLURAL = {"activation": "activations", "LayerNorm": "LayerNorms"}
_MOST_LINES = 8


# Costs -----------------------------------------------------------------------------------------------------


def cost_drawings(results: Results) -> list[Scatter | Bars]:
    """Whole models and single operations."""
    models, plans = results.of("model"), results.of("plan")
    drawn: list[Scatter | Bars] = [*_against_length(models, plans), *_by_operation(models), _phases(models)]
    return [*drawn, *_methods(results.of("operation"), results.of("peer"))]


def _whole(record: Record) -> str:
    """What must be equal for a line over lengths."""
    network = f", {record['network']}" if record.get("network") else ""
    layers = record["layers"] if isinstance(record["layers"], int) else SHAPES[record["model"]].layers
    return f"{record['model']}, {layers} layers, {record.rule}, {record['source']}{network}"


def _lines(records: Iterable[Record]) -> list[tuple[str, list[Record]]]:
    """By what must be equal, those of several lengths; the first of each length."""
    found = []
    for name, group in _grouped((record for record in records if record["batch"] == 1), _whole):
        by_length = {int(record["tokens"]): record for record in reversed(group)}
        if len(by_length) > 1:
            found.append((name, [by_length[tokens] for tokens in sorted(by_length)]))
    return found


def _against_length(models: list[Record], plans: list[Record]) -> list[Scatter]:
    """Bytes are those of plans where nothing was measured, since they are the same; times are measured."""
    lines = _lines([*models, *(plan for plan in plans if plan["model"] in SHAPES)])
    amounts = (("online_bytes", "online"), ("offline_bytes", "offline"))
    series = [
        Series(
            what if len(lines) == 1 else f"{name}: {what}",
            [Point(r["tokens"], r[key], f"{r['tokens']} tokens, {readable_size(r[key])}") for r in group],
        )
        for name, group in lines
        for key, what in amounts
    ]
    times = [
        Series(name, [Point(r["tokens"], r["seconds"], f"{r['tokens']} tokens, {_time(r['seconds'])}") for r in group])
        for name, group in _lines(models)
    ]
    title = f": {lines[0][0]}" if len(lines) == 1 else ""
    sources = sources_of(record for _, group in lines for record in group)
    tokens = Axis("tokens", log=True, ticks=sorted({r["tokens"] for _, group in lines for r in group}))
    return [
        Scatter(
            f"Bytes against length{title}", tokens, Axis("bytes", log=True, show=readable_size), series, sources=sources
        ),
        Scatter(
            f"Time against length{title}", tokens, Axis("online time", log=True, show=_time), times, sources=sources
        ),
    ]


def _short(record: Record) -> str:
    tokens = str(record["tokens"]) if record["batch"] == 1 else f"{record['batch']}×{record['tokens']}"
    rule = record.rule.removeprefix("minimax, ")
    return f"{record['model']}/{record['layers']}, {tokens}, {rule}, {record['source']}"


def _order(record: Record) -> tuple[str, int, int, str, str]:
    return record["model"], -record["layers"], record["batch"] * record["tokens"], record["source"], record.rule


def _by_operation(models: list[Record]) -> list[Bars]:
    """What a model's bytes and processor time are for, each model at its middle length."""
    chosen = [record for record in models if record["tokens"] == 128 and not record.get("network")] or models
    rows = [(_short(record), record) for record in sorted(chosen, key=_order) if record["batch"] == 1]
    sizes = [(name, {c["operation"]: float(c["online_bytes"]) for c in record["operations"]}) for name, record in rows]
    times = [(name, {c["operation"]: sum(c["cpu_seconds"]) for c in record["operations"]}) for name, record in rows]
    sources = sources_of(record for _, record in rows)
    return [
        Bars("Online bytes by operation", Axis("online bytes", show=readable_size), sizes, sources=sources),
        Bars("Processor time by operation", Axis("CPU, both parties", show=_time), times, sources=sources),
    ]


def _phases(models: list[Record]) -> Bars:
    rows = [
        (_short(record), {"online": float(record["online_bytes"]), "offline": float(record["offline_bytes"])})
        for record in sorted(models, key=_order)
        if not record.get("network")
    ]
    note = "offline: before the text exists, by the dealer or between the two parties."
    return Bars("Offline against online", Axis("bytes", show=readable_size), rows, note, sources_of(models))


def _methods(operations: list[Record], peers: list[Record]) -> list[Scatter]:
    """For every operation with several methods: its error against its bytes; other systems on the same axes."""
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
                        f"{record.rule} {readable_size(record['online_bytes'])}, error {record['max_abs_error']:.1e}",
                        method,
                    )
                    for record in records
                ],
                line=len(records) > 1,
            )
            for method, records in by_method
        ]
        others = [peer for peer in peers if peer["task"] == operation and not peer["system"].startswith("comet")]
        if others:
            series.append(Series("other systems, measured", [_peer_point(peer) for peer in others], line=False))
        size = "×".join(map(str, members[0]["shape"]))
        note = "Error: the largest, against the function that the method stands for. Training makes up for some."
        axes = Axis("online bytes", log=True, show=readable_size), Axis("error", log=True, show=lambda v: f"{v:.0e}")
        sources = sources_of([*members, *others])
        drawn.append(Scatter(f"{operation} {size}: error against bytes", *axes, series, note, sources))
    return drawn


def _peer_point(peer: Record) -> Point:
    size, error = peer["online_bytes"], peer["max_abs_error"]
    return Point(size, error, f"{peer['system']} {readable_size(size)}, error {error:.1e}", peer["system"])


def peer_drawings(results: Results) -> list[Bars]:
    """One encoder layer by every system."""
    found = [record for record in results.of("peer") if record["task"] == "layer"]
    found.sort(key=lambda record: int(record["online_bytes"]) + int(record["offline_bytes"] or 0))
    lengths = {record["tokens"] for record in found}
    what = f"One BERT-base layer, {found[0]['tokens']} tokens" if len(lengths) == 1 else "One BERT-base layer"
    names = [r["system"] if len(lengths) == 1 else f"{r['system']}, {r['tokens']} tokens" for r in found]
    names = [name if record["right"] else f"{name} (wrong)" for name, record in zip(names, found, strict=True)]
    sizes: list[tuple[str, dict[str, float]]] = [
        (name, {"online": record["online_bytes"], "offline": record["offline_bytes"] or 0})
        for name, record in zip(names, found, strict=True)
    ]
    times: list[tuple[str, dict[str, float]]] = [
        (name, {"CPU": record["cpu_seconds"]}) for name, record in zip(names, found, strict=True)
    ]
    note = "CrypTen and SPU SEMI2K do not count offline bytes; CHEETAH has no such phase. (wrong): its result is."
    sources = sources_of(found)
    return [
        Bars(f"{what}: bytes by system", Axis("bytes", show=readable_size), sizes, note, sources),
        Bars(f"{what}: processor time by system", Axis("CPU, both", show=_time), times, sources=sources),
    ]
