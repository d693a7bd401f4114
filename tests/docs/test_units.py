"""The units of server and dealer as deployed: who is revoked is shut out, and a renewed certificate is shown."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from comet_mpc.errors import NotAuthenticated
from comet_mpc.net.authority import issue, renew, revoke
from comet_mpc.net.channel import greet
from comet_mpc.net.identity import REVOKED, TlsIdentity
from comet_mpc.net.sockets import TlsChannel, connect
from comet_mpc.offline.dealer.fetch import Ask, Done, Wait, _FromDealer
from comet_mpc.offline.store import new_bundle_id
from comet_mpc.service.messages import Welcome, expect, introduce
from support.documents import ROOT
from support.waiting import PATIENCE, eventually

DEPLOY = ROOT / "deploy"
KEYS = "etc/comet/keys"


def settings_of(unit: str) -> dict[str, list[str]]:
    """Of the section [Service], every one with all its values."""
    found: dict[str, list[str]] = defaultdict(list)
    text = (DEPLOY / "systemd" / f"comet-{unit}.service").read_text()
    section = re.search(r"^\[Service\]$(.*?)^\[", text, re.DOTALL | re.MULTILINE)
    assert section is not None
    for line in section[1].splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name].append(value)
    return found


@dataclass
class Machine:
    """What a unit has started, below a directory that takes the place of /, with the keys that its machine has."""

    root: Path
    authority: Path
    name: str
    port: int

    def copy(self, *names: str) -> None:
        """From the authority to the machine, as `install` does: another file takes the place of the old one."""
        for name in names:
            beside = self.root / KEYS / f".{name}"
            shutil.copy(self.authority / name, beside)
            beside.replace(self.root / KEYS / name)

    @contextlib.contextmanager
    def connected(self, identity: TlsIdentity) -> Iterator[TlsChannel]:
        with connect("127.0.0.1", self.port, identity.client_context(), PATIENCE) as channel:
            assert isinstance(channel, TlsChannel)
            yield channel

    def serves(self, identity: TlsIdentity) -> bool:
        """Whether it serves this client, or gives a reason that is raised."""
        with self.connected(identity) as channel:
            if self.name == "server":
                introduce(channel, "client")
                return bool(expect(channel, Welcome))
            greet(channel, {"role": "client"}, PATIENCE)
            channel.send(msgspec.json.encode(Ask(new_bundle_id(), "0" * 64)))
            with pytest.raises(_Waits):
                _FromDealer(channel, PATIENCE, waiting=_stop).message(Done)
            return True


class _Waits(Exception):
    pass


def _stop(sign: Wait) -> None:
    raise _Waits


@contextlib.contextmanager
def started(unit: str, root: Path, authority: Path, checkpoint: Path) -> Iterator[Machine]:
    """Exactly what the unit says, except for the directory that everything is in and the ports."""
    settings = settings_of(unit)
    (root / KEYS).mkdir(parents=True)
    for name in ("authority.pem", f"{unit}.pem", f"{unit}.key"):
        shutil.copy(authority / name, root / KEYS / name)
    content = re.sub(r'"[\w.]+:\d+"', '"127.0.0.1:0"', (DEPLOY / "comet.toml").read_text())
    content = content.replace("/var/lib/comet-models/model", str(checkpoint))
    for top in ("/etc/", "/var/"):
        content = content.replace(f'"{top}', f'"{root}{top}')
    (root / "etc/comet/comet.toml").write_text(content)
    for directory in settings["StateDirectory"]:
        (root / "var/lib" / directory).mkdir(mode=0o700, parents=True)
    program, *words = shlex.split(settings["ExecStart"][0].replace("/etc/comet", f"{root}/etc/comet"))
    assert program == "/usr/local/bin/comet"
    given = dict(value.split("=", 1) for value in settings["Environment"])
    environment = {**os.environ, **given, "PYTHONUNBUFFERED": "1", "COMET_SERVE_UNTRAINED": "1"}
    command = [sys.executable, "-c", "from comet_mpc.cli.start import run; run()", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            said = re.search(r" at 127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert said is not None
            yield Machine(root, authority, unit, int(said[1]))
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


@pytest.mark.service
@pytest.mark.parametrize("unit", ["server", "dealer"])
def test_what_a_unit_starts_sees_who_is_revoked_and_what_is_renewed(
    unit: str, keys: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    authority = Path(shutil.copytree(keys, tmp_path / "authority"))
    theirs = tmp_path / "theirs"
    for name in ("alice", "bob"):
        issue(authority, name, "client")
    shutil.copytree(authority, theirs)
    alice, bob = (TlsIdentity.find(theirs, name) for name in ("alice", "bob"))
    with started(unit, tmp_path / "root", authority, tiny_checkpoint) as machine:
        assert machine.serves(alice)
        revoke(authority, "alice")
        machine.copy(REVOKED)
        with pytest.raises(NotAuthenticated, match="revoked"):
            machine.serves(alice)
        assert machine.serves(bob)
        assert (tmp_path / "root/var/lib" / f"comet-{unit}" / REVOKED).is_file()  # a restart does not forget it

        def serial() -> int | None:
            with machine.connected(bob) as channel:
                return channel.peer_serial

        before = serial()
        renew(authority, unit)
        machine.copy(f"{unit}.pem", f"{unit}.key")
        eventually(lambda: serial() != before, "the renewed certificate was never shown")


@pytest.mark.parametrize("unit", ["server", "dealer", "gateway"])
def test_units_read_keys_where_they_are_and_as_nobody_else_can(unit: str) -> None:
    settings = settings_of(unit)
    assert not {"LoadCredential", "LoadCredentialEncrypted", "SetCredential", "ImportCredential"} & settings.keys()
    assert not any("/etc" in value for name in ("InaccessiblePaths", "TemporaryFileSystem") for value in settings[name])
    assert settings["DynamicUser"] == ["yes"]
    (group,) = settings["SupplementaryGroups"]
    assert f"g {group} - -" in (DEPLOY / "systemd" / "comet.sysusers.conf").read_text().splitlines()


def test_containers_mount_keys_as_a_directory() -> None:
    """A single file that is replaced on the host stays the old one inside."""
    for path in DEPLOY.glob("compose.*.yaml"):
        mounted = re.findall(r"^ *- (\S+):(/keys\S*):ro", path.read_text(), re.MULTILINE)
        assert mounted == [("./keys", "/keys")], path
