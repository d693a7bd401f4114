"""A real Ray cluster of several nodes on loopback, and `comet serve --cluster` on it.

Each node has an address of its own (127.0.0.2, 127.0.0.3, …) and processes of its own, as machines would.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE, eventually

__all__ = ["ClusterServer", "RayCluster", "cluster_server", "ray_cluster"]

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# on a busy machine a node takes long to start
os.environ.setdefault("RAY_raylet_start_wait_time_s", "600")
cluster_utils = pytest.importorskip(
    "ray.cluster_utils", reason="ray is not installed: pip install 'comet-mpc[cluster]'"
)

_NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}


class RayCluster:
    """node 0 is the head, beside which the front runs; it serves as well, unless it has no core."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address
        self._nodes: dict[str, Any] = {}

    def add(self, number: int) -> str:
        """Another node; its address."""
        address = f"127.0.0.{2 + number}"
        self._nodes[address] = self._cluster.add_node(node_ip_address=address, **_NODE)
        return address

    def kill(self, address: str) -> None:
        """All processes of a node end at once, as when its machine is switched off."""
        node = self._nodes.pop(address)
        for pid in _descendants(node.all_processes["raylet"][0].process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)


def _descendants(pid: int) -> list[int]:
    """A process and all that it has started, the first one first."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


@contextlib.contextmanager
def ray_cluster(nodes: int, head_cpus: int = 0) -> Iterator[RayCluster]:
    """A head, and so many nodes beside it."""
    head = {**_NODE, "num_cpus": head_cpus, "node_ip_address": "127.0.0.2"}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        found = RayCluster(cluster)
        for number in range(1, nodes + 1):
            found.add(number)
        yield found
    finally:
        cluster.shutdown()


class ClusterServer:
    """The process of `comet serve --cluster`, where it listens, and its log, which has those of its nodes."""

    counts: Path
    """Where all nodes count the queries of a day, if they were told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.wait(PATIENCE)
            self._reader.join(PATIENCE)
            raise AssertionError(f"the server did not start: {self.log[-3:]}")
        self.address = line.split()[2].rstrip(",")
        self.metrics = process.stdout.readline().split()[-1]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.log.append({"event": line})

    def events(self, text: str) -> list[dict[str, Any]]:
        return [event for event in list(self.log) if text in event["event"]]

    def logged(self, text: str, times: int = 1) -> dict[str, Any]:
        found = eventually(lambda: self.events(text)[times - 1 :], f"the server never said {text!r}: {self.log[-5:]}")
        return found[0]


@contextlib.contextmanager
def cluster_server(
    cluster: RayCluster, checkpoint: Path, keys: Path, state: Path, *more: str
) -> Iterator[ClusterServer]:
    options = ["--untrained", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    options += ["--keys", str(keys), "--state", str(state), "--cluster", cluster.address, *more]
    command = [sys.executable, "-c", "from comet_mpc.cli.start import run; run()", "serve", str(checkpoint), *options]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield ClusterServer(process)
        finally:
            process.terminate()
            process.wait(PATIENCE)
