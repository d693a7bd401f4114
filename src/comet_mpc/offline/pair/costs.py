"""What preparing a program costs two parties without a third: bytes and rounds, exactly, before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.net.channel import FRAME_HEADER, Traffic
from comet_mpc.offline.ot.extension import set_up_traffic
from comet_mpc.offline.pair.matrices import key_limbs, packing_of
from comet_mpc.offline.pair.stages import arranged, stage_rounds
from comet_mpc.offline.rlwe.public_key import PublicKey
from comet_mpc.offline.source import Progress

_SEEDS = SEED_BYTES + FRAME_HEADER
_KEYS = Traffic(_SEEDS + PublicKey.SIZE + FRAME_HEADER, _SEEDS, 2)
"""Two seeds at once, then the client's public key and its proof."""
_STEADY_RATE = 50e6
"""Bytes a second that are encrypted, multiplied element by element, answered and sent, beside matrix products."""


def preparation_traffic(program: Sequence[Correlation], *, first: bool = True, count: int = 1) -> Traffic:
    """What `Preparer.prepare` sends and receives, and in how many rounds, as the client counts it.

    first: with the keys and base transfers, which later bundles on the same connection share
    count: of bundles that are prepared together
    """
    parts = preparation_parts(program, count)
    if not first:
        del parts["keys"]
    return sum(parts.values(), Traffic())


def preparation_parts(once: Sequence[Correlation], count: int = 1) -> dict[str, Traffic]:
    """The same by what it is spent on, in the order of first use."""
    parts: dict[str, Traffic] = {}
    for name, traffic, _ in _stages(once, count):
        parts[name] = parts.get(name, Traffic()) + traffic
    for name, rounds in stage_rounds(once, count).items():
        parts[name] += Traffic(rounds=rounds)
    return parts


def watcher(
    once: Sequence[Correlation], told: Progress, before: Traffic, *, first: bool = True, count: int = 1
) -> Callable[[Traffic], None]:
    """For a channel on which a preparation begins: tells how far it is, in proportion to the time that it takes.

    Bytes of matrix products take the longest, and come first. So what is told are not the bytes that have passed, but
    those that would have, if each took as long as any other: of them the time left follows.
    """
    passed, spent = [0], [0.0]
    for name, traffic, seconds in _stages(once, count):
        if first or name != "keys":
            size = traffic.sent + traffic.received
            passed.append(passed[-1] + size)
            spent.append(spent[-1] + seconds + size / _STEADY_RATE)

    def watch(now: Traffic) -> None:
        done = now - before
        part = float(np.interp(done.sent + done.received, passed, spent)) / spent[-1]
        told(int(part * passed[-1]), passed[-1])

    return watch


def _stages(once: Sequence[Correlation], count: int) -> Iterator[tuple[str, Traffic, float]]:
    """What is done one after the other, and about how many seconds that takes beside those for its bytes."""
    yield "agreement", Traffic(32 + FRAME_HEADER, 32 + FRAME_HEADER, 1), 0.0  # the program's digest
    yield "keys", _KEYS + set_up_traffic(), 0.0
    if keys := packing_of(once).bytes_for(key_limbs(once)):
        yield "keys", Traffic(keys + FRAME_HEADER, 0, 1), 0.0
    for stage in arranged(once, count):
        yield stage.part, stage.traffic, stage.seconds
