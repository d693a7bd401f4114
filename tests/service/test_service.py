"""A private prediction between real processes: dealer, server and clients over TLS on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.errors import ConfigurationError, PeerClosed, ProtocolMismatch, ServerBusy
from comet_mpc.local.evaluation import evaluate_securely
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tasks import Example
from comet_mpc.net.channel import Channel
from comet_mpc.service.messages import Ready, Run, expect, say
from comet_mpc.service.prediction import Prediction
from support.clients import after_rounds, bundles_ready, only_what_is_stored, set_up_bytes, settled
from support.processes import World, running_world, send_raw, server_process
from support.toy_model import WORDS, make_checkpoint, some_texts
from support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.service

PLAIN_BOUND = 0.05
"""Logits of the protocol and of the same rules in real numbers."""

LIMITS = {"stall_seconds": PATIENCE, "idle_seconds": PATIENCE, "dealer_seconds": PATIENCE, "ready": 2, "batch": 4}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("service")
    checkpoint = make_checkpoint(directory / "model")
    with running_world(keys, checkpoint, directory / "state", with_dealer=True, limits=LIMITS, workers=5) as running:
        yield running


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def expected_logits(model: ServedModel, text: str | tuple[str, str]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(model.plain_logits(model.encode([text]))[0])


def test_private_answers_are_the_models(world: World, cache: Path) -> None:
    """Batches of 4, 2 and 1 in one bucket, one text in another; bytes and rounds are the planned ones."""
    texts = [*some_texts(7, seed=1), " ".join(some_texts(1, words=25, seed=2))]
    with world.client(cache) as client:
        predictions = client.classify(texts)
    assert [prediction.cost.texts for prediction in predictions] == [4, 4, 4, 4, 2, 2, 1, 1]
    for text, prediction in zip(texts, predictions, strict=True):
        query = world.model.encode([text])
        assert np.max(np.abs(np.array(prediction.logits) - expected_logits(world.model, text))) < PLAIN_BOUND
        assert world.right(prediction.logits, text)
        assert prediction.label == world.model.config.encoder.labels[int(np.argmax(prediction.logits))]
        assert prediction.probabilities[prediction.label] == prediction.probability > 0.5
        assert not prediction.truncated
        plan = world.programs.plan(prediction.cost.texts, query.bucket)
        assert prediction.cost.online_bytes == plan.online_bytes
        assert prediction.cost.rounds == plan.rounds
        assert prediction.cost.offline_bytes == plan.correction_bytes + 32


def test_set_up_happens_once_and_a_damaged_cache_is_not_used(world: World, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def downloaded() -> int:
        with world.client(tmp_path, downloading=lambda done, total: told.append((done, total))) as client:
            return set_up_bytes(client)

    weights = world.programs.weights()
    first = downloaded()
    assert first > 8 * sum(int(np.prod(weight.shape)) for weight in weights)
    assert sum(total for done, total in told if done == total) <= first
    assert {total for _, total in told} == {done for done, total in told if done == total}
    told.clear()
    assert downloaded() == 0
    assert not told
    (stored,) = tmp_path.glob("*/weights")
    content = bytearray(stored.read_bytes())
    content[len(content) // 2] ^= 1
    stored.write_bytes(content)
    assert 0 < downloaded() < first  # the weights again, the package not
    stored.write_bytes(content[:-8])
    assert 0 < downloaded() < first
    assert not list(tmp_path.glob("*/.*"))


def test_prepared_randomness_is_used_and_replenished(world: World, tmp_path: Path) -> None:
    with world.client(tmp_path, ready=None) as client:
        assert client.prepare(2) == 2
        (prediction,) = client.classify(some_texts(1))
        assert prediction.cost.offline_seconds > 0
        assert settled(client)
        assert bundles_ready(client) == 2
    with world.client(tmp_path) as client:
        only_what_is_stored(client)
        assert bundles_ready(client) >= 1  # one was in memory and is lost with its process
        assert client.classify(some_texts(1))[0].label == prediction.label


def list_of(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern))


def test_a_bundle_damaged_on_the_servers_disk_is_replaced_by_another(world: World, tmp_path: Path) -> None:
    (text,) = some_texts(1, seed=77)
    with world.client(tmp_path) as client:
        assert client.prepare(2, warm=False) == 2
        names = [path.stem for path in tmp_path.glob("*/bundles/*.bundle")]
        for name in names:
            # the dealer tells the client first
            (stored,) = eventually(partial(list_of, world.state, f"*/{name}.bundle"))
            content = bytearray(stored.read_bytes())
            content[-4000] ^= 64
            stored.write_bytes(content)
        (prediction,) = client.classify([text])
    assert np.max(np.abs(np.array(prediction.logits) - expected_logits(world.model, text))) < PLAIN_BOUND
    # its log comes from another process; one that was damaged while it was being stored is missing instead
    refusals = ("RandomnessDamaged", "RandomnessSpent")

    def refused(name: str) -> bool:
        return any(e.get("error") in refusals and name in e.get("reason", "") for e in world.server.events())

    assert len(names) == 2
    assert eventually(lambda: all(map(refused, names)))


def test_a_client_knows_if_the_connection_that_it_has_asked_on_has_ended(world: World, cache: Path) -> None:
    with world.client(cache) as client:
        client.connect()
        connection = client._link.connection
        with connection.lock:
            channel = connection.channel()
        assert not connection._ended(channel)
        with ThreadPoolExecutor(1) as other, connection.lock:  # a query on it is not disturbed, nor waited for
            assert not other.submit(connection._ended, channel).result(PATIENCE)
        channel.close()
        assert connection._ended(channel)


def test_pairs_and_texts_that_are_too_long(world: World, cache: Path) -> None:
    pair, long = ("the film is good", "the plot is dull"), " ".join(["very"] * 100)
    with world.client(cache) as client:
        first, second = client.classify([pair, long])
    assert (first.truncated, second.truncated) == (False, True)
    for text, prediction in ((pair, first), (long, second)):
        assert np.max(np.abs(np.array(prediction.logits) - expected_logits(world.model, text))) < PLAIN_BOUND


def test_a_client_asks_for_something_senseless(world: World, cache: Path) -> None:
    with world.client(cache) as client:
        with pytest.raises(ConfigurationError, match="no text"):
            client.classify([])
        with pytest.raises(ConfigurationError, match="text 2 is empty"):
            client.classify(["good", "  "])
        for senseless in ("good", 3, {"good": 1}):
            with pytest.raises(ConfigurationError, match="list of texts"):
                client.classify(senseless)  # type: ignore[arg-type]
        assert len(client.classify(["good"])) == 1
    with pytest.raises(ProtocolMismatch, match="model"):
        world.client(cache, fingerprint="0" * 64).connect()


def half_a_frame(channel: Channel) -> None:
    """The beginning of a message, and nothing after it."""
    send_raw(channel, (100).to_bytes(8, "little") + b"{")


_KILLED = """
import os, sys
from comet_mpc.service.client import Client
from support.clients import after_rounds

with Client(sys.argv[1], keys=sys.argv[2], cache=sys.argv[3], ready=0) as client:
    after_rounds(client, 20, lambda: os._exit(9))
    client.classify(["the film is good"])
"""


def test_eight_clients_at_once_one_killed_and_one_stalling(world: World, cache: Path) -> None:
    texts = {seat: some_texts(2, seed=100 + seat) for seat in range(6)}

    def work(seat: int) -> float:
        with world.client(cache) as client:
            found = client.classify(texts[seat])
        wanted = [expected_logits(world.model, text) for text in texts[seat]]
        return max(float(np.max(np.abs(np.array(p.logits) - logits))) for p, logits in zip(found, wanted, strict=True))

    def be_killed() -> int:
        arguments = [sys.executable, "-c", _KILLED, world.server.address, str(world.keys), str(cache)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(arguments, check=False, timeout=PATIENCE, env=environment).returncode

    with ThreadPoolExecutor(7) as pool, world.welcomed() as stalling:
        half_a_frame(stalling)
        killed, *jobs = pool.submit(be_killed), *(pool.submit(work, seat) for seat in range(6))
        assert max(job.result(PATIENCE) for job in jobs) < PLAIN_BOUND
        assert killed.result(PATIENCE) == 9
    world.server.logged("a client was not served to the end", error="PeerClosed", midway=True)


def test_the_command_prints_a_table_or_json(world: World, cache: Path, tmp_path: Path) -> None:
    common = ["--keys", str(world.keys), "--cache", str(cache)]
    file = tmp_path / "texts"
    file.write_text("the film is good\n\na [bold] plot\n")
    found = CliRunner().invoke(app, ["query", world.server.address, "--file", str(file), "--json", "-", *common])
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


def test_a_run_that_breaks_off_keeps_its_answers_and_goes_on(world: World, cache: Path, tmp_path: Path) -> None:
    texts = [*some_texts(2, seed=5), " ".join(some_texts(1, words=25, seed=6))]
    file, out = tmp_path / "texts", tmp_path / "answers"
    file.write_text("\n".join(texts))
    with world.client(cache) as client:
        seen: list[int] = []

        def told(place: int, found: Prediction) -> None:
            if len(seen) == 2:
                raise KeyboardInterrupt
            seen.append(place)
            assert found.tokens == found.tokens_used == len(texts[place].split()) + 2

        with pytest.raises(KeyboardInterrupt):
            client.classify(texts, told=told)
        assert seen == [0, 1]
    command = ["query", world.server.address, "--file", str(file), "--out", str(out), "--keys", str(world.keys)]
    for answers in ("3 new answers, 0 from before", "1 new answer, 2 from before"):
        found = CliRunner().invoke(app, [*command, "--cache", str(cache)])
        assert answers in found.stderr, found.output
        assert sorted(json.loads(line)["number"] for line in out.read_text().splitlines()) == [1, 2, 3]
        kept = [line for line in out.read_text().splitlines() if json.loads(line)["number"] in (1, 2)]
        out.write_text("\n".join(kept) + "\n")


def test_what_a_file_needs_is_prepared_before_it_is_asked(world: World, tmp_path: Path) -> None:
    texts = [*some_texts(7, seed=15), " ".join(some_texts(1, words=25, seed=16))]
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    table.write_text("text\n" + "\n".join(texts) + "\n")
    command = ["query", world.server.address, "--csv", str(table), "--column", "text", "--out", str(out)]
    command += ["--keys", str(world.keys), "--cache", str(tmp_path / "cache")]
    found = CliRunner().invoke(app, [*command, "--ready", "all"])
    assert "randomness is ready for 4 queries" in found.stdout, found.output
    shown = " ".join(found.stderr.split())
    for batch, bucket in ((4, 16), (2, 16), (1, 16), (1, 32)):
        assert f"{batch} text{'s' if batch > 1 else ''} of {bucket} tokens 0 1 " in shown
    assert not out.exists()
    with world.client(tmp_path / "cache") as client:
        assert client.sizes(texts) == {(4, 16): 1, (2, 16): 1, (1, 16): 1, (1, 32): 1}
        assert client.prepared(4, 16) == client.prepared(1, 32) == 1
    found = CliRunner().invoke(app, command)
    assert "8 new answers, 0 from before" in found.stderr, found.output
    assert [line.rsplit(",", 3)[0] for line in out.read_text().splitlines()] == ["text", *texts]
    with world.client(tmp_path / "cache") as client:
        assert client.prepared(4, 16) == client.prepared(1, 32) == 0  # nothing else was prepared for it
    told = [*command[:2], *command[-4:], "--ready", "2", "--size", "2x16"]
    assert "ready for 2 queries" in CliRunner().invoke(app, told).stdout
    for wrong in (["--ready", "some"], ["--size", "2x16"], ["--ready", "1", "--size", "16"], ["--column", "text"]):
        assert CliRunner().invoke(app, [*told[:6], "a film", *wrong]).exit_code in (1, 2)


def test_metrics_and_logs_tell_costs_and_no_text(world: World, cache: Path) -> None:
    with world.client(cache) as client:
        client.classify(some_texts(1))
    world.server.logged("answered")
    events = world.server.events()
    with urllib.request.urlopen(world.server.metrics, timeout=PATIENCE) as reply:
        lines = reply.read().decode().splitlines()
    numbers = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    answered = [event for event in events if event["event"] == "answered"]
    assert int(numbers["comet_queries_total"]) >= len(answered) > 0
    assert int(numbers["comet_online_bytes_total"]) >= sum(event["bytes"] for event in answered)
    assert {'comet_errors_total{class="PeerClosed"}', "comet_bundles_ready", "comet_sessions_active"} <= numbers.keys()
    assert all(event["client"] == "client" for event in answered)
    words = {word for event in events for word in str(event).replace("'", " ").split()}
    assert not words & (set(WORDS) - {"a", "the", "is", "was", "not", "and", "or", "but", "with", "long"})


def test_evaluation_inside_the_protocol_agrees_with_the_plaintext_model(world: World, cache: Path) -> None:
    examples = [Example(text, None, float(place % 2)) for place, text in enumerate(some_texts(6, seed=9))]
    with world.client(cache) as client:
        report = evaluate_securely(world.model, examples[:4], client=client)
    assert report["examples"] == 4
    assert report["agreement"] == 1.0
    assert report["logit_difference"]["largest"] < PLAIN_BOUND
    assert 0.0 <= report["accuracy"] <= 1.0


def test_a_full_server_refuses_replaces_its_front_desk_and_stops_gracefully(world: World, tmp_path: Path) -> None:
    options = {"limits": LIMITS, "workers": 1, "connections": 2, "queue_seconds": 0.1}
    with world.another_server(tmp_path / "state", **options) as server:
        with world.welcomed(server), world.welcomed(server), pytest.raises(ServerBusy, match=r"too many|as many"):
            world.welcomed(server)
        pid = server.process.pid
        desk, *_ = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        os.kill(desk, signal.SIGKILL)
        server.logged("died and is replaced", name="front desk")
        with world.client(tmp_path, server) as client:
            client.prepare(2)
            after_rounds(client, 20, server.process.terminate)
            (answer,) = client.classify(["the film is good"])  # what was begun is finished
            assert world.right(answer.logits, "the film is good")
        assert server.process.wait(PATIENCE) == 0
        with pytest.raises(PeerClosed, match="nobody listens"):
            world.client(tmp_path, server).connect()


def test_a_port_in_use_and_a_dealer_that_is_down(world: World, tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"ConfigurationError.*choose another"),
        server_process(world.keys, world.checkpoint, 1, tmp_path / "a", port=world.server.port),
    ):
        pass
    hasty = {**LIMITS, "dealer_seconds": 0.1}
    with server_process(world.keys, world.checkpoint, 1, tmp_path / "b", limits=hasty, workers=1) as server:
        with (
            world.client(tmp_path, server) as client,
            pytest.raises(PeerClosed, match="dealer"),
        ):
            client.classify(["good"])
        server.logged("dealer cannot be reached")


def test_ready_is_not_said_for_a_bundle_that_the_server_has_not_got(world: World) -> None:
    plan = world.programs.plan(1, 16)
    with world.welcomed() as channel:
        say(channel, Run("ab" * 16, 1, 16, plan.digest))
        with pytest.raises(Exception, match="spent or was never stored") as caught:
            expect(channel, Ready)
        assert type(caught.value).__name__ == "RandomnessSpent"
