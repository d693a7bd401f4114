"""Tables of what was measured, no wider than 80 columns unless there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from comet_mpc.cli.tables import origin, table
from comet_mpc.offline.sources import find_source
from comet_mpc.units import counted, human_bytes, human_seconds
from comet_research.bench.models import ModelRecord
from comet_research.bench.operations import Record
from comet_research.bench.profile import ProfileRecord
from comet_research.bench.rules import RuleRecord


def with_origin(records: Sequence[Any]) -> list[dict[str, Any]]:
    """Records as they are written, each with its origin."""
    return [msgspec.to_builtins(record) | origin("comet-lab") for record in records]


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


_COLUMNS: Mapping[str, Callable[[Record], str]] = {
    "inputs": lambda record: record.domain,
    "online": lambda record: human_bytes(record.online_bytes),
    "offline": lambda record: human_bytes(record.offline_bytes),
    "rounds": lambda record: str(record.rounds),
    "time": lambda record: human_seconds(record.seconds),
    "prepared in": lambda record: human_seconds(record.offline_seconds),
    "CPU": lambda record: human_seconds(record.cpu_seconds),
    "memory": lambda record: human_bytes(record.peak_rss),
    "error": lambda record: _error(record.max_abs_error),
    "relative": lambda record: _error(record.max_relative_error),
    "rounding": lambda record: _error(record.max_twin_error),
}
_LESSER = ((163, ("inputs",)), (134, ("rounding", "relative")), (112, ("CPU", "memory")), (94, ("prepared in",)))
"""What is left out where there are fewer columns than this."""


def operations_table(records: Sequence[Record], width: int = 160) -> Group:
    """One line per case: within an operation, the cheapest online first."""
    left_out = {name for least, names in _LESSER if width < least for name in names}
    columns = {name: show for name, show in _COLUMNS.items() if name not in left_out}
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("operation and method", no_wrap=True)
    for name in columns:
        made.add_column(name, justify="left" if name == "inputs" else "right", no_wrap=True)
    notes = [
        "online, offline: bytes of both parties. time, prepared in: how long each took.",
        "CPU, memory: the larger of the two; CPU is online.",
        "error, relative: compared with the exact function in float64.",
        "rounding: compared with the same approximation in the clear.",
    ]
    for operation, group in groupby(records, key=lambda record: record.operation):
        members = sorted(group, key=lambda record: (record.online_bytes, record.method))
        made.add_row(f"[bold]{operation}[/bold] {'×'.join(map(str, members[0].shape))}")
        for record in members:
            steps = f", {counted(record.steps, 'step')}" if record.steps is not None else ""
            warning = "" if record.private else " [red](not private)[/red]"
            made.add_row(f"  {record.method}{steps}{warning}", *(show(record) for show in columns.values()))
            if record.setup_bytes:
                notes.append(f"{operation}: set-up of {human_bytes(record.setup_bytes)}, once per client and model.")
        made.add_section()
    return Group(Text("Operations between two processes, final truncation included", style="bold"), made, *notes, "")


def rules_table(records: Sequence[RuleRecord]) -> Group:
    """One line per rule and number of steps."""
    first = records[0]
    sources = list(first.costs)
    rows = (
        (
            record.rule if record.private else f"{record.rule} (not private)",
            "" if record.steps is None else str(record.steps),
            _error(record.max_relative_error),
            human_bytes(max(cost.online_bytes for cost in record.costs.values())),
            *(human_bytes(record.costs[source].offline_bytes) for source in sources),
        )
        for record in records
    )
    return table(
        f"1/sqrt of {first.elements:,} values, most on [{first.low:g}, {first.high:g}]: relative error, planned bytes",
        ("rule", "steps", "error", "online", *(f"offline, {source}" for source in sources)),
        rows,
    )


def _both(show: Callable[[float], str], pair: Iterable[float]) -> str:
    """A number of the client's and one of the server's."""
    return " / ".join(map(show, pair))


def model_tables(record: ModelRecord) -> list[Group]:
    """A whole model: in all, and by operation."""
    where = f"over {record.network}" if record.network else "on the loopback device"
    rows = (
        ("online, both parties", human_bytes(record.online_bytes), human_bytes(record.planned_online_bytes)),
        ("rounds", str(record.rounds), str(record.planned_rounds)),
        ("online time", human_seconds(record.seconds), ""),
        ("online CPU, client / server", _both(human_seconds, record.cpu_seconds), ""),
        (
            f"offline, {find_source(record.source).who}",
            human_bytes(record.offline_bytes),
            human_bytes(record.planned_offline_bytes),
        ),
        ("offline time", human_seconds(record.offline_seconds), ""),
        ("offline CPU, client / server", _both(human_seconds, record.offline_cpu_seconds), ""),
        ("set-up, once per client and model", human_bytes(record.setup_bytes), ""),
        ("peak memory, client / server", _both(human_bytes, record.peak_rss), ""),
        ("largest difference of a logit to the twin's", _error(record.max_logit_difference), ""),
    )
    operations = (
        (c.operation, human_bytes(c.online_bytes), str(c.rounds), human_seconds(c.seconds),
         _both(human_seconds, c.cpu_seconds))
        for c in record.operations
    )  # fmt: skip
    named = {"minimax": counted(record.steps, "step"), "fitted": "fitted functions"}
    by = named.get(record.rule, f"{record.rule} roots")
    return [
        table(
            f"{record.model}, {counted(record.layers, 'layer')}, {record.batch} × {record.tokens} tokens, "
            f"{by}, {record.weights} weights, randomness from the {record.source}, {where}",
            ("", "measured", "planned"),
            rows,
        ),
        table("By operation", ("", "online", "rounds", "time", "CPU client / server"), operations),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000.0:.1f} ms"


def profile_tables(record: ProfileRecord) -> list[Group]:
    """What a query's time consists of, and the operations that its compute is for."""
    uneven = record.lockstep_seconds - max(record.compute_seconds)
    accounted = record.needed_seconds + uneven + record.latency_seconds + record.start_seconds
    rate = f"{record.rate / 1e9:.2f} GB/s both ways in frames of {human_bytes(record.frame_bytes)}"
    compute, crowded = (_both(_milliseconds, pair) for pair in (record.compute_seconds, record.crowded_seconds))
    rows = (
        ("bytes at the channel's rate", f"{human_bytes(record.online_bytes)}, {rate}", record.bytes_seconds),
        ("compute", f"CPU of the busier party; client / server {compute}", max(record.compute_seconds)),
        ("= needed", "", record.needed_seconds),
        ("waiting for the other party", "what the slower party computes in each round, beyond that", uneven),
        ("latency", f"{record.rounds} rounds of {record.round_trip * 1e6:.0f} µs", record.latency_seconds),
        ("starting", "the request, and the server's bundle taken from disk", record.start_seconds),
        ("= accounted for", "", accounted),
        ("measured", f"the fastest of {record.runs} runs", record.seconds),
        ("", f"of that without a processor, client / server {crowded}", max(record.crowded_seconds)),
        ("", "for comparison: the same frames without computing", record.replay_seconds),
    )
    operations = (
        (c.operation, human_bytes(c.online_bytes), str(c.rounds), _milliseconds(c.seconds),
         _both(_milliseconds, c.compute_seconds))
        for c in record.operations
    )  # fmt: skip
    return [
        table(
            f"A query to {record.model}, {counted(record.layers, 'layer')}, {record.tokens} tokens, over TLS on the "
            f"loopback device: measured / needed = {record.ratio:.2f}",
            ("", "", "time"),
            ((what, how, _milliseconds(seconds)) for what, how, seconds in rows),
            left=2,
        ),
        table("By operation", ("", "online", "rounds", "time", "compute client / server"), operations),
    ]
