"""A private prediction without a third party: server and clients alone, over TLS on loopback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.errors import ConfigurationError, PeerClosed, PeerError, ProtocolMismatch, RandomnessSpent, ServerBusy
from comet_mpc.models.served import ServedModel
from comet_mpc.offline.pair.costs import preparation_traffic
from comet_mpc.offline.sources import PAIR
from comet_mpc.offline.store import new_bundle_id
from comet_mpc.service.client import Client
from comet_mpc.service.messages import Accepted, GetWeights, Prepare, expect, say
from comet_mpc.service.programs import Programs
from support.clients import always_the_same_bundle, bundles_ready, only_what_is_stored, settled
from support.processes import ServerProcess, World, running_world, server_process
from support.two_parties import both
from support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.service

LIMITS = {
    **dict.fromkeys(("stall_seconds", "step_seconds", "idle_seconds"), PATIENCE),
    "ready": 2,
    "batch": 2,
    "preparations": 2,
}
TEXT = "the film is good"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, keys: Path, tiny_checkpoint: Path) -> Iterator[World]:
    state = tmp_path_factory.mktemp("pair")
    with running_world(keys, tiny_checkpoint, state, with_dealer=False, limits=LIMITS, workers=5) as running:
        yield running


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def planned_bytes(programs: Programs, *, first: bool = True, count: int = 1) -> int:
    """Of each of so many bundles that are prepared together."""
    traffic = preparation_traffic(programs.plan(1, 16).correlations, first=first, count=count)
    return (traffic.sent + traffic.received) // count


def test_the_bundled_model_answers_at_the_planned_cost_and_its_weights_stay_at_home(keys: Path, tmp_path: Path) -> None:
    with as_file(files("comet_mpc") / "data" / "demo_model") as checkpoint:
        model = ServedModel.load(checkpoint)
        programs, text = Programs(model, PAIR), "a warm and funny film"
        with (
            server_process(keys, checkpoint, None, tmp_path / "state", workers=2) as server,
            Client(server.address, keys=keys, cache=tmp_path / "cache", ready=0) as client,
        ):
            assert client.source == "pair"
            (prediction,) = client.classify([text])
    plain = model.plain_logits(model.encode([text]))[0]
    assert np.max(np.abs(np.array(prediction.logits) - plain)) < 0.05
    cost, plan = prediction.cost, programs.plan(1, 16)
    assert (cost.source, cost.online_bytes, cost.rounds) == ("pair", plan.online_bytes, plan.rounds)
    assert cost.offline_bytes == planned_bytes(programs)
    assert 0 < cost.setup_bytes - len(model.public().package()) < 1000  # the public package and nothing else
    assert not list((tmp_path / "cache").glob("*/weights"))


def test_bundles_on_one_connection_share_their_keys_and_a_pool_survives_a_restart(world: World, tmp_path: Path) -> None:
    together, later = (planned_bytes(world.programs, count=2), planned_bytes(world.programs, first=False))
    assert together < 0.6 * later
    with world.client(tmp_path) as client:
        pool = client._link.connected().pool
        assert client.prepare(2) == 2
        pool.prepare(1, 16)
    with world.client(tmp_path) as client:
        only_what_is_stored(client)
        found = [client.classify([TEXT])[0] for _ in range(3)]
        assert sorted(one.cost.offline_bytes for one in found) == [together, together, planned_bytes(world.programs)]
        assert all(world.right(one.logits, TEXT) for one in found)
        with pytest.raises(TypeError):  # nothing is left, and nothing comes back
            client.classify([TEXT])
    with world.client(tmp_path) as client:
        assert client.prepare(1) == 1


_KILLED = """
import os, sys
from comet_mpc.service.client import Client
with Client(sys.argv[1], keys=sys.argv[2], cache=sys.argv[3], ready=0) as client:
    client.prepare(1)
    client._link.connection.progress = lambda done, total: done > total / 2 and os._exit(9)
    client.prepare(2)
"""


def test_a_client_killed_halfway_and_a_server_restarted_leave_whole_bundles_only(world: World, tmp_path: Path) -> None:
    cache, state = tmp_path / "cache", tmp_path / "state"
    with world.another_server(state, limits=LIMITS, workers=2) as server:
        arguments = [sys.executable, "-c", _KILLED, server.address, str(world.keys), str(cache)]
        assert subprocess.run(arguments, check=False, timeout=PATIENCE).returncode == 9
        server.logged("a client was not served")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(PATIENCE)
    (stored,) = state.glob("bundles-*")
    left = [path.name for path in stored.iterdir()]
    assert len(left) == 1
    assert left == [path.name for path in cache.glob("*/bundles/*")]
    hasty = {**LIMITS, "preparation_seconds": 3.0}
    with world.another_server(state, limits=hasty, workers=2) as server:
        with world.client(cache, server) as client:
            only_what_is_stored(client)
            assert world.right(client.classify([TEXT])[0].logits, TEXT)
        assert not list(stored.iterdir())
        assert not list(cache.glob("*/bundles/*"))
        with world.welcomed(server) as channel:  # a deadline for all of it, besides the one for every step
            say(channel, Prepare(new_bundle_id(), 1, 16, world.programs.plan(1, 16).digest))
            expect(channel, Accepted)
            channel.receive(32)
            with pytest.raises(PeerClosed):
                channel.receive(1)
        server.logged("took too long")


def test_a_bundle_that_the_server_has_lost_is_replaced(world: World, tmp_path: Path) -> None:
    with world.client(tmp_path) as client:
        client.prepare(1)
        (name,) = (path.name for path in tmp_path.glob("*/bundles/*"))
        (kept,) = world.state.glob(f"bundles-*/{name}")
        kept.unlink()
        (prediction,) = client.classify([TEXT])
        assert world.right(prediction.logits, TEXT)
        assert bundles_ready(client) == 0


def test_queries_go_on_while_randomness_is_prepared_for_two_clients(world: World, tmp_path: Path) -> None:
    def work(seat: int) -> bool:
        with world.client(tmp_path / str(seat), ready=2) as client:
            found = [client.classify([TEXT])[0] for _ in range(2)]
            assert settled(client)
            assert bundles_ready(client) == 2
            return all(world.right(one.logits, TEXT) for one in found)

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(2)))


def test_a_server_of_one_worker_prepares_and_answers_in_turn(world: World, tmp_path: Path) -> None:
    """The client's connection for queries, idle meanwhile, gives way to the one on which the bundle is prepared."""
    limits = {"stall_seconds": PATIENCE, "step_seconds": PATIENCE}
    with world.another_server(tmp_path / "state", limits=limits, workers=1) as server:
        for name in ("first", "second"):
            with world.client(tmp_path / name, server) as client:
                (prediction,) = client.classify([TEXT])
                assert world.right(prediction.logits, TEXT)


def busy(server: ServerProcess) -> int:
    """How often a client was told to come again."""
    return sum(event.get("error") == "ServerBusy" for event in server.events())


def test_a_preparation_too_many_is_refused_and_waited_for(world: World, tmp_path: Path) -> None:
    """One certificate gets one of two places, however often it asks."""
    plan = world.programs.plan(1, 16)
    with (
        world.another_server(tmp_path / "state", limits=LIMITS, workers=3, queue_seconds=0.2) as server,
        world.welcomed(server) as first,
        world.welcomed(server) as second,
    ):
        say(first, Prepare(new_bundle_id(), 1, 16, plan.digest))
        expect(first, Accepted)
        say(second, Prepare(new_bundle_id(), 1, 16, plan.digest))
        with pytest.raises(ServerBusy, match="prepares as many bundles as it can"):
            expect(second, Accepted)
        refused = eventually(lambda: busy(server))

        def make_room() -> None:
            eventually(lambda: busy(server) > refused)
            first.close()

        with world.client(tmp_path / "cache", server) as client:
            assert both(lambda: client.prepare(1), make_room) == (1, None)


def test_a_client_that_breaks_off_or_asks_for_nonsense_harms_nobody(world: World, cache: Path) -> None:
    plan = world.programs.plan(1, 16)
    with world.welcomed() as channel:
        for digest, batch in (("0" * 64, 1), (plan.digest, 3)):
            say(channel, Prepare(new_bundle_id(), batch, 16, digest))
            with pytest.raises((ProtocolMismatch, ValueError)):
                expect(channel, Accepted)
        say(channel, GetWeights())
        with pytest.raises(ConfigurationError, match="no dealer"):
            expect(channel, Accepted)
        say(channel, Prepare(new_bundle_id(), 1, 16, plan.digest))
        expect(channel, Accepted)
        channel.send(b"\xff" * 32)
        assert len(channel.receive(32)) == 32  # the program's digest, then the end: no word about why
        with pytest.raises(PeerClosed):
            channel.receive(1)
    with world.client(cache) as client:
        assert world.right(client.classify([TEXT])[0].logits, TEXT)


def test_whoever_insists_on_another_source_is_told(world: World, cache: Path) -> None:
    with pytest.raises(ProtocolMismatch, match=r"source of randomness.*'pair'.*'dealer'"):
        world.client(cache, source="dealer").connect()
    with world.client(cache, source="pair") as client:
        assert client.source == "pair"
    with pytest.raises(ConfigurationError, match="uses no dealer"):
        world.client(cache, source="pair", dealer="127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="unknown source"):
        world.client(cache, source="oracle")


def test_the_commands_know_both_sources(world: World, tmp_path: Path) -> None:
    common = [world.server.address, "--keys", str(world.keys), "--cache", str(tmp_path)]
    ready = CliRunner().invoke(app, ["query", *common, "--ready", "1"])
    assert "randomness is ready for 1 query (source: pair)" in ready.stdout
    found = CliRunner().invoke(app, ["query", *common, TEXT, "--json", "-", "--source", "pair"])
    (entry,) = json.loads(found.stdout)
    assert entry["cost"]["source"] == "pair"
    assert world.right(tuple(entry["logits"]), TEXT)
    assert isinstance(
        CliRunner().invoke(app, ["--debug", "query", *common, TEXT, "--source", "dealer"]).exception, PeerError
    )
    for wrong in (["--source", "pair", "--dealer", "127.0.0.1:1"], ["--source", "dealer"]):
        refused = CliRunner().invoke(app, ["--debug", "serve", str(world.checkpoint), "--state", str(tmp_path), *wrong])
        assert isinstance(refused.exception, ConfigurationError)


def test_a_bundle_runs_once(world: World, tmp_path: Path) -> None:
    with world.client(tmp_path) as client:
        client.prepare(1)
        always_the_same_bundle(client)
        client.classify([TEXT])
        with pytest.raises(RandomnessSpent):
            client.classify([TEXT])


_LEAVES = """
import sys
from comet_mpc import Client
client = Client(sys.argv[1], keys=sys.argv[2], cache=sys.argv[3], ready=3)
client.classify([sys.argv[4]])
"""


def test_a_client_that_ends_while_it_prepares_in_the_background_ends_well(world: World, tmp_path: Path) -> None:
    """The thread is in C++ code then, which must not be torn down around it."""
    for attempt in range(2):
        arguments = [sys.executable, "-c", _LEAVES, world.server.address, str(world.keys), str(tmp_path / str(attempt))]
        done = subprocess.run([*arguments, TEXT], capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (done.returncode, done.stderr) == (0, "")
