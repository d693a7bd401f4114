"""A gateway as its owner starts it: a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.waiting import PATIENCE

PROGRAM = [sys.executable, "-c", "from comet_mpc.cli.start import run; run()"]


@dataclass(frozen=True)
class Gateway:
    process: subprocess.Popen[str]
    url: str
    token_file: Path

    @property
    def header(self) -> dict[str, str]:
        """What shows its token."""
        name, _, value = self.token_file.read_text().strip().partition(": ")
        return {name.lower(): value}

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, headers=self.header, **options)

    def connect(self) -> socket.socket:
        """A raw connection."""
        url = httpx.URL(self.url)
        return socket.create_connection((url.host, url.port or 80), PATIENCE)


@contextlib.contextmanager
def gateway_process(server: str, keys: Path, cache: Path, *more: str) -> Iterator[Gateway]:
    """At a free port of loopback, unless `more` says otherwise."""
    options = ["--listen", "127.0.0.1:0", "--keys", str(keys), "--cache", str(cache), "--ready", "0", *more]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*PROGRAM, "gateway", server, *options], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[2]
            yield Gateway(process, url, cache / "gateway.token")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
