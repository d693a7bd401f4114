"""Where the time of a query goes once its randomness is prepared: bytes, compute and latency, measured over TLS.

Two new processes run the program as a service does. Afterwards they exchange frames over the same channel without
computing: small ones for its latency, one of the program's typical size for its rate, then all of the program's frames
in order. Times are those of the fastest of several runs: other work on the machine can only add to them. What it adds
is measured too, where the system tells: how long a party could have run but had no processor.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.parts import in_all_blocks, names
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.local.demo import SENTENCES, demo_model
from comet_mpc.local.processes import Crew, Link
from comet_mpc.models.transformer import EncoderShape, public_weights
from comet_mpc.net.channel import FRAME_HEADER, Around, Channel, Traffic
from comet_mpc.offline.dealer.bundles import DealtRandomness
from comet_mpc.offline.sources import DEALER
from comet_mpc.offline.store import BundleStore, new_bundle_id
from comet_research.bench.models import ModelCase, case_weights, masked_weights, plan_case, run_case
from comet_research.bench.parties import Seat, check_planned, run_parties, set_up

if TYPE_CHECKING:
    from comet_mpc.net.channel import Sendable

_SMALL_ROUNDS = 200
_LARGE_ROUNDS = 12
_LEAST_LARGE = 1 << 20  # below that the latency would be measured again


class ProfileCase(msgspec.Struct, frozen=True):
    """A checkpoint's query (None: the bundled model's), or a shape with random weights."""

    model: str | None = None
    random: ModelCase | None = None


class OperationProfile(msgspec.Struct, frozen=True):
    """One operation, all layers together. Pairs are (client, server)."""

    operation: str
    online_bytes: int
    rounds: int
    seconds: float
    compute_seconds: tuple[float, float]
    """CPU outside the channel."""


class ProfileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest run. Pairs are (client, server); seconds of the wall unless they say CPU."""

    model: str
    layers: int
    tokens: int
    runs: int
    online_bytes: int
    rounds: int
    frame_bytes: int
    """At which the rate was measured: half of all bytes are in frames at least as large. At least 1 MB."""
    rate: float
    """Bytes a second of this channel, both directions together, without its latency."""
    round_trip: float
    """Seconds of a round of 8 bytes each way."""
    replay_seconds: float
    """All of the program's frames in order, without computing."""
    seconds: float
    """The query: from asking for it to its result."""
    start_seconds: float
    """Of that, until the server has consumed its bundle and says so."""
    compute_seconds: tuple[float, float]
    """CPU outside the channel."""
    channel_cpu_seconds: tuple[float, float]
    lockstep_seconds: float
    """CPU outside the channel of the slower party in every round, summed: they wait for each other."""
    crowded_seconds: tuple[float, float]
    """Time that each could have run but other work had the processors; the other party may compute meanwhile."""
    operations: tuple[OperationProfile, ...]

    @property
    def bytes_seconds(self) -> float:
        return self.online_bytes / self.rate

    @property
    def latency_seconds(self) -> float:
        return self.rounds * self.round_trip

    @property
    def needed_seconds(self) -> float:
        """What the bytes need at this channel's rate, and the compute of the busier party."""
        return self.bytes_seconds + max(self.compute_seconds)

    @property
    def ratio(self) -> float:
        """As measured, whatever else the machine did."""
        return self.seconds / self.needed_seconds


class _Round(NamedTuple):
    part: str
    sent: int
    received: int
    compute: float
    """CPU seconds between the round before and this one."""
    cpu: float
    """CPU seconds in the channel."""


class _ProfiledRun(NamedTuple):
    seconds: float
    start_seconds: float
    compute: float
    rounds: list[_Round]
    parts: dict[str, tuple[float, float]]
    """Seconds and CPU seconds, the channel included."""
    crowded: float
    """Seconds without a processor."""


class _LinkSpeed(NamedTuple):
    round_trip: float
    frame_bytes: int
    rate: float
    replay_seconds: float


class _Side(NamedTuple):
    runs: list[_ProfiledRun]
    lines: list[_LinkSpeed]


def _without_processor() -> float:
    """Seconds that this thread has waited for one so far; 0 where the system does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


class _Watched(Around):
    """Another channel, whose rounds are noted one by one."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self.rounds: list[_Round]
        self.here: Callable[[], str] = str
        self.begin()

    def begin(self) -> None:
        self.rounds, self._left = [], time.thread_time()

    def exchange(self, outgoing: Sequence[Sendable], expected: int) -> memoryview:
        entered = time.thread_time()
        before = self.traffic
        data = super().exchange(outgoing, expected)
        spent, left = self.traffic - before, time.thread_time()
        if spent.rounds:
            self.rounds.append(_Round(self.here(), spent.sent, spent.received, entered - self._left, left - entered))
            self._left = left
        return data


@dataclass(frozen=True)
class _Job:
    """What both parties run, from one party's side."""

    name: str
    shape: EncoderShape
    tokens: int
    plan: Plan
    weights: Callable[[], dict[str, Weight]]
    run: Callable[[Session, dict[str, Weight]], object]


def _job(case: ProfileCase, party: int | None) -> _Job:
    if case.random is not None:
        random = case.random
        weights = partial(case_weights, random)
        return _Job(random.name, random.shape, random.tokens, plan_case(random), weights, partial(run_case, random))
    model = demo_model(None if case.model is None else Path(case.model))
    query = model.encode([SENTENCES[0]])
    answer = model.answer(1, query.bucket, query if party == CLIENT else None)
    name = "bundled model" if case.model is None else Path(case.model).name
    return _Job(name, model.shape, query.bucket, model.plan(1, query.bucket, DEALER), model.weights, answer)


def profile_query(crew: Crew, case: ProfileCase, repeat: int = 5) -> ProfileRecord:
    """Queries between the crew's dealer and two fresh processes; measured bytes and rounds must equal the planned."""
    job = _job(case, None)
    bundles = [new_bundle_id() for _ in range(repeat)]
    sides = run_parties(crew, _party, case, bundles)
    for party, side in enumerate(sides):
        for run in side.runs:
            check_planned(party, sum((Traffic(r.sent, r.received, 1) for r in run.rounds), Traffic()), job.plan)
    best = min(range(repeat), key=lambda i: sides[CLIENT].runs[i].seconds)
    client, server = (side.runs[best] for side in sides)
    lines = sides[CLIENT].lines
    return ProfileRecord(
        model=job.name,
        layers=job.shape.layers,
        tokens=job.tokens,
        runs=repeat,
        online_bytes=job.plan.online_bytes,
        rounds=job.plan.rounds,
        frame_bytes=lines[0].frame_bytes,
        rate=max(line.rate for line in lines),
        round_trip=min(line.round_trip for line in lines),
        replay_seconds=min(line.replay_seconds for line in lines),
        seconds=client.seconds,
        start_seconds=client.start_seconds,
        compute_seconds=(client.compute, server.compute),
        channel_cpu_seconds=(sum(r.cpu for r in client.rounds), sum(r.cpu for r in server.rounds)),
        lockstep_seconds=sum(
            max(mine.compute, theirs.compute) for mine, theirs in zip(client.rounds, server.rounds, strict=True)
        ),
        crowded_seconds=(client.crowded, server.crowded),
        operations=tuple(_by_operation(client, server)),
    )


def _by_operation(client: _ProfiledRun, server: _ProfiledRun) -> Iterator[OperationProfile]:
    def operation(part: str) -> str:
        found = in_all_blocks(names(part))
        return found[0] if found else part

    for name in dict.fromkeys(operation(r.part) for r in client.rounds):
        rounds = [[r for r in run.rounds if operation(r.part) == name] for run in (client, server)]
        tops = [part for part in client.parts if operation(part) == name and names(part)[-1] == name]
        client_compute, server_compute = (
            max(0.0, sum(run.parts[part][1] for part in tops) - sum(r.cpu for r in mine))
            for run, mine in zip((client, server), rounds, strict=True)
        )
        yield OperationProfile(
            operation=name,
            online_bytes=sum(r.sent + r.received for r in rounds[CLIENT]),
            rounds=len(rounds[CLIENT]),
            seconds=sum(client.parts[part][0] for part in tops),
            compute_seconds=(client_compute, server_compute),
        )


# In a party's process ------------------------------------------------------------------------------------


def _party(link: Link, seat: Seat, case: ProfileCase, bundles: list[str]) -> _Side:
    job = _job(case, seat.party)
    with seat.meet(link, job.plan.digest, tls=True) as channel, TemporaryDirectory(prefix="comet-store-") as directory:
        public = public_weights(job.shape)
        values = job.weights() if seat.party == SERVER else None
        weights = set_up(channel, public, values, seat.key, masked_weights(public))
        store = BundleStore(Path(directory), seat.party, DEALER)
        runs, lines = [], []
        for bundle_id in bundles:
            seat.store(store, bundle_id, job.plan)
            run = _query(job, seat.party, channel, store, bundle_id, weights)
            runs.append(run)
            lines.append(_measure_line(channel, run.rounds))
    return _Side(runs, lines)


def _query(
    job: _Job, party: int, channel: Channel, store: BundleStore, bundle_id: str, weights: dict[str, Weight]
) -> _ProfiledRun:
    """One query as it is served: the client has its bundle in memory, the server consumes its own when asked."""

    def take() -> DealtRandomness:
        return DealtRandomness(store.take(bundle_id, job.plan.digest, job.plan.correlations), weights)

    watched = _Watched(channel)
    if party == CLIENT:
        source = take()
        source.compute_ahead()
        channel.exchange([b"prepared"], 8)
        start = time.perf_counter()
        channel.send(b"run")
        channel.receive(8)
    else:
        channel.exchange([b"prepared"], 8)
        start = time.perf_counter()
        channel.receive(8)
        source = take()
        channel.send(b"ready")
    started = time.perf_counter() - start
    crowded = _without_processor()
    session = PartySession(party, watched, source, ways=job.plan.ways)
    watched.here = lambda: session.here
    cpu = time.thread_time()
    watched.begin()
    job.run(session, weights)
    seconds, cpu = time.perf_counter() - start, time.thread_time() - cpu
    return _ProfiledRun(
        seconds,
        started,
        cpu - sum(r.cpu for r in watched.rounds),
        watched.rounds,
        {name: (spent.seconds, spent.cpu_seconds) for name, spent in session.measured.items()},
        _without_processor() - crowded,
    )


def _measure_line(channel: Channel, rounds: list[_Round]) -> _LinkSpeed:
    """Latency and rate of the channel, and the program's frames without the program."""
    small = statistics.median(_exchange(channel, 16, 16) for _ in range(_SMALL_ROUNDS))
    size = max(_LEAST_LARGE, _typical([size for r in rounds for size in (r.sent, r.received)]))
    large = min(_exchange(channel, size, size) for _ in range(_LARGE_ROUNDS))
    replay = sum(_exchange(channel, r.sent, r.received) for r in rounds)
    return _LinkSpeed(small, size, 2 * size / max(large - small, 1e-9), replay)


def _exchange(channel: Channel, sent: int, received: int) -> float:
    """Seconds of a round of so many bytes, headers included; 0 is no frame."""
    payload = np.zeros(max(0, sent - FRAME_HEADER), np.uint8)
    start = time.perf_counter()
    channel.exchange([payload], max(0, received - FRAME_HEADER))
    return time.perf_counter() - start


def _typical(sizes: list[int]) -> int:
    """Half of all bytes are in frames of at least this size."""
    ordered = np.sort(np.array(sizes))
    return int(ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)])
