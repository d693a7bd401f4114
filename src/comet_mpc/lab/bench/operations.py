"""One operation between real processes (dealer, client, server), measured, and checked against its plan.

The offline phase comes first: the bundle is fetched from the dealer over TLS, masked weights are set up, and what
does not need the input is computed. The online phase starts when both parties are ready.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from comet_mpc.engine import Weight
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.engine.seeds import SEED_BYTES, new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Share, Words, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import CometError, RangeError
from comet_mpc.lab.bench.cases import Built, Case, Reals, Values, build
from comet_mpc.lab.bench.workers import LOOPBACK, Crew, Link, identity
from comet_mpc.net.channel import Channel, Traffic, agree, greet
from comet_mpc.net.sockets import connect, listen
from comet_mpc.offline.dealer.bundles import DealtRandomness, mask_weight
from comet_mpc.offline.dealer.fetch import PARTY_ROLES, fetch_to_memory
from comet_mpc.offline.store import new_bundle_id

__all__ = ["Record", "measure", "peak_memory"]

_RELATIVE_FROM = 1 / 64


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured for one case. Bytes are both parties' together, with frame headers; seconds are medians."""

    operation: str
    method: str
    private: bool
    domain: str
    elements: int
    shape: tuple[int, ...]
    steps: int | None
    online_bytes: int
    offline_bytes: int
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
    peak_rss: int
    """Bytes, the larger of the two parties'; offline phase and bundle included."""
    peak_rss_by_party: tuple[int, int]
    max_abs_error: float
    max_relative_error: float
    """Over results of at least 1/64 of the largest."""
    max_twin_error: float | None
    """Against the plaintext twin, which makes the same approximation: what the protocol's rounding adds."""
    repeat: int


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """One party's side of one run."""

    sent: int
    rounds: int
    seconds: float
    cpu_seconds: float
    offline_seconds: float
    offline_bytes: int
    max_abs_error: float = 0.0
    max_relative_error: float = 0.0
    max_twin_error: float | None = None


class _Side(msgspec.Struct, frozen=True):
    """One party's side of a case."""

    runs: list[_Run]
    setup_bytes: int
    peak_rss: int


def peak_memory() -> int:
    """The most memory this process ever had, in bytes."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def plan_case(built: Built) -> Plan:
    public = {weight.name: weight for weight in built.weights}
    return plan_program(
        lambda session: built.program(session, built.share(session, {}), public), permits_leaks=built.leaks
    )


def measure(crew: Crew, case: Case, repeat: int = 1) -> Record:
    """Runs a case `repeat` times, with a bundle each, between two fresh processes and the crew's dealer."""
    built = build(case)
    plan = plan_case(built)
    bundles = [new_bundle_id() for _ in range(repeat)]
    parties = [
        crew.start(role, _party, party, case, crew.keys, crew.dealer_address, bundles)
        for party, role in enumerate(PARTY_ROLES)
    ]
    (address,) = crew.notes([parties[SERVER]])
    parties[CLIENT].tell(address)
    client, server = (msgspec.json.decode(side, type=_Side) for side in crew.results(parties))
    first = client.runs[0], server.runs[0]
    cpu = tuple(statistics.median(run.cpu_seconds for run in side.runs) for side in (client, server))
    return Record(
        operation=case.operation,
        method=case.method,
        private=not built.leaks,
        domain=built.domain,
        elements=math.prod(built.shape),
        shape=built.shape,
        steps=built.steps,
        online_bytes=sum(run.sent for run in first),
        offline_bytes=sum(run.offline_bytes for run in first),
        setup_bytes=server.setup_bytes,
        planned_online_bytes=plan.online_bytes,
        planned_offline_bytes=plan.correction_bytes + 2 * SEED_BYTES,
        rounds=first[CLIENT].rounds,
        planned_rounds=plan.rounds,
        seconds=statistics.median(max(pair) for pair in _pairs(client, server, "seconds")),
        cpu_seconds=max(cpu),
        cpu_seconds_by_party=(cpu[0], cpu[1]),
        offline_seconds=statistics.median(max(pair) for pair in _pairs(client, server, "offline_seconds")),
        peak_rss=max(client.peak_rss, server.peak_rss),
        peak_rss_by_party=(client.peak_rss, server.peak_rss),
        max_abs_error=max(run.max_abs_error for run in client.runs),
        max_relative_error=max(run.max_relative_error for run in client.runs),
        max_twin_error=max((run.max_twin_error for run in client.runs if run.max_twin_error is not None), default=None),
        repeat=repeat,
    )


def _pairs(client: _Side, server: _Side, name: str) -> list[tuple[float, float]]:
    return [(getattr(a, name), getattr(b, name)) for a, b in zip(client.runs, server.runs, strict=True)]


# In a party's process ------------------------------------------------------------------------------------


def _party(link: Link, party: int, case: Case, keys: Path, dealer: tuple[str, int], bundles: Sequence[str]) -> bytes:
    built = build(case)
    plan = plan_case(built)
    with _meet(link, party) as channel:
        mine = {"role": PARTY_ROLES[party], "program": plan.digest}
        agree(mine, greet(channel, mine), ("program",))
        key = new_seed() if party == SERVER else None
        before = channel.traffic
        weights = _set_up(party, channel, built, case, key)
        setup = channel.traffic - before
        values = built.draw(np.random.default_rng(case.seed)) if party == CLIENT else {}
        runs = []
        peak = 0
        for bundle_id in bundles:
            run, share, peak = _run(party, channel, built, plan, values, weights, keys, dealer, bundle_id, key)
            runs.append(_with_errors(run, party, channel, built, case, values, share))
    return msgspec.json.encode(_Side(runs, setup.sent, peak))


def _meet(link: Link, party: int) -> Channel:
    if party == SERVER:
        with listen(LOOPBACK, 0) as listener:
            link.tell(listener.address)
            return listener.accept(60.0)
    return connect(*link.hear())


def _set_up(party: int, channel: Channel, built: Built, case: Case, key: bytes | None) -> dict[str, Weight]:
    """The server's weights; at the client, masked ones, downloaded once."""
    weights = {}
    drawn = built.draw_weights(_weight_generator(case)) if party == SERVER else {}
    for public in built.weights:
        if party == SERVER:
            assert key is not None
            weight = Weight.encode(public.name, drawn[public.name], public.fraction, public.gain)
            channel.exchange([mask_weight(key, weight)], 0)
        else:
            count = math.prod(public.shape)
            words = np.frombuffer(channel.exchange([], 8 * count), np.uint64).reshape(public.shape)
            weight = Weight(public.name, public.shape, public.fraction, public.gain, masked=words)
        weights[public.name] = weight
    return weights


def _weight_generator(case: Case) -> np.random.Generator:
    return np.random.default_rng(case.seed + 1)


def _run(
    party: int,
    channel: Channel,
    built: Built,
    plan: Plan,
    values: Values,
    weights: dict[str, Weight],
    keys: Path,
    dealer: tuple[str, int],
    bundle_id: str,
    key: bytes | None,
) -> tuple[_Run, Share, int]:
    start = time.perf_counter()
    offline = connect(*dealer, identity(keys, PARTY_ROLES[party]).client_context())
    bundle = fetch_to_memory(offline, party, bundle_id, plan.correlations, key=key)
    source = DealtRandomness(bundle, weights)
    source.compute_ahead()
    offline_seconds = time.perf_counter() - start
    session = PartySession(party, channel, source, permits_leaks=built.leaks)
    shares = built.share(session, values)
    channel.exchange([b"ready"], 5)
    before, cpu, start = channel.traffic, time.process_time(), time.perf_counter()
    share = built.program(session, shares, weights)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    traffic = channel.traffic - before
    peak = peak_memory()
    _check(party, traffic, plan, source.remaining)
    run = _Run(
        sent=traffic.sent,
        rounds=traffic.rounds,
        seconds=seconds,
        cpu_seconds=cpu,
        offline_seconds=offline_seconds,
        offline_bytes=offline.traffic.sent + offline.traffic.received,
    )
    return run, share, peak


def _check(party: int, traffic: Traffic, plan: Plan, remaining: int) -> None:
    planned = Traffic(plan.sent(party), plan.sent(1 - party), plan.rounds)
    if traffic != planned or remaining:
        raise CometError(f"measured {traffic}, planned {planned}, {remaining} correlations left over")


def _with_errors(
    run: _Run,
    party: int,
    channel: Channel,
    built: Built,
    case: Case,
    values: Values,
    share: Share,
) -> _Run:
    """After the measurement the server gives its share of the result away, and the client compares."""
    own = share.flat()
    if party == SERVER:
        channel.exchange([own], 0)
        return run
    theirs: Words = np.frombuffer(channel.exchange([], own.nbytes), np.uint64)
    result = decode(own + theirs, share.fraction, share.width).reshape(share.shape)
    exact = built.reference(values, built.draw_weights(_weight_generator(case)))
    error = np.abs(result - exact)
    size = np.abs(exact)
    counted = size >= _RELATIVE_FROM * size.max()
    return msgspec.structs.replace(
        run,
        max_abs_error=float(error.max()),
        max_relative_error=float((error[counted] / size[counted]).max(initial=0.0)),
        max_twin_error=_twin_error(built, case, values, result),
    )


def _twin_error(built: Built, case: Case, values: Values, result: Reals) -> float | None:
    """Distance to the plaintext twin, which computes the same approximation; None if that leaves its bounds."""
    session = TwinSession(permits_leaks=built.leaks)
    drawn = built.draw_weights(_weight_generator(case))
    weights = {w.name: Weight.encode(w.name, drawn[w.name], w.fraction, w.gain) for w in built.weights}
    try:
        twin = built.program(session, built.share(session, values), weights)
    except RangeError:
        return None
    return float(np.abs(result - decode(twin.flat(), twin.fraction, twin.width).reshape(result.shape)).max())
