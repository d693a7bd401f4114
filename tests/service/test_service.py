"""A private prediction between real processes: dealer, server and clients over TLS on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.errors import ConfigurationError, PeerClosed, ProtocolMismatch, ServerBusy
from comet_mpc.lab.evaluation import evaluate_securely
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tasks import Example
from comet_mpc.net.channel import Channel
from comet_mpc.net.identity import TlsIdentity, make_test_set
from comet_mpc.net.sockets import connect
from comet_mpc.offline.sources import DEALER
from comet_mpc.service.client import Client
from comet_mpc.service.messages import Ready, Run, Welcome, expect, introduce, say
from comet_mpc.service.programs import Programs
from support.dealer_service import dealer_process, send_raw
from support.server_process import ServerProcess, server_process
from support.toy_model import WORDS, make_checkpoint, some_texts, twin_logits

TWIN_BOUND = 0.02
"""Logits of the protocol and of its twin: rounding of 7 row steps at 16 bits, carried through two layers."""
PLAIN_BOUND = 0.05
"""Logits of the protocol and of the same rules in real numbers."""

LIMITS = {"stall_seconds": 3.0, "idle_seconds": 20.0, "dealer_seconds": 1.0, "ready": 2, "batch": 4}


@dataclass(frozen=True)
class World:
    keys: Path
    checkpoint: Path
    model: ServedModel
    programs: Programs
    dealer: int
    server: ServerProcess

    @property
    def identity(self) -> TlsIdentity:
        return TlsIdentity(self.keys / "client.pem", self.keys / "client.key", self.keys / "authority.pem")

    def channel(self, server: ServerProcess | None = None, timeout: float = 20.0) -> Channel:
        return connect("127.0.0.1", (server or self.server).port, self.identity.client_context(), timeout)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("service")
    keys = directory / "keys"
    make_test_set(keys)
    checkpoint = make_checkpoint(directory / "model")
    model = ServedModel.load(checkpoint)
    with (
        dealer_process(keys) as (_, address),
        server_process(keys, checkpoint, address[1], directory / "state", limits=LIMITS, workers=5) as server,
    ):
        yield World(keys, checkpoint, model, Programs(model, DEALER), address[1], server)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def expected_logits(model: ServedModel, text: str | tuple[str, str]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(model.plain_logits(model.encode([text]))[0])


def test_private_answers_are_the_models(world: World, cache: Path) -> None:
    """Batches of 4, 2 and 1 in one bucket, one text in another; bytes and rounds are the planned ones."""
    texts = [*some_texts(7, seed=1), " ".join(some_texts(1, words=25, seed=2))]
    with Client(world.server.address, keys=world.keys, cache=cache, ready=0) as client:
        predictions = client.classify(texts)
    assert [prediction.cost.texts for prediction in predictions] == [4, 4, 4, 4, 2, 2, 1, 1]
    for text, prediction in zip(texts, predictions, strict=True):
        query = world.model.encode([text])
        assert np.max(np.abs(np.array(prediction.logits) - expected_logits(world.model, text))) < PLAIN_BOUND
        assert np.max(np.abs(np.array(prediction.logits) - twin_logits(world.model, query)[0])) < TWIN_BOUND
        assert prediction.label == world.model.config.encoder.labels[int(np.argmax(prediction.logits))]
        assert prediction.probabilities[prediction.label] == prediction.probability > 0.5
        assert not prediction.truncated
        plan = world.programs.plan(prediction.cost.texts, query.bucket)
        assert prediction.cost.online_bytes == plan.online_bytes
        assert prediction.cost.rounds == plan.rounds
        assert prediction.cost.offline_bytes == plan.correction_bytes + 32


def test_set_up_happens_once_and_a_damaged_cache_is_not_used(world: World, tmp_path: Path) -> None:
    def set_up_bytes() -> int:
        with Client(world.server.address, keys=world.keys, cache=tmp_path, ready=0) as client:
            return client._setup[0]

    weights = world.programs.weights()
    first = set_up_bytes()
    assert first > 8 * sum(int(np.prod(weight.shape)) for weight in weights)
    assert set_up_bytes() == 0
    (stored,) = tmp_path.glob("*/weights")
    content = bytearray(stored.read_bytes())
    content[len(content) // 2] ^= 1
    stored.write_bytes(content)
    assert 0 < set_up_bytes() < first  # the weights again, the package not
    stored.write_bytes(content[:-8])
    assert 0 < set_up_bytes() < first
    assert not list(tmp_path.glob("*/.*"))


def test_prepared_randomness_is_used_and_replenished(world: World, tmp_path: Path) -> None:
    with Client(world.server.address, keys=world.keys, cache=tmp_path) as client:
        assert client.prepare(2) == 2
        (prediction,) = client.classify(some_texts(1))
        assert prediction.cost.offline_seconds < 60
        assert client._pool is not None
        assert client._pool.settle(30)
        assert client._pool.failure is None
        assert client._pool.count(1, 16) == 2
    with Client(world.server.address, keys=world.keys, cache=tmp_path, ready=0) as client:
        assert client._pool is not None
        client._pool.prepare = None  # type: ignore[assignment, method-assign]
        assert client._pool.count(1, 16) >= 1  # one was in memory and is lost with its process
        assert client.classify(some_texts(1))[0].label == prediction.label


def test_pairs_and_texts_that_are_too_long(world: World, cache: Path) -> None:
    pair, long = ("the film is good", "the plot is dull"), " ".join(["very"] * 100)
    with Client(world.server.address, keys=world.keys, cache=cache, ready=0) as client:
        first, second = client.classify([pair, long])
    assert (first.truncated, second.truncated) == (False, True)
    for text, prediction in ((pair, first), (long, second)):
        assert np.max(np.abs(np.array(prediction.logits) - expected_logits(world.model, text))) < PLAIN_BOUND


def test_a_client_asks_for_something_senseless(world: World, cache: Path) -> None:
    with Client(world.server.address, keys=world.keys, cache=cache, ready=0) as client:
        with pytest.raises(ConfigurationError, match="no text"):
            client.classify([])
        with pytest.raises(ConfigurationError, match="text 2 is empty"):
            client.classify(["good", "  "])
        with pytest.raises(ConfigurationError, match="list of texts"):
            client.classify("good")
        assert len(client.classify(["good"])) == 1
    with pytest.raises(ProtocolMismatch, match="model"):
        Client(world.server.address, keys=world.keys, cache=cache, fingerprint="0" * 64).connect()


def half_a_frame(channel: Channel) -> None:
    """The beginning of a message, and nothing after it."""
    send_raw(channel, (100).to_bytes(8, "little") + b"{")


_KILLED = """
import sys
from comet_mpc.service.client import Client
with Client(sys.argv[1], keys=sys.argv[2], cache=sys.argv[3], ready=0) as client:
    print("connected", flush=True)
    while True:
        client.classify(["the film is good"])
"""


def test_eight_clients_at_once_one_killed_and_one_stalling(world: World, cache: Path) -> None:
    texts = {seat: some_texts(2, seed=100 + seat) for seat in range(6)}

    def work(seat: int) -> float:
        with Client(world.server.address, keys=world.keys, cache=cache, ready=0) as client:
            found = client.classify(texts[seat])
        wanted = [expected_logits(world.model, text) for text in texts[seat]]
        return max(float(np.max(np.abs(np.array(p.logits) - logits))) for p, logits in zip(found, wanted, strict=True))

    arguments = [sys.executable, "-c", _KILLED, world.server.address, str(world.keys), str(cache)]
    victim = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    assert victim.stdout is not None
    try:
        with ThreadPoolExecutor(6) as pool, world.channel() as stalling:
            introduce(stalling, "client")
            expect(stalling, Welcome)
            half_a_frame(stalling)
            jobs = [pool.submit(work, seat) for seat in range(6)]
            victim.stdout.readline()
            time.sleep(np.random.default_rng().uniform(0.1, 1.0))
            victim.kill()
            assert max(job.result(60) for job in jobs) < PLAIN_BOUND
    finally:
        victim.kill()
        victim.wait()
        victim.stdout.close()


def test_the_command_prints_a_table_or_json(world: World, cache: Path, tmp_path: Path) -> None:
    common = ["--keys", str(world.keys), "--cache", str(cache)]
    file = tmp_path / "texts"
    file.write_text("the film is good\n\na [bold] plot\n")
    found = CliRunner().invoke(app, ["query", world.server.address, "--file", str(file), "--json", *common])
    entries = json.loads(found.stdout)
    assert [entry["text"] for entry in entries] == ["the film is good", "a [bold] plot"]
    shown = CliRunner().invoke(app, ["query", world.server.address, "a [bold] plot", *common])
    assert "a [bold] plot" in shown.stdout
    probability = re.search(r"\b0\.\d{3}\b", shown.stdout)
    assert probability is not None
    assert abs(float(probability[0]) - entries[1]["probability"]) < 0.01  # each run rounds at random
    assert f"{world.programs.plan(1, 16).rounds} rounds" in shown.stdout
    for wrong in ([], ["good", "--file", str(file)], ["--file", str(tmp_path / "none")]):
        refused = CliRunner().invoke(app, ["--debug", "query", world.server.address, *wrong, *common])
        assert isinstance(refused.exception, ConfigurationError)


def test_metrics_and_logs_tell_costs_and_no_text(world: World, cache: Path) -> None:
    with Client(world.server.address, keys=world.keys, cache=cache, ready=0) as client:
        client.classify(some_texts(1))
    with urllib.request.urlopen(world.server.metrics, timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    numbers = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    events = world.server.events()
    answered = [event for event in events if event["event"] == "answered"]
    assert int(numbers["comet_queries_total"]) >= len(answered) > 0
    assert int(numbers["comet_online_bytes_total"]) >= sum(event["bytes"] for event in answered)
    assert {'comet_errors_total{class="PeerClosed"}', "comet_bundles_ready", "comet_sessions_active"} <= numbers.keys()
    assert all(event["client"] == "client" for event in answered)
    words = {word for event in events for word in str(event).replace("'", " ").split()}
    assert not words & (set(WORDS) - {"a", "the", "is", "was", "not", "and", "or", "but", "with", "long"})


def test_evaluation_inside_the_protocol_agrees_with_the_plaintext_model(world: World, cache: Path) -> None:
    examples = [Example(text, None, float(place % 2)) for place, text in enumerate(some_texts(6, seed=9))]
    with Client(world.server.address, keys=world.keys, cache=cache, ready=0) as client:
        report = evaluate_securely(world.model, examples, client=client, limit=4)
    assert report["examples"] == 4
    assert report["agreement"] == 1.0
    assert report["logit_difference"]["largest"] < PLAIN_BOUND
    assert 0.0 <= report["accuracy"] <= 1.0


@pytest.fixture
def small_server(world: World, tmp_path: Path) -> Iterator[ServerProcess]:
    with server_process(
        world.keys, world.checkpoint, world.dealer, tmp_path / "state", limits=LIMITS, workers=1, queue_seconds=0.5
    ) as server:
        yield server


def test_a_full_server_refuses_replaces_a_dead_worker_and_stops_gracefully(
    world: World, small_server: ServerProcess, tmp_path: Path
) -> None:
    with world.channel(small_server) as occupying:
        introduce(occupying, "client")
        expect(occupying, Welcome)
        half_a_frame(occupying)
        with pytest.raises(ServerBusy):
            Client(small_server.address, keys=world.keys, cache=tmp_path, timeout=15.0).connect()
    pid = small_server.process.pid
    worker, *_ = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    os.kill(worker, signal.SIGKILL)
    with Client(small_server.address, keys=world.keys, cache=tmp_path, ready=0, timeout=20.0) as client:
        client.prepare(2)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(client.classify, ["the film is good"])
            time.sleep(0.05)
            small_server.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(PeerClosed):  # if the signal came before the query
                assert running.result(30)[0].label in world.model.config.encoder.labels
    assert small_server.process.wait(20) == 0
    with pytest.raises(PeerClosed, match="nobody listens"):
        Client(small_server.address, keys=world.keys, cache=tmp_path).connect()


def test_a_port_in_use_and_a_dealer_that_is_down(world: World, tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"ConfigurationError.*choose another"),
        server_process(world.keys, world.checkpoint, 1, tmp_path / "a", port=world.server.port),
    ):
        pass
    with server_process(world.keys, world.checkpoint, 1, tmp_path / "b", limits=LIMITS, workers=1) as server:
        with (
            Client(server.address, keys=world.keys, cache=tmp_path, ready=0) as client,
            pytest.raises(PeerClosed, match="dealer"),
        ):
            client.classify(["good"])
        assert any("dealer cannot be reached" in event["event"] for event in server.events())


def test_ready_is_not_said_for_a_bundle_that_the_server_has_not_got(world: World) -> None:
    plan = world.programs.plan(1, 16)
    with world.channel() as channel:
        introduce(channel, "client")
        expect(channel, Welcome)
        say(channel, Run("ab" * 16, 1, 16, plan.digest))
        with pytest.raises(Exception, match="spent or was never stored") as caught:
            expect(channel, Ready)
        assert type(caught.value).__name__ == "RandomnessSpent"
