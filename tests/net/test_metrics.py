"""Metrics: histograms add up over processes, and others read the page as we do."""

from __future__ import annotations

import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from comet_mpc.errors import ConfigurationError
from comet_mpc.net.metrics import BOUNDS, Counters, Gauge, parse

PHASES = {"run": "A query.", "prepare": "A preparation."}


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """As Prometheus' own package reads them."""
    families = text_string_to_metric_families(text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


@given(st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False, width=32), max_size=4))
def test_others_read_the_page_as_we_do(values: dict[str, float]) -> None:
    gauge = Gauge("things", "Things.", [({"owner": label, "kind": ""}, value) for label, value in values.items()])
    text = Counters({"queries_total": "Queries."}, phases=PHASES).text([gauge])
    ours = {(name, frozenset(labels.items())): value for name, own in parse(text).items() for labels, value in own}
    assert ours == samples(text)
    assert {label: ours["comet_things", frozenset({("owner", label), ("kind", "")})] for label in values} == values


def test_quotes_and_ends_of_lines_in_a_label_stay_in_it() -> None:
    strange = 'a"b\\n\nc}  {'
    text = Counters({}).text([Gauge("things", "Things.", [({"owner": strange}, 1.0)])])
    assert parse(text)["comet_things"] == [({"owner": strange}, 1.0)]
    assert ("comet_things", frozenset({("owner", strange)})) in samples(text)


def test_a_page_of_something_else_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a page of metrics"):
        parse("<html>")


def test_a_histogram_adds_up_over_processes() -> None:
    counters = Counters({}, rows=3, phases=PHASES)
    seconds = {1: [0.001, 0.01, 0.2], 2: [0.011, 700.0]}
    for row, times in seconds.items():
        if not (child := os.fork()):
            counters.own(row)
            for one in times:
                counters.observe("run", one)
            os._exit(0)
        os.waitpid(child, 0)
    found = parse(counters.text())
    run = {labels["le"]: value for labels, value in found["comet_phase_seconds_bucket"] if labels["phase"] == "run"}
    expected = {bound: sum(one <= bound for times in seconds.values() for one in times) for bound in BOUNDS}
    assert {float(bound): value for bound, value in run.items()} == expected
    assert run["+Inf"] == 5
    sums = {labels["phase"]: value for labels, value in found["comet_phase_seconds_sum"]}
    assert sums == {"run": pytest.approx(700.222), "prepare": 0}


def test_what_fails_is_not_timed() -> None:
    counters = Counters({}, phases=PHASES)
    with pytest.raises(ValueError, match="no"), counters.timed("run"):
        raise ValueError("no")
    with counters.timed("run"):
        pass
    assert parse(counters.text())["comet_phase_seconds_count"] == [({"phase": "run"}, 1), ({"phase": "prepare"}, 0)]


def test_the_bounds_are_in_order_and_the_last_takes_all() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert math.isinf(BOUNDS[-1])
