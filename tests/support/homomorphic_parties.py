"""Both parties of a homomorphic product in two threads, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, SERVER, Share, Words
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.pair.costs import preparation_traffic
from comet_mpc.offline.pair.prepare import prepare_bundle

__all__ = ["both", "random_words", "run_as_a_pair", "same"]

Result = TypeVar("Result")
RNG = np.random.default_rng(11)


def both(
    work: Callable[[Channel, int], Result], timeout: float = 60.0
) -> tuple[Result, Result, tuple[Channel, Channel]]:
    """The same function as the client and as the server, in two threads; the first error of either is raised."""
    ends = memory_pair(timeout=timeout)

    def guarded(party: int) -> Result:
        try:
            return work(ends[party], party)
        except BaseException:
            ends[party].close()
            raise

    with ThreadPoolExecutor(2) as pool:
        client, server = (pool.submit(guarded, party) for party in (CLIENT, SERVER))
        return client.result(), server.result(), ends


def random_words(*shape: int) -> Words:
    return RNG.integers(0, 2**64, shape, dtype=np.uint64)


def same(x: Words, y: Words, width: int) -> bool:
    shift = np.uint64(64 - width)
    return np.array_equal(x << shift, y << shift)


def run_as_a_pair(
    program: Callable[[Session, Mapping[str, Weight]], Share], held: Mapping[str, Weight], public: Mapping[str, Weight]
) -> tuple[Share, Share]:
    plan = plan_program(lambda session: program(session, public), fused=False)

    def work(channel: Channel, party: int) -> Share:
        own = held if party == SERVER else public
        source = prepare_bundle(channel, party, plan.correlations, own, threads=1)
        before = channel.traffic
        if party == CLIENT:
            assert before == preparation_traffic(plan.correlations)
        share = program(PartySession(party, channel, source), own)
        assert source.remaining == 0
        spent = channel.traffic - before
        assert (spent.sent, spent.rounds) == (plan.sent(party), plan.rounds)
        return share

    client, server, _ = both(work)
    return client, server
