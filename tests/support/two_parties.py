"""Runs a program as two real parties (threads over a memory channel, randomness from a dealing) and checks its plan."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.engine.share import CLIENT, SERVER, Share, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.net.channel import Channel, Traffic, memory_pair
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import Dealing, DealtRandomness, mask_weight

Result = TypeVar("Result")
Program = Callable[[Session, Mapping[str, Weight]], Result]

KEY = bytes(16)


@dataclass(frozen=True)
class Run(Generic[Result]):
    client: Result
    server: Result
    plan: Plan
    traffic: tuple[Traffic, Traffic]


def run_two_parties(
    program: Program[Result],
    weights: Mapping[str, Weight] | None = None,
    *,
    fused: bool = True,
    permits_leaks: bool = False,
    seeds: tuple[bytes, bytes] | None = None,
    channels: tuple[Channel, Channel] | None = None,
) -> Run[Result]:
    """Plans, deals and runs; asserts that bytes and rounds on the channel are the planned ones."""
    weights = weights or {}
    public = {name: weight.public() for name, weight in weights.items()}
    plan = plan_program(lambda session: program(session, public), fused=fused, permits_leaks=permits_leaks)
    dealing = Dealing(plan.correlations, KEY, seeds)
    corrections = io.BytesIO(b"".join(dealing.corrections()))
    assert len(corrections.getvalue()) == plan.correction_bytes
    masked = {
        name: Weight(w.name, w.shape, w.fraction, w.gain, masked=mask_weight(KEY, w)) for name, w in weights.items()
    }
    bundles = (
        Bundle(CLIENT, dealing.client_seed, plan.correlations),
        Bundle(SERVER, dealing.server_seed, plan.correlations, corrections),
    )
    held: tuple[Mapping[str, Weight], Mapping[str, Weight]] = (masked, weights)
    ends = channels or memory_pair(timeout=20.0)
    results: dict[int, Result] = {}
    errors: list[BaseException] = []

    def work(party: int) -> None:
        try:
            source = DealtRandomness(bundles[party], held[party], fused=fused)
            session = PartySession(party, ends[party], source, permits_leaks=permits_leaks)
            results[party] = program(session, held[party])
            assert source.remaining == 0
        except BaseException as error:
            errors.append(error)
            ends[party].close()

    threads = [threading.Thread(target=work, args=(party,)) for party in (CLIENT, SERVER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    for party in (CLIENT, SERVER):
        assert ends[party].traffic.sent == plan.sent(party)
        assert ends[party].traffic.received == plan.sent(1 - party)
        assert ends[party].traffic.rounds == plan.rounds
    return Run(results[CLIENT], results[SERVER], plan, (ends[CLIENT].traffic, ends[SERVER].traffic))


def together(run: Run[Share]) -> npt.NDArray[np.float64]:
    """The value behind the two parties' shares."""
    client, server = run.client, run.server
    assert client.values is not None
    assert server.values is not None
    return decode(client.values + server.values, client.fraction, client.width)


def twin_value(program: Program[Share], weights: Mapping[str, Weight] | None = None) -> npt.NDArray[np.float64]:
    """The same program's plaintext twin."""
    share = program(TwinSession(permits_leaks=True), weights or {})
    assert share.values is not None
    return decode(share.values, share.fraction, share.width)
