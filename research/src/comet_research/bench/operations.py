"""One operation between real processes (client, server, perhaps a dealer), measured, and checked against its plan.

The offline phase comes first: each party fetches its bundle from the dealer over TLS and the client downloads masked
weights, or the two prepare a bundle between themselves. The online phase starts when both parties are ready.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import CLIENT, SERVER, Reals, Share, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import RangeError
from comet_mpc.local.processes import Crew, Link
from comet_mpc.offline.cheapest import cheapest_plan
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, find_source
from comet_mpc.offline.store import new_bundle_id
from comet_research.bench.cases import Built, Case, Values, build
from comet_research.bench.parties import MeasuredRun, Runs, Seat, Spent, peak_memory, reveal, run_parties, set_up

_RELATIVE_FROM = 1 / 64


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured for one case. Bytes are both parties' together, with frame headers; seconds are medians."""

    operation: str
    method: str
    source: str = DEALER.name
    """Of randomness."""
    private: bool
    domain: str
    elements: int
    shape: tuple[int, ...]
    steps: int | None
    online_bytes: int
    offline_bytes: int
    key_bytes: int = 0
    """Of these, the keys of the connection, which further bundles share: so with their time below."""
    setup_bytes: int
    planned_online_bytes: int
    planned_offline_bytes: int
    rounds: int
    planned_rounds: int
    seconds: float
    cpu_seconds: float
    """The larger of the two parties'."""
    cpu_seconds_by_party: tuple[float, float]
    offline_seconds: float
    key_seconds: float = 0.0
    offline_cpu_seconds_by_party: tuple[float, float] = (0.0, 0.0)
    key_cpu_seconds_by_party: tuple[float, float] = (0.0, 0.0)
    peak_rss: int
    """Bytes, the larger of the two parties'; offline phase and bundle included."""
    peak_rss_by_party: tuple[int, int]
    max_abs_error: float
    max_relative_error: float
    """Over results of at least 1/64 of the largest."""
    max_twin_error: float | None
    """Against the plaintext twin, which makes the same approximation: what the protocol's rounding adds."""
    repeat: int


def _nothing(case: Case) -> None:
    """Nobody wants to know."""


class _Errors(NamedTuple):
    """How far a result is from the exact one, and from the twin's."""

    absolute: float
    relative: float
    twin: float | None


class _Side(NamedTuple):
    """One party's side of a case."""

    runs: list[MeasuredRun]
    keys: Spent
    errors: list[_Errors]
    """At the client, of every run."""
    setup_bytes: int
    peak_rss: int


def plan_case(built: Built, source: Source = DEALER) -> Plan:
    public = {weight.name: weight for weight in built.weights}
    return cheapest_plan(lambda session: built.program(session, built.share(session, {}), public), source)


def measure(crew: Crew, case: Case, repeat: int = 1, source: Source = DEALER) -> Record:
    """Runs a case `repeat` times, with a bundle each, between two fresh processes and perhaps the crew's dealer."""
    built = build(case)
    plan = plan_case(built, source)
    bundles = [new_bundle_id() for _ in range(repeat)]
    client, server = run_parties(crew, _party, case, source.name, bundles)
    first = client.runs[0], server.runs[0]
    sides = client, server
    key_bytes, key_seconds = sum(side.keys.bytes for side in sides), max(side.keys.seconds for side in sides)
    cpu = [statistics.median(run.cpu_seconds for run in side.runs) for side in sides]
    offline_cpu = [_offline_cpu(side) for side in sides]
    return Record(
        operation=case.operation,
        method=case.method,
        source=source.name,
        private=not built.leaks,
        domain=built.domain,
        elements=math.prod(built.shape),
        shape=built.shape,
        steps=built.steps,
        online_bytes=sum(run.traffic.sent for run in first),
        offline_bytes=key_bytes + sum(run.offline.bytes for run in first),
        key_bytes=key_bytes,
        setup_bytes=server.setup_bytes,
        planned_online_bytes=plan.online_bytes,
        planned_offline_bytes=source.offline_bytes(plan),
        rounds=first[CLIENT].traffic.rounds,
        planned_rounds=plan.rounds,
        seconds=_median(sides, lambda run: run.seconds),
        cpu_seconds=max(cpu),
        cpu_seconds_by_party=(cpu[0], cpu[1]),
        offline_seconds=key_seconds + _median(sides, lambda run: run.offline.seconds),
        key_seconds=key_seconds,
        offline_cpu_seconds_by_party=(offline_cpu[0], offline_cpu[1]),
        key_cpu_seconds_by_party=(client.keys.cpu_seconds, server.keys.cpu_seconds),
        peak_rss=max(client.peak_rss, server.peak_rss),
        peak_rss_by_party=(client.peak_rss, server.peak_rss),
        max_abs_error=max(one.absolute for one in client.errors),
        max_relative_error=max(one.relative for one in client.errors),
        max_twin_error=max((one.twin for one in client.errors if one.twin is not None), default=None),
        repeat=repeat,
    )


def measure_in_turn(
    crew: Crew, cases: Sequence[Case], repeat: int, source: Source = DEALER, progress: Callable[[Case], None] = _nothing
) -> list[Record]:
    """The same of several cases that are compared, a run of each after the other: what disturbs the machine for a while
    disturbs all of them. Times are medians."""
    turns: list[list[Record]] = [[] for _ in cases]
    for _ in range(repeat):
        for case, found in zip(cases, turns, strict=True):
            progress(case)
            found.append(measure(crew, case, 1, source))
    return [_middle(found) for found in turns]


def _middle(found: Sequence[Record]) -> Record:
    """Runs of one case as one record."""

    def median(of: Callable[[Record], float]) -> float:
        return statistics.median(map(of, found))

    def by_party(name: str) -> tuple[float, float]:
        return median(lambda one: getattr(one, name)[CLIENT]), median(lambda one: getattr(one, name)[SERVER])

    key_seconds = median(lambda one: one.key_seconds)
    return msgspec.structs.replace(
        max(found, key=lambda one: one.max_abs_error),
        seconds=median(lambda one: one.seconds),
        cpu_seconds=median(lambda one: one.cpu_seconds),
        cpu_seconds_by_party=by_party("cpu_seconds_by_party"),
        offline_seconds=key_seconds + median(lambda one: one.offline_seconds - one.key_seconds),
        key_seconds=key_seconds,
        offline_cpu_seconds_by_party=by_party("offline_cpu_seconds_by_party"),
        key_cpu_seconds_by_party=by_party("key_cpu_seconds_by_party"),
        peak_rss=max(one.peak_rss for one in found),
        repeat=len(found),
    )


def _median(sides: tuple[_Side, _Side], of: Callable[[MeasuredRun], float]) -> float:
    """A run takes as long as the party that is ready later."""
    client, server = (side.runs for side in sides)
    return statistics.median(max(of(a), of(b)) for a, b in zip(client, server, strict=True))


def _offline_cpu(side: _Side) -> float:
    return side.keys.cpu_seconds + statistics.median(run.offline.cpu_seconds for run in side.runs)


# In a party's process ------------------------------------------------------------------------------------


def _party(link: Link, seat: Seat, case: Case, source: str, bundles: Sequence[str]) -> _Side:
    built, kind = build(case), find_source(source)
    plan = plan_case(built, kind)
    with seat.meet(link, plan.digest) as channel:
        before = channel.traffic
        public = {weight.name: weight for weight in built.weights}
        values_of_weights = _weights(built, case) if seat.party == SERVER else None
        weights = set_up(channel, public, values_of_weights, seat.key, public if kind.masks_weights else ())
        setup = channel.traffic - before
        values = built.draw(np.random.default_rng(case.seed)) if seat.party == CLIENT else {}
        made, errors = [], []
        peak = 0

        def begin(session: Session) -> Callable[[], Share]:
            return partial(built.program, session, built.share(session, values), weights)

        runs = Runs(seat, channel, kind, plan, weights)
        for bundle_id in bundles:
            run, _, share = runs.run(bundle_id, begin)
            made.append(run)
            peak = peak_memory()
            result = reveal(seat.party, channel, share)
            if result is not None:
                errors.append(_errors(built, case, kind, values, result))
    return _Side(made, runs.keys, errors, setup.sent, peak)


def _weights(built: Built, case: Case) -> dict[str, Weight]:
    drawn = built.draw_weights(_weight_generator(case))
    return {w.name: Weight.encode(w.name, drawn[w.name], w.fraction, w.gain) for w in built.weights}


def _weight_generator(case: Case) -> np.random.Generator:
    return np.random.default_rng(case.seed + 1)


def _errors(built: Built, case: Case, kind: Source, values: Values, result: Reals) -> _Errors:
    """At the client, after the measurement."""
    exact = built.reference(values, built.draw_weights(_weight_generator(case)))
    error = np.abs(result - exact)
    size = np.abs(exact)
    counted = size >= _RELATIVE_FROM * size.max()
    relative = float((error[counted] / size[counted]).max(initial=0.0))
    return _Errors(float(error.max()), relative, _twin_error(built, case, kind, values, result))


def _twin_error(built: Built, case: Case, kind: Source, values: Values, result: Reals) -> float | None:
    """Distance to the plaintext twin, which computes the same approximation; None if that leaves its bounds."""
    session = TwinSession(abilities=kind.abilities)
    try:
        twin = built.program(session, built.share(session, values), _weights(built, case))
    except RangeError:
        return None
    return float(np.abs(result - decode(twin.flat(), twin.fraction, twin.width).reshape(result.shape)).max())
