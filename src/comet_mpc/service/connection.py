"""A client's connections to its server: one for queries, made anew when the server has ended it, and further ones.

A server may be several machines behind one address. What a client has prepared is on one of them, so every connection
names it before the handshake, as a protocol of TLS (ALPN): a name that whoever passes the bytes on can read, and that a
server on one machine ignores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
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
from comet_mpc.net.sockets import Address
from comet_mpc.net.transport import TlsTransport, Transport
from comet_mpc.offline.source import Order, Progress, Source
from comet_mpc.retry import retry
from comet_mpc.service.messages import Accepted, Begin, Prepare, Ready, Run, Step, Welcome, expect, introduce, say

M = TypeVar("M", Accepted, Ready)
T = TypeVar("T")

ROUTE = "comet-"
"""What a protocol of TLS is called that names a machine: this, and the server's state, shortened."""
STATE_DIGITS = 32

_MOST_TRIES = 4  # a busy server ends idle connections to make room
_BUSY_PAUSE = 0.5  # before a server that has no room is asked again


class Connection:
    """The first greeting decides on model, source and the server's state; later ones must find the same.

    state     of the server, shortened, with which there is something prepared: if it is there, it is to answer
    welcomed  callback(channel, source, welcome) after every greeting
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
        transport: Transport | None = None,
        welcomed: Callable[[Channel, Source, Welcome], None],
    ) -> None:
        self.timeout = timeout
        self.progress = progress
        self.lock = threading.RLock()
        """Of the connection for queries: bundles are asked for between queries."""
        identity.client_context()  # what cannot be used is an error now, not at the first connection
        self._address, self._identity, self._routed_to = address, identity, state
        self._source, self._third_party, self._model, self._fingerprint = source, third_party, model, fingerprint
        self._transport, self._welcomed = transport or TlsTransport(), welcomed
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
        if self._channel is not None and self._channel.lost:
            self._channel.close()
            self._channel = None
        if self._channel is None:
            self._channel = retry(self.connect, PeerClosed, tries=_MOST_TRIES, unless=self._is_the_end)
        return self._channel

    def _is_the_end(self) -> bool:
        """Of a connection that the server has ended: once greeted, it may only have made room for another client."""
        return self._welcome is None or self._closed

    def request(self, message: Prepare | Run | Begin, kind: type[M]) -> Channel:
        """One request and its answer, and the channel they went over. Call it under `lock`.

        While the server has no slot for it, asks again, until the timeout: it has done nothing with the bundle then.
        """

        def broken() -> bool:
            return not self._closed and self._channel is not None and self._channel.closed

        def once() -> Channel:
            channel = self.channel()
            try:
                _exchange(channel, message, kind)
            except PeerClosed:
                if (
                    isinstance(message, Run | Begin) and broken()
                ):  # the server may have consumed its part before the line broke
                    raise RandomnessSpent("the connection ended when a run was requested") from None
                raise
            return channel

        return self._patiently(lambda: retry(once, PeerClosed, tries=_MOST_TRIES, unless=lambda: not broken()))

    def go_on(self, channel: Channel, message: Step) -> None:
        """One request that only this connection can answer, and its answer. Call it under `lock`."""
        self._patiently(lambda: _exchange(channel, message, Ready))

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Retries while the server is busy, until the timeout."""
        return retry(ask, ServerBusy, seconds=self.timeout, pause=_BUSY_PAUSE, unless=lambda: self._closed)

    def ask(self, order: Order, channel: Channel | None = None) -> Callable[[], bool]:
        request = Prepare(order.bundle_id, order.batch, order.bucket, order.plan.digest, order.count)
        if channel is not None:
            self._patiently(lambda: _exchange(channel, request, Accepted))
            return lambda: channel.closed
        with self.lock:
            return partial(self._ended, self.request(request, Accepted))

    def _ended(self, channel: Channel) -> bool:
        """Whether a connection has ended, as far as one knows without disturbing a query on it."""
        if channel.closed or not self.lock.acquire(blocking=False):
            return channel.closed
        try:
            return channel.lost
        finally:
            self.lock.release()

    def connect(self) -> Channel:
        """A new connection, after the greeting."""
        return self._patiently(self._greeted_once)

    def forget(self, *, model: bool = False) -> None:
        """The next greeting decides on the server's state again, or also on the model. Call it under `lock`."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._welcome = None
        if model:
            self._fingerprint = ""
        self._routed_to = ""

    def dial(self, address: Address) -> Channel:
        return self._transport.connect(address, self._identity.client_context(), self.timeout, "dealer")

    def _greeted_once(self) -> Channel:
        tls = self._identity.client_context()  # as its files are now: a renewed certificate counts without a restart
        tls.set_alpn_protocols([ROUTE + self._routed_to[:STATE_DIGITS]] if self._routed_to else [])
        channel = self._transport.connect(self._address, tls, self.timeout, "server")
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
            raise NodeLost("a different machine answers for the server than the one that this client was set up with")


def _exchange(channel: Channel, message: Prepare | Run | Begin | Step, kind: type[M]) -> None:
    say(channel, message)
    try:
        expect(channel, kind)
    except PeerTimeout as error:
        what = "prepare randomness" if isinstance(message, Prepare) else "compute"
        raise PeerTimeout(f"the server did not begin to {what}: its workers may all be busy ({error})") from error
