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


def tls_failure(error: ssl.SSLError, during: str, whom: str = "peer", host: str | None = None) -> PeerError:
    """`NotAuthenticated` if it is about a certificate, else `PeerError`, in words of people who run servers.

    whom: what the other side is. host: the name under which it was called.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotAuthenticated(f"the {whom}'s certificate {_fault(error, host)}")
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return PeerClosed(f"the {whom} closed the connection during the TLS {during}")
    reason = (error.reason or str(error)).upper()
    for alert, words in _ALERTS.items():
        if alert in reason:
            return NotAuthenticated(f"the {whom} refused your certificate: {words}")
    if "CERTIFICATE_REQUIRED" in reason:
        return NotAuthenticated(f"the {whom} requires a certificate, and this side has shown none")
    if "DID_NOT_RETURN_A_CERTIFICATE" in reason:
        return NotAuthenticated(f"the {whom} has shown no certificate")
    return PeerError(f"TLS {during} failed: {reason.replace('_', ' ').lower()}")


_OTHER_AUTHORITY = "was issued by another authority"
_FAULTS = {
    7: f"{_OTHER_AUTHORITY} of the same name: give both sides the same authority.pem, and renew it there",
    9: "is not valid yet: check the clocks of both machines",
    10: "has expired: have it renewed (`comet keys renew`)",
    18: f"{_OTHER_AUTHORITY}: give both sides the same authority.pem",
    19: f"{_OTHER_AUTHORITY}: give both sides the same authority.pem",
    20: f"{_OTHER_AUTHORITY}: give both sides the same authority.pem",
    23: "is revoked",
    26: "is not one for this role: have one issued with the role that it is used in (`comet keys issue --role`)",
}
"""By OpenSSL's codes (X509_V_ERR_…)."""
_MISNAMED = (62, 64)
_ALERTS = {
    "CERTIFICATE_REVOKED": "it is revoked; ask whoever issued it for a new one",
    "CERTIFICATE_EXPIRED": "it has expired; have it renewed (`comet keys renew`), or check the clocks of both machines",
    "UNKNOWN_CA": f"it {_OTHER_AUTHORITY}; have one issued by the authority that it trusts",
    "DECRYPT_ERROR": f"it {_OTHER_AUTHORITY}; have one issued by the authority that it trusts",
    "UNSUPPORTED_CERTIFICATE": "it is not one for this role",
    "BAD_CERTIFICATE": "it is not valid",
    "CERTIFICATE_UNKNOWN": "it is not valid",
}
"""What the other side says before it ends the connection (RFC 8446, 6.2), as OpenSSL spells it."""


def _fault(error: ssl.SSLCertVerificationError, host: str | None) -> str:
    if error.verify_code in _MISNAMED:
        return (
            f"is not valid for {host}: call it by a name that it was issued for, or have it issued again with "
            f"`--host {host}`"
        )
    return _FAULTS.get(error.verify_code, f"was refused: {error.verify_message}")


def secure(plain: socket.socket, context: ssl.SSLContext, host: str | None, seconds: float, whom: str = "peer") -> Tls:
    """The handshake, within `seconds` in all. The socket is closed if it fails. whom: as of `tls_failure`."""
    until = time.monotonic() + seconds
    tls = Tls(context, host)
    try:
        while not _shake_hands(plain, tls, until):
            plain.settimeout(max(1e-3, until - time.monotonic()))
            data = plain.recv(RECORD)
            if not data:
                raise PeerClosed(f"the {whom} closed the connection during the TLS handshake")
            tls.feed(data)
    except (OSError, PeerClosed) as error:
        _part(plain)
        if isinstance(error, ssl.SSLError):
            raise tls_failure(error, "handshake", whom, host) from error
        if isinstance(error, TimeoutError):
            raise PeerTimeout(f"the TLS handshake did not finish within {seconds:g} s") from error
        if isinstance(error, OSError):
            raise PeerClosed(f"the {whom} broke off the TLS handshake ({error.strerror})") from error
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
