"""What the sieges share: programs that lay many clients, strangers or faults on a real service, and count what happens.

Each is bounded in time, prints its counts and, with --json, keeps them. Tests run a short form of each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from comet_mpc.errors import CometError
from comet_mpc.net.authority import issue, make_test_set
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.service.client import Client
from support.processes import World, running_world
from support.toy_model import TINY, make_checkpoint

__all__ = ["TEXT", "Outcome", "ask", "at_once", "besieged", "bounded", "judged", "main", "median"]

TEXT = "the film is good"
Outcome = dict[str, Any]


@contextlib.contextmanager
def besieged(
    *, with_dealer: bool, clients: int = 1, model: str = "tiny", limits: dict[str, Any] | None = None, **more: Any
) -> Iterator[World]:
    """A server, and a dealer if there is to be one, with certificates for clients 0, 1, 2, …"""
    with tempfile.TemporaryDirectory(prefix="comet-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        make_test_set(directory / "keys")
        for number in range(clients):
            issue(directory / "keys", f"client-{number}", "client")
        if model == "demo":
            checkpoint = stack.enter_context(as_file(files("comet_mpc") / "data" / "demo_model"))
        else:
            checkpoint = make_checkpoint(directory / "model", **TINY)
        options = {"with_dealer": with_dealer, "limits": limits or {}, **more}
        yield stack.enter_context(running_world(directory / "keys", checkpoint, directory / "state", **options))


def ask(world: World, number: int, cache: Path, timeout: float = 120.0) -> Outcome:
    """One client with its own certificate, from nothing to its answer. `judged` tells whether that is right."""
    begun = time.monotonic()
    try:
        identity = TlsIdentity.find(world.keys, f"client-{number}")
        with Client(world.server.address, identity=identity, cache=cache, ready=0, timeout=timeout) as client:
            (found,) = client.classify([TEXT])
    except CometError as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begun}
    return {"logits": found.logits, "seconds": time.monotonic() - begun}


def judged(world: World, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same, with "right" where there are logits: apart, because that takes time too."""
    return [one | {"right": world.right(one["logits"], TEXT)} if "logits" in one else one for one in outcomes]


def _work(pipe: Any, begin: Any, job: Callable[[int], Outcome], number: int) -> None:
    begin.wait()
    pipe.send(job(number))
    pipe.close()
    os._exit(0)


def at_once(job: Callable[[int], Outcome], count: int, patience: float) -> list[Outcome]:
    """The job in so many processes at the same moment."""
    context: Any = multiprocessing.get_context("fork")
    begin, running = context.Event(), []
    for number in range(count):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(theirs, begin, job, number), daemon=True)
        process.start()
        theirs.close()
        running.append((process, ours))
    begin.set()
    outcomes: list[Outcome] = []
    until = time.monotonic() + patience
    for process, ours in running:
        try:
            outcomes.append(ours.recv() if ours.poll(max(0.0, until - time.monotonic())) else {"error": "hang"})
        except EOFError:
            outcomes.append({"error": "died"})
        process.kill()
        process.join()
    return outcomes


def bounded(job: Callable[[], Outcome], seconds: float) -> Outcome:
    """What the job gives, or that it hangs."""
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.append(job()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else {"error": "hang"}


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def main(siege: Callable[..., Outcome], **defaults: int | str) -> None:
    """Runs it with the options of the command line, prints its counts, and keeps them."""
    parser = argparse.ArgumentParser(description=siege.__doc__)
    parser.add_argument("--json", type=Path)
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = vars(parser.parse_args())
    kept = options.pop("json")
    begun, load = time.monotonic(), os.getloadavg()[0]
    counts = {**options, **siege(**options), "seconds": round(time.monotonic() - begun, 1)}
    counts["load before and after"] = [round(load, 2), round(os.getloadavg()[0], 2)]
    text = json.dumps(counts, indent=1)
    print(text)
    if kept is not None:
        kept.write_text(text + "\n")
