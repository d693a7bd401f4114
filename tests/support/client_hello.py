"""The first bytes of a TLS connection, as OpenSSL sends them."""

from __future__ import annotations

import contextlib
import ssl

__all__ = ["client_hello"]


def client_hello(*protocols: str, host: str = "server.example") -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(list(protocols))
    arrived, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(arrived, sent, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return sent.read()
