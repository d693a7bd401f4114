"""Channels over TCP and TLS 1.3: connect, listen, and one loop that sends and receives at once.

Both parties send many megabytes in the same round, so neither may wait for its own sending to finish
before it reads. One thread per channel does both on a non-blocking socket. TLS encrypts and decrypts in
memory, many records per system call: a record has 16 kB, and calls and wake-ups cost more than AES does.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import time
from abc import abstractmethod
from collections import deque
from itertools import islice
from typing import Self

import numpy as np

from comet_mpc.errors import ConfigurationError, NobodyConnected, PeerClosed, PeerError, PeerTimeout
from comet_mpc.net.channel import DEFAULT_TIMEOUT, FRAME_HEADER, Channel, check_size
from comet_mpc.net.tls import RECORD, Tls, check_context, secure, tls_failure
from comet_mpc.retry import retry

Address = tuple[str, int]
"""Host and port."""

HANDSHAKE_TIMEOUT = 10.0

_MOST_PIECES = 64  # per sendmsg; far below IOV_MAX
_TLS_BATCH = 1 << 18  # bytes per system call
_RETRY_PAUSE = 0.05


class _Outgoing:
    """What is left to send, of one frame or several."""

    def __init__(self) -> None:
        self.total = self.sent = 0
        self.pieces: deque[memoryview] = deque()

    def add(self, payload: list[memoryview]) -> None:
        """One more frame."""
        size = sum(map(len, payload))
        self.pieces += [memoryview(size.to_bytes(FRAME_HEADER, "little")), *payload]
        self.total += FRAME_HEADER + size

    def advance(self, count: int) -> None:
        self.sent += count
        while count:
            piece = self.pieces.popleft()
            if count < len(piece):
                self.pieces.appendleft(piece[count:])
                return
            count -= len(piece)


class _Incoming:
    """What is left to receive of one frame. The payload is allocated once its length has been checked."""

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self._header = bytearray(FRAME_HEADER)
        self._body: memoryview | None = None
        self.free = memoryview(self._header)

    def advance(self, count: int) -> None:
        self.free = self.free[count:]
        if self._body is None and not self.free:
            length = int.from_bytes(self._header, "little")
            check_size(length, self._sizes)
            self._body = self.free = np.empty(length, np.uint8).data  # a bytearray would be zeroed first

    def finish(self) -> memoryview:
        assert self._body is not None
        return self._body

    def __str__(self) -> str:
        if self._body is None:
            return f"{FRAME_HEADER - len(self.free)} of {FRAME_HEADER} header bytes"
        return f"{len(self._body) - len(self.free)} of {len(self._body)} bytes"


class _SocketChannel(Channel):
    """The loop that TCP and TLS share; a sibling says how a part of a frame is sent and received."""

    def __init__(self, connection: socket.socket, timeout: float = DEFAULT_TIMEOUT) -> None:
        super().__init__(timeout)
        self._socket = connection
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._outgoing = _Outgoing()
        # Buffer sizes stay with the kernel: a fixed SO_SNDBUF or SO_RCVBUF would switch off its tuning, which
        # is what fills a long fat line.
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def lost(self) -> bool:
        if self._closed:
            return True
        poll = select.poll()
        try:
            poll.register(self._socket, select.POLLIN)
        except ValueError:  # closed by another thread meanwhile
            return True
        return bool(poll.poll(0))  # the end of the connection, or something that nobody has asked for

    @property
    def unsent(self) -> int:
        return self._outgoing.total - self._outgoing.sent

    @property
    def _backlogged(self) -> bool:
        """Bytes of the frame wait to be sent although none are left in it."""
        return False

    @abstractmethod
    def _send_some(self, sending: _Outgoing) -> None:
        """Sends what it can of the frame; raises `BlockingIOError` if the socket takes nothing."""

    @abstractmethod
    def _receive_some(self, receiving: _Incoming) -> bool:
        """Receives what there is of the frame; False at the end of the connection, `BlockingIOError` if nothing."""

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        if not self._outgoing.pieces:
            self._outgoing = _Outgoing()  # errors tell of this call
        if outgoing is not None:
            self._outgoing.add(outgoing)
        receiving = None if sizes is None else _Incoming(sizes)
        self._move(receiving, deadline, flush=False)
        return memoryview(b"") if receiving is None else receiving.finish()

    def _flush(self, deadline: float) -> None:
        self._move(None, deadline, flush=True)

    def _move(self, receiving: _Incoming | None, deadline: float, *, flush: bool) -> None:
        try:
            self._pump(receiving, deadline, flush=flush)
        except ssl.SSLError as error:
            raise self._tls_failure(error) from error
        except OSError as error:
            self._hear_why()
            raise PeerClosed(f"the connection broke ({error.strerror}): {self._state(receiving)}") from error

    def _tls_failure(self, error: ssl.SSLError) -> PeerError:
        return tls_failure(error, "transfer", self.peer_role or "peer")

    def _hear_why(self) -> None:
        """After the line broke while this side was sending: raises what the other side has said before, if it did."""

    def _pump(self, receiving: _Incoming | None, deadline: float, *, flush: bool) -> None:
        # Each direction works until the socket refuses, then waits for its event. Bytes that TLS has decrypted
        # already never wait for the socket, because a read is tried before every wait.
        awaited = 0
        moved = time.monotonic()
        while True:
            writing = bool(self._outgoing.pieces) or self._backlogged
            reading = receiving is not None and bool(receiving.free)
            if not reading and not writing:
                return
            if not reading and not flush and (receiving is not None or awaited):
                return
            if writing and not awaited & select.POLLOUT:
                try:
                    self._send_some(self._outgoing)
                    moved = time.monotonic()
                except BlockingIOError:
                    awaited |= select.POLLOUT
            if reading and not awaited & select.POLLIN:
                assert receiving is not None
                try:
                    if not self._receive_some(receiving):
                        raise PeerClosed(f"the peer closed the connection: {self._state(receiving)}")
                    moved = time.monotonic()
                except BlockingIOError:
                    awaited |= select.POLLIN
            wanted = (select.POLLOUT if writing else 0) | (select.POLLIN if reading else 0)
            if awaited & wanted != wanted or not (reading or flush):
                continue
            until = min(moved + self.timeout, deadline)
            self._poll.register(self._socket, wanted)
            ready = self._poll.poll(max(0.0, until - time.monotonic()) * 1000)
            if not ready:
                raise PeerTimeout(f"no progress for {time.monotonic() - moved:.3g} s: {self._state(receiving)}")
            events = ready[0][1]
            if events & ~wanted:  # an error or a hang-up: the next call says which
                awaited = 0
            awaited &= ~events

    def _state(self, receiving: _Incoming | None) -> str:
        sending = self._outgoing
        parts = [f"sent {sending.sent} of {sending.total} bytes"] if sending.total else []
        parts += [] if receiving is None else [f"received {receiving}"]
        return ", ".join(parts)

    def _release(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class TcpChannel(_SocketChannel):
    """A channel over a connected stream socket, which it owns from now on. Not encrypted."""

    def _send_some(self, sending: _Outgoing) -> None:
        sending.advance(self._socket.sendmsg(islice(sending.pieces, _MOST_PIECES)))

    def _receive_some(self, receiving: _Incoming) -> bool:
        count = self._socket.recv_into(receiving.free)
        receiving.advance(count)
        return count > 0


class TlsChannel(_SocketChannel):
    """A channel over a stream socket, which it owns from now on, and TLS 1.3 after its handshake."""

    def __init__(self, connection: socket.socket, tls: Tls, timeout: float = DEFAULT_TIMEOUT) -> None:
        if tls.session.version() != "TLSv1.3":
            raise PeerError(f"a channel needs TLSv1.3, the connection has {tls.session.version()}")
        super().__init__(connection, timeout)
        self.tls = tls
        self._backlog = memoryview(b"")
        self._buffer = memoryview(bytearray(_TLS_BATCH))
        self.peer_name = tls.peer("commonName")
        self.peer_role = tls.peer("organizationalUnitName")
        self.peer_serial = tls.peer_serial

    def fileno(self) -> int:
        return self._socket.fileno()

    def detach(self) -> socket.socket:
        """The socket, which the channel does not own any more; the channel is closed, the connection is not."""
        self._closed = True
        return socket.socket(fileno=self._socket.detach())

    @property
    def _backlogged(self) -> bool:
        return bool(self._backlog)

    def _send_some(self, sending: _Outgoing) -> None:
        if not self._backlog:
            while sending.pieces and self.tls.sealed_bytes < _TLS_BATCH:
                sending.advance(self.tls.seal(_record(sending.pieces)))
            self._backlog = memoryview(self.tls.collect())
        self._backlog = self._backlog[self._socket.send(self._backlog) :]

    def _receive_some(self, receiving: _Incoming) -> bool:
        moved = False
        while receiving.free:
            count = self.tls.open(receiving.free)
            if count:
                receiving.advance(count)
                moved = True
                continue
            if moved:
                return True
            arrived = self._socket.recv_into(self._buffer)
            if not arrived:
                return False
            self.tls.feed(self._buffer[:arrived])
        return True

    def _hear_why(self) -> None:
        scratch = memoryview(bytearray(RECORD))
        try:
            while arrived := self._socket.recv_into(self._buffer):
                self.tls.feed(self._buffer[:arrived])
                while self.tls.open(scratch):
                    pass
        except ssl.SSLError as error:
            raise self._tls_failure(error) from error
        except OSError:
            return


def _record(pieces: deque[memoryview]) -> bytearray | memoryview:
    """The next bytes to be sealed: small pieces (the header!) share a record."""
    if len(pieces) == 1 or len(pieces[0]) >= RECORD:
        return pieces[0][:RECORD]
    record = bytearray()
    for piece in pieces:
        record += piece[: RECORD - len(record)]
        if len(record) == RECORD:
            break
    return record


def parse_address(address: str) -> Address:
    """'host:port' or '[::1]:port'."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigurationError(f"{address!r} is not an address: expected HOST:PORT, such as server.example:7001")
    return host, int(port)


class Listener:
    """Accepts channels at one address. Made by `listen`."""

    def __init__(self, server: socket.socket, tls: ssl.SSLContext | None) -> None:
        self._server = server
        self._tls = tls
        self._closing = False
        name = server.getsockname()
        self.address: tuple[str, int] = (name[0], name[1])

    def accept(
        self,
        timeout: float | None = None,
        *,
        channel_timeout: float = DEFAULT_TIMEOUT,
        handshake_timeout: float = HANDSHAKE_TIMEOUT,
    ) -> Channel:
        """The next channel; waits `timeout` seconds for a connection (None: for ever).

        Raises `NobodyConnected` if nobody comes, `NotAuthenticated` or another `PeerError` if the TLS handshake
        fails: that connection is lost, and the listener goes on.
        """
        try:
            self._server.settimeout(timeout)
            connection, _ = self._server.accept()
        except TimeoutError as error:
            raise NobodyConnected(f"nobody connected to {_name(*self.address)} within {timeout:g} s") from error
        except OSError as error:
            if self._closing:
                raise PeerClosed("the listener is closed") from error
            raise PeerError(f"a connection broke before it was accepted ({error.strerror})") from error
        if self._tls is None:
            return TcpChannel(connection, channel_timeout)
        return TlsChannel(connection, secure(connection, self._tls, None, handshake_timeout), channel_timeout)

    def next_connection(self) -> tuple[socket.socket, str] | None:
        """A connection that waits to be accepted, before any handshake, and its host; None if there is none."""
        try:
            self._server.setblocking(False)
            connection, address = self._server.accept()
        except BlockingIOError:
            return None
        except ConnectionAbortedError:
            return None
        except OSError as error:
            raise PeerError(f"a connection could not be accepted ({error.strerror})") from error
        return connection, str(address[0])

    def fileno(self) -> int:
        """For `select`: readable while somebody waits to be accepted."""
        return self._server.fileno()

    def forget(self) -> None:
        """Closes this process's copy; another one goes on listening."""
        self._closing = True
        self._server.close()

    def close(self) -> None:
        """Stops listening and wakes a waiting `accept`; accepted channels stay open."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def listen(host: str, port: int, tls: ssl.SSLContext | None = None, backlog: int = 16) -> Listener:
    """Listens at host:port; port 0 lets the system choose (see `Listener.address`)."""
    check_context(tls)
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server = socket.create_server((str(address[0]), int(address[1])), family=family, backlog=backlog)
    except (OSError, OverflowError, UnicodeError) as error:
        named = isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno
        reason = os.strerror(named) if named else getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"cannot listen at {_name(host, port)}: {reason}; choose another host or port"
        ) from error
    return Listener(server, tls)


def connect(
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    retry_seconds: float = 0.0,
    *,
    connect_timeout: float = HANDSHAKE_TIMEOUT,
    whom: str = "server",
) -> Channel:
    """A channel to host:port, whose stall timeout is `timeout`. whom: what is there, for messages.

    While nobody listens there, tries again for `retry_seconds`. With `tls`, the certificate of the peer must
    be valid for `host`. In TLS 1.3 the client finishes first: if the server refuses the client's certificate,
    the first frame fails, not this call.
    """
    check_context(tls)
    if not host:
        raise ConfigurationError("connecting needs the name or address of a host")
    try:
        connection = retry(
            lambda: socket.create_connection((host, port), timeout=connect_timeout),
            ConnectionRefusedError, seconds=retry_seconds, pause=_RETRY_PAUSE,
        )  # fmt: skip
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigurationError(f"unknown host {host!r}: check the name, or use the IP address") from error
    except OverflowError as error:
        raise ConfigurationError(f"no such port: {port}") from error
    except TimeoutError as error:
        raise PeerTimeout(f"{_name(host, port)} did not answer within {connect_timeout:g} s") from error
    except ConnectionRefusedError as error:
        raise PeerClosed(
            f"nobody listens at {_name(host, port)} (connection refused): check the address, and that the "
            "server is running"
        ) from error
    except OSError as error:
        raise PeerError(f"cannot reach {_name(host, port)}: {error.strerror}") from error
    if tls is None:
        return TcpChannel(connection, timeout)
    return TlsChannel(connection, secure(connection, tls, host, connect_timeout, whom), timeout)


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
