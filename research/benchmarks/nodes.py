"""One, two, … nodes of a Ray cluster on this machine: what clients get, what waits, and what the front costs.

    PYTHONPATH=tests python research/benchmarks/nodes.py [--nodes 1 2] [--clients 4] [--queries 6] [--json FILE]

Every node has one place. The clients prepare and ask, all at once, each with its own certificate. Several times a
second the metrics of the front tell how many requests wait on each node and how many of its places are in use. All
nodes share this machine's cores, so seconds say little about machines; bytes, queues and the front's CPU time do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.resources import files
from pathlib import Path
from urllib.request import urlopen

from comet_mpc.net.authority import issue, make_test_set
from support.noting_client import PROGRAM
from support.ray_nodes import ClusterServer, RayCluster, cluster_server, ray_cluster
from support.siege import TEXT, Outcome

MODEL = Path(str(files("comet_mpc") / "data" / "demo_model"))
PAUSE = 0.25


def figures(server: ClusterServer) -> dict[str, dict[str, float]]:
    """By name and node; the node is empty where there is none."""
    found: dict[str, dict[str, float]] = {}
    with urlopen(server.metrics, timeout=60.0) as page:
        for line in page.read().decode().splitlines():
            if not line.startswith("#"):
                name, _, rest = line.rpartition(" ")[0].partition("{")
                found.setdefault(name, {})[rest] = float(line.rpartition(" ")[2])
    return found


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(cluster: RayCluster, nodes: int, clients: int, queries: int, directory: Path) -> Outcome:
    keys = directory / "keys"
    make_test_set(keys)
    options = ("--min-nodes", str(nodes), "--max-nodes", str(nodes), "--workers", "1")
    waiting, idle, samples = 0.0, 0, 0
    with cluster_server(cluster, MODEL, keys, directory / "state", *options) as server:
        pid, begun = server.process.pid, time.monotonic()
        cpu, before = cpu_seconds(pid), figures(server)["comet_relayed_bytes_total"][""]
        running = []
        for number in range(clients):
            name = f"client-{number}"
            issue(keys, name, "client")
            places = (
                server.address,
                str(keys),
                name,
                str(directory / f"cache-{number}"),
                f"{directory}/notes-{number}",
            )
            given = ("--text", TEXT, "--queries", str(queries), "--ready", "0", "--timeout", "120")
            running.append(subprocess.Popen([sys.executable, str(PROGRAM), *places, *given]))
        try:
            while any(one.poll() is None for one in running):
                time.sleep(PAUSE)
                now = figures(server)
                samples += 1
                waiting += sum(now["comet_node_waiting"].values())
                free = sum(now["comet_node_places"].values()) - sum(now["comet_node_working"].values())
                idle += bool(free > 0 and sum(now["comet_node_waiting"].values()))
        finally:
            for one in running:
                one.kill()
        seconds = time.monotonic() - begun
        passed = figures(server)["comet_relayed_bytes_total"][""] - before
        cpu = cpu_seconds(pid) - cpu
    answered = Counter(event["node"] for event in server.events("answered"))
    notes = [json.loads(line) for path in directory.glob("notes-*") for line in path.read_text().splitlines()]
    return {
        "nodes": nodes,
        "answers": sum("logits" in note for note in notes),
        "errors": sum("error" in note for note in notes),
        "answers by node": sorted(answered.values()),
        "seconds": round(seconds, 1),
        "bytes passed on": int(passed),
        "CPU seconds of the front": round(cpu, 2),
        "CPU seconds of the front for a GB": round(cpu / passed * 1e9, 2),
        "requests that wait, on average": round(waiting / samples, 2),
        "share of moments with an idle place while a request waits": round(idle / samples, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--queries", type=int, default=6, help="of each client")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with ray_cluster(max(given.nodes)) as cluster:
        runs = []
        for nodes in given.nodes:
            with tempfile.TemporaryDirectory(prefix="comet-") as name:
                runs.append(measure(cluster, nodes, given.clients, given.queries, Path(name)))
    record = {"clients": given.clients, "queries of each": given.queries, "model": "demo", "runs": runs}
    text = json.dumps({**record, "load before and after": [round(load, 2), round(os.getloadavg()[0], 2)]}, indent=1)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
