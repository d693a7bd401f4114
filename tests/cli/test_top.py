"""`comet top`: what it makes of the metrics of a server that is up, busy, started again, or not there."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.cli.operating.figures import Look, Watch, quantile
from comet_mpc.cli.operating.top import shown
from comet_mpc.net.metrics import BOUNDS, Counters, Gauge, MetricsEndpoint, pages

DAY = 86_400.0


def counters() -> Counters:
    return Counters({"queries_total": "Queries.", "online_bytes_total": "Bytes."}, phases={"run": "A query."})


def gauges(started: float = 0.0) -> list[Gauge]:
    return [
        Gauge("info", "Info.", [({"version": "1.2.3", "source": "pair"}, 1)]),
        Gauge.single("start_timestamp_seconds", "Start.", started),
        Gauge("working", "Busy.", [({"kind": "run"}, 2), ({"kind": "prepare"}, 1), ({"kind": "download"}, 5)]),
        Gauge("waiting", "Queue.", [({"kind": "run"}, 4), ({"kind": "prepare"}, 0)]),
        Gauge.single("workers", "Workers.", 3),
        Gauge.single("clients", "Clients.", 7),
        Gauge("bundles", "Bundles.", [({"model": "mood", "batch": "2", "bucket": "16"}, 5)]),
        Gauge("bundle_bytes", "Bytes.", [({"model": "mood", "batch": "2", "bucket": "16"}, 5e6)]),
        Gauge("owner_bundles", "Owners.", [({"owner": "0123abcd"}, 5)]),
        Gauge("owner_bundle_bytes", "Owners.", [({"owner": "0123abcd"}, 5e6)]),
        Gauge("certificate_expiry_timestamp_seconds", "Ends.", [({"certificate": "own"}, 12 * DAY)]),
    ]


def table(watch: Watch, troubles: list[str], width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(shown(watch, "host:1", troubles, 2 * DAY), highlight=False)
    return " ".join(console.export_text().split())


def test_people_see_the_queue_the_slots_and_what_expires() -> None:
    own, watch = counters(), Watch()
    own.refused("busy")
    watch.add(Look(own.text(gauges()), 0.0))
    text = table(watch, [])
    for part in (
        "comet server 1.2.3 at host:1, up 2 days, randomness: pair ready", "clients 7", "working 3 of 3",
        "waiting run 4", "certificate: own 10 days left", "2 texts of 16 tokens 5 5.00 MB", "0123abcd 5 5.00 MB",
        "busy - 1",
    ):  # fmt: skip
        assert part in text
    assert "NOT READY: the disk is full" in table(watch, ["the disk is full"])


def test_a_cluster_shows_its_nodes() -> None:
    watch = Watch()
    columns = {"waiting": 1, "working": 2, "slots": 4, "sessions": 3, "bundles": 12}
    lines = [f'comet_node_{name}{{node="{node}"}} {value}' for name, value in columns.items() for node in ("a", "b")]
    watch.add(Look("\n".join(["comet_nodes 2", *lines]) + "\n", 0.0))
    text = table(watch, [])
    assert text.startswith("comet cluster at host:1 ready")
    assert "a 1 2 4 3 12 b 1 2 4 3 12" in text


@pytest.mark.parametrize("width", [44, 80, 160])
def test_nothing_is_cut_off(width: int) -> None:
    watch = Watch()
    watch.add(Look(counters().text(gauges()), 0.0))
    assert "…" not in table(watch, [], width)


def test_rates_are_of_the_last_minute_and_begin_anew_with_the_server() -> None:
    own, watch = counters(), Watch()
    watch.add(Look(own.text(gauges()), 0.0))
    assert watch.per_minute("queries_total") is None
    for second in range(10, 101, 10):
        own.add(queries_total=5)
        own.observe("run", 0.3)
        watch.add(Look(own.text(gauges()), float(second)))
    assert watch.per_minute("queries_total") == 30
    assert (watch.seconds, watch.latency("run").count) == (60, 6)
    watch.add(Look(counters().text(gauges(started=99.0)), 110.0))
    assert watch.per_minute("queries_total") is None
    assert watch.latency("run").count == 0


@given(st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=20), st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_in_the_bucket_of_the_true_one(seconds: list[float], part: float) -> None:
    counts = {bound: float(sum(one <= bound for one in seconds)) for bound in BOUNDS}
    true = sorted(seconds)[math.ceil(part * len(seconds)) - 1]
    upper = min(bound for bound in BOUNDS if true <= bound)
    lower = max((bound for bound in BOUNDS if bound < upper), default=0.0)
    found = quantile(counts, part)
    assert found is not None
    assert lower <= found <= upper


@contextmanager
def published(own: Counters, troubles: list[str]) -> Iterator[str]:
    endpoint = MetricsEndpoint("127.0.0.1", 0, pages(own, 0, gauges, lambda: troubles))
    endpoint.start()
    try:
        yield "{}:{}".format(*endpoint.address)
    finally:
        endpoint.close()


def test_machines_get_json_and_people_a_table() -> None:
    own = counters()
    own.beat()
    own.add(queries_total=3)
    own.observe("run", 0.3)
    with published(own, ["the dealer cannot be reached"]) as address:
        found = CliRunner().invoke(app, ["top", address, "--json", "-"])
        (url, once) = (f"http://{address}/metrics", CliRunner().invoke(app, ["top", address, "--once"]))
        assert CliRunner().invoke(app, ["top", url]).exit_code == 0
    answer = json.loads(found.stdout)
    assert (answer["clients"], answer["totals"]["queries_total"]) == (7, 3)
    assert answer["latency"]["run"]["count"] == 1
    assert answer["troubles"][-1] == "the dealer cannot be reached"
    assert "NOT READY" in once.stdout


def test_an_address_where_nobody_publishes_metrics_is_named() -> None:
    with published(counters(), []) as address:
        pass
    found = CliRunner().invoke(app, ["top", address])
    assert (found.exit_code, f"nobody publishes metrics at {address}" in found.stderr) == (1, True)
    found = CliRunner().invoke(app, ["top", "somewhere"])
    assert (found.exit_code, "expected HOST:PORT" in found.stderr) == (1, True)
