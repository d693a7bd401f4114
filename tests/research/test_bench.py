"""Measurements between real processes: what is measured is what was planned, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from comet_mpc.engine import Weight
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.engine.session import USUAL_WAYS
from comet_mpc.engine.share import CLIENT, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import CometError, ConfigurationError, RuleError
from comet_mpc.models.transformer import EncoderShape
from comet_mpc.net.channel import Channel
from comet_mpc.offline.pair.costs import preparation_traffic
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, PAIR
from comet_mpc.offline.store import new_bundle_id
from comet_mpc.units import human_bytes, human_seconds
from comet_research.bench import operations
from comet_research.bench.cases import HIDDEN, INNER, MATRICES, OPERATIONS, Case, build, choose
from comet_research.bench.models import ModelCase
from comet_research.bench.operations import Record, measure, plan_case
from comet_research.bench.parties import MeasuredRun, Runs, Seat, Spent
from comet_research.bench.profile import ProfileCase, ProfileRecord, profile_query
from comet_research.bench.published import whole_cost
from comet_research.bench.truncation import check_truncation
from comet_research.cli.tables import operations_table, profile_tables
from comet_research.crew import Crew
from support.two_parties import as_parties
from support.waiting import PATIENCE, Clock, eventually

ALL = [(operation, method) for operation, methods in OPERATIONS.items() for method in methods]


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew() as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "method"), ALL)
def test_every_case_stays_within_its_bounds(operation: str, method: str) -> None:
    case = Case(operation, method, tokens=8, steps=4)
    built = build(case)
    session = TwinSession()
    values = built.draw(np.random.default_rng(case.seed))
    drawn = built.draw_weights(np.random.default_rng(case.seed))
    weights = {
        each.name: Weight.encode(each.name, drawn[each.name], each.fraction, each.gain) for each in built.weights
    }
    result = built.program(session, built.share(session, values), weights)
    assert plan_case(built).rounds > 0
    exact = built.reference(values, drawn)
    error = np.max(np.abs(decode(result.flat(), result.fraction, result.width).reshape(exact.shape) - exact))
    assert error < {"paper": 2.5, "linear": 0.5, "quadratic": 0.5}.get(method, 0.3)


@pytest.mark.service
@pytest.mark.parametrize(
    ("operation", "method"),
    [("activation", "minimax"), ("linear", "server_weights"), ("inverse_sqrt", "paper"), ("attention", "quad2")],
)
def test_measured_is_planned(crew: Crew, operation: str, method: str) -> None:
    record = measure(crew, Case(operation, method, tokens=4))
    assert record.online_bytes == record.planned_online_bytes
    assert record.rounds == record.planned_rounds
    assert 0 <= record.offline_bytes - record.planned_offline_bytes < 100_000
    assert record.private == (method != "paper")
    assert 0 < record.peak_rss < 10**9
    assert (record.setup_bytes > 0) == (operation == "linear")
    assert record.cpu_seconds == max(record.cpu_seconds_by_party)
    if method != "paper":
        assert record.max_twin_error is not None
        assert record.max_twin_error < 0.01


@pytest.mark.service
@pytest.mark.parametrize(
    ("operation", "method"),
    [
        *((function, "table") for function in ("layer_norm", "activation", "attention")),
        ("attention", "quadratic"),
        ("attention", "paper"),
        ("linear", "server_weights"),
    ],
)
def test_measured_is_planned_without_a_third_party(crew: Crew, operation: str, method: str) -> None:
    record = measure(crew, Case(operation, method, tokens=4), source=PAIR)
    assert (record.source, record.setup_bytes) == ("pair", 0)
    assert record.online_bytes == record.planned_online_bytes
    assert record.rounds == record.planned_rounds
    assert record.offline_bytes == record.planned_offline_bytes
    plan = plan_case(build(Case(operation, method, tokens=4)), PAIR)
    further = preparation_traffic(plan.correlations, first=False)  # on a connection that has its keys
    assert record.offline_bytes - record.key_bytes == further.sent + further.received
    assert record.key_bytes > 0
    if method != "paper":
        assert record.max_twin_error is not None
        assert record.max_twin_error < (0.05 if operation == "attention" else 0.01)  # it divides by small sums


@pytest.mark.service
def test_repeated_runs_take_a_bundle_each(crew: Crew) -> None:
    record = measure(crew, Case("truncation", "exact", tokens=1), repeat=3)
    assert record.repeat == 3
    assert record.max_abs_error <= 2.0**-16


@pytest.mark.parametrize("source", [DEALER, PAIR])
def test_a_layer_in_one_piece_sends_online_what_its_parts_do(source: Source) -> None:
    """By the same ways: messages of a whole are prepared in flight together, so its parts alone may choose others."""

    def planned(operation: str, method: str, matrix: tuple[int, int] = MATRICES[0]) -> Plan:
        built = build(Case(operation, method, tokens=4, matrix=matrix))
        public = {weight.name: weight for weight in built.weights}
        return plan_program(
            lambda session: built.program(session, built.share(session, {}), public),
            abilities=source.abilities, ways=USUAL_WAYS,
        )  # fmt: skip

    whole = planned("layer", "quadratic")
    norm = planned("layer_norm", "minimax")
    parts = [
        *(planned("linear", "server_weights", matrix=matrix) for matrix in MATRICES),
        *(planned(name, "quadratic") for name in ("attention", "activation")), norm, norm,
    ]  # fmt: skip
    assert whole.online_bytes == sum(part.online_bytes for part in parts)
    assert whole.rounds == sum(part.rounds for part in parts)
    assert source.offline_bytes(whole) <= sum(source.offline_bytes(part) for part in parts)


@pytest.mark.service
def test_a_layer_in_one_piece_is_measured_with_all_its_results(crew: Crew) -> None:
    case = Case("layer", "quadratic", tokens=2)
    record = measure(crew, case)
    assert record.online_bytes == record.planned_online_bytes
    assert record.private
    assert record.max_twin_error is not None
    assert record.max_twin_error < 0.05  # attention divides by small sums
    built = build(case)
    exact = built.reference(built.draw(np.random.default_rng(1)), built.draw_weights(np.random.default_rng(2)))
    rows = sum(outputs for outputs, _ in MATRICES) + HIDDEN + INNER + 2 * HIDDEN  # attention, activation, LayerNorms
    assert exact.shape == (2 * rows,)


@pytest.mark.service
def test_cases_in_turn_are_run_as_often_as_asked_for_and_times_are_medians(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, order = [Case("truncation", "exact", tokens=1), Case("multiply", "triple", tokens=1)], []
    given = measure(crew, cases[0], source=PAIR)
    times = iter((3.0, 1.0, 2.0, 5.0, 100.0, 4.0))

    def known(crew: Crew, case: Case, repeat: int, source: Source) -> Record:
        order.append(case.operation)
        now = next(times)
        return msgspec.structs.replace(
            given, operation=case.operation, seconds=now, key_seconds=now / 10, offline_seconds=now, repeat=repeat
        )

    monkeypatch.setattr(operations, "measure", known)
    first, second = operations.measure_in_turn(crew, cases, 3, PAIR)
    assert order == ["truncation", "multiply"] * 3
    assert (first.operation, first.seconds, first.repeat) == ("truncation", 3.0, 3)  # of 3, 2, 100
    assert (second.operation, second.seconds, second.repeat) == ("multiply", 4.0, 3)  # of 1, 5, 4
    assert second.offline_seconds == pytest.approx(4.0)
    assert first.online_bytes == given.online_bytes


def test_a_party_does_not_count_what_the_other_does_between_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes by while the client pauses, and never else."""
    built, clock = build(Case("truncation", "exact", tokens=1)), Clock()
    monkeypatch.setattr(sys.modules[Runs.__module__], "time", clock)
    plan, pause = plan_case(built, PAIR), 1.0
    values = built.draw(np.random.default_rng(1))

    def party(channel: Channel, party: int) -> tuple[Spent, list[MeasuredRun]]:
        runs, made = Runs(Seat(party, Path(), ("", 0)), channel, PAIR, plan, {}), []
        given = values if party == CLIENT else {}
        for _ in range(2):
            run, _, _ = runs.run(new_bundle_id(), lambda s: partial(built.program, s, built.share(s, given), {}))
            made.append(run)
            clock.now += pause if party == CLIENT else 0.0
        return runs.keys, made

    both = as_parties(party)
    for keys, (first, second) in both:
        assert first.offline.seconds == second.offline.seconds == 0.0
        assert first.offline.bytes == second.offline.bytes  # keys are set up once
        assert keys.bytes > 0
    assert sum(keys.bytes + runs[0].offline.bytes for keys, runs in both) == PAIR.offline_bytes(plan)


@pytest.mark.service
def test_a_whole_model_has_every_function_so_often_and_keys_once(crew: Crew) -> None:
    case = Case("linear", "server_weights", tokens=2)
    parts = [measure(crew, replace(case, matrix=matrix), source=PAIR) for matrix in ((64, 32), (32, 64))]
    assert [part.shape for part in parts] == [(2, 32), (2, 64)]
    whole = whole_cost(parts, 12)
    keys = [part.key_bytes for part in parts]
    assert whole["key_bytes"] == max(keys)
    assert whole["online_bytes"] == 12 * sum(part.online_bytes for part in parts)
    assert whole["offline_bytes"] == 12 * (sum(part.offline_bytes for part in parts) - sum(keys))
    apart = sum(part.offline_seconds - part.key_seconds for part in parts)
    assert whole["offline_seconds"] == pytest.approx(12 * apart)
    assert whole["key_seconds"] == max(part.key_seconds for part in parts) > 0
    assert whole["rounds"] == 12 * sum(part.rounds for part in parts)
    assert whole["max_abs_error"] == max(part.max_abs_error for part in parts)


@pytest.mark.service
def test_an_error_in_a_process_is_raised_by_its_type(crew: Crew) -> None:
    case = Case("inverse_sqrt", "minimax", steps=99)
    seat = Seat(0, Path(), ("", 0))
    parties = [crew.start(name, operations._party, seat, case, "dealer", []) for name in ("client", "server")]
    with pytest.raises(RuleError, match="99 steps"):
        crew.results(parties)
    assert not any(party.process.is_alive() for party in parties)
    assert measure(crew, Case("truncation", "exact", tokens=1)).rounds == 1  # the dealer goes on


def test_a_process_that_dies_is_noticed(crew: Crew) -> None:
    seat = Seat(1, crew.keys, ("", 0))
    worker = crew.start("server", operations._party, seat, Case("truncation", "exact"), "dealer", [])
    worker.process.kill()
    with pytest.raises(CometError, match="server: the process ended with exit code"):
        crew.results([worker])


@pytest.mark.service
def test_nothing_is_left_behind() -> None:
    with Crew() as crew:
        directory, workers = crew.directory, list(crew._workers)
        assert all(worker.process.is_alive() for worker in workers)
    assert not directory.exists()
    assert not any(_alive(pid) for worker in workers if (pid := worker.process.pid))


@pytest.mark.service
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_bench_leaves_no_process(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from comet_research.cli.main import app; app()", "bench", "ops"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    running = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    children: set[int] = set()

    def all_started() -> bool:
        children.update(_children(running.pid))
        return len(children) >= 4  # dealer, two parties, and Python's resource tracker

    eventually(all_started)
    running.send_signal(number)
    assert running.wait(PATIENCE) != 0
    eventually(lambda: not any(map(_alive, children)), "a process was left behind")
    assert number == signal.SIGKILL or not list(tmp_path.iterdir())


def _children(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return set()


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="unknown operation 'gelu': choose from inverse_sqrt, activation"):
        choose(["gelu"], [])
    with pytest.raises(
        ConfigurationError, match="unknown method 'quad' of layer_norm: choose from minimax, exponential"
    ):
        choose(["layer_norm"], ["quad"])
    assert [case.method for case in choose(["attention"], ["quad2", "softmax"])] == ["softmax", "quad2"]
    assert len(choose([], [])) == len(ALL)


def test_truncation_never_wraps() -> None:
    records = check_truncation(700_000)
    assert sum(record.values for record in records) == 700_000
    for record in records:
        assert record.exact
        assert record.wraps == 0
        assert record.largest_value == 2**61
        assert abs(record.mean_error) < 5 * record.standard_error


def test_units_are_for_people() -> None:
    assert [human_bytes(count) for count in (12, 1000, 19_270_000, 999_600_000, 1.5e9)] == [
        "12 B", "1.00 kB", "19.3 MB", "1.00 GB", "1.50 GB",
    ]  # fmt: skip
    assert [human_seconds(s) for s in (0.0312, 1.0, 12.34)] == ["31 ms", "1.00 s", "12.3 s"]


@pytest.mark.service
def test_records_survive_json(crew: Crew) -> None:
    record = measure(crew, Case("activation", "quad", tokens=1))
    assert msgspec.json.decode(msgspec.json.encode(record), type=Record) == record
    assert operations_table([record]).renderables


@pytest.mark.service
def test_a_profile_accounts_for_every_byte_round_and_second(crew: Crew) -> None:
    """That bytes and rounds are the planned ones is checked by the measurement itself, in both parties."""
    record = profile_query(crew, ProfileCase(random=ModelCase("tiny", EncoderShape(1, 16, 2, 16, 2), 4, 2)), repeat=2)
    assert sum(cost.online_bytes for cost in record.operations) == record.online_bytes
    assert sum(cost.rounds for cost in record.operations) == record.rounds
    assert 0.0 < max(record.compute_seconds) <= record.lockstep_seconds + 0.01
    assert record.seconds > record.start_seconds + max(record.compute_seconds) > 0.0
    assert record.ratio > 1.0
    assert msgspec.json.decode(msgspec.json.encode(record), type=ProfileRecord) == record
    assert [group.renderables for group in profile_tables(record)]
