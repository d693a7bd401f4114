"""A channel with a fault in one chosen message, to try every one of them."""

from __future__ import annotations

import select
import socket
import time
from typing import Literal

from comet_mpc.errors import PeerClosed
from comet_mpc.net.channel import Around, Channel, _MemoryChannel
from comet_mpc.net.sockets import _SocketChannel
from support.waiting import PATIENCE, within

__all__ = ["IMPATIENT", "Fault", "FaultyChannel", "hung_up"]

Fault = Literal["cut", "stall", "length", "garbage", "noise", "hurry"]
"""cut      the line is gone
stall    nothing is sent until the peer has given up
length   a byte more
garbage  nine bytes of rubbish
noise    rubbish of the right size
hurry    no fault: from that message on this side gives up soon, because the other one stalls"""

IMPATIENT = 0.3
"""Seconds that the other side waits, where a stall is to end in a timeout."""


def hung_up(line: Channel | socket.socket) -> bool:
    """Whether the peer has closed its end, whatever it has said before."""
    if isinstance(line, _MemoryChannel):
        return line._inbox._closed
    connection = line._socket if isinstance(line, _SocketChannel) else line
    assert isinstance(connection, socket.socket)
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


class FaultyChannel(Around):
    """Another channel with at most one fault, in message number `at`."""

    def __init__(self, inner: Channel, fault: Fault | None = None, at: int = -1, *, role: str | None = None) -> None:
        super().__init__(inner)
        self.peer_role = role or inner.peer_role
        self._fault = fault
        self.at = at
        self.messages = 0
        self.patience: list[float] = []
        """What this side would have waited in the messages in which it hurried."""

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        self._inner.timeout = self.timeout
        if self._fault == "hurry" and sizes is not None and self.messages >= self.at:
            self.patience.append(self.timeout)
            deadline = min(deadline, time.monotonic() + IMPATIENT)
        elif self.messages == self.at:
            outgoing = self._strike(outgoing)
        self.messages += 1
        return self._inner._transfer(outgoing, sizes, deadline)

    def _strike(self, outgoing: list[memoryview] | None) -> list[memoryview] | None:
        match self._fault:
            case "cut":
                raise PeerClosed("the line was cut")
            case "stall":
                within(PATIENCE, lambda: hung_up(self._inner))
            case "length":
                return [*(outgoing or []), memoryview(b"!")]
            case "garbage":
                return [memoryview(b"\xff" * 9)]
            case "noise" if outgoing is not None:
                return [memoryview(b"\xff" * sum(map(len, outgoing)))]
        return outgoing
