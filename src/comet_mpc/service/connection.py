"""A client's connections to its server: one for queries, made anew when the server has ended it, and further ones.

A server may be several machines behind one address. What a client has prepared is on one of them, so every connection
names it before the handshake, as a protocol of TLS (ALPN): a name that whoever passes the bytes on can read, and that a
server on one machine ignores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from comet_mpc.errors import (
    NodeLost,
    NotAuthenticated,
    PeerClosed,
    PeerTimeout,
    ProtocolMismatch,
    RandomnessSpent,
    ServerBusy,
)
from comet_mpc.net.channel import Channel
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import Address, connect
from comet_mpc.offline.source import Line, Order, Progress, Source
from comet_mpc.service.messages import Accepted, Prepare, Ready, Run, Welcome, expect, introduce, say

Wrap = Callable[[Channel], Channel]
"""Is given a new channel and returns the one to use, for example one that keeps a record."""

M = TypeVar("M", Accepted, Ready)

ROUTE = "comet-"
"""What a protocol of TLS is called that names a machine: this, and the server's state, shortened."""
STATE_DIGITS = 32

_MOST_TRIES = 4  # a busy server ends idle connections to make room
_BUSY_PAUSE = 0.5  # before a server that has no room is asked again


@dataclass
class _Line:
    """A further connection, on which a bundle can be asked for."""

    channel: Channel

    def ask(self, order: Order) -> None:
        _exchange(self.channel, _prepare(order), Accepted)


class Connection:
    """The first greeting decides on model, source and the server's state; later ones must find the same.

    state     of the server, shortened, with which there is something prepared: if it is there, it is to answer
    welcomed  is told of every greeting: the channel, the source of randomness and what the server said
    """

    def __init__(
        self,
        address: Address,
        identity: TlsIdentity,
        *,
        timeout: float,
        source: Source | None = None,
        third_party: Address | None = None,
        model: str = "",
        fingerprint: str = "",
        state: str = "",
        progress: Progress | None = None,
        wrap: Wrap = lambda channel: channel,
        welcomed: Callable[[Channel, Source, Welcome], None],
    ) -> None:
        self.timeout = timeout
        self.progress = progress
        self.lock = threading.RLock()
        """Of the connection for queries: bundles are asked for between queries."""
        identity.client_context()  # what cannot be used is an error now, not at the first connection
        self._address, self._identity, self._routed_to = address, identity, state
        self._source, self._third_party, self._model, self._fingerprint = source, third_party, model, fingerprint
        self._wrap, self._welcomed = wrap, welcomed
        self._welcome: Welcome | None = None
        self._channel: Channel | None = None
        self._closed = False

    @property
    def third_party(self) -> Address | None:
        return self._third_party or (self._welcome.dealer if self._welcome is not None else None)

    def close(self) -> None:
        self._closed = True
        if self._channel is not None:
            self._channel.close()

    def channel(self) -> Channel:
        """The connection for queries, greeted. Call it under `lock`."""
        if self._closed:
            raise PeerClosed("this client is closed")
        if self._channel is not None:
            if not self._channel.lost:
                return self._channel
            self._channel.close()
        for last in range(_MOST_TRIES - 1, -1, -1):
            try:
                self._channel = self._greeted()
                return self._channel
            except PeerClosed:  # once greeted, an end means that the server had to make room for another client
                if not last or self._welcome is None or self._closed:
                    raise
        raise AssertionError("unreachable")

    def request(self, message: Prepare | Run, kind: type[M]) -> Channel:
        """One request and its answer, and the channel they went over. Call it under `lock`.

        While the server has no place for it, asks again, until the timeout: it has done nothing with the bundle then.
        """
        return self._patiently(lambda: self._request(message, kind))

    def _patiently(self, ask: Callable[[], Channel]) -> Channel:
        until = time.monotonic() + self.timeout
        while True:
            try:
                return ask()
            except ServerBusy:
                if time.monotonic() >= until or self._closed:
                    raise
                time.sleep(_BUSY_PAUSE)

    def _request(self, message: Prepare | Run, kind: type[M]) -> Channel:
        for last in range(_MOST_TRIES - 1, -1, -1):
            channel = self.channel()
            try:
                _exchange(channel, message, kind)
                return channel
            except PeerClosed:
                if not last or not channel.closed or self._closed:
                    raise
                if isinstance(message, Run):  # the server may have consumed its part before the line broke
                    raise RandomnessSpent("the connection ended when a run was asked for") from None
        raise AssertionError("unreachable")

    def ask(self, order: Order) -> Callable[[], bool]:
        with self.lock:
            return partial(self._ended, self.request(_prepare(order), Accepted))

    def _ended(self, channel: Channel) -> bool:
        """Whether a connection has ended, as far as one knows without disturbing a query on it."""
        if channel.closed or not self.lock.acquire(blocking=False):
            return channel.closed
        try:
            return channel.lost
        finally:
            self.lock.release()

    def another_line(self) -> Line:
        return _Line(self._greeted())

    def forget(self, *, model: bool = False) -> None:
        """The next greeting decides on the server's state again, or also on the model. Call it under `lock`."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._welcome = None
        if model:
            self._fingerprint = ""
        self._routed_to = ""

    def dial(self, address: Address) -> Channel:
        tls = self._identity.client_context()
        return connect(*address, tls, self.timeout, connect_timeout=self.timeout, whom="dealer")

    def reach(self) -> Channel:
        """A new connection to the server, not greeted yet."""
        tls = self._identity.client_context()  # as its files are now: a renewed certificate counts without a restart
        tls.set_alpn_protocols([ROUTE + self._routed_to[:STATE_DIGITS]] if self._routed_to else [])
        return connect(*self._address, tls, self.timeout, connect_timeout=self.timeout)

    def _greeted(self) -> Channel:
        """A connection after the greeting. While the server has no room for it, tries again, until the timeout."""
        return self._patiently(self._greeted_once)

    def _greeted_once(self) -> Channel:
        channel = self._wrap(self.reach())
        try:
            if channel.peer_role != "server":
                raise NotAuthenticated(f"the peer is not a server: its certificate says {channel.peer_role!r}")
            source, _ = introduce(
                channel, "client", self._fingerprint, self._source, name=self._model, timeout=self.timeout
            )
            self._check(source, expect(channel, Welcome))
            assert self._welcome is not None
            self._welcomed(channel, source, self._welcome)
        except BaseException:
            channel.close()
            raise
        return channel

    def _check(self, source: Source, welcome: Welcome) -> None:
        if self._welcome is None:
            if self._fingerprint not in ("", welcome.fingerprint):
                raise ProtocolMismatch("model", got=welcome.fingerprint, expected=self._fingerprint)
            self._fingerprint, self._source, self._welcome = welcome.fingerprint, source, welcome
            self._routed_to = welcome.state
        elif welcome.fingerprint != self._welcome.fingerprint:
            raise ProtocolMismatch(
                "the model since this client was set up", got=welcome.fingerprint, expected=self._fingerprint
            )
        elif welcome.state != self._welcome.state:
            raise NodeLost("another machine answers for the server than the one that this client was set up with")


def _prepare(order: Order) -> Prepare:
    return Prepare(order.bundle_id, order.batch, order.bucket, order.plan.digest, order.count)


def _exchange(channel: Channel, message: Prepare | Run, kind: type[M]) -> None:
    say(channel, message)
    try:
        expect(channel, kind)
    except PeerTimeout as error:
        what = "prepare randomness" if isinstance(message, Prepare) else "compute"
        raise PeerTimeout(f"the server did not begin to {what}: its workers may all be busy ({error})") from error
