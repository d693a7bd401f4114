"""The server's processes end with their parent, leave nothing behind, say how they are, and follow revocations."""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from comet_mpc.errors import CometError, NotAuthenticated
from comet_mpc.net.authority import issue, renew, revoke
from comet_mpc.offline.source import Order, Supplier
from comet_mpc.offline.store import BundleStore, new_bundle_id
from comet_mpc.service.bundle_pool import BundlePool, Kept
from comet_mpc.service.client import Client
from comet_mpc.service.messages import Accepted, Prepare, expect, say
from support.processes import World, running_world, server_process
from support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.service

TEXT = "the film is good"


def status(world: World, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(world.server.metrics.replace("/metrics", page), timeout=PATIENCE) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_server_is_healthy_follows_revocations_and_ends_with_its_parent(
    keys: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(keys, tmp_path / "keys"))
    alice = issue(own, "alice", "client")
    state = tmp_path / "state"
    with running_world(own, tiny_checkpoint, state, with_dealer=False, limits={}, workers=2) as world:
        eventually(lambda: status(world, "/healthz") == (200, "ok\n"))
        assert status(world, "/readyz") == (200, "ok\n")
        assert status(world, "/other")[0] == 404
        with Client(world.server.address, identity=alice, cache=tmp_path / "cache", ready=0) as client:
            assert world.right(client.classify([TEXT])[0].logits, TEXT)
            revoke(own, "alice")
            world.server.logged("a certificate was revoked")  # and the connection that is open ends
            with pytest.raises(CometError):
                client.classify([TEXT])
        with pytest.raises((NotAuthenticated, CometError)):
            Client(world.server.address, identity=alice, cache=tmp_path / "cache", ready=0).connect()
        assert 'comet_refusals_total{reason="certificate"}' in status(world, "/metrics")[1]
        renewed = renew(own, "alice")
        with Client(world.server.address, identity=renewed, cache=tmp_path / "cache", ready=0) as client:
            pid = world.server.process.pid
            desk, *_ = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            (connection, *_) = map(int, Path(f"/proc/{desk}/task/{desk}/children").read_text().split())
            world.server.process.send_signal(signal.SIGKILL)
            world.server.process.wait(PATIENCE)
            eventually(lambda: not any(Path(f"/proc/{one}").exists() and _runs(one) for one in (desk, connection)))
        port = world.server.port
        with server_process(own, tiny_checkpoint, None, state, port=port, workers=2) as again:  # the port is free
            assert again.port == port


def _runs(pid: int) -> bool:
    """Whether it is more than a remainder that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_front_desk_without_a_descriptor_refuses_and_goes_on(
    keys: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    with running_world(keys, tiny_checkpoint, tmp_path / "state", with_dealer=False, limits={}, workers=2) as world:
        pid = world.server.process.pid
        desk, *_ = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        eventually(lambda: status(world, "/healthz")[0] == 200)
        usual = resource.prlimit(desk, resource.RLIMIT_NOFILE)
        used = {int(one.name) for one in Path(f"/proc/{desk}/fd").iterdir()}
        *_, third = (number for number in range(len(used) + 3) if number not in used)
        resource.prlimit(desk, resource.RLIMIT_NOFILE, (third, usual[1]))  # two are left: a connection, and not a pair
        client = world.client(tmp_path / "cache")
        with ThreadPoolExecutor(1) as thread, contextlib.closing(client):
            asked = thread.submit(client.classify, [TEXT])
            world.server.logged("no process for a client", reason="Too many open files")
            resource.prlimit(desk, resource.RLIMIT_NOFILE, usual)
            assert world.right(asked.result(PATIENCE)[0].logits, TEXT)  # it has asked again
        assert desk in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        assert 'comet_refusals_total{reason="out_of_processes"}' in status(world, "/metrics")[1]


def test_a_server_that_is_stopped_while_it_fetches_from_a_dealer_leaves_no_files(
    keys: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The client has asked, and does not come to the dealer: the server's half waits there."""
    state = tmp_path / "state"
    with running_world(
        keys, tiny_checkpoint, state, with_dealer=True, limits={}, workers=2, stop_seconds=10 * PATIENCE
    ) as world:
        with world.welcomed() as channel:
            say(channel, Prepare(new_bundle_id(), 1, 16, world.programs.plan(1, 16).digest))
            expect(channel, Accepted)
            world.server.process.terminate()
            assert world.server.process.wait(PATIENCE) == 0
        (stored,) = state.glob("bundles-*")
        assert list(stored.iterdir()) == []


def test_an_error_of_the_operating_system_in_the_background_blocks_nobody() -> None:
    class Idle(Supplier):
        def prepare(self, order: Order, store: BundleStore) -> None:
            raise AssertionError

    class Pool(BundlePool):
        def __init__(self) -> None:
            super().__init__(None, 1, Idle(), Kept(1, 1))  # type: ignore[arg-type]
            self.tried = 0

        def _fill(self, size: tuple[int, int]) -> None:
            self.tried += 1
            raise OSError(28, "No space left on device")

    pool = Pool()
    for attempt in (1, 2):
        pool.replenish(1, 16)
        assert pool.settle(PATIENCE)
        assert pool.tried == attempt
        assert isinstance(pool.failure, OSError)
    pool.close()
