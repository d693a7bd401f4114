"""The host: what Ray runs on a node. It starts the node's server as a process of its own, and looks after it.

    STATE/node-0/       of the first host on this machine; a second one takes node-1, and so on
        lock            held while it is in use
        server.log      what the server says, collected by whoever asks `look`
        …               the state of a server: its secret, and the bundles that were prepared on this node

A host that restarts on the same machine finds its bundles. The directory is never shared: a lock keeps others out
while any process of the server is running.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import msgspec

from comet_mpc.cluster.node_server import Order, Started
from comet_mpc.errors import ConfigurationError, PeerError
from comet_mpc.net.sockets import Address
from comet_mpc.service.hosting.blueprint import Blueprint
from comet_mpc.service.hosting.lookout import Load

_LOOK_SECONDS = 10.0  # as long as the fleet waits for it
_STOP_SECONDS = 45.0
_MOST_SAID = 1 << 20  # bytes of the log that are told at a time
_LARGEST_LOG = 1 << 24  # then what was told is removed


class Seen(msgspec.Struct, frozen=True):
    load: Load
    log: bytes
    """Whole lines, since the last look."""


class Host:
    """Of one server. Its methods are called one after the other, from the thread that made it."""

    def __init__(self, blueprint: bytes, address: str, state: str) -> None:
        """blueprint: in JSON. address: of this node. state: the directory for all hosts of this machine."""
        try:
            self.state, self._lock = _claim(Path(state))
            self._log = os.open(self.state / "server.log", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigurationError(f"cannot use {state} on node {address}: {error.strerror}") from error
        self._told = os.fstat(self._log).st_size
        self._order = Order(msgspec.json.decode(blueprint, type=Blueprint), address, str(self.state), os.getpid())
        self._server: subprocess.Popen[bytes]
        self._metrics: Address = ("", 0)

    def start(self) -> tuple[Address, str]:
        """Where the server listens, once it does, and what this node is called."""
        command = [sys.executable, "-m", "comet_mpc.cluster.node_server"]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, pass_fds=[self._lock]
        )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # its end will say why
            self._server.stdin.write(msgspec.json.encode(self._order))
            self._server.stdin.close()
        line = self._server.stdout.readline()
        name = f"{self._order.address}/{self.state.name}"
        if not line:
            raise PeerError(
                f"the server on {name} ended with status {self._server.wait()}: see {self.state}/server.log"
            )
        started = msgspec.json.decode(line, type=Started)
        if started.error:
            raise ConfigurationError(f"on {name}: {started.error}")
        self._metrics = started.metrics
        return started.address, name

    def look(self) -> Seen:
        """How busy the server is. Raises PeerError if it is gone."""
        if (status := self._server.poll()) is not None:
            raise PeerError(f"the server on this node ended with status {status}")
        try:
            with urlopen("http://{}:{}/load".format(*self._metrics), timeout=_LOOK_SECONDS) as page:
                load = msgspec.json.decode(page.read(), type=Load)
        except (URLError, OSError) as error:
            raise PeerError(f"the server on this node does not answer: {error}") from error
        return Seen(load, self._said())

    def reload(self) -> None:
        """Has the checkpoints loaded again."""
        self._server.send_signal(signal.SIGHUP)

    def stop(self) -> bytes:
        """Ends the server, in order if it can be; what it said last."""
        self._server.terminate()
        try:
            self._server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        return self._said()

    def _said(self) -> bytes:
        said = os.pread(self._log, _MOST_SAID, self._told)
        said = said[: said.rfind(b"\n") + 1]
        self._told += len(said)
        if not said and self._told > _LARGEST_LOG:
            os.ftruncate(self._log, 0)
            self._told = 0
        return said


def _claim(root: Path) -> tuple[Path, int]:
    """The first directory that no other host of this machine has."""
    for number in itertools.count():
        directory = root / f"node-{number}"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return directory, lock
    raise AssertionError("unreachable")
