"""The processes of a measurement or a demonstration: started, watched, and always ended.

A worker talks to the process that started it over a pipe. An error that it raises is raised again there, with its
type. A worker ends itself when the process that started it is gone, for whatever reason.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal, Self

from comet_mpc.errors import CometError, PeerError
from comet_mpc.net.authority import make_test_set
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.offline.dealer.process import run_dealer
from comet_mpc.progress import Tick, silent

LOOPBACK = "127.0.0.1"

_PATIENCE = 900.0
"""Seconds to wait for a message."""
_GRACE = 2.0
"""Seconds to wait for a process that should be ending by itself, or for the other errors of one failure."""
_STOPPING = 30.0
"""Seconds that a process may take to stop when asked."""
_TICK = 0.2
"""Seconds between two signs of progress."""
_DEALER = "dealer"


@dataclass(frozen=True)
class _Message:
    kind: str
    """note, progress, result or error."""
    value: Any


class Link:
    """A worker's line to its parent."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._told = 0.0

    def progress(self, done: int, total: int) -> None:
        """For `Crew.tick`, a few times a second at most."""
        if time.monotonic() - self._told >= _TICK or done == total:
            self._told = time.monotonic()
            self._connection.send(_Message("progress", (done, total)))

    def tell(self, value: Any) -> None:
        self._connection.send(_Message("note", value))

    def hear(self) -> Any:
        return self._connection.recv()


Target = Callable[..., Any]


def _work(connection: Connection[Any, Any], target: Target, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and ends its workers
    _end_with_parent()
    try:
        message = _Message("result", target(Link(connection), *arguments))
    except BaseException as error:
        failure = error if isinstance(error, CometError) else CometError(f"{type(error).__name__}: {error}")
        failure.add_note(traceback.format_exc())
        message = _Message("error", failure)
    with contextlib.suppress(OSError):
        connection.send(message)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Worker:
    """The parent's side of one process."""

    def __init__(self, name: str, process: BaseProcess, connection: Connection[Any, Any]) -> None:
        self.name = name
        self.process = process
        self.connection = connection
        self.finished = False

    def tell(self, value: Any) -> None:
        with contextlib.suppress(OSError):  # its end will say why
            self.connection.send(value)

    def read(self) -> _Message:
        """The next message; the end of the process without one is an error too."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(_GRACE)
            message = _Message("error", CometError(f"the process ended with exit code {self.process.exitcode}"))
        assert isinstance(message, _Message)
        if message.kind == "error":
            message.value.args = (f"{self.name}: {message.value}",)
        self.finished = self.finished or message.kind in ("result", "error")
        return message


def deal(link: Link, keys: Path) -> None:
    """A crew's dealer."""
    run_dealer(LOOPBACK, 0, TlsIdentity.find(keys, "dealer"), started=lambda address, _: link.tell(address))


class Crew:
    """Fresh certificates in a directory, a dealer unless there is to be none, and the workers that are started.

    method  spawn starts a new Python; fork shares what this process has in memory, such as a model
    """

    deal: ClassVar[Target] = staticmethod(deal)
    """What the dealer's process runs: a module's function. Another package overrides it to register its own kinds."""

    def __init__(self, *, dealer: bool = True, method: Literal["spawn", "fork"] = "spawn") -> None:
        self._directory = TemporaryDirectory(prefix="comet-")
        self._method = method
        self._deals = dealer
        self._workers: list[Worker] = []
        self.directory = Path(self._directory.name)
        self.keys = self.directory / "keys"
        self.dealer_address: tuple[str, int] = (LOOPBACK, 0)
        self.tick: Tick = silent
        """Is told how far workers are that say so (`Link.progress`)."""

    def __enter__(self) -> Self:
        try:
            make_test_set(self.keys)
            if self._deals:
                (self.dealer_address,) = self.notes([self.start(_DEALER, self.deal, self.keys)])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, name: str, target: Target, *arguments: Any) -> Worker:
        """Starts `target(link, *arguments)` in a process of its own. The target must be a module's function."""
        context: Any = multiprocessing.get_context(self._method)
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, target, arguments), name=f"comet {name}", daemon=True)
        process.start()
        theirs.close()
        worker = Worker(name, process, ours)
        self._workers.append(worker)
        return worker

    def notes(self, workers: Sequence[Worker]) -> list[Any]:
        """The next note of each."""
        return self._gather(workers, "note")

    def results(self, workers: Sequence[Worker]) -> list[Any]:
        """The result of each. Their processes are ended then."""
        values = self._gather(workers, "result")
        self._end(workers)
        return values

    def _gather(self, workers: Sequence[Worker], kind: str) -> list[Any]:
        """The next message of that kind from each. If anything fails, all are ended except for the dealer."""
        values: dict[Worker, Any] = {}
        until = time.monotonic() + _PATIENCE
        try:
            while len(values) < len(workers):
                waiting = [worker for worker in self._workers if worker not in values and not worker.finished]
                ready = wait([worker.connection for worker in waiting], max(0.0, until - time.monotonic()))
                if not ready:
                    raise CometError(f"no answer within {_PATIENCE:g} s from {', '.join(w.name for w in waiting)}")
                for worker in (worker for worker in waiting if worker.connection in ready):
                    message = worker.read()
                    if message.kind == "error":
                        raise self._cause(message)
                    if message.kind == "progress":
                        self.tick(*message.value)
                        until = time.monotonic() + _PATIENCE
                    if worker in workers and message.kind == kind:
                        values[worker] = message.value
        except BaseException:
            self._end_others()
            raise
        return [values[worker] for worker in workers]

    def _cause(self, message: _Message) -> CometError:
        """When one worker fails, the others report that they lost it: an error that is no such report is the cause."""
        found: CometError = message.value
        others = self._further() if isinstance(found, PeerError) else ()
        return next((error for error in others if not isinstance(error, PeerError)), found)

    def _further(self) -> Iterator[CometError]:
        until = time.monotonic() + _GRACE
        while rest := [worker for worker in self._workers if not worker.finished]:
            ready = wait([worker.connection for worker in rest], max(0.0, until - time.monotonic()))
            if not ready:
                return
            for worker in rest:
                if worker.connection in ready and (message := worker.read()).kind == "error":
                    yield message.value

    def _end(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            if worker.finished:
                worker.process.join(_GRACE)
            if worker.process.is_alive():
                worker.process.terminate()
        for worker in workers:
            worker.process.join(_STOPPING)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
            self._workers.remove(worker)

    def _end_others(self) -> None:
        self._end([worker for worker in self._workers if worker.name != _DEALER])

    def close(self) -> None:
        """Ends what still runs, the dealer last, since others may be waiting for it; removes the directory."""
        self._end_others()
        self._end(list(self._workers))
        self._directory.cleanup()
