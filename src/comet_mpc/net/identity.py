"""Who a party is: its certificate and key, the authority that it trusts, and the TLS contexts made from them.

A certificate carries the name of the party (common name) and its role (organizational unit); the other side reads
both as `Channel.peer_name` and `Channel.peer_role`. A client's certificate cannot be used to pose as a server. Where
there is a list of revoked certificates beside authority.pem, those are refused (`authority` makes all of these files).
"""

from __future__ import annotations

import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Never, Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from comet_mpc.errors import ConfigurationError
from comet_mpc.net.revocation import RevocationList

Role = Literal["client", "server", "dealer"]

AUTHORITY = "authority"
REVOKED = "revoked.pem"


@dataclass(frozen=True, slots=True)
class Authority:
    """Who is trusted, as its file was read."""

    certificate: x509.Certificate
    pem: str

    @classmethod
    def read(cls, path: Path) -> Self:
        data = _read(path)
        return cls(_certificate(path, data), data.decode("ascii", errors="ignore"))


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """The files with which a party shows who it is (certificate, key) and checks the other (authority)."""

    certificate: Path
    key: Path
    authority: Path
    kept_list: Path | None = None
    """Where this party keeps the newest list of revoked certificates that it has seen, if it keeps one: an older list
    beside authority.pem, or none, does not bring anybody back then."""

    @classmethod
    def find(cls, directory: Path | str, name: str) -> Self:
        """The certificate and key called `name` in a directory of keys, beside authority.pem."""
        directory = Path(directory)
        return cls(directory / f"{name}.pem", directory / f"{name}.key", directory / f"{AUTHORITY}.pem")

    def server_context(
        self, require_client: bool, authority: Authority | None = None, listed: RevocationList | None = None
    ) -> ssl.SSLContext:
        """For `listen`. Clients are asked for a certificate; without `require_client` they may have none.

        authority, listed: who is trusted and revoked, in place of what the files say now.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED if require_client else ssl.CERT_OPTIONAL
        context.num_tickets = 0  # sessions are not resumed: every connection proves its identity anew
        return self._load(context, authority, listed)

    def client_context(self) -> ssl.SSLContext:
        """For `connect`. The server's certificate must come from the authority and be for the host asked."""
        return self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _load(
        self, context: ssl.SSLContext, authority: Authority | None = None, listed: RevocationList | None = None
    ) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        check_dates(self.certificate, read_certificate(self.certificate))
        if authority is None:
            authority = Authority.read(self.authority)
            listed = self.revocation_list(authority)
        check_dates(self.authority, authority.certificate)
        check_private(self.key)
        _read(self.key)
        try:
            context.load_verify_locations(cadata=authority.pem)
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
        if listed is not None:
            listed.install(context)
        return context

    @property
    def revocations(self) -> Path:
        """The list of revoked certificates, if there is one: beside the authority's certificate."""
        return self.authority.with_name(REVOKED)

    def revocation_list(self, authority: Authority, known: RevocationList | None = None) -> RevocationList | None:
        """The newest list of the authority: the one beside its certificate, the one kept, or one that is known."""
        beside = RevocationList.read(self.revocations)
        if beside is not None and not beside.signed_by(authority.certificate):
            raise ConfigurationError(f"{self.revocations} is not signed by {self.authority}: copy both again")
        kept = None if self.kept_list is None else RevocationList.read(self.kept_list)
        found = [one for one in (known, kept, beside) if one is not None and one.signed_by(authority.certificate)]
        return max(found, key=lambda one: one.rank, default=None)

    def _refuse_password(self) -> Never:
        raise ConfigurationError(f"{self.key} is encrypted: store it decrypted, readable by this user only")


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
    return _certificate(path, _read(path))


def _certificate(path: Path, data: bytes) -> x509.Certificate:
    try:
        found = x509.load_pem_x509_certificate(data)
        found.public_key()  # this and the dates are read when they are asked for
        found.not_valid_after_utc, found.not_valid_before_utc, found.subject  # noqa: B018
        return found
    except Exception as error:  # a damaged one raises many kinds, not all of them ValueErrors
        raise ConfigurationError(f"{path} is not a certificate in PEM form: issue it again or copy it again") from error


def check_private(key: Path) -> None:
    """Refuses a private key that others can read. A group may read one that belongs to root: a service's, say."""
    try:
        found = key.stat()
    except OSError:
        return  # whoever reads it says why it cannot be read
    allowed = 0o740 if found.st_uid == 0 else 0o700
    mode = stat.S_IMODE(found.st_mode)
    if mode & ~allowed:
        remedy = f"chmod {mode & 0o640 if found.st_uid == 0 and mode & 0o040 else 0o600:o} {key}"
        raise ConfigurationError(
            f"{key} is a private key that others than its owner can use (mode {mode:04o}): run `{remedy}`, and have a "
            "new one issued if others had access to this one"
        )


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    check_private(path)
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
