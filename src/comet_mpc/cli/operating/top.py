"""`comet top`: what a server or a dealer is doing, for whoever operates it."""

from __future__ import annotations

import contextlib
import http.client
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from comet_mpc.cli.operating.figures import Look, Watch
from comet_mpc.cli.options import JsonFile, option
from comet_mpc.cli.tables import write_json
from comet_mpc.errors import ConfigurationError
from comet_mpc.units import counted, human_bytes, human_seconds

_TIMEOUT = 5.0
_DAY = 86_400.0
_SOON = 30 * _DAY
"""Before a certificate expires: time to have a new one issued."""
_LARGEST = 1 << 22
_WORK = {
    "queries_total": "queries",
    "texts_total": "texts",
    "bundles_prepared_total": "bundles prepared",
    "bundles_evicted_total": "bundles evicted",
    "bundles_dealt_total": "bundles dealt",
    "sessions_total": "conversations",
    "online_bytes_total": "online bytes",
    "offline_bytes_total": "offline bytes",
    "setup_bytes_total": "set-up bytes",
    "refusals_total": "refusals",
    "errors_total": "errors",
}

Metrics = Annotated[
    str, typer.Argument(metavar="[HOST:PORT]", help="Where the server or the dealer publishes its metrics (--metrics).")
]
Every = Annotated[float, option("Seconds from look to look.", min=0.2)]
Once = Annotated[bool, option("Look once and exit. So it does where no terminal shows it.", flag="--once")]


def top(metrics: Metrics = "127.0.0.1:9100", every: Every = 2.0, once: Once = False, json: JsonFile = None) -> None:
    """Show what a server or a dealer is doing now: queue, slots, bundles, clients, bytes, refusals, certificates.

    It reads what `--metrics` publishes, so it sees counts and no names. Rates and latencies are those of the last
    minute; with --once, latencies are those since the start. Owners of bundles go by pseudonyms: the server's log has
    them beside the names (`prepared a bundle`).
    """
    address = _address(metrics)
    watch, console = Watch(), Console()
    watch.add(_look(address))
    troubles = _troubles(address)
    if once or json is not None or not sys.stdout.isatty():
        if str(json) != "-":
            console.print(shown(watch, address, troubles, time.time()), highlight=False)
        write_json(json, summary(watch, troubles))
        return
    with contextlib.suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(shown(watch, address, troubles, time.time()), refresh=True)
            time.sleep(every)
            try:
                watch.add(_look(address))
                troubles = _troubles(address)
            except ConfigurationError as error:
                troubles = [str(error)]


def _address(given: str) -> str:
    """HOST:PORT of what may be given as the URL that `comet serve` prints."""
    host = given.removeprefix("http://").partition("/")[0]
    if ":" not in host or not host.rpartition(":")[2].isdigit():
        raise ConfigurationError(f"{given} is not an address: expected HOST:PORT, as given to --metrics")
    return host


def _look(address: str) -> Look:
    status, text = _page(address, "metrics")
    if status != 200:
        raise ConfigurationError(f"{address} has no metrics: give the address of --metrics, not that of --listen")
    return Look(text, time.monotonic())


def _troubles(address: str) -> list[str]:
    status, text = _page(address, "readyz")
    return [] if status == 200 else text.splitlines()


def _page(address: str, name: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/{name}", timeout=_TIMEOUT) as reply:
            return reply.status, reply.read(_LARGEST).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(_LARGEST).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ConfigurationError(f"nobody publishes metrics at {address}: {reason}") from error


def summary(watch: Watch, troubles: list[str]) -> dict[str, Any]:
    """For machines."""
    look = watch.last
    owners = look.by("owner_bundle_bytes", "owner")
    return {
        "ready": not troubles,
        "troubles": troubles,
        "clients": int(look.value("clients")),
        "sessions": int(look.value("sessions_active")),
        "waiting": look.by("waiting", "kind"),
        "working": look.by("working", "kind"),
        "workers": int(look.value("workers")),
        "totals": {name: look.value(name) for name in _WORK if look.has(name)},
        "latency": {phase: watch.latency(phase) for phase in look.phases},
        "bundles": [{**labels, "count": value} for labels, value in look.samples("bundles")],
        "owners": owners,
        "refusals": {reason: count for reason, count in look.by("refusals_total", "reason").items() if count},
        "errors": {name: count for name, count in look.by("errors_total", "class").items() if count},
        "certificates_expire": look.by("certificate_expiry_timestamp_seconds", "certificate"),
    }


def shown(watch: Watch, address: str, troubles: list[str], now: float) -> RenderableType:
    """For people. Tables stand side by side where there is room."""
    look = watch.last
    if look.has("nodes"):
        tables = [_nodes(look)]
    else:
        tables = [_now(look, now), _work(watch), _latency(watch), *_bundles(look), *_failures(watch)]
    parts = [Padding(one, (0, 2, 1, 0)) for one in tables if one.row_count]
    return Group(_headline(look, address, troubles, now), Text(), Columns(parts, padding=(0, 0)))


def _headline(look: Look, address: str, troubles: list[str], now: float) -> Text:
    info = next((labels for labels, _ in look.samples("info")), {})
    what = "dealer" if look.has("bundles_dealt_total") else "server" if info else "cluster"
    line = Text(" ".join(["comet", what, *([info["version"]] if info else []), "at", address]), style="bold")
    if info:
        line.append(f", up {_long(now - look.value('start_timestamp_seconds'))}")
    if what == "server":
        line.append(f", randomness: {info['source']}")
    line.append("\n")
    line.append("ready" if not troubles else "NOT READY: " + "; ".join(troubles), "green" if not troubles else "red")
    return line


def _long(seconds: float) -> str:
    """A time that may be days."""
    for size, one in ((_DAY, "day"), (3600.0, "hour"), (60.0, "minute")):
        if abs(seconds) >= 2 * size:
            return counted(round(seconds / size), one)
    return counted(round(seconds), "second")


def _table(title: str, *columns: str) -> Table:
    made = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=any(columns),
        min_width=34, show_edge=False, pad_edge=False,
    )  # fmt: skip
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if not index else "right", no_wrap=True)
    return made


def _now(look: Look, now: float) -> Table:
    made = _table("Now", "", "")
    if look.has("clients"):
        made.add_row("clients", f"{look.value('clients'):.0f}")
    made.add_row("conversations", f"{look.value('sessions_active'):.0f}")
    if look.has("workers"):
        busy = look.value("working", kind="run") + look.value("working", kind="prepare")
        made.add_row("working", f"{busy:.0f} of {look.value('workers'):.0f}")
        made.add_row("waiting", _listed(look.by("waiting", "kind")))
        made.add_row("disk free", human_bytes(look.value("state_free_bytes")))
    if look.has("bundles_most"):
        made.add_row("bundles", f"{look.value('bundles_under_way'):.0f} of {look.value('bundles_most'):.0f}")
    for name, end in look.by("certificate_expiry_timestamp_seconds", "certificate").items():
        left = end - now
        text = f"{_long(left)} left" if left > 0 else "EXPIRED"
        made.add_row(f"certificate: {name}", Text(text, "red" if left < _SOON else ""))
    return made


def _nodes(look: Look) -> Table:
    """Of a cluster, which knows what its nodes do now. The servers on them have the rest."""
    columns = ("waiting", "working", "slots", "sessions", "bundles")
    made = _table("Nodes", "", *columns)
    by_column = [look.by(f"node_{column}", "node") for column in columns]
    for node in by_column[0]:
        made.add_row(node, *(_whole(found.get(node, 0.0)) for found in by_column))
    return made


def _listed(counts: dict[str, float]) -> str:
    some = [f"{name} {count:.0f}" for name, count in counts.items() if count]
    return ", ".join(some) or "0"


def _work(watch: Watch) -> Table:
    made = _table("Work", "", "per minute", "total")
    for name, words in _WORK.items():
        if watch.last.has(name):
            write = human_bytes if name.endswith("bytes_total") else _whole
            made.add_row(words, _maybe(watch.per_minute(name), write), write(watch.last.value(name)))
    return made


def _whole(count: float) -> str:
    return f"{count:,.0f}"


def _maybe(value: float | None, write: Any) -> str:
    return "-" if value is None else str(write(value))


def _latency(watch: Watch) -> Table:
    period = "last minute" if watch.seconds else "since start"
    made = _table(f"Seconds by phase, {period}", "", "n", "median", "95 %")
    for phase in watch.last.phases:
        found = watch.latency(phase)
        if found.count or phase in ("run", "prepare", "deal"):
            cells = (_maybe(value, human_seconds) for value in (found.median, found.p95))
            made.add_row(phase.replace("_", ": "), str(found.count), *cells)
    return made


def _bundles(look: Look) -> Iterable[Table]:
    sizes = _table("Bundles by size", "", "count", "on disk")
    amounts = [value for _, value in look.samples("bundle_bytes")]
    models = look.by("bundles", "model")
    for (labels, count), amount in zip(look.samples("bundles"), amounts, strict=True):
        texts, bucket = labels["batch"], labels["bucket"]
        size = "others" if texts == "other" else f"{counted(int(texts), 'text')} of {bucket} tokens"
        name = size if len(models) == 1 else f"{labels['model']}: {size}"
        sizes.add_row(name, _whole(count), human_bytes(amount))
    owners = _table(f"Bundles by owner ({look.value('bundle_owners'):.0f})", "", "count", "on disk")
    amounts_of = look.by("owner_bundle_bytes", "owner")
    for owner, count in look.by("owner_bundles", "owner").items():
        owners.add_row(owner, _whole(count), human_bytes(amounts_of.get(owner, 0.0)))
    return sizes, owners


def _failures(watch: Watch) -> Iterable[Table]:
    for title, name, label in (("Refused", "refusals_total", "reason"), ("Errors", "errors_total", "class")):
        made = _table(title, "", "per minute", "total")
        for key, count in watch.last.by(name, label).items():
            if count:
                rate = watch.per_minute(name, **{label: key})
                made.add_row(key.replace("_", " "), _maybe(rate, _whole), _whole(count))
        yield made
