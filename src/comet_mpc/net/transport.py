"""How a client reaches its server and its dealer: over TCP and TLS 1.3, or by a transport of your own.

    class ThroughProxy:
        def connect(self, address, tls, timeout, whom):
            connection = my_proxy.open(address)
            return TlsChannel(connection, secure(connection, tls, address[0], timeout, whom), timeout)

    Client("server.example:7001", keys="keys", transport=ThroughProxy())

A transport returns a `Channel` whose `peer_name` and `peer_role` say who the peer has proved to be. The client relies
on them, so a transport that does not use `tls` must find that out by other means.
"""

from __future__ import annotations

import ssl
from typing import Literal, Protocol

from comet_mpc.net.channel import Channel
from comet_mpc.net.sockets import Address, connect

Whom = Literal["server", "dealer"]


class Transport(Protocol):
    """Makes connections. Several threads may use one at once."""

    def connect(self, address: Address, tls: ssl.SSLContext, timeout: float, whom: Whom) -> Channel:
        """A new channel to the address, before any greeting.

        tls      shows the client's certificate, trusts its authority, and names the machine that is wanted (ALPN)
        timeout  seconds to connect in, and without progress after that
        whom     what is at the address, for messages
        """


class TlsTransport:
    """TCP and TLS 1.3, straight from this machine."""

    def connect(self, address: Address, tls: ssl.SSLContext, timeout: float, whom: Whom) -> Channel:
        return connect(*address, tls, timeout, connect_timeout=timeout, whom=whom)
