"""Who is revoked stays out, whatever goes wrong while the files are read."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from comet_mpc.errors import NotAuthenticated, ServerBusy
from comet_mpc.net.authority import issue, make_authority, renew, revoke
from comet_mpc.net.identity import TlsIdentity, read_certificate
from comet_mpc.net.live import LiveContext


@dataclass
class Watched:
    """A server's keys, beside those of its authority, and what it looks at them with."""

    authority: Path
    server: TlsIdentity
    live: LiveContext
    alice: int
    bob: int

    def revoke_alice(self) -> None:
        revoke(self.authority, "alice")
        shutil.copy(self.authority / "revoked.pem", self.server.revocations)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    make_authority(tmp_path / "all", "authority")
    for name in ("alice", "bob"):
        issue(tmp_path / "all", name, "client")
    issue(tmp_path / "all", "server", "server", ("127.0.0.1",))
    server = TlsIdentity.find(shutil.copytree(tmp_path / "all", tmp_path / "own"), "server")
    live = LiveContext(server, require_client=True)
    alice, bob = (read_certificate(tmp_path / "all" / f"{name}.pem").serial_number for name in ("alice", "bob"))
    return Watched(tmp_path / "all", server, live, alice, bob)


def exhausted(*arguments: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_without_descriptors_a_new_list_counts_all_the_same(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read; only the handshake does not know it yet, and does as soon as it can."""
    watched.revoke_alice()
    before = watched.live.current
    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", exhausted)
        with pytest.raises(NotAuthenticated, match="revoked"):
            watched.live.check(watched.alice)
        watched.live.check(watched.bob)
        assert watched.live.current is before
    watched.live.look(at_once=True)
    assert watched.live.current is not before


def test_while_a_new_list_cannot_be_read_nobody_with_a_certificate_gets_in(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are told to try again; the first look after that sees who is on it. A list that is gone is none such."""
    read, listed = Path.read_bytes, watched.server.revocations
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda path: exhausted() if path == listed else read(path))
        watched.live.check(watched.alice)  # nothing has changed
        watched.revoke_alice()
        for serial in (watched.alice, watched.bob, watched.alice):
            with pytest.raises(ServerBusy, match="cannot be read"):
                watched.live.check(serial)
        watched.live.check(None)  # without a certificate there is nothing to revoke
    logged = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(logged) == 1  # however often it was tried
    with pytest.raises(NotAuthenticated, match="revoked"):
        watched.live.check(watched.alice)
    watched.live.check(watched.bob)
    listed.unlink()
    watched.live.check(watched.bob)


def wrong_mode(server: TlsIdentity, new: TlsIdentity) -> None:
    server.key.chmod(0o644)


def half_copied(server: TlsIdentity, new: TlsIdentity) -> None:
    shutil.copy(new.certificate, server.certificate)


def emptied(server: TlsIdentity, new: TlsIdentity) -> None:
    server.certificate.write_bytes(b"")


@pytest.mark.parametrize("spoil", [wrong_mode, half_copied, emptied])
def test_a_list_counts_whatever_becomes_of_certificate_and_key(
    watched: Watched, spoil: Callable[[TlsIdentity, TlsIdentity], None]
) -> None:
    new = renew(watched.authority, "server")
    spoil(watched.server, new)
    watched.revoke_alice()
    before, version = watched.live.current, watched.live.version
    with pytest.raises(NotAuthenticated, match="revoked"):
        watched.live.check(watched.alice)
    watched.live.check(watched.bob)
    assert watched.live.current is before
    assert watched.live.version > version  # so connections of hers end
    for path, fresh in ((watched.server.certificate, new.certificate), (watched.server.key, new.key)):
        path.unlink()
        shutil.copy(fresh, path)
    watched.live.look(at_once=True)
    assert watched.live.current is not before


def test_another_authority_decides_nothing_before_a_restart(
    watched: Watched, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who can write beside the keys could else let anybody in, and bring back who is revoked."""
    watched.revoke_alice()
    make_authority(tmp_path / "evil", "authority")
    issue(tmp_path / "evil", "mallory", "client")
    revoke(tmp_path / "evil", "mallory")
    trusted = watched.live.current.get_ca_certs(binary_form=True)
    appended = watched.server.authority.read_bytes() + (tmp_path / "evil" / "authority.pem").read_bytes()
    watched.server.authority.write_bytes(appended)
    watched.live.look(at_once=True)
    assert watched.live.current.get_ca_certs(binary_form=True) == trusted
    assert "authority.pem is another one" in caplog.text
    for name in ("authority.pem", "revoked.pem"):
        shutil.copy(tmp_path / "evil" / name, watched.server.authority.with_name(name))
    with pytest.raises(NotAuthenticated, match="revoked"):
        watched.live.check(watched.alice)
    assert watched.live.current.get_ca_certs(binary_form=True) == trusted
