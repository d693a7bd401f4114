"""What both parties of a measurement do around the program: meet, set up weights, fetch randomness, reveal results."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import numpy as np

from comet_mpc.engine import Weight
from comet_mpc.engine.costs import Network
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.seeds import new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Reals, Share, decode
from comet_mpc.errors import CometError
from comet_mpc.local.processes import LOOPBACK, Crew, Link
from comet_mpc.net.channel import Channel, Traffic, agree, greet
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import connect, listen
from comet_mpc.offline.dealer.bundles import DealtRandomness, mask_weight
from comet_mpc.offline.dealer.fetch import PARTY_ROLES, fetch_bundle
from comet_mpc.offline.pair.prepare import Preparer
from comet_mpc.offline.pair.shares import PairRandomness
from comet_mpc.offline.source import Progress, Source
from comet_mpc.offline.sources import DEALER
from comet_mpc.offline.store import BundleStore
from comet_research.bench.network import relay

T = TypeVar("T")

_MEETING = 120.0
_TIMEOUT = 600.0


class Spent(NamedTuple):
    """By one party: bytes sent to the other, or all with a dealer, and time."""

    bytes: int
    seconds: float
    cpu_seconds: float


class MeasuredRun(NamedTuple):
    """One party's side of one run of a program, and of what was prepared for it."""

    traffic: Traffic
    seconds: float
    cpu_seconds: float
    offline: Spent
    """Without the keys of the connection."""


@dataclass(frozen=True)
class Seat:
    """One party's place at a measurement: what its process needs to take part."""

    party: int
    keys: Path
    dealer: tuple[str, int]
    key: bytes | None = None
    """The server's, for the masks of its weights."""

    @property
    def identity(self) -> TlsIdentity:
        return TlsIdentity.find(self.keys, PARTY_ROLES[self.party])

    def meet(self, link: Link, program: str, *, tls: bool = False) -> Channel:
        """A channel to the other party, which must run the same program. The client is told where to connect."""
        if self.party == SERVER:
            with listen(LOOPBACK, 0, self.identity.server_context(require_client=True) if tls else None) as listener:
                link.tell(listener.address)
                channel = listener.accept(_MEETING, channel_timeout=_TIMEOUT)
        else:
            host, port = link.hear()
            channel = connect(host, port, self.identity.client_context() if tls else None, timeout=_TIMEOUT)
        mine = {"role": PARTY_ROLES[self.party], "program": program}
        agree(mine, greet(channel, mine, timeout=_MEETING), ("program",))
        return channel

    def store(self, store: BundleStore, bundle_id: str, plan: Plan) -> Traffic:
        """Puts a bundle from the dealer into a store. Returns what that sent and received."""
        with connect(*self.dealer, self.identity.client_context()) as line:
            sink = partial(store.add, bundle_id, plan.digest)
            fetch_bundle(line, self.party, bundle_id, plan.correlations, sink, key=self.key)
            return line.traffic

    def fetch(self, plan: Plan, weights: Mapping[str, Weight], bundle_id: str) -> tuple[DealtRandomness, Traffic]:
        """Randomness for a run from the dealer, and what that sent and received."""
        with TemporaryDirectory(prefix="comet-store-") as directory:
            store = BundleStore(Path(directory), self.party, DEALER)
            traffic = self.store(store, bundle_id, plan)
            dealt = DealtRandomness(store.take(bundle_id, plan.digest, plan.correlations), weights)
            dealt.compute_ahead()
        return dealt, traffic


class Runs:
    """One party's runs of one program on one channel: a bundle each. Keys are set up once, as in a service."""

    def __init__(self, seat: Seat, channel: Channel, source: Source, plan: Plan, weights: Mapping[str, Weight]) -> None:
        self._seat, self._channel, self._plan, self._weights = seat, channel, plan, weights
        self._preparer: Preparer | None = None
        self.keys = Spent(0, 0.0, 0.0)
        if not source.has_third_party:
            before, watch = self._clock()
            self._preparer = Preparer(channel, seat.party, plan.correlations, weights)
            self._preparer.set_up()
            self.keys = Spent((channel.traffic - before).sent, *watch.lap())

    def _clock(self) -> tuple[Traffic, Stopwatch]:
        """Started when both parties are there: else one of them would wait for what the other does in between."""
        self._channel.exchange([b"ready"], 5)
        return self._channel.traffic, Stopwatch()

    def _prepare(self, bundle_id: str, progress: Progress | None) -> tuple[DealtRandomness | PairRandomness, Spent]:
        before, watch = self._clock()
        if self._preparer is None:
            dealt, traffic = self._seat.fetch(self._plan, self._weights, bundle_id)
            return dealt, Spent(traffic.sent + traffic.received, *watch.lap())
        pair = self._preparer.prepare(progress=progress)[0].open()
        return pair, Spent((self._channel.traffic - before).sent, *watch.lap())

    def run(
        self,
        bundle_id: str,
        begin: Callable[[PartySession], Callable[[], Share]],
        *,
        progress: Progress | None = None,
    ) -> tuple[MeasuredRun, PartySession, Share]:
        """Prepares a bundle and runs the program with it, which must take exactly what was planned: its result.

        begin: what is done before the clock starts. It gives what is measured
        progress: is told how far a preparation without a third party is
        """
        randomness, offline = self._prepare(bundle_id, progress)
        party, plan = self._seat.party, self._plan
        session = PartySession(party, self._channel, randomness, ways=plan.ways)
        program = begin(session)
        before, watch = self._clock()
        share = program()
        seconds, cpu = watch.lap()
        traffic = self._channel.traffic - before
        check_planned(party, traffic, plan)
        if randomness.remaining:
            raise CometError(f"{randomness.remaining} correlations were prepared but not used")
        return MeasuredRun(traffic, seconds, cpu, offline), session, share


def run_parties(crew: Crew, target: Callable[..., T], *arguments: Any, network: Network | None = None) -> tuple[T, T]:
    """Runs `target(link, seat, *arguments)` as client and as server, perhaps over a slower network: their results."""
    seats = [
        Seat(party, crew.keys, crew.dealer_address, new_seed() if party == SERVER else None)
        for party in (CLIENT, SERVER)
    ]
    client, server = (crew.start(PARTY_ROLES[seat.party], target, seat, *arguments) for seat in seats)
    (address,) = crew.notes([server])
    if network is not None:
        (address,) = crew.notes([crew.start("network", relay, address, network)])
    client.tell(address)
    results = crew.results([client, server])
    return results[CLIENT], results[SERVER]


def set_up(
    channel: Channel,
    public: Mapping[str, Weight],
    values: dict[str, Weight] | None,
    key: bytes | None,
    masked: Iterable[str],
) -> dict[str, Weight]:
    """The weights that a party computes with.

    public  shapes and scales, which both parties know
    values  the server's weights; None at the client, which downloads those named in `masked`, masked with the key
    """
    if values is not None:
        assert key is not None
        for name in masked:
            channel.exchange([mask_weight(key, values[name])], 0)
        return values
    found = dict(public)
    for name in masked:
        weight = public[name]
        words = np.frombuffer(channel.exchange([], 8 * math.prod(weight.shape)), np.uint64)
        found[name] = replace(weight, masked=words.reshape(weight.shape))
    return found


def reveal(party: int, channel: Channel, share: Share) -> Reals | None:
    """The result, at the client: the server gives its share away. For comparisons, after a measurement."""
    own = share.flat()
    if party == SERVER:
        channel.exchange([own], 0)
        return None
    theirs = np.frombuffer(channel.exchange([], own.nbytes), np.uint64)
    return decode(own + theirs, share.fraction, share.width).reshape(share.shape)


def check_planned(party: int, measured: Traffic, plan: Plan) -> None:
    """Raises unless a party sent and received exactly what was planned, in as many rounds."""
    planned = Traffic(plan.sent(party), plan.sent(1 - party), plan.rounds)
    if measured != planned:
        raise CometError(f"the {PARTY_ROLES[party]} measured {measured}, but {planned} was planned")


class Stopwatch:
    """Seconds, and CPU seconds of this process."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self) -> tuple[float, float]:
        """Both, since the start or the last lap."""
        wall, cpu = self._wall, self._cpu
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self._wall - wall, self._cpu - cpu


def peak_memory() -> int:
    """The most memory that this process ever had, in bytes."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
