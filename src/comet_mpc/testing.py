"""Run a protocol of your own between two parties, and compare what happens with its plan and its plaintext twin.

    from comet_mpc.testing import run_two_parties

    run = run_two_parties(program, tolerance=2**-10, processes=True)
    print(run.value, run.plan.online_bytes, run.plan.rounds)

A program is a function of a session and the server's weights. Both parties run the same function: a private value is
taken from its owner only (`Session.private`), and the client gets weights without their values.
"""

from __future__ import annotations

import io
import multiprocessing
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Generic, Literal, TypeVar, cast

import numpy as np

from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.ops.operation import Abilities
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan, plan_series
from comet_mpc.engine.session import USUAL_WAYS, Session, Ways
from comet_mpc.engine.share import CLIENT, SERVER, Reals, Share, decode
from comet_mpc.engine.tensors import Weight
from comet_mpc.engine.twin import TwinSession
from comet_mpc.engine.windows import Window, WindowPlan, WindowSession
from comet_mpc.errors import PeerError
from comet_mpc.net.channel import Channel, Traffic, memory_pair
from comet_mpc.net.sockets import TcpChannel
from comet_mpc.offline.bundle import Bundle, OpenBundle
from comet_mpc.offline.dealer.bundles import Dealing, DealtRandomness, mask_weight
from comet_mpc.offline.pair.prepare import prepare_bundle
from comet_mpc.offline.sources import find_source

A = TypeVar("A")
B = TypeVar("B")
Result = TypeVar("Result")
Weights = Mapping[str, Weight]
Program = Callable[[Session, Weights], Result]
Ends = tuple[Channel, Channel]
"""The client's end of a connection, and the server's."""

WEIGHT_KEY = bytes(16)
"""From which the masks of weights are derived, with a dealer: known to all, because nothing is secret in a test."""
_TIMEOUT = 600.0


@dataclass(frozen=True)
class TwoPartyRun(Generic[Result]):
    """What came of a program that two parties have run. Bytes and rounds were compared with the plan."""

    client: Result
    server: Result
    plan: Plan
    traffic: tuple[Traffic, Traffic]
    """Of the online phase, as the client and as the server count it."""
    offline: Traffic
    """Of preparing the randomness, as the client counts it; with a dealer, the corrections that it sends."""
    twin: Result | None = None
    """The plaintext twin's result, if it was compared."""

    @property
    def value(self) -> Reals:
        """The result in the clear: the sum of the two shares, or what was revealed to either party."""
        return _in_the_clear(self.client, self.server)


class Mismatch(AssertionError):
    """The parties did something else than the plan or the twin says."""


def run_two_parties(
    program: Program[Result],
    weights: Weights | None = None,
    *,
    source: Literal["dealer", "pair"] = "dealer",
    processes: bool = False,
    tolerance: float | None = None,
    ways: Ways = USUAL_WAYS,
    fused: bool | None = None,
    seeds: tuple[bytes, bytes] | None = None,
    channels: Ends | None = None,
) -> TwoPartyRun[Result]:
    """Plans a program, prepares randomness and runs both parties; raises `Mismatch` if plan and run differ.

    weights        of the server, by name
    source         of the randomness: the two parties (pair), or a dealer in this process, which is quicker
    processes      run the server in a process of its own, and not in a thread
    tolerance      compare the result with the plaintext twin's, which rounds to nearest where parties round at random;
                   it must be an array, or a share. None: the twin is not run
    ways           where the program takes another way than usual (`Session.goes`)
    fused          truncate and open in one round; None: if the source can
    seeds          of the client's and the server's randomness, with a dealer
    channels       to use in place of a connection in memory; for threads only
    """
    (run,) = run_series(
        [program], weights, source=source, processes=processes, tolerance=tolerance, ways=ways, fused=fused,
        seeds=seeds, channels=channels,
    )  # fmt: skip
    return run


def run_series(
    programs: Sequence[Program[Result]],
    weights: Weights | None = None,
    *,
    source: Literal["dealer", "pair"] = "dealer",
    processes: bool = False,
    tolerance: float | None = None,
    ways: Ways = USUAL_WAYS,
    fused: bool | None = None,
    seeds: tuple[bytes, bytes] | None = None,
    channels: Ends | None = None,
) -> list[TwoPartyRun[Result]]:
    """The same for programs that share a session and a bundle: what one has kept, a later one uses (`Session.keep`).

    Each is compared with its own plan and twin. The randomness is prepared for all of them at once.
    """
    held = weights or {}
    public = {name: weight.public() for name, weight in held.items()}
    abilities = find_source(source).abilities if fused is None else able(fused)
    series = plan_series(
        [partial(_with_weights, program, public) for program in programs], abilities=abilities, ways=ways
    )

    def run_here(
        channel: Channel, party: int, randomness: OpenBundle, own: Weights
    ) -> Iterator[tuple[Result, Session]]:
        session = PartySession(party, channel, randomness, ways=ways)
        for program, plan in zip(programs, series.programs, strict=True):
            left = randomness.remaining
            yield program(session, own), session
            _compare("the correlations drawn", left - randomness.remaining, len(plan.correlations))

    clear = TwinSession(abilities=abilities, ways=ways)
    twins = [None if tolerance is None else program(clear, held) for program in programs]
    prepared = _Prepared(series.whole, source, held, seeds, abilities)
    return _runs(run_here, series.programs, twins, prepared, tolerance, processes=processes, channels=channels)


WindowedProgram = Callable[[Session, Weights, Window], Result]


def run_windows(
    program: WindowedProgram[Result],
    sizes: Sequence[int],
    total: int,
    weights: Weights | None = None,
    *,
    source: Literal["dealer", "pair"] = "dealer",
    processes: bool = False,
    tolerance: float | None = None,
) -> list[TwoPartyRun[Result]]:
    """The same for a program of `total` positions that is run so many of them at a time (`engine.windows`).

    The randomness is prepared once, for all positions. Each window is compared with its own plan and twin.
    """
    held = weights or {}
    public = {name: weight.public() for name, weight in held.items()}
    abilities = find_source(source).abilities
    plan = WindowPlan(lambda session, window: program(session, public, window), total, abilities=abilities)
    windows = [Window(stop - size, stop, total) for size, stop in zip(sizes, accumulate(sizes), strict=True)]

    def run_here(
        channel: Channel, party: int, randomness: OpenBundle, own: Weights
    ) -> Iterator[tuple[Result, Session]]:
        session = WindowSession(party, channel, randomness, plan)
        for size in sizes:
            yield program(session, own, session.begin(size)), session

    clear = TwinSession(abilities=abilities)
    twins = [None if tolerance is None else program(clear, held, window) for window in windows]
    plans = [plan.window(window.first, window.stop) for window in windows]
    prepared = _Prepared(plan.whole, source, held, None, abilities)
    return _runs(run_here, plans, twins, prepared, tolerance, processes=processes)


def _runs(
    run_here: Callable[[Channel, int, OpenBundle, Weights], Iterator[tuple[Result, Session]]],
    plans: Sequence[Plan],
    twins: Sequence[Result | None],
    prepared: _Prepared,
    tolerance: float | None,
    *,
    processes: bool,
    channels: Ends | None = None,
) -> list[TwoPartyRun[Result]]:
    """What both parties' programs give, one after the other, each compared with its plan and its twin."""
    offline = find_source(prepared.source).offline_traffic(prepared.plan.correlations)
    prepare = prepared.dealt() if prepared.source == "dealer" else prepared.paired(offline)

    def work(channel: Channel, party: int) -> list[tuple[Result, Traffic]]:
        randomness, own = prepare(channel, party)
        done: list[tuple[Result, Traffic]] = []
        before = channel.traffic
        for plan, (result, session) in zip(plans, run_here(channel, party, randomness, own), strict=True):
            session.end_program()
            measured, before = channel.traffic - before, channel.traffic
            planned = Traffic(plan.sent(party), plan.sent(1 - party), plan.rounds)
            _compare(f"the traffic of party {party}", measured, planned)
            done.append((result, measured))
        return done

    ours, theirs = _in_processes(work) if processes else as_parties(work, channels)
    runs = []
    for plan, (client, sent), (server, received), twin in zip(plans, ours, theirs, twins, strict=True):
        _compare_with_twin(client, server, twin, tolerance)
        runs.append(TwoPartyRun(client, server, plan, (sent, received), offline, twin))
    return runs


def _compare_with_twin(client: object, server: object, twin: object, tolerance: float | None) -> None:
    if tolerance is not None:
        error = float(np.max(np.abs(_in_the_clear(client, server) - _in_the_clear(twin, None)), initial=0.0))
        if not error <= tolerance:
            raise Mismatch(f"the parties' result is {error:g} from the twin's, more than {tolerance:g}")


def _with_weights(program: Program[Result], weights: Weights, session: Session) -> Result:
    return program(session, weights)


def _compare(what: str, measured: object, planned: object) -> None:
    if measured != planned:
        raise Mismatch(f"{what}: {measured}, planned {planned}")


def _in_the_clear(client: object, server: object) -> Reals:
    """Two shares, or one that holds everything, or an array that one of the two has."""
    if isinstance(client, Share):
        words = client.flat() if server is None else client.ring.add(client.flat(), cast(Share, server).flat())
        return decode(words, client.fraction, client.ring).reshape(client.shape)
    found = server if client is None else client
    if not isinstance(found, np.ndarray):
        raise TypeError(f"only a share or an array can be compared, not {type(found).__name__}")
    return found


# Two at once ----------------------------------------------------------------------------------------------------


def both(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Runs the two in threads, to their ends. The first error, as time goes, is raised here."""
    results: dict[int, object] = {}
    errors: list[BaseException] = []

    def work(which: int, action: Callable[[], object]) -> None:
        try:
            results[which] = action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=each, daemon=True) for each in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return cast(A, results[0]), cast(B, results[1])


def as_parties(work: Callable[[Channel, int], Result], ends: Ends | None = None) -> tuple[Result, Result]:
    """The same function as client and as server, in two threads. Whoever fails closes its end."""
    channels = ends or memory_pair(_TIMEOUT)

    def one(party: int) -> Result:
        try:
            return work(channels[party], party)
        except BaseException:
            channels[party].close()
            raise

    return both(lambda: one(CLIENT), lambda: one(SERVER))


def _in_processes(work: Callable[[Channel, int], Result]) -> tuple[Result, Result]:
    """The client here, the server in a process that is forked. An error of the server is raised here."""
    here, there = socket.socketpair()
    context = multiprocessing.get_context("fork")
    result, told = context.Pipe(duplex=False)

    def serve() -> None:
        here.close()
        try:
            with TcpChannel(there, _TIMEOUT) as channel:
                told.send((True, work(channel, SERVER)))
        except BaseException as error:
            told.send((False, error))

    server = context.Process(target=serve, name="server", daemon=True)
    server.start()
    there.close()
    told.close()
    try:
        with TcpChannel(here, _TIMEOUT) as channel:
            client = work(channel, CLIENT)
    except PeerError:
        if result.poll(1.0):
            _outcome(result.recv())  # why the server has ended the connection
        raise
    finally:
        server.join(1.0)
    return client, _outcome(result.recv())


def _outcome(message: tuple[bool, Any]) -> Any:
    succeeded, value = message
    if not succeeded:
        raise value
    return value


# Randomness -----------------------------------------------------------------------------------------------------


def able(fused: bool) -> Abilities:
    """What a source can do that prepares openings which truncate on the way, or one that does not."""
    return find_source("dealer" if fused else "pair").abilities


Prepared = tuple[OpenBundle, Weights]
"""What a party draws from, and what it has of the weights."""


def deal(
    correlations: Sequence[Correlation], key: bytes = WEIGHT_KEY, seeds: tuple[bytes, bytes] | None = None
) -> tuple[Bundle, Bundle]:
    """Both parts of a bundle, as a dealer makes them."""
    dealing = Dealing(tuple(correlations), key, seeds)
    corrections = io.BytesIO(b"".join(dealing.corrections()))
    common = io.BytesIO(b"".join(dealing.common()))
    client = Bundle(CLIENT, dealing.client_seed, tuple(correlations), common)
    return client, Bundle(SERVER, dealing.server_seed, tuple(correlations), corrections)


def masked(weights: Weights, key: bytes = WEIGHT_KEY) -> dict[str, Weight]:
    """What the client of a dealer has of the server's weights."""
    return {name: replace(weight.public(), masked=mask_weight(key, weight)) for name, weight in weights.items()}


@dataclass(frozen=True)
class _Prepared:
    """The randomness of a plan, for parties with these weights."""

    plan: Plan
    source: Literal["dealer", "pair"]
    weights: Weights
    seeds: tuple[bytes, bytes] | None
    abilities: Abilities

    def dealt(self) -> Callable[[Channel, int], Prepared]:
        bundles = deal(self.plan.correlations, WEIGHT_KEY, self.seeds)
        stored = [cast(io.BytesIO, bundle.stored).getvalue() for bundle in bundles]
        _compare("bytes of corrections", sum(map(len, stored)), self.plan.correction_bytes)
        held = masked(self.weights), self.weights
        return lambda _, party: (DealtRandomness(bundles[party], held[party], abilities=self.abilities), held[party])

    def paired(self, planned: Traffic) -> Callable[[Channel, int], Prepared]:
        held = {name: weight.public() for name, weight in self.weights.items()}, self.weights

        def prepare(channel: Channel, party: int) -> Prepared:
            randomness = prepare_bundle(channel, party, self.plan.correlations, held[party], threads=1)
            if party == CLIENT:
                _compare("the traffic of the preparation", channel.traffic, planned)
            return randomness, held[party]

        return prepare
