"""What the front desk and the process of a connection say to each other: an operation and the number of a request."""

from __future__ import annotations

import socket
import struct
from enum import IntEnum

_FORMAT = struct.Struct("<BI")


class Said(IntEnum):
    """From the worker: what it wants or does. From the desk: what it may do."""

    WANT_RUN = 1
    WANT_PREPARE = 2
    WANT_DOWNLOAD = 9
    DONE = 3
    """With the slot that it had or wanted."""
    REST = 4
    """It has a slot and computes nothing: its peer is to act."""
    RESUME = 5
    IDLE = 6
    """It waits for the client's next request."""
    REFUSED = 8
    """The same, and the last one was refused."""
    BUSY = 7
    GO = 16
    FULL = 17
    """There was no slot in time."""
    REVOKED = 20
    """There is none for this client: its certificate counts no more."""
    UNREADABLE = 21
    """There is none now: nobody knows whether its certificate counts."""
    LEAVE = 18
    """As soon as it is idle: others wait, or the server stops."""
    ABORT = 19
    """At once: what is under way is given up."""


class Pipe:
    """One end. Whole messages or nothing; the end of a process is the end of its pipe."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    @classmethod
    def pair(cls) -> tuple[Pipe, Pipe]:
        """The desk's end, which never waits, and the worker's."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(False)
        return cls(here), cls(there)

    def say(self, what: Said, number: int = 0) -> None:
        """Raises OSError if the other end is gone, or does not listen."""
        self._socket.send(_FORMAT.pack(what, number))

    def hear(self) -> tuple[Said, int] | None:
        """The next message; None at the end. A socket that does not block raises BlockingIOError if there is none."""
        data = self._socket.recv(_FORMAT.size)
        if len(data) != _FORMAT.size:
            return None
        what, number = _FORMAT.unpack(data)
        return Said(what), number

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
