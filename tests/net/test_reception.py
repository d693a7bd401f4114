"""Connections come in at once, whatever strangers do with theirs."""

from __future__ import annotations

import contextlib
import selectors
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from comet_mpc.errors import ConfigurationError, NotAuthenticated, PeerClosed, PeerError
from comet_mpc.net.authority import issue, issued, make_authority, renew, revoke
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.live import LiveContext
from comet_mpc.net.reception import Reception, ReceptionLimits, Visitor
from comet_mpc.net.sockets import TlsChannel, connect, listen
from support.certificates import Identities
from support.faulty_channel import hung_up
from support.waiting import PATIENCE, eventually


@dataclass
class Hall:
    """A reception in a thread: everybody who comes in is greeted with a frame."""

    port: int
    context: LiveContext
    arrived: list[TlsChannel] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    def come(self, identity: TlsIdentity) -> bytes:
        with connect("127.0.0.1", self.port, identity.client_context(), PATIENCE) as channel:
            return bytes(channel.receive(10))

    def stranger(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))


@contextlib.contextmanager
def hall(identity: TlsIdentity, **limits: float) -> Iterator[Hall]:
    context = LiveContext(identity, require_client=True)
    stopping = threading.Event()
    with listen("127.0.0.1", 0, context.current) as listener:
        found = Hall(listener.address[1], context)

        def arrived(visitor: Visitor) -> None:
            visitor.channel.send(b"welcome")
            found.arrived.append(visitor.channel)

        def refused(reason: str, error: PeerError) -> None:
            found.refused[reason] += 1

        def work() -> None:
            selector = selectors.DefaultSelector()
            made = ReceptionLimits(**limits)  # type: ignore[arg-type]
            reception = Reception(
                listener, lambda: context.current, selector, arrived=arrived, refused=refused, limits=made
            )
            while not stopping.is_set():
                for key, events in selector.select(0.02):
                    key.data(events)
                reception.tick()
                context.look()
            reception.close()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            stopping.set()
            thread.join(PATIENCE)
            for channel in found.arrived:
                channel.close()


def test_many_half_open_connections_keep_nobody_out_and_push_out_their_own(identities: Identities) -> None:
    with hall(identities["server"], per_address=20) as found, contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(found.stranger()) for _ in range(60)]
        for line in strangers[::2]:
            line.sendall(b"\x16\x03\x01\x02\x00")  # the beginning of a record that never comes
        assert found.come(identities["client"]) == b"welcome"
        eventually(lambda: found.refused["half_open"] >= 40)
        assert eventually(lambda: hung_up(strangers[0]))
        eventually(lambda: len(found.arrived) == 1)


def test_a_handshake_that_takes_too_long_or_is_none_is_given_up(identities: Identities) -> None:
    with hall(identities["server"], seconds=0.2) as found, found.stranger() as silent, found.stranger() as other:
        other.sendall(b"GET / HTTP/1.0\r\n\r\n")
        eventually(lambda: found.refused["handshake_timeout"] == 1 and found.refused["handshake_failed"] == 1)
        assert eventually(lambda: hung_up(silent))


def test_a_certificate_of_another_authority_is_refused_by_name(identities: Identities, tmp_path: Path) -> None:
    make_authority(tmp_path, "another")
    foreign = issue(tmp_path, "client", "client")
    foreign = TlsIdentity(foreign.certificate, foreign.key, identities["client"].authority)
    with hall(identities["server"]) as found:
        with pytest.raises((NotAuthenticated, PeerClosed)):
            found.come(foreign)
        eventually(lambda: found.refused["certificate"] == 1)
        assert found.come(identities["client"]) == b"welcome"


def test_a_revoked_certificate_counts_no_more_and_a_renewed_one_does_without_a_restart(tmp_path: Path) -> None:
    make_authority(tmp_path, "authority")
    server = issue(tmp_path, "server", "server", ("127.0.0.1",))
    theirs = tmp_path / "theirs" / "authority.pem"  # clients need not have the list
    theirs.parent.mkdir()
    shutil.copy(server.authority, theirs)
    alice, bob = (replace(issue(tmp_path, name, "client"), authority=theirs) for name in ("alice", "bob"))
    with hall(server) as found:
        assert found.come(alice) == b"welcome"
        (revoked,) = revoke(tmp_path, "alice")
        eventually(lambda: int(revoked.serial, 16) in found.context.revoked)
        with pytest.raises(NotAuthenticated, match="revoked"):
            found.come(alice)
        assert found.come(bob) == b"welcome"
        renewed = replace(renew(tmp_path, "alice", days=3), authority=theirs)
        assert found.come(renewed) == b"welcome"
        (tmp_path / "revoked.pem").write_text("damaged")  # what was read before stays
        (seen,) = {entry.serial for entry in issued(tmp_path) if entry.state() == "revoked"}
        assert found.come(bob) == b"welcome"
        assert found.context.revoked == {int(seen, 16)}
    with pytest.raises(ConfigurationError, match="revoked"):  # but nobody starts with it
        server.server_context(require_client=True)
    states = [(entry.name, entry.state()) for entry in issued(tmp_path)]
    assert states == [("server", "valid"), ("alice", "revoked"), ("bob", "valid"), ("alice", "valid")]
