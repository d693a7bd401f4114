"""Certificates: files are written safely, and a broken one is named together with the remedy."""

from __future__ import annotations

import os
import random
import ssl
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import NameOID

from comet_mpc.errors import ConfigurationError
from comet_mpc.net.authority import _next_number, issue, issued, make_authority, make_test_set, renew, revoke
from comet_mpc.net.identity import TlsIdentity, check_private
from comet_mpc.net.revocation import RevocationList


@pytest.fixture
def identity(tmp_path: Path) -> TlsIdentity:
    make_authority(tmp_path, "authority of this test")
    return issue(tmp_path, "alice", "server", ["localhost", "127.0.0.1"])


def test_keys_are_private_and_certificates_are_not(tmp_path: Path) -> None:
    for identity in make_test_set(tmp_path).values():
        assert stat.S_IMODE(identity.key.stat().st_mode) == 0o600
        assert b"PRIVATE" not in identity.certificate.read_bytes()
    assert stat.S_IMODE((tmp_path / "authority.key").stat().st_mode) == 0o600
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_certificate_carries_name_role_and_hosts(identity: TlsIdentity) -> None:
    certificate = x509.load_pem_x509_certificate(identity.certificate.read_bytes())
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    (role,) = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert (name.value, role.value) == ("alice", "server")
    assert hosts.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in hosts.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    authority = x509.load_pem_x509_certificate(identity.authority.read_bytes())
    certificate.verify_directly_issued_by(authority)


def test_nothing_is_overwritten_unless_forced(identity: TlsIdentity, tmp_path: Path) -> None:
    before = identity.key.read_bytes()
    with pytest.raises(ConfigurationError, match=r"alice\.pem exists"):
        issue(tmp_path, "alice", "client")
    with pytest.raises(ConfigurationError, match=r"authority\.pem exists"):
        make_authority(tmp_path, "another")
    assert identity.key.read_bytes() == before
    issue(tmp_path, "alice", "client", force=True)
    assert identity.key.read_bytes() != before
    assert stat.S_IMODE(identity.key.stat().st_mode) == 0o600


def test_contexts_are_strict(identity: TlsIdentity) -> None:
    client = identity.client_context()
    assert client.minimum_version == ssl.TLSVersion.TLSv1_3
    assert client.check_hostname
    assert client.verify_mode == ssl.CERT_REQUIRED
    assert identity.server_context(require_client=True).verify_mode == ssl.CERT_REQUIRED
    optional = identity.server_context(require_client=False)
    assert optional.verify_mode == ssl.CERT_OPTIONAL
    assert optional.minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize("name", ["", "../alice", "a/b", ".hidden", "authority", "x" * 65])
def test_a_name_must_be_fit_for_a_file(tmp_path: Path, name: str) -> None:
    make_authority(tmp_path, "authority of this test")
    with pytest.raises(ConfigurationError, match="cannot name a certificate"):
        issue(tmp_path, name, "client")


def test_an_unknown_role_is_refused(tmp_path: Path) -> None:
    make_authority(tmp_path, "authority of this test")
    with pytest.raises(ConfigurationError, match="unknown role 'admin'"):
        issue(tmp_path, "mallory", "admin")  # type: ignore[arg-type]


def test_issuing_needs_the_authority(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"authority\.pem is missing"):
        issue(tmp_path, "alice", "client")
    make_authority(tmp_path, "authority of this test")
    (tmp_path / "authority.key").write_text("not a key")
    with pytest.raises(ConfigurationError, match=r"authority\.key is not an unencrypted private key"):
        issue(tmp_path, "alice", "client")
    make_authority(tmp_path / "other", "another authority")
    (tmp_path / "authority.key").write_bytes((tmp_path / "other" / "authority.key").read_bytes())
    with pytest.raises(ConfigurationError, match=r"authority\.key is not the key of"):
        issue(tmp_path, "alice", "client")


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot write"):
        make_authority(tmp_path / "file", "authority of this test")


@pytest.mark.parametrize("field", ["certificate", "key", "authority"])
@pytest.mark.parametrize("make", [TlsIdentity.client_context, lambda i: i.server_context(True)])
def test_a_missing_or_malformed_file_is_named(
    identity: TlsIdentity, field: str, make: Callable[[TlsIdentity], ssl.SSLContext]
) -> None:
    path: Path = getattr(identity, field)
    path.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    with pytest.raises(ConfigurationError, match=f"{path.name} is not a"):
        make(identity)
    path.unlink()
    with pytest.raises(ConfigurationError, match=f"{path.name} is missing"):
        make(identity)


def test_the_key_of_another_certificate_is_refused(identity: TlsIdentity, tmp_path: Path) -> None:
    other = issue(tmp_path, "bob", "client")
    with pytest.raises(ConfigurationError, match=r"bob\.key is not the key of .*alice\.pem"):
        replace(identity, key=other.key).client_context()


def test_an_encrypted_key_is_refused_without_asking_for_a_password(identity: TlsIdentity) -> None:
    key = serialization.load_pem_private_key(identity.key.read_bytes(), None)
    identity.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    with pytest.raises(ConfigurationError, match=r"alice\.key is encrypted"):
        identity.client_context()


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    make_authority(tmp_path, "authority of this test")
    identity = issue(tmp_path, "alice", "server", days=0)
    with pytest.raises(ConfigurationError, match=r"alice\.pem expired on"):
        identity.client_context()
    make_authority(tmp_path, "authority of this test", days=0, force=True)
    with pytest.raises(ConfigurationError, match=r"authority\.pem expired on"):
        issue(tmp_path, "bob", "client")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["authority.pem", "client.pem", "client.key", "authority.key"])
def test_a_damaged_file_is_fine_or_refused_by_name(tmp_path: Path, name: str) -> None:
    """Among them: curves and kinds of key that do not exist, dates and numbers that cannot be."""
    make_test_set(tmp_path)
    path = tmp_path / name
    whole, generator = path.read_bytes(), random.Random(13)
    refusals = []
    for attempt in range(250):
        data = bytearray(whole)
        place = generator.randrange(len(data))
        if attempt % 4:
            data[place] = generator.choice(b"ABCDEFGHIJKLMabcdefghijklm0123456789+/")
        else:
            del data[place:]
        path.write_bytes(data)
        for use in (
            lambda: TlsIdentity.find(tmp_path, "client").client_context(),
            lambda: issue(tmp_path, "x", "client"),
        ):
            try:
                use()
            except ConfigurationError as error:
                refusals.append(str(error))
            (tmp_path / "x.pem").unlink(missing_ok=True)
            (tmp_path / "x.key").unlink(missing_ok=True)
    assert len(refusals) > 50
    assert all(str(tmp_path) in refusal for refusal in refusals)


@pytest.mark.parametrize(
    ("owner", "mode", "fine"),
    [
        (1, 0o600, True),
        (1, 0o400, True),
        (1, 0o640, False),
        (1, 0o604, False),
        (1, 0o660, False),
        (0, 0o640, True),  # root's, for the group of a service
        (0, 0o440, True),
        (0, 0o644, False),
        (0, 0o660, False),
    ],
)
def test_a_private_key_that_others_can_read_is_refused_with_the_remedy(
    identity: TlsIdentity, owner: int, mode: int, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity.key.chmod(mode)
    stat_of = Path.stat

    def owned(path: Path, **options: bool) -> os.stat_result:
        found = list(stat_of(path, **options))
        found[stat.ST_UID] = owner
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", owned)
    if fine:
        check_private(identity.key)
        return
    with pytest.raises(ConfigurationError, match=rf"alice\.key is a private key that others .*\(mode {mode:04o}\)"):
        check_private(identity.key)
    with pytest.raises(ConfigurationError, match=r"run `chmod 6[04]0 .*alice\.key`"):
        identity.client_context()
    with pytest.raises(ConfigurationError, match=r"run `chmod 6[04]0 .*alice\.key`"):
        identity.server_context(require_client=True)


def test_an_authority_whose_key_others_can_read_issues_nothing(identity: TlsIdentity, tmp_path: Path) -> None:
    (tmp_path / "authority.key").chmod(0o604)
    with pytest.raises(ConfigurationError, match=r"chmod 6[04]0 .*authority\.key"):
        issue(tmp_path, "bob", "client")


def test_lists_of_revoked_certificates_have_growing_numbers(tmp_path: Path) -> None:
    """Also if the last list was lost, and if the clock was put back."""
    make_authority(tmp_path, "authority of this test")
    numbers = []
    for name in ("alice", "bob", "carol"):
        issue(tmp_path, name, "client")
        revoke(tmp_path, name)
        found = RevocationList.read(tmp_path / "revoked.pem")
        assert found is not None
        numbers.append(found.number)
        if name == "bob":
            (tmp_path / "revoked.pem").rename(tmp_path / "lost")
    assert numbers[0] < numbers[1] < numbers[2]
    ahead = datetime.now(UTC) + timedelta(days=400)
    assert _next_number(tmp_path, ahead) > _next_number(tmp_path, ahead - timedelta(days=500)) == numbers[2] + 1


def test_certificates_of_an_authority_that_was_replaced_are_known_as_such(tmp_path: Path) -> None:
    make_authority(tmp_path, "authority of this test")
    issue(tmp_path, "alice", "client")
    issue(tmp_path, "bob", "server", ["bob.example"])
    revoke(tmp_path, "alice")
    make_authority(tmp_path, "authority of this test", force=True)
    assert [(entry.name, entry.state()) for entry in issued(tmp_path)] == [
        ("alice", "old authority"),
        ("bob", "old authority"),
    ]
    renewed = renew(tmp_path, "bob")
    assert [entry.state() for entry in issued(tmp_path)] == ["old authority", "old authority", "valid"]
    certificate = x509.load_pem_x509_certificate(renewed.certificate.read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(renewed.authority.read_bytes()))
    with pytest.raises(ConfigurationError, match="no certificate 'alice' that could be revoked"):
        revoke(tmp_path, "alice")
    (tmp_path / "issued.json").unlink()  # a version without an index: only files tell
    (tmp_path / "bob.pem").rename(tmp_path / "new.pem")
    assert [(entry.name, entry.state()) for entry in issued(tmp_path)] == [("alice", "old authority"), ("bob", "valid")]


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    make_authority(tmp_path, "authority of this test", days=3)
    issue(tmp_path, "alice", "client", days=100)
    (entry,) = issued(tmp_path)
    assert entry.ends == x509.load_pem_x509_certificate((tmp_path / "authority.pem").read_bytes()).not_valid_after_utc
    assert entry.state(datetime.now(UTC) + timedelta(days=4)) == "expired"
