"""What was measured, for people and for machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from comet_mpc.errors import ConfigurationError
from comet_mpc.lab.bench.models import ModelRecord
from comet_mpc.lab.bench.operations import Record
from comet_mpc.lab.bench.profile import ProfileRecord
from comet_mpc.lab.bench.truncation import TruncationRecord
from comet_mpc.lab.demo import TextResult
from comet_mpc.units import human_bytes, human_seconds

__all__ = [
    "demo_tables",
    "model_tables",
    "operations_table",
    "profile_tables",
    "to_json",
    "truncation_table",
    "write_json",
]


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> Group:
    """A table whose first `left` columns are texts and whose others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", no_wrap=place > 0)
    for row in rows:
        table.add_row(*row)
    return Group(Text(title, style="bold"), table)


_COLUMNS: Mapping[str, Callable[[Record], str]] = {
    "inputs": lambda record: record.domain,
    "online": lambda record: human_bytes(record.online_bytes),
    "offline": lambda record: human_bytes(record.offline_bytes),
    "rounds": lambda record: str(record.rounds),
    "time": lambda record: human_seconds(record.seconds),
    "CPU": lambda record: human_seconds(record.cpu_seconds),
    "memory": lambda record: human_bytes(record.peak_rss),
    "error": lambda record: _error(record.max_abs_error),
    "relative": lambda record: _error(record.max_relative_error),
    "rounding": lambda record: _error(record.max_twin_error),
}
_LESSER = ((145, ("inputs",)), (118, ("rounding", "relative")), (92, ("CPU", "memory")))
"""What a screen of fewer columns goes without."""


def operations_table(records: Sequence[Record], width: int = 160) -> Group:
    """One line per case: within an operation, the cheapest online first."""
    left_out = {name for least, names in _LESSER if width < least for name in names}
    columns = {name: show for name, show in _COLUMNS.items() if name not in left_out}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("operation and method", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="left" if name == "inputs" else "right", no_wrap=True)
    notes = []
    for operation, group in groupby(records, key=lambda record: record.operation):
        members = sorted(group, key=lambda record: (record.online_bytes, record.method))
        table.add_row(f"[bold]{operation}[/bold] {'×'.join(map(str, members[0].shape))}")
        for record in members:
            steps = f", {record.steps} steps" if record.steps is not None else ""
            warning = "" if record.private else " [red](not private)[/red]"
            table.add_row(f"  {record.method}{steps}{warning}", *(show(record) for show in columns.values()))
            if record.setup_bytes:
                notes.append(f"{operation}: set-up of {human_bytes(record.setup_bytes)}, once per model and client.")
        table.add_section()
    return Group(
        Text("Single operations between two processes, final truncation included", style="bold"),
        table,
        "online, offline: bytes of both parties together. CPU, memory: the larger party's.",
        "error, relative: against the exact function in float64. rounding: against the same approximation, not secret.",
        *notes,
        "",
    )


def truncation_table(records: Sequence[TruncationRecord]) -> Group:
    return _table(
        "Truncation of random values up to 2^61; errors in units of the last place",
        ("shift", "values", "wraps", "largest error", "mean error", "± by chance", "time", ""),
        [
            (
                str(record.shift),
                f"{record.values:,}",
                str(record.wraps),
                f"{record.max_error:.6f}",
                f"{record.mean_error:+.1e}",
                f"{record.standard_error:.1e}",
                human_seconds(record.seconds),
                "exact" if record.exact else "[red]NOT EXACT[/red]",
            )
            for record in records
        ],
        left=0,
    )


_TRUST = {
    "pair": "No third party: client and server prepared the randomness between themselves (offline), before any text "
    "is needed; queries to come can be prepared in the background.",
    "dealer": "The dealer here is on the same machine, for the demonstration. It knows every mask: run by one of the "
    "parties, it gives no privacy.",
}


def demo_tables(texts: Sequence[TextResult]) -> list[Group | str]:
    """The answers, what was seen, and what it cost."""
    answers = [
        (
            one.text,
            one.label,
            f"{one.probability:.1%}",
            one.plain_label,
            f"{one.plain_probability:.1%}",
        )
        for one in texts
    ]
    costs = [
        (
            str(one.bucket),
            human_bytes(one.client_sent),
            human_bytes(one.server_sent),
            str(one.rounds),
            human_seconds(one.online_seconds),
            human_bytes(one.offline_bytes),
            human_seconds(one.offline_seconds),
        )
        for one in texts
    ]
    last = texts[-1]
    agree = all((one.online_bytes, one.rounds) == (one.planned_online_bytes, one.planned_rounds) for one in texts)
    return [
        "\nA client with texts and a server with a classifier"
        + (": two" if last.source == "pair" else ", and a dealer: three")
        + " processes, connected by TLS 1.3. "
        "The server does not learn the texts or the answers, the client does not learn the weights.\n",
        _table("The answers, at the client", ("text", "private", "", "in the clear", ""), answers, left=2),
        _table(
            "What the server saw for the last text: uniform bytes have 8 bits of entropy each",
            ("", "first bytes", "size", "entropy"),
            [
                (what, g.first_bytes[:35], human_bytes(g.size), f"{g.entropy:.4f}")
                for what, g in (("the text itself", last.text_itself), ("all that it received", last.server_saw))
            ],
            left=2,
        ),
        _table(
            "What each text cost" + ("; bytes and rounds are the planned ones" if agree else ""),
            ("tokens", "client sends", "server sends", "rounds", "time", "offline", "time"),
            costs,
            left=0,
        ),
        f"Set-up, once per client and model: {human_bytes(last.setup_bytes)}, "
        f"{human_seconds(last.setup_seconds)}.\n\n{_TRUST[last.source]}\n",
    ]


def to_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def write_json(path: Path, value: Any) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_json(value))
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error


def model_tables(record: ModelRecord) -> list[Group]:
    """A whole model: in all, and by operation."""
    where = f" over {record.network}" if record.network else " on loopback"
    title = f"{record.model}, {record.layers} layers, {record.batch} × {record.tokens} tokens, {record.steps} steps"
    rows = [
        ("online, both parties", human_bytes(record.online_bytes), human_bytes(record.planned_online_bytes)),
        ("rounds", str(record.rounds), str(record.planned_rounds)),
        ("online time", human_seconds(record.seconds), ""),
        ("online CPU, client / server", " / ".join(human_seconds(s) for s in record.cpu_seconds), ""),
        (
            "offline, from the dealer" if record.source == "dealer" else "offline, both parties",
            human_bytes(record.offline_bytes),
            human_bytes(record.planned_offline_bytes),
        ),
        ("offline time", human_seconds(record.offline_seconds), ""),
        ("offline CPU, client / server", " / ".join(human_seconds(s) for s in record.offline_cpu_seconds), ""),
        ("set-up, once per client and model", human_bytes(record.setup_bytes), ""),
        ("peak memory, client / server", " / ".join(human_bytes(b) for b in record.peak_rss), ""),
        ("largest logit difference to the twin", _error(record.max_logit_difference), ""),
    ]
    operations = [
        (
            cost.operation,
            human_bytes(cost.online_bytes),
            str(cost.rounds),
            human_seconds(cost.seconds),
            " / ".join(human_seconds(s) for s in cost.cpu_seconds),
        )
        for cost in record.operations
    ]
    return [
        _table(f"{title}, {record.weights} weights, {record.source}{where}", ("", "measured", "planned"), rows),
        _table("By operation", ("", "online", "rounds", "time", "CPU client / server"), operations),
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000.0:.1f} ms"


def profile_tables(record: ProfileRecord) -> list[Group]:
    """What a query's time consists of, and the operations that its compute is for."""
    uneven = record.lockstep_seconds - max(record.compute_seconds)
    accounted = record.needed_seconds + uneven + record.latency_seconds + record.start_seconds
    rates = f"{record.rate / 1e9:.2f} GB/s both ways, in frames of {human_bytes(record.frame_bytes)}"
    compute, crowded = (
        " / ".join(map(_milliseconds, pair)) for pair in (record.compute_seconds, record.crowded_seconds)
    )
    rows = [
        ("bytes at the channel's rate", f"{human_bytes(record.online_bytes)}, {rates}", record.bytes_seconds),
        ("compute, busier party", f"client / server {compute} of CPU", max(record.compute_seconds)),
        ("= needed", "", record.needed_seconds),
        ("waiting for the slower party", "compute of the slower one in every round, beyond that", uneven),
        (
            "latency of the rounds",
            f"{record.rounds} rounds of {record.round_trip * 1e6:.0f} µs",
            record.latency_seconds,
        ),
        ("starting", "request, and the server's bundle consumed durably", record.start_seconds),
        ("= accounted for", "", accounted),
        ("measured", f"fastest of {record.runs} runs", record.seconds),
        ("", f"meanwhile without a processor, client / server: {crowded}", max(record.crowded_seconds)),
        ("", "the same frames without computing", record.replay_seconds),
    ]
    operations = [
        (
            cost.operation,
            human_bytes(cost.online_bytes),
            str(cost.rounds),
            _milliseconds(cost.seconds),
            " / ".join(map(_milliseconds, cost.compute_seconds)),
        )
        for cost in record.operations
    ]
    title = f"A query to {record.model}, {record.layers} layers, {record.tokens} tokens, over TLS on loopback"
    ratio = f"measured / needed = {record.ratio:.2f}"
    return [
        _table(f"{title}: {ratio}", ("", "", "time"), [(a, b, _milliseconds(c)) for a, b, c in rows], left=2),
        _table("By operation", ("", "online", "rounds", "time", "compute client / server"), operations),
    ]
