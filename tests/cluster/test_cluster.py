"""`comet serve --cluster` on a real Ray cluster of two nodes on loopback. Skipped where ray is not installed."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from comet_mpc.models.served import ServedModel
from comet_mpc.net.authority import issue
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.service.client import Client, ClientOptions
from support.processes import TWIN_BOUND
from support.ray_nodes import ClusterServer, RayCluster, cluster_server, ray_cluster
from support.toy_model import some_texts, twin_logits
from support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.service

register_pickle_by_value = pytest.importorskip("ray.cloudpickle").register_pickle_by_value
spread_clients = pytest.importorskip("comet_mpc.cluster.asking").spread_clients

TEXT = "the film is good"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(2) as found:
        yield found


@pytest.fixture(scope="module")
def server(
    cluster: RayCluster, tiny_checkpoint: Path, keys: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterServer]:
    directory = tmp_path_factory.mktemp("cluster")
    options = ("--min-nodes", "2", "--workers", "1", "--queries-per-day", "100", "--queries-in", directory / "counts")
    with cluster_server(cluster, tiny_checkpoint, keys, directory / "state", *map(str, options)) as found:
        found.counts = directory / "counts"
        yield found


def client(server: ClusterServer, keys: Path, cache: Path, name: str = "client", **more: Any) -> Client:
    identity = TlsIdentity.find(keys, name)
    return Client(server.address, identity=identity, cache=cache, **{"ready": 0, "timeout": PATIENCE, **more})


def right(found: tuple[float, ...], model: ServedModel) -> bool:
    return bool(np.max(np.abs(np.array(found) - twin_logits(model, model.encode([TEXT]))[0])) < TWIN_BOUND)


def node_of(server: ClusterServer, text: str, times: int) -> str:
    """Where something happened that is logged the so-many-th time."""
    return str(server.logged(text, times)["node"])


def figures(server: ClusterServer) -> dict[str, float]:
    with urlopen(server.metrics, timeout=PATIENCE) as page:
        lines = page.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_clients_are_spread_and_come_back_to_their_bundles(
    server: ClusterServer, keys: Path, tiny_model: ServedModel, tmp_path: Path
) -> None:
    with client(server, keys, tmp_path / "a") as one, client(server, keys, tmp_path / "b") as other:
        assert right(one.classify([TEXT])[0].logits, tiny_model)
        first = node_of(server, "answered", 1)
        assert right(other.classify([TEXT])[0].logits, tiny_model)
        assert node_of(server, "answered", 2) != first, "a node with less to do takes the second client"
        assert one.prepare(2, warm=False) == 2
    for times in (3, 4):
        with client(server, keys, tmp_path / "a") as again:
            assert again.prepared() == 5 - times
            cost = again.classify([TEXT])[0].cost
            assert node_of(server, "answered", times) == first
    (count,) = server.counts.glob("*.json")
    assert json.loads(count.read_text())["texts"] == 4, "the nodes count together"
    found = figures(server)
    assert found["comet_nodes"] == 2
    assert found["comet_relayed_bytes_total"] > 2 * cost.online_bytes
    assert len([name for name in found if name.startswith("comet_node_places")]) == 2


def test_of_one_model_the_public_part_is_downloaded_once(server: ClusterServer, keys: Path, tmp_path: Path) -> None:
    """Although every node has a secret, and so a state, of its own."""
    for times in range(2):
        with client(server, keys, tmp_path) as one, client(server, keys, tmp_path) as other:
            one.connect()
            other.connect()
        states = {path.parent.name for path in tmp_path.glob("*/package")}
        assert len(states) <= 2
        if times:
            assert len({path.stat().st_ino for path in tmp_path.glob("*/package")}) == 1


def test_all_nodes_load_their_models_again(server: ClusterServer, keys: Path, tmp_path: Path) -> None:
    server.process.send_signal(signal.SIGHUP)
    nodes = {server.logged("the models were loaded again", times)["node"] for times in (1, 2)}
    assert len(nodes) == 2
    with client(server, keys, tmp_path) as one:
        assert one.classify([TEXT])


def test_more_nodes_serve_when_requests_wait_and_fewer_when_nobody_comes(
    cluster: RayCluster, tiny_checkpoint: Path, keys: Path, tmp_path: Path
) -> None:
    """And a node that serves no more is woken by the client whose bundles it has."""
    shutil.copytree(keys, tmp_path / "keys")
    names = [f"client-{number}" for number in range(4)]
    for name in names:
        issue(tmp_path / "keys", name, "client")
    options = ("--max-nodes", "2", "--workers", "1", "--idle-minutes", "0.02")
    with cluster_server(cluster, tiny_checkpoint, tmp_path / "keys", tmp_path / "state", *options) as server:
        assert figures(server)["comet_nodes"] == 1
        stop, ready = threading.Event(), dict[str, int]()

        def ask(name: str) -> None:
            with client(server, tmp_path / "keys", tmp_path / name, name) as one:
                while not stop.is_set() or not ready.get(name):
                    ready[name] = one.prepare(one.prepared() + 1, warm=False)

        threads = [threading.Thread(target=ask, args=[name], daemon=True) for name in names]
        for thread in threads:
            thread.start()
        try:
            server.logged("a node serves", 2)
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert len(ready) == len(names)
        asleep = server.logged("a node is not needed")["node"]
        eventually(lambda: figures(server)["comet_nodes"] == 1)
        woken = False
        for name in names:  # whichever of them has its bundles there
            with client(server, tmp_path / "keys", tmp_path / name, name) as one:
                assert one.prepared() == ready[name]
                one.classify([TEXT])
            woken = woken or any(event["node"] == asleep for event in server.events("a node serves")[2:])
        assert not server.events("a node is lost")
        assert woken or all(event["node"] != asleep for event in server.events("prepared a bundle"))


COMET = [sys.executable, "-c", "from comet_mpc.cli.start import run; run()"]


def test_a_file_is_asked_for_by_clients_on_the_nodes(
    cluster: RayCluster, server: ClusterServer, keys: Path, tiny_model: ServedModel, tmp_path: Path
) -> None:
    """In the test the cluster of the client is that of the server; who cares for privacy has two."""
    texts = [f"the {' '.join(words)} film" for words in itertools.product(("good", "bad", "dull"), ("and", "or"))]
    (tmp_path / "in.csv").write_text("text\n" + "\n".join(texts) + "\n")
    options = ["--csv", tmp_path / "in.csv", "--column", "text", "--out", tmp_path / "out.csv", "--keys", keys]
    options += ["--cache", tmp_path / "cache", "--batch", "2", "--cluster", cluster.address, "--clients", "2"]
    subprocess.run([*COMET, "query", server.address, *map(str, options)], check=True, timeout=PATIENCE * 2)
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == texts
    for text, row in zip(texts, rows, strict=True):
        wanted = twin_logits(tiny_model, tiny_model.encode([text]))[0]
        probability = np.exp(wanted).max() / np.exp(wanted).sum()
        assert abs(float(row["probability"]) - probability) < TWIN_BOUND


class Mortal:
    """A client that is lost when it is first asked, wherever it is."""

    def __init__(self, marks: str, options: ClientOptions) -> None:
        self._marks = Path(marks)

    def ask(self, texts: list[str]) -> list[Any]:
        mark = self._marks / str(len(list(self._marks.iterdir())))
        if mark.name in "01":
            mark.touch()
            os._exit(1)
        return [f"{text}!" for text in texts]


def test_what_a_lost_client_was_asked_another_one_answers(
    cluster: RayCluster, tiny_model: ServedModel, tmp_path: Path
) -> None:
    register_pickle_by_value(sys.modules[__name__])
    texts, told = some_texts(7), dict[int, Any]()
    with spread_clients(cluster.address, 2, tiny_model, Mortal, str(tmp_path), {"batch": 2}) as clients:
        found = clients.ask(texts, told=told.__setitem__)
    assert found == [f"{text}!" for text in texts] == [told[place] for place in range(7)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"], "two were lost"


def test_a_data_set_is_evaluated_on_the_nodes(cluster: RayCluster, tiny_checkpoint: Path, tmp_path: Path) -> None:
    rows = "".join(f"{text}\t{number % 2}\n" for number, text in enumerate(some_texts(6)))
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + rows)
    options = ["--data", tmp_path, "--secure", "--cluster", cluster.address, "--clients", "2", "--json", "-"]
    command = [*COMET, "eval", str(tiny_checkpoint), *map(str, options)]
    found = subprocess.run(command, check=True, timeout=PATIENCE * 2, capture_output=True, text=True)
    report = json.loads(found.stdout)
    assert (report["examples"], report["source"], report["runs"]) == (6, "pair", 2)
    assert report["logit_difference"]["largest"] < 0.1


def test_what_is_wrong_on_a_node_is_said(
    cluster: RayCluster, tiny_checkpoint: Path, keys: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    with (
        pytest.raises(AssertionError, match="did not start") as caught,
        cluster_server(cluster, tmp_path / "model", keys, tmp_path / "state", "--workers", "1"),
    ):
        pass
    assert "127.0.0." in str(caught.value)
    assert "config.json" in str(caught.value)
