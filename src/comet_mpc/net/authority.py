"""A private authority: it issues one certificate per party, renews and revokes them, and knows which there are.

All parties of a deployment trust one authority, whose key should stay off their machines. In its directory:

    authority.pem, authority.key    give the first to every party, and the second to nobody
    <name>.pem, <name>.key          one party's
    issued.json                     every certificate that was ever issued
    revoked.pem                     the list of those that count no more, signed: copy it to every party that listens
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import get_args

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from comet_mpc.errors import ConfigurationError
from comet_mpc.files import atomic_write
from comet_mpc.net.identity import AUTHORITY, REVOKED, Role, TlsIdentity, check_dates, read_certificate, read_key
from comet_mpc.net.revocation import RevocationList

_AUTHORITY_DAYS = 3650
_DAYS = 365
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CLOCK_SKEW = timedelta(minutes=5)
_INDEX = "issued.json"


class Issued(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One certificate, as the authority remembers it."""

    name: str
    role: str
    serial: str
    """In hexadecimal digits."""
    begins: datetime
    ends: datetime
    hosts: tuple[str, ...] = ()
    revoked: datetime | None = None
    authority: str = ""
    """Identifier of the key that has signed it, in hexadecimal digits."""
    old_authority: bool = False
    """Another authority has taken the place of the one that issued it: nobody accepts it any more."""

    def state(self, now: datetime | None = None) -> str:
        """In a word or two."""
        if self.old_authority:
            return "old authority"
        if self.revoked is not None:
            return "revoked"
        return "expired" if (now or datetime.now(UTC)) > self.ends else "valid"


def make_authority(directory: Path, name: str, *, days: int = _AUTHORITY_DAYS, force: bool = False) -> Path:
    """Writes authority.pem, which every party needs, and authority.key, which only the issuer keeps.

    Returns the path of the certificate.
    """
    remedy = "choose another directory, or --force to replace the authority, whose certificates nobody accepts then"
    certificate, key = _targets(directory, AUTHORITY, force, remedy)
    secret = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = (
        _builder(subject, subject, secret.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False)
    )
    _write_pair(certificate, key, builder.sign(secret, hashes.SHA256()), secret)
    (directory / REVOKED).unlink(missing_ok=True)  # of another authority, whose certificates count no more
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
    if name == AUTHORITY or not _FILE_NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot name a certificate: use letters, digits, '.', '_' and '-'")
    if role not in get_args(Role):
        raise ConfigurationError(f"unknown role {role!r}: use one of {', '.join(get_args(Role))}")
    authority = directory / f"{AUTHORITY}.pem"
    issuer, signing_key = _authority(directory)
    certificate, key = _targets(directory, name, force, f"run {_renewal(directory, name)}, or choose another name")

    secret = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role != "client":
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = (
        _builder(_subject(name, role), issuer.subject, secret.public_key(), days, issuer.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    signed = builder.sign(signing_key, hashes.SHA256())
    _remember(directory, [*issued(directory), _facts(signed)])  # first: no certificate is ever forgotten
    _write_pair(certificate, key, signed, secret)
    return TlsIdentity(certificate, key, authority)


def check_name_free(directory: Path, name: str) -> None:
    """Raises if a party of that name has had a certificate: quotas, bundles and logs go by the name."""
    before = [entry for entry in issued(directory) if entry.name == name]
    if not before:
        return
    last = before[-1]
    state = f"valid until {last.ends:%Y-%m-%d}" if last.state() == "valid" else last.state()
    raise ConfigurationError(
        f"{name!r} has had a certificate ({state}): run {_renewal(directory, name)} to give the same party a new one, "
        f"with --revoke-old if its key was lost; `comet keys revoke {directory} {name}` to shut it out; or choose "
        "another name for another party"
    )


def _renewal(directory: Path, name: str) -> str:
    return f"`comet keys renew {directory} {name}`"


def renew(directory: Path, name: str, *, days: int = _DAYS) -> TlsIdentity:
    """A new certificate and a new key for a party that has had one, with its role and hosts.

    The party keeps its bundles and its queries of the day, which go by its name. The certificate from before counts
    until it ends, or is revoked.
    """
    before = [entry for entry in issued(directory) if entry.name == name]
    if not before:
        raise ConfigurationError(f"no certificate {name!r} was issued in {directory}: see `comet keys list`")
    role: Role = next(role for role in get_args(Role) if role == before[-1].role)
    return issue(directory, name, role, before[-1].hosts, days=days, force=True)


def revoke(directory: Path, name: str, *, but_last: bool = False) -> list[Issued]:
    """Revokes all certificates of that name that have not ended, and writes the list of all that are revoked.

    but_last: the newest one still counts, as after a renewal.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    entries = issued(directory)
    named = [entry for entry in entries if entry.name == name]
    found = [entry for entry in (named[:-1] if but_last else named) if entry.state(now) == "valid"]
    if not found:
        raise ConfigurationError(f"no certificate {name!r} that could be revoked in {directory}: see `comet keys list`")
    entries = [msgspec.structs.replace(entry, revoked=now) if entry in found else entry for entry in entries]
    issuer, signing_key = _authority(directory)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(now - _CLOCK_SKEW)
        .next_update(issuer.not_valid_after_utc)
        .add_extension(x509.CRLNumber(_next_number(directory, datetime.now(UTC))), critical=False)
    )
    for entry in entries:
        if entry.revoked is not None and not entry.old_authority:
            one = x509.RevokedCertificateBuilder().serial_number(int(entry.serial, 16)).revocation_date(entry.revoked)
            builder = builder.add_revoked_certificate(one.build())
    signed = builder.sign(signing_key, hashes.SHA256())
    _remember(directory, entries)
    with atomic_write(directory / REVOKED, durable=True) as file:
        file.write(signed.public_bytes(serialization.Encoding.PEM))
    return found


def _next_number(directory: Path, now: datetime) -> int:
    """Greater than that of every list before, also if the last one was lost, or the clock put back."""
    before = RevocationList.read(directory / REVOKED)
    return max(int(now.timestamp() * 1e6), 0 if before is None else before.number + 1)


def issued(directory: Path) -> list[Issued]:
    """Every certificate that was issued in this directory, oldest first, also those that only lie in it.

    Those of an authority that another one has replaced are marked.
    """
    path = directory / _INDEX
    entries: list[Issued] = []
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=list[Issued])
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path} is damaged: restore it, since it names the certificates to revoke") from error
    issuer = read_certificate(directory / f"{AUTHORITY}.pem")
    found: dict[str, Issued] = {}
    for file in sorted(directory.glob("*.pem")):
        if file.name in (f"{AUTHORITY}.pem", REVOKED):
            continue
        with contextlib.suppress(ConfigurationError, ValueError):  # a damaged file is nothing that could be revoked
            certificate = read_certificate(file)
            if certificate.issuer == issuer.subject:
                facts = _facts(certificate)
                found[facts.serial] = facts
    known = {entry.serial for entry in entries}
    others = sorted((one for one in found.values() if one.serial not in known), key=lambda entry: entry.begins)
    return [_judged(one, found, issuer) for one in (*others, *entries)]


def _judged(entry: Issued, found: Mapping[str, Issued], issuer: x509.Certificate) -> Issued:
    """With the authority that has signed it, which the index of earlier versions does not name, and ends with."""
    now = _key_identifier(issuer.public_key())
    signer = entry.authority or (found[entry.serial].authority if entry.serial in found else now)
    ends = min(entry.ends, issuer.not_valid_after_utc) if signer == now else entry.ends
    return msgspec.structs.replace(entry, authority=signer, old_authority=signer != now, ends=ends)


def _key_identifier(key: CertificatePublicKeyTypes) -> str:
    return x509.SubjectKeyIdentifier.from_public_key(key).digest.hex()


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority's certificate, and the key with which it signs."""
    authority, signer = directory / f"{AUTHORITY}.pem", directory / f"{AUTHORITY}.key"
    issuer = read_certificate(authority)
    check_dates(authority, issuer)
    signing_key = read_key(signer)
    if signing_key.public_key() != issuer.public_key():
        raise ConfigurationError(f"{signer} is not the key of {authority}: use the two files made together")
    return issuer, signing_key


def _facts(certificate: x509.Certificate) -> Issued:
    def subject(kind: x509.ObjectIdentifier) -> str:
        return next((str(entry.value) for entry in certificate.subject.get_attributes_for_oid(kind)), "")

    hosts: tuple[str, ...] = ()
    signer = ""
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            hosts = tuple(str(name.value) for name in extension.value)
        if isinstance(extension.value, x509.AuthorityKeyIdentifier):
            signer = (extension.value.key_identifier or b"").hex()
    return Issued(
        name=subject(NameOID.COMMON_NAME),
        role=subject(NameOID.ORGANIZATIONAL_UNIT_NAME),
        serial=f"{certificate.serial_number:x}",
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
        hosts=hosts,
        authority=signer,
    )


def _remember(directory: Path, entries: list[Issued]) -> None:
    with atomic_write(directory / _INDEX, durable=True) as file:
        file.write(msgspec.json.format(msgspec.json.encode(entries), indent=1) + b"\n")


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
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    latest: datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    ends = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(ends if latest is None else min(ends, latest))
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


def _targets(directory: Path, name: str, force: bool, remedy: str) -> tuple[Path, Path]:
    paths = directory / f"{name}.pem", directory / f"{name}.key"
    for path in paths:
        if path.exists() and not force:
            raise ConfigurationError(f"{path} exists: {remedy}")
    return paths


def _write_pair(certificate: Path, key: Path, signed: x509.Certificate, secret: ec.EllipticCurvePrivateKey) -> None:
    pem = serialization.Encoding.PEM
    with atomic_write(key, mode=0o600) as file:
        file.write(secret.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    with atomic_write(certificate) as file:
        file.write(signed.public_bytes(pem))
