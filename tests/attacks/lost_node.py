"""A node of a cluster is killed while clients ask: is every query answered, and is any bundle used twice?

    PYTHONPATH=tests python tests/attacks/lost_node.py --queries 50 --json FILE

Several clients ask a server on two nodes of a real Ray cluster on loopback. When a part of the answers is there, and a
node has consumed a bundle whose run is not done, all processes of that node are killed at once. (If no such moment is
seen before two thirds are there, those of the node that has answered most.) Every client asks each question until it is
answered, and notes the bundles that it names, its errors and its waits; each node has a log of the bundles that it has
consumed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from comet_mpc.models.served import ServedModel
from comet_mpc.net.authority import issue, make_test_set
from support.noting_client import PROGRAM
from support.processes import World
from support.ray_nodes import cluster_server, ray_cluster
from support.siege import TEXT, Outcome, main, median
from support.toy_model import TINY, make_checkpoint
from support.waiting import within

_PATIENCE = 540.0


def _notes(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _events(state: Path) -> dict[str, list[dict[str, Any]]]:
    """What the servers of each node have logged, by the node's directory; also those of one that was killed."""
    return {path.parent.name: _notes(path) for path in sorted(state.glob("node-*/server.log"))}


def lost_node(queries: int, clients: int, timeout: int, model: str) -> Outcome:
    """Clients ask so many queries in all, a server on two nodes, of which one is killed when a third is answered."""
    with tempfile.TemporaryDirectory(prefix="comet-") as name, ray_cluster(2) as cluster:
        directory = Path(name)
        keys, state = directory / "keys", directory / "state"
        make_test_set(keys)
        bundled = Path(str(files("comet_mpc") / "data" / "demo_model"))
        checkpoint = bundled if model == "demo" else make_checkpoint(directory / "model", **TINY)
        shares = [len(range(number, queries, clients)) for number in range(clients)]
        with cluster_server(cluster, checkpoint, keys, state, "--min-nodes", "2", "--workers", "2") as server:
            running = []
            for number, share in enumerate(shares):
                issue(keys, f"client-{number}", "client")
                places = (
                    str(keys),
                    f"client-{number}",
                    str(directory / f"cache-{number}"),
                    f"{directory}/notes-{number}",
                )
                options = ("--text", TEXT, "--queries", str(share), "--timeout", str(timeout))
                running.append(subprocess.Popen([sys.executable, str(PROGRAM), server.address, *places, *options]))
            try:

                def in_the_middle() -> str:
                    """The node that is to be killed now."""
                    events = _events(state)
                    answered = Counter({node: _count(one, "answered") for node, one in events.items()})
                    if 3 * answered.total() < queries:
                        return ""
                    middle = [node for node, one in events.items() if _unfinished(one)]
                    late = 3 * answered.total() >= 2 * queries  # a run takes moments: one may not have been seen
                    return middle[0] if middle else answered.most_common(1)[0][0] if late else ""

                victim = within(_PATIENCE, in_the_middle)
                assert victim, "a third of the queries was not answered"
                served = {event["node"].partition("/")[2]: event["node"] for event in server.events("a node serves")}
                killed = time.time()
                cluster.kill(served[victim].partition("/")[0])
                ends = [one.wait(_PATIENCE) for one in running]
            finally:
                for one in running:
                    one.kill()
                    one.wait()
            known = _moment(server.logged("a node is lost"))
        notes = [_notes(directory / f"notes-{number}") for number in range(clients)]
        events = _events(state)
        world: Any = World(keys, checkpoint, ServedModel.load(checkpoint), None, state, None, None)  # type: ignore[arg-type]
        later = [[note["at"] for note in own if "logits" in note and note["at"] > killed] for own in notes]
        return {
            "clients ended with": ends,
            "answered by the node that was killed": _count(events[victim], "answered"),
            "runs that were cut off with it": len(_unfinished(events[victim])),
            "seconds until Ray told the front": round(known - killed, 2),
            "seconds until every client had an answer again": round(
                max(min(own, default=killed) for own in later) - killed, 2
            ),
            **_counts([note for own in notes for note in own], events, world),
        }


def _unfinished(events: list[dict[str, Any]]) -> set[str]:
    """Clients whose bundle is consumed and whose run is not done."""
    begun = Counter(event["client"] for event in events if event["event"] == "a bundle is consumed")
    return set((begun - Counter(event["client"] for event in events if event["event"] == "answered")).keys())


def _moment(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def _count(events: list[dict[str, Any]], text: str) -> int:
    return sum(event["event"] == text for event in events)


def _counts(notes: list[dict[str, Any]], events: dict[str, list[dict[str, Any]]], world: World) -> Outcome:
    answers = [note for note in notes if "logits" in note]
    named = [note["named"] for note in notes if "named" in note]
    consumed = [event["bundle"] for log in events.values() for event in log if "bundle" in event]
    waits = [note["seconds"] for note in answers]
    return {
        "answers": len(answers),
        "wrong": sum(not world.right(tuple(one["logits"]), TEXT) for one in answers),
        "errors that clients saw, and asked again": dict(Counter(note["error"] for note in notes if "error" in note)),
        "named by clients": len(named),
        "named twice": len(named) - len(set(named)),
        "consumed by nodes": len(consumed),
        "consumed twice": len(consumed) - len(set(consumed)),
        "consumed and never named": len(set(consumed) - set(named)),
        "seconds to an answer": {"median": round(median(waits), 2), "most": round(max(waits), 2)},
    }


if __name__ == "__main__":
    main(lost_node, queries=50, clients=4, timeout=20, model="tiny")
