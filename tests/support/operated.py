"""`comet serve` as an operator runs it: models in directories, new versions of them, SIGHUP."""

from __future__ import annotations

import contextlib
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

from support.waiting import PATIENCE, eventually

__all__ = ["Running", "put", "serving"]


class Running:
    """`comet serve`, with models in a directory: what it printed and logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.log = process, list[dict[str, Any]]()
        assert process.stdout is not None
        threading.Thread(target=self._read, daemon=True).start()
        line = process.stdout.readline()
        assert line, self.log
        self.address = line.split(" at ")[1].split(",")[0]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(json.loads(line) if line.startswith("{") else {"event": line})

    def logged(self, text: str, times: int = 1) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            fitting = [event for event in list(self.log) if text in event["event"]]
            return fitting if len(fitting) >= times else []

        return eventually(found, f"never logged {text!r}: {self.log}")[-1]

    def reload(self, times: int = 1) -> None:
        self.process.send_signal(signal.SIGHUP)
        self.logged("loaded again", times)


@contextlib.contextmanager
def serving(keys: Path, state: Path, *models: str, workers: int = 2, dealer: int | None = None) -> Iterator[Running]:
    """dealer: the port of one"""
    options = ["--untrained", "--listen", "127.0.0.1:0", "--keys", str(keys), "--state", str(state)]
    command = [sys.executable, "-c", "from comet_mpc.cli.start import run; run()", "serve", *models, *options]
    command += ["--workers", str(workers), *([] if dealer is None else ["--dealer", f"127.0.0.1:{dealer}"])]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield Running(process)
        finally:
            process.terminate()
            process.wait(PATIENCE)


def put(checkpoint: Path, place: Path) -> None:
    """A checkpoint in the place of another one: the whole directory at once."""
    beside = place.with_name(f"{place.name}.new")
    shutil.copytree(checkpoint, beside)
    if place.exists():
        place.rename(place.with_name(f"{place.name}.{len(list(place.parent.iterdir()))}"))
    beside.rename(place)
