"""TLS 1.3 between bytes in memory, and its handshake over a socket."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any

from comet_mpc.errors import ConfigurationError, NotAuthenticated, PeerClosed, PeerError, PeerTimeout

RECORD = 1 << 14
_PARTING_SECONDS = 0.3


class Tls:
    """TLS between bytes in memory: what is sealed is collected, what is fed in is opened."""

    def __init__(self, context: ssl.SSLContext, host: str | None) -> None:
        self._arrived, self._sealed = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self._arrived, self._sealed, server_side=host is None, server_hostname=host)

    @property
    def sealed_bytes(self) -> int:
        return self._sealed.pending

    def collect(self) -> bytes:
        """What is to go over the line."""
        return self._sealed.read()

    def feed(self, data: bytes | memoryview) -> None:
        """What has come over the line."""
        self._arrived.write(data)

    def seal(self, data: bytearray | memoryview) -> int:
        """Encrypts a record; returns how much of the data is in it."""
        return self.session.write(data)

    def open(self, target: memoryview) -> int:
        """Decrypts into `target`, at most a record; 0 if more has to come in first."""
        if not self._arrived.pending and not self.session.pending():
            return 0  # an exception costs more than asking
        try:
            return self.session.read(len(target), target)  # type: ignore[return-value]
        except ssl.SSLWantReadError:
            return 0

    def peer(self, attribute: str) -> str | None:
        """One attribute of the subject in the peer's certificate; None if it has shown none."""
        certificate: Mapping[str, Any] = self.session.getpeercert() or {}
        names = (pair for group in certificate.get("subject", ()) for pair in group)
        return next((str(value) for name, value in names if name == attribute), None)

    @property
    def peer_serial(self) -> int | None:
        """Serial number of the peer's certificate; None if it has shown none."""
        certificate: Mapping[str, Any] = self.session.getpeercert() or {}
        return int(certificate["serialNumber"], 16) if certificate else None


def tls_failure(error: ssl.SSLError, during: str) -> PeerError:
    """`NotAuthenticated` if it is about a certificate, else `PeerError`; either with OpenSSL's reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotAuthenticated(f"the peer's certificate was refused: {error.verify_message}")
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return PeerClosed(f"the peer closed the connection during the TLS {during}")
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "certificate" in reason or "unknown ca" in reason:
        return NotAuthenticated(f"TLS {during} failed over a certificate: {reason}")
    return PeerError(f"TLS {during} failed: {reason}")


def secure(plain: socket.socket, context: ssl.SSLContext, host: str | None, seconds: float) -> Tls:
    """The handshake, within `seconds` in all. The socket is closed if it fails."""
    until = time.monotonic() + seconds
    tls = Tls(context, host)
    try:
        while not _shake_hands(plain, tls, until):
            plain.settimeout(max(1e-3, until - time.monotonic()))
            data = plain.recv(RECORD)
            if not data:
                raise PeerClosed("the peer closed the connection during the TLS handshake")
            tls.feed(data)
    except (OSError, PeerClosed) as error:
        _part(plain)
        if isinstance(error, ssl.SSLError):
            raise tls_failure(error, "handshake") from error
        if isinstance(error, TimeoutError):
            raise PeerTimeout(f"the TLS handshake did not finish within {seconds:g} s") from error
        if isinstance(error, OSError):
            raise PeerClosed(f"the peer broke off the TLS handshake ({error.strerror})") from error
        raise
    return tls


def _shake_hands(plain: socket.socket, tls: Tls, until: float) -> bool:
    """One step; True if this side is done. What it has to say, also the alert of a failure, is sent."""
    if time.monotonic() >= until:
        raise TimeoutError
    plain.settimeout(max(1e-3, until - time.monotonic()))
    try:
        tls.session.do_handshake()
        done = True
    except ssl.SSLWantReadError:
        done = False
    except ssl.SSLError:
        with contextlib.suppress(OSError):
            plain.sendall(tls.collect())
        raise
    plain.sendall(tls.collect())
    return done


def _part(connection: socket.socket) -> None:
    """Closes after reading what the peer has sent already: unread bytes would turn the closing into a reset,
    and a reset overtakes the alert that tells the peer why."""
    until = time.monotonic() + _PARTING_SECONDS
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_PARTING_SECONDS)
        while time.monotonic() < until and connection.recv(1 << 16):
            pass
    connection.close()


def check_context(tls: ssl.SSLContext | None) -> None:
    if tls is not None and tls.minimum_version != ssl.TLSVersion.TLSv1_3:
        raise ConfigurationError("the TLS context must set minimum_version to TLSv1_3 (see comet_mpc.net.identity)")
