"""The real thing: one party's side of a program, over a channel, with correlated randomness prepared before."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.ops import Request, Step
from comet_mpc.engine.ops.operation import Abilities, Drawn, Leg, Message, Packed
from comet_mpc.engine.parts import Block
from comet_mpc.engine.session import USUAL_WAYS, DrawingSession, Ways
from comet_mpc.engine.share import CLIENT, SERVER, Share, Words
from comet_mpc.errors import ForeignRandomness, ShapeError
from comet_mpc.net.channel import Channel, Traffic

Sent = Callable[[Message, Packed], None]
"""Is given each message that a party sends: what it consists of, and its bytes."""


class Randomness(Protocol):
    """Correlated randomness, one party's side."""

    @property
    def party(self) -> int:
        """Whose side it is."""

    @property
    def abilities(self) -> Abilities:
        """Those of its source, for which the program was planned."""

    def draw(self, correlation: Correlation) -> Drawn:
        """The next of the program's correlations. They are handed out in order, each once."""


@dataclass(frozen=True)
class Measured:
    """What a part of a program took."""

    traffic: Traffic = field(default_factory=Traffic)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            self.traffic + other.traffic, self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds
        )


class PartySession(DrawingSession):
    """Party 0 is the client, party 1 the server. Both run the same program in lockstep."""

    def __init__(
        self,
        party: int,
        channel: Channel,
        randomness: Randomness,
        *,
        ways: Ways = USUAL_WAYS,
        watch: Sent | None = None,
    ) -> None:
        super().__init__(abilities=randomness.abilities, ways=ways)
        if party not in (CLIENT, SERVER):
            raise ShapeError(f"a party is {CLIENT} (client) or {SERVER} (server), not {party}")
        if randomness.party != party:
            raise ForeignRandomness("the randomness was prepared for the other party")
        self.party = party
        self.channel = channel
        self._randomness = randomness
        self._watch = watch
        self.measured: dict[str, Measured] = {}
        """By part of the program, the parts within it included."""

    @contextmanager
    def part(self, name: str | Block) -> Iterator[None]:
        """As in any session; and what was measured in it is added up in `measured`."""
        traffic, cpu, wall = self.channel.traffic, time.thread_time(), time.perf_counter()
        with super().part(name):
            here = self.here
            try:
                yield
            finally:
                spent = Measured(self.channel.traffic - traffic, time.perf_counter() - wall, time.thread_time() - cpu)
                self.measured[here] = self.measured.get(here, Measured()) + spent

    def holds(self, party: int) -> bool:
        return party == self.party

    def _trivial(self, owner: int, shape: tuple[int, ...], words: Words | None) -> Words | None:
        return words if owner == self.party and words is not None else np.zeros(shape, np.uint64)

    def _dithered(self, share: Share, bits: int) -> Words | None:
        if self.party != SERVER or share.values is None:
            return share.values
        noise = np.frombuffer(os.urandom(8 * share.count), np.uint64) & np.uint64(2**bits - 1)
        return share.values + noise.reshape(share.shape) - np.uint64(2**bits // 2)

    def _draw(self, correlation: Correlation) -> Drawn:
        return self._randomness.draw(correlation)

    def _carry_out(self, requests: Sequence[Request[Any]], drawn: Sequence[Drawn | None]) -> list[Any]:
        legs = [self._leg(request, entry) for request, entry in zip(requests, drawn, strict=True)]
        expected = [request.wire_bytes()[1 - self.party] for request in requests]
        outgoing = [sent for sent, _ in legs if sent is not None]
        if self._watch is not None:
            for request, (sent, _) in zip(requests, legs, strict=True):
                if sent is not None:
                    self._watch(request.messages()[self.party], sent)
        answer = memoryview(self.channel.exchange(outgoing, sum(expected)))
        results, start = [], 0
        for (_, finish), size in zip(legs, expected, strict=True):
            results.append(finish(answer[start : start + size]))
            start += size
        return results

    def _leg(self, request: Request[Any], drawn: Drawn | None) -> Leg[Any]:
        """This party's side of a request."""
        return request.leg(self.party, drawn)

    def _compute(self, step: Step, drawn: Drawn | None) -> Words | None:
        return step.compute(self.party, drawn)
