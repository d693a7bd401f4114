"""Who gets in, and for how long: revoked certificates, lists that go back, a state directory with two servers."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.errors import NotAuthenticated, QuotaExceeded, ServerBusy
from comet_mpc.net.authority import issue, renew, revoke
from comet_mpc.net.channel import Around, Channel, greet
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import connect, parse_address
from comet_mpc.offline.dealer.fetch import Ask, PartyRole, Proceed, Wait, _FromDealer
from comet_mpc.offline.store import new_bundle_id
from comet_mpc.service.connection import Connection
from comet_mpc.service.messages import (
    Accepted,
    FromClient,
    GetPackage,
    GetWeights,
    Prepare,
    Ready,
    Run,
    Welcome,
    expect,
    introduce,
    receive_blob,
    say,
)
from comet_mpc.service.quota import Quota
from support.clients import Wrapping
from support.faulty_channel import hung_up
from support.processes import PendingHandshake, ServerProcess, World, running_world, server_process
from support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.service

REVOKED = "certificate is revoked"
NEVER = 1e9


@pytest.fixture
def own(keys: Path, tmp_path: Path) -> Path:
    """Keys that may be revoked, of more than the usual parties."""
    directory = Path(shutil.copytree(keys, tmp_path / "keys"))
    for name in ("alice", "bob"):
        issue(directory, name, "client")
    issue(directory, "other-server", "server", ["127.0.0.1"])
    return directory


@contextlib.contextmanager
def world_that_looks_only_when_asked(keys: Path, checkpoint: Path, state: Path) -> Iterator[World]:
    """Neither server nor dealer looks at the list by the clock: only where somebody comes in or asks."""
    with running_world(keys, checkpoint, state, with_dealer=True, limits={}, workers=2, look_seconds=NEVER) as world:
        yield world


def package(channel: Channel, welcome: Welcome) -> bytes:
    class Sink(bytearray):
        write = bytearray.extend

    say(channel, GetPackage())
    sink = Sink()
    receive_blob(channel, welcome.package_bytes, welcome.fingerprint, sink)
    return bytes(sink)


def test_a_certificate_that_is_revoked_gets_nothing_more_of_server_or_dealer(
    own: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Not a request of a connection that is open, nor a greeting if the handshake was under way; others do."""
    with (
        world_that_looks_only_when_asked(own, tiny_checkpoint, tmp_path / "state") as world,
        contextlib.ExitStack() as stack,
    ):
        assert world.dealer is not None
        at_server, at_dealer = ("127.0.0.1", world.server.port), ("127.0.0.1", world.dealer)
        digest = world.programs.plan(1, 16).digest
        requests: dict[str, FromClient] = {
            "carol": GetPackage(),
            "dave": GetWeights(),
            "erin": Prepare(new_bundle_id(), 1, 16, digest),
            "frank": Run(new_bundle_id(), 1, 16, digest),
        }
        for name in requests:
            issue(own, name, "client")
        channels = {name: stack.enter_context(world.welcomed(name=name)) for name in requests}
        pending = {
            (where, name): PendingHandshake(address, TlsIdentity.find(own, name))
            for where, address in (("server", at_server), ("dealer", at_dealer))
            for name in ("alice", "bob", "server", "other-server")
        }
        for name, request in requests.items():
            revoke(own, name)
            say(channels[name], request)
            with pytest.raises(NotAuthenticated, match=REVOKED):
                expect(channels[name], Accepted if isinstance(request, Prepare) else Ready)

        for name in ("alice", "other-server"):
            revoke(own, name)

        late = stack.enter_context(pending["server", "alice"].finish())
        introduce(late, "client")
        with pytest.raises(NotAuthenticated, match=REVOKED):
            expect(late, Welcome)
        control = stack.enter_context(pending["server", "bob"].finish())
        introduce(control, "client")
        welcome = expect(control, Welcome)
        assert len(package(control, welcome)) == welcome.package_bytes

        def asked(name: str, role: PartyRole) -> _FromDealer:
            channel = stack.enter_context(pending["dealer", name].finish())
            greet(channel, {"role": role}, PATIENCE)
            key = bytes(SEED_BYTES) if role == "server" else b""
            channel.send(msgspec.json.encode(Ask(new_bundle_id(), digest, int(role == "server"), key)))
            return _FromDealer(channel, PATIENCE, waiting=_stop)

        for name, role in (("alice", "client"), ("other-server", "server")):
            with pytest.raises(NotAuthenticated, match=REVOKED):
                asked(name, role).message(Proceed)  # type: ignore[arg-type]
        with pytest.raises(_Waits):  # it is let in, and waits for the server
            asked("bob", "client").message(Proceed)
        assert isinstance(asked("server", "server").message(Proceed), Proceed)


class _Waits(Exception):
    pass


def _stop(sign: Wait) -> None:
    raise _Waits


def welcomed(server: ServerProcess, keys: Path, name: str) -> bool:
    with connect("127.0.0.1", server.port, TlsIdentity.find(keys, name).client_context(), PATIENCE) as channel:
        introduce(channel, "client")
        return bool(expect(channel, Welcome))


def test_an_older_list_or_none_brings_nobody_back_not_even_after_a_restart(
    own: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    listed, state = own / "revoked.pem", tmp_path / "state"
    theirs = Path(shutil.copytree(own, tmp_path / "theirs"))  # the clients' keys, without a list
    refused = "the server refused your certificate: it is revoked"
    with server_process(own, tiny_checkpoint, None, state, workers=2) as server:
        revoke(own, "alice")
        server.logged("read the certificates again", revoked=1)
        first = listed.read_bytes()
        revoke(own, "bob")
        server.logged("read the certificates again", revoked=2)
        second = listed.read_bytes()
        listed.write_bytes(first)
        event = server.logged("revoked certificates is an older one: the newer one stays in force", level="error")
        assert event["found"] < event["in_force"]
        with pytest.raises(NotAuthenticated, match=refused):
            welcomed(server, theirs, "bob")
        listed.unlink()
        server.logged("revoked certificates is gone: the last one stays in force", level="error")
        with pytest.raises(NotAuthenticated, match=refused):
            welcomed(server, theirs, "bob")
        assert welcomed(server, theirs, "client")
        identity = TlsIdentity.find(theirs, "client")
        with connect("127.0.0.1", server.port, identity.client_context(), PATIENCE) as channel:
            introduce(channel, "client")
            expect(channel, Welcome)
            listed.mkdir()  # it is there, and nobody can read it
            say(channel, GetPackage())
            with pytest.raises(ServerBusy, match="list of revoked certificates cannot be read"):
                expect(channel, Ready)
        with pytest.raises(ServerBusy, match="list of revoked certificates cannot be read"):
            welcomed(server, theirs, "client")
        listed.rmdir()
        assert welcomed(server, theirs, "client")
    listed.write_bytes(first)
    with server_process(own, tiny_checkpoint, None, state, workers=2) as again:
        again.logged("revoked certificates is an older one", level="error")
        with pytest.raises(NotAuthenticated, match=refused):
            welcomed(again, theirs, "bob")
        assert welcomed(again, theirs, "client")
        listed.write_bytes(second)
        again.logged("read the certificates again", revoked=2)


def open_files(pid: int) -> set[str]:
    return {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}


def test_a_renewed_certificate_of_a_client_counts_at_its_next_connection(
    own: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """A gateway runs for months: it shows what lies in its directory, not what lay there when it started."""
    with running_world(own, tiny_checkpoint, tmp_path, with_dealer=False, limits={}) as world:
        connection = Connection(
            parse_address(world.server.address),
            TlsIdentity.find(own, "alice"),
            timeout=PATIENCE,
            welcomed=lambda *_: None,
        )
        connection.channel().close()
        renew(own, "alice")
        revoke(own, "alice", but_last=True)
        assert connection.channel().peer_role == "server"
        connection.close()


def test_a_state_directory_is_one_servers(keys: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Until its first process is gone, however that ends, also while processes that it forked have work."""
    state = tmp_path / "state"
    with running_world(keys, tiny_checkpoint, state, with_dealer=False, limits={}, workers=2) as world:
        pid = world.server.process.pid
        with world.welcomed():
            (desk, *_) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            (worker, *_) = map(int, Path(f"/proc/{desk}/task/{desk}/children").read_text().split())
            held = {one: str(state / "server.lock") in open_files(one) for one in (pid, desk, worker)}
            assert held == {pid: True, desk: False, worker: False}
            refusal = pytest.raises(AssertionError, match=rf"StateInUse: another server \(process {pid}\) works with")
            with refusal, world.another_server(state, workers=2):
                pass
            world.server.process.kill()
            world.server.process.wait(PATIENCE)
            with world.another_server(state, workers=2) as again:
                assert welcomed(again, keys, "client")


@pytest.mark.parametrize("with_dealer", [False, True])
def test_a_client_without_queries_left_is_told_before_anything_is_prepared(
    keys: Path, tiny_checkpoint: Path, tmp_path: Path, with_dealer: bool
) -> None:
    state, limits = tmp_path / "state", {"queries_per_day": 4}
    with running_world(keys, tiny_checkpoint, state, with_dealer=with_dealer, limits=limits, workers=2) as world:
        Quota(state / "queries", 4).charge("client", 3)
        digest = world.programs.plan(2, 16).digest
        with world.welcomed() as channel:
            for request in (Prepare(new_bundle_id(), 2, 16, digest), Run(new_bundle_id(), 2, 16, digest)):
                say(channel, request)
                with pytest.raises(QuotaExceeded, match="1 of them are left"):
                    expect(channel, Accepted)
            say(channel, Prepare(new_bundle_id(), 1, 16, world.programs.plan(1, 16).digest))
            expect(channel, Accepted)  # there is one left


class Held(Around):
    """A client's connection that stops between the server's word that it is ready and the rounds."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner)
        self.stopped, self.go = threading.Event(), threading.Event()
        self._running = False

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        if self._running:
            self.stopped.set()
            assert self.go.wait(PATIENCE)
        found = super()._transfer(outgoing, sizes, deadline)
        self._running = self._running or b'"Ready"' in bytes(found)
        return found


def test_sigterm_lets_queries_finish_and_cuts_preparations_off(
    keys: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    state, text = tmp_path / "state", "the film is good"
    held: list[Held] = []

    def hold(channel: Channel) -> Channel:
        held.append(Held(channel))
        return held[-1]

    with (
        running_world(
            keys, tiny_checkpoint, state, with_dealer=False, limits={}, workers=2, stop_seconds=10 * PATIENCE
        ) as world,
        ThreadPoolExecutor(1) as thread,
        world.client(tmp_path / "cache", transport=Wrapping(hold)) as client,
        world.welcomed() as preparing,
    ):
        answer = thread.submit(client.classify, [text])
        eventually(lambda: any(one.stopped.is_set() for one in held) or answer.done())
        say(preparing, Prepare(new_bundle_id(), 1, 16, world.programs.plan(1, 16).digest))
        expect(preparing, Accepted)
        world.server.process.terminate()
        assert eventually(lambda: hung_up(preparing))
        assert not answer.done()
        for one in held:
            one.go.set()
        assert world.right(answer.result(PATIENCE)[0].logits, text)
        assert world.server.process.wait(PATIENCE) == 0
        (stored,) = state.glob("bundles-*")
        assert list(stored.iterdir()) == []
