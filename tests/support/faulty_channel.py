"""A channel with a fault in one chosen message, to try every one of them."""

from __future__ import annotations

import time
from typing import Literal

from comet_mpc.errors import PeerClosed
from comet_mpc.net.channel import Channel

Fault = Literal["cut", "stall", "length", "garbage"]
IMPATIENT = 0.4
"""Seconds that the other side waits, where a stall is to end in a timeout."""


class FaultyChannel(Channel):
    """Another channel with at most one fault, in message number `at`."""

    def __init__(self, inner: Channel, role: str | None, fault: Fault | None = None, at: int = -1) -> None:
        super().__init__(inner.timeout)
        self._inner = inner
        self._role = role
        self._fault = fault
        self._at = at
        self.messages = 0

    @property
    def peer_role(self) -> str | None:
        return self._role

    @property
    def peer_name(self) -> str | None:
        return self._inner.peer_name

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        self._inner.timeout = self.timeout
        if self.messages == self._at:
            outgoing = self._strike(outgoing)
        self.messages += 1
        return self._inner._transfer(outgoing, sizes, deadline)

    def _strike(self, outgoing: list[memoryview] | None) -> list[memoryview] | None:
        match self._fault:
            case "cut":
                raise PeerClosed("the line was cut")
            case "stall":
                time.sleep(2.5 * IMPATIENT)
            case "length":
                return [*(outgoing or []), memoryview(b"!")]
            case "garbage":
                return [memoryview(b"\xff" * 9)]
        return outgoing

    def _release(self) -> None:
        self._inner.close()
