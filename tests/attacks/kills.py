"""Kills of every process at random moments: is a bundle ever used twice, is an answer wrong, does a restart succeed?

    PYTHONPATH=tests python tests/attacks/kills.py --kills 100 --json FILE

Both sides write down the bundles that they use: the server in its log, the client before it names one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from comet_mpc.models.served import ServedModel
from comet_mpc.net.authority import make_test_set
from comet_mpc.offline.sources import DEALER
from comet_mpc.service.programs import Programs
from support.noting_client import PROGRAM
from support.processes import ServerProcess, World, dealer_process, server_process
from support.siege import TEXT, Outcome, main, median
from support.toy_model import TINY, make_checkpoint
from support.waiting import PATIENCE, within

_TARGETS = ("server", "front desk", "connection", "dealer", "client")


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    return []


def _victim(target: str, server: int, dealer: int, client: int) -> int | None:
    desk, *_ = _children(server) or [0]
    match target:
        case "server":
            return server
        case "front desk":
            return desk or None
        case "connection":
            return next(iter(_children(desk)), None) if desk else None
        case "dealer":
            return dealer
    return client


class _Field:
    """The processes, which are started again when they were killed."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.keys = directory, directory / "keys"
        make_test_set(self.keys)
        self.checkpoint = make_checkpoint(directory / "model", **TINY)
        self.restarts: list[float] = []
        self.logs: list[ServerProcess] = []
        self._notes: list[dict[str, object]] = []
        self._read = 0
        self._dealer, self._server = contextlib.ExitStack(), contextlib.ExitStack()
        self.start_dealer()
        self.server = self.start_server()
        self.client = self.start_client()

    def start_dealer(self) -> None:
        self._dealer.close()
        self.dealer, (_, self.dealer_port) = self._dealer.enter_context(dealer_process(self.keys))

    def start_server(self, port: int = 0) -> ServerProcess:
        self._server.close()
        begun = time.monotonic()
        state, limits = self.directory / "state", {"dealer_seconds": 1.0, "stall_seconds": 60.0}
        made = server_process(self.keys, self.checkpoint, self.dealer_port, state, port=port, limits=limits, workers=2)
        server = self._server.enter_context(made)
        self.restarts.append(time.monotonic() - begun)
        self.logs.append(server)
        return server

    def start_client(self) -> subprocess.Popen[bytes]:
        places = (str(self.keys), "client", str(self.directory / "cache"), str(self.directory / "notes"))
        command = [sys.executable, str(PROGRAM), self.server.address, *places, "--text", TEXT]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def restart(self, target: str) -> None:
        if target == "dealer":
            self.start_dealer()
            self.server.process.terminate()  # the dealer has another port now
            target = "server"
        if target == "server":
            self.server.process.wait(PATIENCE)
            self.server = self.start_server(self.server.port)
        if target == "client":
            self.client.wait(PATIENCE)
            self.client = self.start_client()

    def notes(self) -> list[dict[str, object]]:
        """All that the clients have written down; what was killed in the middle of a line is none."""
        path = self.directory / "notes"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                lines = file.read().splitlines(keepends=True)
            for line in lines:
                if line.endswith(b"\n"):
                    self._read += len(line)
                    with contextlib.suppress(ValueError):
                        self._notes.append(json.loads(line))
        return self._notes

    def close(self) -> None:
        self.client.kill()
        self.client.wait()
        self._server.close()
        self._dealer.close()


def kills(kills: int, seed: int, seconds: int = 3600) -> Outcome:
    """A client asks again and again, with a server and a dealer; any of their processes is killed, kills in all.

    seconds: no further kills after that
    """
    dice, done, until = random.Random(seed), Counter[str](), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="comet-") as name:
        field = _Field(Path(name))
        model = ServedModel.load(field.checkpoint)
        world = World(field.keys, field.checkpoint, model, Programs(model, DEALER), Path(name), 0, field.server)

        def answers() -> int:
            return sum("logits" in note for note in field.notes())

        try:
            while done.total() < kills and time.monotonic() < until:
                seen, target = answers(), dice.choice(_TARGETS)
                within(PATIENCE, lambda seen=seen: answers() > seen)  # type: ignore[misc]
                time.sleep(dice.uniform(0.0, 0.5))
                victim = _victim(target, field.server.process.pid, field.dealer.pid, field.client.pid)
                if victim is None:
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                done[target] += 1
                field.restart(target)
            seen = answers()
            alive = bool(within(PATIENCE, lambda: answers() > seen))
            notes = field.notes()
        finally:
            field.close()
        consumed = [event["bundle"] for log in field.logs for event in log.events() if "bundle" in event]
        named = [note["named"] for note in notes if "named" in note]
        logits = [note["logits"] for note in notes if "logits" in note]
        return {
            "killed": dict(done),
            "answers": len(logits),
            "wrong": sum(not world.right(tuple(one), TEXT) for one in logits),  # type: ignore[arg-type]
            "consumed by the server": len(consumed),
            "consumed twice": len(consumed) - len(set(consumed)),
            "named by the client": len(named),
            "named twice": len(named) - len(set(named)),
            "consumed and never named": len(set(consumed) - set(named)),
            "serves at the end": alive,
            "server starts": len(field.restarts),
            "restart seconds": {"median": round(median(field.restarts), 2), "most": round(max(field.restarts), 2)},
        }


if __name__ == "__main__":
    main(kills, kills=100, seed=1, seconds=3600)
