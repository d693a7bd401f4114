"""The gateway's HTTP connections: how many there are, and how long each may take.

uvicorn has a deadline between two requests and none within one. So here

- a request's header has so many seconds from the connection, or from the answer before, however slowly it comes;
- an answer that nobody reads is dropped after as many (a body's deadline is the `guard`'s, which can still answer);
- there are so many connections at most. One more takes the place of the one that has waited longest for a header, so
  that whoever opens many and says nothing keeps nobody out.
"""

from __future__ import annotations

import asyncio
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from comet_mpc.gateway import problems

REQUEST_SECONDS = 10.0
MOST_CONNECTIONS = 100


class Connection(H11Protocol):
    """One connection of uvicorn's, with deadlines."""

    seconds = REQUEST_SECONDS
    most = MOST_CONNECTIONS
    _since = 0.0
    _no_header: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    @staticmethod
    def within(seconds: float) -> type[Connection]:
        """The same with another deadline."""
        return type("Connection", (Connection,), {"seconds": seconds})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._watch()
        others = [cast(Connection, one) for one in self.connections if one is not self]
        others = [one for one in others if not one.transport.is_closing()]
        if len(others) < self.most:
            return
        waiting = [one for one in others if one.idle]
        if waiting:
            min(waiting, key=lambda one: one._since).transport.abort()
        else:
            self._refuse(503, "TooManyConnections", "all connections of this gateway are in use: try again later")

    @property
    def idle(self) -> bool:
        """Whether a header is awaited, and nothing else is going on."""
        return self.conn.their_state is h11.IDLE and not self.transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._since = self.loop.time()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "BadRequest", "this is no HTTP request, or its header is too long")

    def _watch(self) -> None:
        """The clock runs while a header is awaited. What comes of it does not set the clock back."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop()
        elif self._no_header is None:
            self._no_header = self.loop.call_later(self.seconds, self.transport.abort)

    def _stop(self) -> None:
        if self._no_header is not None:
            self._no_header.cancel()
            self._no_header = None

    def _refuse(self, status: int, error: str, message: str) -> None:
        """Without the application, which may not have been asked yet."""
        body = problems.answer(status, error, message).body
        head = f"HTTP/1.1 {status} {error}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n".encode() + bytes(body))
        self.transport.close()
