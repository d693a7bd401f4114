"""Who a party is: its certificate and key, the authority that it trusts, and the TLS contexts made from them.

A certificate carries the name of the party (common name) and its role (organizational unit); the other side reads
both as `Channel.peer_name` and `Channel.peer_role`. A client's certificate cannot be used to pose as a server. Where
there is a list of revoked certificates beside authority.pem, those are refused (`authority` makes all of these files).
"""

from __future__ import annotations

import logging
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Never, Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from comet_mpc.errors import ConfigurationError

_log = logging.getLogger(__name__)

Role = Literal["client", "server", "dealer"]

AUTHORITY = "authority"
REVOKED = "revoked.pem"
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """The files with which a party shows who it is (certificate, key) and checks the other (authority)."""

    certificate: Path
    key: Path
    authority: Path

    @classmethod
    def find(cls, directory: Path | str, name: str) -> Self:
        """The certificate and key called `name` in a directory of keys, beside authority.pem."""
        directory = Path(directory)
        return cls(directory / f"{name}.pem", directory / f"{name}.key", directory / f"{AUTHORITY}.pem")

    def server_context(self, require_client: bool) -> ssl.SSLContext:
        """For `listen`. Clients are asked for a certificate; without `require_client` they may have none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_OPTIONAL
        context.num_tickets = 0  # sessions are not resumed: every connection proves its identity anew
        return self._load(context)

    def client_context(self) -> ssl.SSLContext:
        """For `connect`. The server's certificate must come from the authority and be for the host asked."""
        return self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        for path in (self.certificate, self.authority):
            check_dates(path, read_certificate(path))
        _read(self.key)
        try:
            context.load_verify_locations(self.authority)
        except OSError as error:  # also an SSLError
            raise ConfigurationError(f"{self.authority} cannot be used: {_reason(error)}; copy it again") from error
        try:
            context.load_cert_chain(self.certificate, self.key, password=self._refuse_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigurationError(
                    f"{self.key} is not the key of {self.certificate}: use the two files issued together"
                ) from error
            raise ConfigurationError(
                f"{self.key} is not a private key in PEM form: issue it again or copy it again"
            ) from error
        except OSError as error:
            raise ConfigurationError(f"{self.key} cannot be used: {_reason(error)}") from error
        if self.revocations.exists():
            self.revoked()  # it must be whole, and the authority's
            context.load_verify_locations(self.revocations)
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return context

    @property
    def revocations(self) -> Path:
        """The list of revoked certificates, if there is one: beside the authority's certificate."""
        return self.authority.with_name(REVOKED)

    def revoked(self) -> frozenset[int]:
        """Serial numbers of the certificates that the authority has revoked."""
        try:
            found = x509.load_pem_x509_crl(self.revocations.read_bytes())
            issuer = read_certificate(self.authority).public_key()
            assert isinstance(issuer, ec.EllipticCurvePublicKey)
            signed = found.is_signature_valid(issuer)
            numbers = frozenset(entry.serial_number for entry in found)
        except FileNotFoundError:
            return frozenset()
        except Exception as error:  # a damaged one raises many kinds
            raise ConfigurationError(f"{self.revocations} is no list of revoked certificates: copy it again") from error
        if not signed:
            raise ConfigurationError(f"{self.revocations} is not signed by {self.authority}: copy both again")
        return numbers

    def _refuse_password(self) -> Never:
        raise ConfigurationError(f"{self.key} is encrypted: store it decrypted, readable by this user only")


class LiveContext:
    """A listener's TLS context that follows its files: what is renewed or revoked counts without a restart.

    Files that cannot be used are logged, once, and what was read before them stays.
    """

    def __init__(self, identity: TlsIdentity, *, require_client: bool) -> None:
        self._identity, self._require_client = identity, require_client
        self._files = (identity.certificate, identity.key, identity.authority, identity.revocations)
        self._seen = self._stamps()
        self._looked = time.monotonic()
        self.current = identity.server_context(require_client)
        self.revoked = identity.revoked()

    def changed(self) -> bool:
        """Looks at the files, once a second at most; True if something new counts from now on."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            revoked = self._identity.revoked()
            self.current, self.revoked = self._identity.server_context(self._require_client), revoked
        except ConfigurationError as error:
            _log.error(
                "new certificates cannot be used: those from before stay", extra={"fields": {"reason": str(error)}}
            )
            return False
        _log.info("read the certificates again", extra={"fields": {"revoked": len(revoked)}})
        return True

    def _stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_stamp(path) for path in self._files)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} is missing: issue it, or correct the path") from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error).replace("_", " ").lower()


def read_certificate(path: Path) -> x509.Certificate:
    data = _read(path)
    try:
        found = x509.load_pem_x509_certificate(data)
        found.public_key()  # this and the dates are read when they are asked for
        found.not_valid_after_utc, found.not_valid_before_utc, found.subject  # noqa: B018
        return found
    except Exception as error:  # a damaged one raises many kinds, not all of them ValueErrors
        raise ConfigurationError(f"{path} is not a certificate in PEM form: issue it again or copy it again") from error


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    data = _read(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except Exception as error:  # as above
        raise ConfigurationError(f"{path} is not an unencrypted private key in PEM form: copy it again") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"{path} is not an elliptic-curve key: make the authority again")
    return key


def check_dates(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise ConfigurationError(f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: issue a new one")
    if now < certificate.not_valid_before_utc:
        raise ConfigurationError(
            f"{path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} only: check the clock"
        )
