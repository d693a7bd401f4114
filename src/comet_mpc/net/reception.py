"""Who comes in: connections are accepted and shake hands, and none of them holds up another.

One thread looks after all of them and never waits for one. A connection that has not shown a certificate is worth a
socket and a few kilobytes for a few seconds: if an address opens more of them than it may, or there are too many in
all, one of the busiest address makes room: the oldest of those that have not even said hello, else the oldest. A peer
that means it says hello at once, and is through a moment later.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from comet_mpc.errors import NotAuthenticated, PeerClosed, PeerError, PeerTimeout
from comet_mpc.net.channel import DEFAULT_TIMEOUT
from comet_mpc.net.sockets import Listener, TlsChannel
from comet_mpc.net.tls import RECORD, Tls, tls_failure

_PARTING_SECONDS = 0.5
_MOST_AT_ONCE = 64  # connections accepted before others get their turn
_EXHAUSTED_PAUSE = 0.05  # out of file descriptors, accepting fails at once


@dataclass(frozen=True)
class ReceptionLimits:
    """For connections that have not shown yet who they are."""

    handshakes: int = 1024
    """Under way at a time, from all addresses together."""
    per_address: int = 256
    seconds: float = 10.0
    """For one of them, in all."""


@dataclass(frozen=True)
class Visitor:
    """A connection after its handshake."""

    channel: TlsChannel
    address: str
    seconds: float
    """That the handshake took."""


class _Pending:
    """A connection that is shaking hands, or is being let go."""

    def __init__(self, connection: socket.socket, address: str, tls: Tls, until: float) -> None:
        self.socket, self.address, self.tls, self.until = connection, address, tls, until
        self.answered = False
        """The peer has said hello, and was answered."""
        self.outgoing = memoryview(b"")

    def send(self) -> bool:
        """Sends what there is to send; whether all of it is gone."""
        self.outgoing = memoryview(bytes(self.outgoing) + self.tls.collect())
        self.answered = self.answered or bool(self.outgoing)
        while self.outgoing:
            try:
                self.outgoing = self.outgoing[self.socket.send(self.outgoing) :]
            except BlockingIOError:
                return False
        return True

    def step(self) -> bool:
        """Takes what has come; whether the handshake is done. Raises PeerError or OSError if it failed."""
        with contextlib.suppress(BlockingIOError):
            data = self.socket.recv(RECORD)
            if not data:
                raise PeerClosed("the peer closed the connection during the TLS handshake")
            self.tls.feed(data)
        try:
            self.tls.session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True


class Reception:
    """Accepts from one listener; its sockets are in a selector that the owner waits on.

    selector  every key's `data` is a function of the events, to be called by the owner
    context   gives the TLS context of the moment, so that new certificates and revocations count at once
    arrived   is given every connection that is through
    refused   is told why one was not: a word for the metrics, and the error
    """

    def __init__(
        self,
        listener: Listener,
        context: Callable[[], ssl.SSLContext],
        selector: selectors.BaseSelector,
        *,
        arrived: Callable[[Visitor], None],
        refused: Callable[[str, PeerError], None],
        limits: ReceptionLimits | None = None,
        channel_timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._listener, self._context, self._selector = listener, context, selector
        self._arrived, self._refused = arrived, refused
        self._limits = limits or ReceptionLimits()
        self._channel_timeout = channel_timeout
        self._lines: dict[_Pending, None] = {}  # oldest first
        self._parting: dict[_Pending, None] = {}
        self._from: Counter[str] = Counter()
        self._paused_until = 0.0
        self._open = True
        self._descriptor = listener.fileno()  # the owner may close the listener first
        selector.register(self._descriptor, selectors.EVENT_READ, self._accept)

    def tick(self) -> None:
        """Gives up those that are overdue. To be called now and then, several times a second."""
        now = time.monotonic()
        for line in [line for line in self._lines if now >= line.until]:
            seconds = self._limits.seconds
            self._give_up(line, "handshake_timeout", PeerTimeout(f"no TLS handshake within {seconds:g} s"))
        for line in [line for line in self._parting if now >= line.until]:
            self._close(line)
        if self._paused_until and now >= self._paused_until and self._open:
            self._paused_until = 0.0
            self._selector.register(self._descriptor, selectors.EVENT_READ, self._accept)

    @property
    def sockets(self) -> list[socket.socket]:
        """Of all that it looks after: a process that is forked off must close them."""
        return [line.socket for line in (*self._lines, *self._parting)]

    def dismiss(self, channel: TlsChannel) -> None:
        """Lets go of a channel once the peer has had the time to read what was sent to it."""
        line = _Pending(channel.detach(), "", channel.tls, time.monotonic() + _PARTING_SECONDS)
        self._selector.register(line.socket, selectors.EVENT_READ, lambda events: self._part(line))
        self._let_go(line)

    def shut(self) -> None:
        """Accepts nobody any more. Those who are on their way in come through."""
        if not self._open:
            return
        self._open = False
        if not self._paused_until:
            self._selector.unregister(self._descriptor)

    def close(self) -> None:
        """Accepts nobody any more, and lets go of all that are not through."""
        self.shut()
        for line in (*self._lines, *self._parting):
            self._close(line)

    def _accept(self, events: int) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                found = self._listener.next_connection()
            except PeerError as error:
                self._refused("out_of_sockets", error)
                if self._lines:
                    self._close(next(iter(self._lines)))
                self._selector.unregister(self._descriptor)
                self._paused_until = time.monotonic() + _EXHAUSTED_PAUSE
                return
            if found is None:
                return
            self._begin(*found)

    def _begin(self, connection: socket.socket, address: str) -> None:
        self._make_room(address)
        line = _Pending(connection, address, Tls(self._context(), None), time.monotonic() + self._limits.seconds)
        connection.setblocking(False)
        self._lines[line] = None
        self._from[address] += 1
        self._selector.register(connection, selectors.EVENT_READ, lambda events: self._shake(line))

    def _make_room(self, address: str) -> None:
        crowded = self._from[address] >= self._limits.per_address
        if not crowded and len(self._lines) < self._limits.handshakes:
            return
        busiest = address if crowded else self._from.most_common(1)[0][0]
        lines = [line for line in self._lines if line.address == busiest]
        oldest = next((line for line in lines if not line.answered), lines[0])
        self._give_up(
            oldest, "half_open", PeerError(f"too many connections from {busiest} have not shown who they are")
        )

    def _shake(self, line: _Pending) -> None:
        if line not in self._lines:  # it made room for another one since the selector saw it
            return
        try:
            done = line.step()
            sent = line.send()
        except (OSError, PeerError) as error:
            with contextlib.suppress(OSError):
                line.send()  # the alert that says why
            self._give_up(line, *_failure(error))
            return
        if not sent:
            self._selector.modify(
                line.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, lambda events: self._shake(line)
            )
        elif done:
            self._forget(line)
            try:
                channel = TlsChannel(line.socket, line.tls, self._channel_timeout)
            except PeerError as error:
                line.socket.close()
                self._refused("handshake_failed", error)
                return
            seconds = time.monotonic() - (line.until - self._limits.seconds)
            self._arrived(Visitor(channel, line.address, seconds))
        else:
            self._selector.modify(line.socket, selectors.EVENT_READ, lambda events: self._shake(line))

    def _give_up(self, line: _Pending, reason: str, error: PeerError) -> None:
        self._forget(line)
        line.until = time.monotonic() + _PARTING_SECONDS
        if reason in ("handshake_timeout", "half_open"):
            line.socket.close()  # whoever is silent, or one of very many, is not told
        else:
            self._selector.register(line.socket, selectors.EVENT_READ, lambda events: self._part(line))
            self._let_go(line)
        self._refused(reason, error)

    def _let_go(self, line: _Pending) -> None:
        """Unread bytes would turn a close into a reset, which overtakes the alert that tells the peer why."""
        self._parting[line] = None
        if len(self._parting) > self._limits.handshakes:
            self._close(next(iter(self._parting)))
        try:
            line.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(line)

    def _part(self, line: _Pending) -> None:
        if line not in self._parting:
            return
        try:
            if line.socket.recv(1 << 16):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._close(line)

    def _forget(self, line: _Pending) -> None:
        del self._lines[line]
        self._from[line.address] -= 1
        if not self._from[line.address]:
            del self._from[line.address]
        self._selector.unregister(line.socket)

    def _close(self, line: _Pending) -> None:
        if line in self._lines:
            self._forget(line)
        elif line in self._parting:
            del self._parting[line]
            self._selector.unregister(line.socket)
        line.socket.close()


def _failure(error: Exception) -> tuple[str, PeerError]:
    if isinstance(error, ssl.SSLError):
        found = tls_failure(error, "handshake")
        return ("certificate" if isinstance(found, NotAuthenticated) else "handshake_failed"), found
    if isinstance(error, OSError):
        return "handshake_failed", PeerClosed(f"the peer broke off the TLS handshake ({error.strerror})")
    assert isinstance(error, PeerError)
    return "handshake_failed", error
