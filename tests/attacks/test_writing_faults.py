"""Either side is killed between two tokens of a decoder's text: no mask is used twice, and the text can go on.

Masks belong to positions of a bundle, and a bundle to one conversation: so it is enough that no bundle is begun twice.
Both sides write down which ones they use.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from comet_mpc.models.writing.stored import load_decoder
from comet_mpc.models.writing.twin import written_by_twin
from support.processes import ServerProcess, server_process
from support.small_writers import LLAMA, write_small
from support.waiting import PATIENCE, eventually
from support.writing_client import PROGRAM

pytestmark = pytest.mark.service

PROMPT, COUNT, BEFORE = "abc hi", 8, 3


class _Writer:
    """A client as a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.notes = process, list[dict[str, Any]]()

    def next(self, what: str) -> Any:
        """The next note of this kind."""
        assert self.process.stdout is not None
        while what not in (note := json.loads(self.process.stdout.readline())):
            self.notes.append(note)
        self.notes.append(note)
        return note[what]

    def go_on(self) -> None:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)

    def tokens(self, count: int) -> list[int]:
        found = []
        for _ in range(count):
            found.append(self.next("token"))
            self.go_on()
        return found

    def named(self) -> list[str]:
        return [note["named"] for note in self.notes if "named" in note]


@contextmanager
def _writer(server: ServerProcess, keys: Path, cache: Path, count: int, prompt: str) -> Iterator[_Writer]:
    command = [sys.executable, str(PROGRAM), server.address, str(keys), str(cache), str(count), prompt]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parent.parent)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            yield _Writer(process)
        finally:
            process.kill()


def _consumed(*servers: ServerProcess) -> list[str]:
    return [event["bundle"] for server in servers for event in server.events() if "bundle" in event]


@pytest.mark.parametrize("victim", ["server", "client"])
def test_no_mask_is_used_twice_whoever_is_killed_between_two_tokens(
    victim: str, tmp_path: Path, keys: Path, shared_dealer: int
) -> None:
    checkpoint = write_small(tmp_path / "writer", LLAMA, tied=False, seed=1)
    model = load_decoder(checkpoint)
    expected, prompt = [*written_by_twin(model, PROMPT, COUNT)], model.prompt(PROMPT)
    place: dict[str, Any] = {"keys": keys, "model": checkpoint, "dealer": shared_dealer, "state": tmp_path / "state"}
    with server_process(**place, workers=2) as server:
        with _writer(server, keys, tmp_path / "cache", COUNT, PROMPT) as first:
            found = [*first.tokens(BEFORE), first.next("token")]
            os.kill((server if victim == "server" else first).process.pid, signal.SIGKILL)
            if victim == "server":
                first.go_on()
                assert first.next("stopped") == [*prompt, *found]
        assert found == expected[: BEFORE + 1]
        if victim == "server":
            server.process.wait(PATIENCE)
        again = server_process(**place, workers=2, port=server.port) if victim == "server" else _same(server)
        with (
            again as other,
            _writer(other, keys, tmp_path / "cache", COUNT - len(found), json.dumps([*prompt, *found])) as second,
        ):
            assert found + second.tokens(COUNT - len(found)) == expected
            second.process.wait(PATIENCE)
            logs = {server, other}
            eventually(lambda: len(_consumed(*logs)) >= 2)
    named, consumed = first.named() + second.named(), _consumed(*logs)
    assert len(named) == len(set(named)) == 2
    assert sorted(consumed) == sorted(named)


@contextmanager
def _same(server: ServerProcess) -> Iterator[ServerProcess]:
    yield server
