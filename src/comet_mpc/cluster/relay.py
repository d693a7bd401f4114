"""One address for the machines of a cluster: bytes are passed on as they are, so TLS goes from client to machine.

The relay has no key and sees nothing but what anybody on the line sees. It reads which machine a client names in its
first message (`hello`), has one chosen (`Choose`), and passes on. When a machine is gone, its connections end at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from comet_mpc.cluster.hello import RECORD_HEADER, hello_bytes, wanted_state
from comet_mpc.errors import PeerError
from comet_mpc.net.sockets import Address, listen

_log = logging.getLogger(__name__)

_PIECE = 1 << 18
_PARTING_SECONDS = 5.0  # for the other direction, once one has ended


class Target(Protocol):
    """A machine that serves."""

    name: str
    connections: set[asyncio.WriteTransport]
    """Of its clients and to it: whoever learns that it is gone ends them."""

    @property
    def address(self) -> Address: ...

    def unreachable(self) -> None:
        """It could not be connected to."""


Choose = Callable[[str], Awaitable[Target]]
"""The machine for a client, which names a state or none. Raises PeerError if there is none in time."""


@dataclass(frozen=True)
class RelayLimits:
    """For connections that have not been passed on yet."""

    silent: int = 256
    """Of one address that have not said hello."""
    hello_seconds: float = 10.0
    connect_seconds: float = 5.0
    """To reach a machine."""
    tries: int = 4


@dataclass
class Relay:
    choose: Choose
    limits: RelayLimits = field(default_factory=RelayLimits)
    passed_bytes: int = 0
    """In both directions, so far."""
    _silent: Counter[str] = field(default_factory=Counter)
    _server: asyncio.Server | None = None
    address: Address = ("", 0)

    async def open(self, host: str, port: int) -> None:
        """Listens from now on."""
        listener = listen(host, port, backlog=1024)
        self.address = listener.address
        sock = socket.socket(fileno=os.dup(listener.fileno()))
        listener.forget()
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=_PIECE)

    def close(self) -> None:
        """Listens no more. Connections that are passed on stay."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        host = str(peer[0]) if peer else ""
        try:
            hello = await self._hello(reader, host)
            if hello:
                await self._pass_on(hello, reader, writer)
        except (OSError, PeerError, asyncio.IncompleteReadError) as error:
            fields = {"address": host, "error": type(error).__name__, "reason": str(error)}
            _log.info("a connection could not be passed on", extra={"fields": fields})
        except asyncio.CancelledError:
            pass  # the front ends; asyncio's streams would report this as a failure
        finally:
            writer.transport.abort()

    async def _hello(self, reader: asyncio.StreamReader, host: str) -> bytes:
        """The first record; empty if there is none in time, or too many of that address have not said theirs."""
        if self._silent[host] >= self.limits.silent:
            return b""
        self._silent[host] += 1
        try:
            async with asyncio.timeout(self.limits.hello_seconds):
                header = await reader.readexactly(RECORD_HEADER)
                return header + await reader.readexactly(hello_bytes(header))
        except TimeoutError:
            return b""
        finally:
            self._silent -= Counter([host])

    async def _pass_on(self, hello: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target, (back, forth) = await self._reach(wanted_state(hello))
        ends = {writer.transport, forth.transport}
        target.connections |= ends
        try:
            forth.write(hello)
            self.passed_bytes += len(hello)
            ways = {asyncio.create_task(self._copy(reader, forth)), asyncio.create_task(self._copy(back, writer))}
            _, left = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            _, left = await asyncio.wait(left, timeout=_PARTING_SECONDS) if left else (ways, left)
            for way in left:
                way.cancel()
        finally:
            target.connections -= ends
            forth.transport.abort()

    async def _reach(self, wanted: str) -> tuple[Target, tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        for _ in range(self.limits.tries):
            target = await self.choose(wanted)
            try:
                async with asyncio.timeout(self.limits.connect_seconds):
                    return target, await asyncio.open_connection(*target.address, limit=_PIECE)
            except OSError as error:  # also a TimeoutError
                fields = {"node": target.name, "reason": error.strerror or type(error).__name__}
                _log.warning("a node could not be reached", extra={"fields": fields})
                target.unreachable()
        raise PeerError("no node could be reached")

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, to its end. An end is passed on; a break ends both directions."""
        try:
            while data := await reader.read(_PIECE):
                self.passed_bytes += len(data)
                writer.write(data)
                await writer.drain()
            with contextlib.suppress(OSError):
                writer.write_eof()
        except OSError:
            writer.transport.abort()
