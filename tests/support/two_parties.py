"""Two parties in two threads: any two functions, one function as client and as server, or a program with its plan."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.engine.session import USUAL_WAYS, Ways
from comet_mpc.engine.share import CLIENT, SERVER, Share, Words, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import CometError
from comet_mpc.net.channel import Channel, Traffic, memory_pair
from comet_mpc.offline.bundle import Bundle, OpenBundle
from comet_mpc.offline.dealer.bundles import Dealing, DealtRandomness, mask_weight
from comet_mpc.offline.pair.costs import preparation_traffic
from comet_mpc.offline.pair.prepare import prepare_bundle
from comet_mpc.offline.sources import find_source
from support.waiting import PATIENCE

__all__ = [
    "KEY",
    "Program",
    "Run",
    "Weights",
    "as_parties",
    "both",
    "deal",
    "equal",
    "masked",
    "opened",
    "outcome",
    "run_two_parties",
    "together",
    "twin_value",
]

A = TypeVar("A")
B = TypeVar("B")
Result = TypeVar("Result")
Weights = Mapping[str, Weight]
Program = Callable[[Session, Weights], Result]
SourceName = Literal["dealer", "pair"]

KEY = bytes(16)
"""Of the weights' masks."""


# Any two functions ----------------------------------------------------------------------------------------------


def both(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Runs the two at once, to their ends. The first error, as time goes, is raised here."""
    results: dict[int, object] = {}
    errors: list[BaseException] = []

    def work(place: int, action: Callable[[], object]) -> None:
        try:
            results[place] = action()
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


def outcome(action: Callable[[], object]) -> object:
    """What the action returns, or the error it raises."""
    try:
        return action()
    except CometError as error:
        return error


def as_parties(
    work: Callable[[Channel, int], Result], ends: tuple[Channel, Channel] | None = None
) -> tuple[Result, Result]:
    """The same function as the client and as the server. Who fails closes its end, so that the other does not wait."""
    lines = ends or memory_pair(PATIENCE)

    def one(party: int) -> Result:
        try:
            return work(lines[party], party)
        except BaseException:
            lines[party].close()
            raise

    return both(lambda: one(CLIENT), lambda: one(SERVER))


# Randomness -----------------------------------------------------------------------------------------------------


def deal(
    correlations: Sequence[Correlation], key: bytes = KEY, seeds: tuple[bytes, bytes] | None = None
) -> tuple[Bundle, Bundle]:
    """Both parts of a bundle, as a dealer makes them."""
    program = tuple(correlations)
    dealing = Dealing(program, key, seeds)
    corrections = io.BytesIO(b"".join(dealing.corrections()))
    client = Bundle(CLIENT, dealing.client_seed, program)
    return client, Bundle(SERVER, dealing.server_seed, program, corrections)


def opened(bundle: Bundle, weights: Weights | None = None, *, fused: bool = True) -> DealtRandomness:
    """A dealt bundle, as a party draws from it."""
    return DealtRandomness(bundle, weights or {}, fused=fused)


def masked(weights: Weights, key: bytes = KEY) -> dict[str, Weight]:
    """What the client of a dealer has of the server's weights."""
    return {name: replace(weight.public(), masked=mask_weight(key, weight)) for name, weight in weights.items()}


Prepared = tuple[OpenBundle, Weights]
"""What a party draws from, and what it has of the weights."""


def _dealt(
    plan: Plan, weights: Weights, seeds: tuple[bytes, bytes] | None, fused: bool
) -> Callable[[Channel, int], Prepared]:
    bundles = deal(plan.correlations, KEY, seeds)
    corrections = bundles[SERVER].stored
    assert isinstance(corrections, io.BytesIO)
    assert len(corrections.getvalue()) == plan.correction_bytes
    held = masked(weights), weights
    return lambda _, party: (opened(bundles[party], held[party], fused=fused), held[party])


def _paired(plan: Plan, weights: Weights) -> Callable[[Channel, int], Prepared]:
    held = {name: weight.public() for name, weight in weights.items()}, weights

    def prepare(channel: Channel, party: int) -> Prepared:
        source = prepare_bundle(channel, party, plan.correlations, held[party], threads=1)
        if party == CLIENT:
            assert channel.traffic == preparation_traffic(plan.correlations)
        return source, held[party]

    return prepare


# A program ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run(Generic[Result]):
    client: Result
    server: Result
    plan: Plan
    traffic: tuple[Traffic, Traffic]


def run_two_parties(
    program: Program[Result],
    weights: Weights | None = None,
    *,
    source: SourceName = "dealer",
    fused: bool | None = None,
    permits_leaks: bool = False,
    ways: Ways = USUAL_WAYS,
    seeds: tuple[bytes, bytes] | None = None,
    channels: tuple[Channel, Channel] | None = None,
) -> Run[Result]:
    """Plans, prepares and runs; asserts that bytes and rounds on the channel are the planned ones.

    fused: as the source can, unless it is said.
    """
    weights = weights or {}
    public = {name: weight.public() for name, weight in weights.items()}
    fuses = find_source(source).fused if fused is None else fused
    plan = plan_program(lambda session: program(session, public), fused=fuses, permits_leaks=permits_leaks, ways=ways)
    prepared = _dealt(plan, weights, seeds, fuses) if source == "dealer" else _paired(plan, weights)

    def work(channel: Channel, party: int) -> tuple[Result, Traffic]:
        drawn, held = prepared(channel, party)
        before = channel.traffic
        session = PartySession(party, channel, drawn, permits_leaks=permits_leaks, ways=ways)
        result = program(session, held)
        assert drawn.remaining == 0
        spent = channel.traffic - before
        assert spent == Traffic(plan.sent(party), plan.sent(1 - party), plan.rounds)
        return result, spent

    (client, ours), (server, theirs) = as_parties(work, channels)
    return Run(client, server, plan, (ours, theirs))


def together(run: Run[Share]) -> npt.NDArray[np.float64]:
    """The value behind the two parties' shares."""
    client, server = run.client, run.server
    assert client.values is not None
    assert server.values is not None
    return decode(client.ring.add(client.values, server.values), client.fraction, client.ring)


def twin_value(
    program: Program[Share], weights: Weights | None = None, *, fused: bool = True, ways: Ways = USUAL_WAYS
) -> npt.NDArray[np.float64]:
    """The same program's plaintext twin."""
    share = program(TwinSession(fused=fused, permits_leaks=True, ways=ways), weights or {})
    assert share.values is not None
    return decode(share.values, share.fraction, share.ring)


def equal(x: Words, y: Words, width: int) -> bool:
    """Whether the words are the same modulo 2^width."""
    shift = np.uint64(64 - width)
    return np.array_equal(x << shift, y << shift)
