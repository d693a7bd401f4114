"""Certificates: a private authority, one certificate per party, and the TLS contexts made from them.

All parties of a deployment trust one authority, whose key should stay off their machines. A certificate
carries the name of the party (common name) and its role (organizational unit); the other side reads both
as `Channel.peer_name` and `Channel.peer_role`. A client's certificate cannot be used to pose as a server.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, Never, Self, get_args

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from comet_mpc.errors import ConfigurationError
from comet_mpc.files import atomic_write

__all__ = ["Role", "TlsIdentity", "issue", "make_authority", "make_test_set"]

Role = Literal["client", "server", "dealer"]

_AUTHORITY = "authority"
_AUTHORITY_DAYS = 3650
_DAYS = 365
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CLOCK_SKEW = timedelta(minutes=5)


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
        return cls(directory / f"{name}.pem", directory / f"{name}.key", directory / f"{_AUTHORITY}.pem")

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
            _check_dates(path, _read_certificate(path))
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
        return context

    def _refuse_password(self) -> Never:
        raise ConfigurationError(f"{self.key} is encrypted: store it decrypted, readable by this user only")


def make_authority(directory: Path, name: str, *, days: int = _AUTHORITY_DAYS, force: bool = False) -> Path:
    """Writes authority.pem, which every party needs, and authority.key, which only the issuer keeps.

    Returns the path of the certificate.
    """
    certificate, key = _targets(directory, _AUTHORITY, force)
    secret = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = (
        _builder(subject, subject, secret.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False)
    )
    _write_pair(certificate, key, builder.sign(secret, hashes.SHA256()), secret)
    return certificate


def issue(
    directory: Path,
    name: str,
    role: Role,
    hosts: Sequence[str] = (),
    *,
    days: int = _DAYS,
    force: bool = False,
) -> TlsIdentity:
    """Writes name.pem and name.key, signed by the authority in `directory`.

    hosts: names and addresses under which others will connect to this party; none if it never listens.
    """
    if name == _AUTHORITY or not _FILE_NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot name a certificate: use letters, digits, '.', '_' and '-'")
    if role not in get_args(Role):
        raise ConfigurationError(f"unknown role {role!r}: use one of {', '.join(get_args(Role))}")
    authority, signer = directory / f"{_AUTHORITY}.pem", directory / f"{_AUTHORITY}.key"
    issuer = _read_certificate(authority)
    _check_dates(authority, issuer)
    signing_key = _read_key(signer)
    if signing_key.public_key() != issuer.public_key():
        raise ConfigurationError(f"{signer} is not the key of {authority}: use the two files made together")
    certificate, key = _targets(directory, name, force)

    secret = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role != "client":
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = (
        _builder(_subject(name, role), issuer.subject, secret.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    _write_pair(certificate, key, builder.sign(signing_key, hashes.SHA256()), secret)
    return TlsIdentity(certificate, key, authority)


def make_test_set(directory: Path) -> dict[Role, TlsIdentity]:
    """An authority and one certificate per role, valid on this machine only. Not for deployment."""
    make_authority(directory, "Comet test authority")
    roles: tuple[Role, ...] = get_args(Role)
    return {role: issue(directory, role, role, ("localhost", "127.0.0.1", "::1")) for role in roles}


def _subject(name: str, role: str | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if role is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role))
    return x509.Name(attributes)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _targets(directory: Path, name: str, force: bool) -> tuple[Path, Path]:
    paths = directory / f"{name}.pem", directory / f"{name}.key"
    for path in paths:
        if path.exists() and not force:
            raise ConfigurationError(f"{path} exists: choose another directory or name, or force overwriting")
    return paths


def _write_pair(certificate: Path, key: Path, signed: x509.Certificate, secret: ec.EllipticCurvePrivateKey) -> None:
    pem = serialization.Encoding.PEM
    with atomic_write(key, mode=0o600) as file:
        file.write(secret.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    with atomic_write(certificate) as file:
        file.write(signed.public_bytes(pem))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} is missing: issue it, or correct the path") from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error).replace("_", " ").lower()


def _read_certificate(path: Path) -> x509.Certificate:
    data = _read(path)
    try:
        found = x509.load_pem_x509_certificate(data)
        found.public_key()  # this and the dates are read when they are asked for
        found.not_valid_after_utc, found.not_valid_before_utc, found.subject  # noqa: B018
        return found
    except Exception as error:  # a damaged one raises many kinds, not all of them ValueErrors
        raise ConfigurationError(f"{path} is not a certificate in PEM form: issue it again or copy it again") from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    data = _read(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except Exception as error:  # as above
        raise ConfigurationError(f"{path} is not an unencrypted private key in PEM form: copy it again") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigurationError(f"{path} is not an elliptic-curve key: make the authority again")
    return key


def _check_dates(path: Path, certificate: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise ConfigurationError(f"{path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: issue a new one")
    if now < certificate.not_valid_before_utc:
        raise ConfigurationError(
            f"{path} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} only: check the clock"
        )
