"""Both parties of a homomorphic product in two threads, for tests."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from comet_mpc.channel import Channel, memory_pair
from comet_mpc.share import CLIENT, SERVER, Words

__all__ = ["both", "random_words", "same"]

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
