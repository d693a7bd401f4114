"""The server: one process that loads the model, and workers forked from it that share its pages and its socket.

A worker serves one client at a time; further clients wait in the socket's queue. Whatever a client does costs its own
worker only, and only until a timeout: a watch in every worker ends conversations that are overdue, and those that are
idle while others wait (their clients connect again when they need to). A worker that dies is replaced. One more
process, the usher, refuses those who have waited for too long; another one serves the metrics.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from comet_mpc.errors import CometError, ConfigurationError, NobodyConnected, PeerError, ServerBusy
from comet_mpc.models.served import ServedModel
from comet_mpc.net.channel import Channel
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.messages import refusal
from comet_mpc.net.sockets import Listener, listen
from comet_mpc.offline.source import Source
from comet_mpc.service.conversation import Conversation
from comet_mpc.service.deployment import Deployment, ServiceLimits
from comet_mpc.service.messages import MESSAGE_LIMIT, introduce, say
from comet_mpc.service.metrics import Counters, MetricsEndpoint

__all__ = ["Server"]

_log = logging.getLogger(__name__)

_TICK = 0.1
_HANDSHAKE_SECONDS = 5.0
_GRACE_SECONDS = 1.0  # an idle client keeps its worker for so long although others wait
_FIRST_GRACE_SECONDS = 5.0  # … and for so long before its first request: it may be checking its cache
_RESPAWN_SECONDS = 1.0


@dataclass(frozen=True)
class _Child:
    target: Callable[[], None]
    name: str
    row: int
    born: float


class Server:
    """Listens from the moment it is made; `serve_forever` serves until SIGTERM or SIGINT.

    listen          (host, port); port 0 lets the system choose, see `address`
    source          where this server and its clients get their randomness: `PairSource()`, between themselves, or
                    `DealerSource(address)`. Run by the server's operator a dealer gives no privacy: the two together
                    could read the texts
    state           directory for the secret of the weight masks and prepared randomness. Do not copy it
    workers         connections served at a time: a client that prepares randomness without a dealer takes one more
    require_client  refuse clients without a certificate (the dealer refuses them always)
    metrics         (host, port) for Prometheus, or None
    queue_seconds   a client that no worker was free for is told so after this time
    stop_seconds    for running queries to finish at the end
    """

    def __init__(
        self,
        model: ServedModel,
        listen_at: tuple[str, int],
        source: Source,
        identity: TlsIdentity,
        state: Path,
        *,
        workers: int = 4,
        require_client: bool = True,
        metrics: tuple[str, int] | None = None,
        limits: ServiceLimits | None = None,
        queue_seconds: float = 30.0,
        stop_seconds: float = 30.0,
    ) -> None:
        if workers < 1:
            raise ConfigurationError(f"a server needs at least one worker, got {workers}")
        self._workers = workers
        self._require_client = require_client
        self._queue_seconds = queue_seconds
        self._stop_seconds = stop_seconds
        self._counters = Counters(workers + 1)
        self._listener = listen(*listen_at, identity.server_context(require_client), backlog=128)
        self._metrics = MetricsEndpoint(*metrics, self._metrics_text) if metrics is not None else None
        limits = limits or ServiceLimits()
        limits = replace(limits, preparations=limits.preparations or workers - 1)
        self._deployment = Deployment(model, source, identity, state, limits, self._counters)
        self._children: dict[int, _Child] = {}
        self._stopping = False
        self._parent = os.getpid()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which it listens."""
        return self._listener.address

    @property
    def source(self) -> str:
        """Where the randomness comes from: pair or dealer."""
        return self._deployment.source.name

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        return self._metrics.address if self._metrics is not None else None

    def serve_forever(self, started: Callable[[], None] | None = None) -> None:
        """Runs in the main thread of a process without other threads. `started` is called once workers accept."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        jobs: list[tuple[Callable[[], None], str, int]] = [
            (partial(self._work, row), f"worker {row}", row) for row in range(self._workers)
        ]
        jobs.append((self._usher, "usher", self._workers))
        if self._metrics is not None:
            jobs.append((self._serve_metrics, "metrics", self._workers))
        try:
            for job in jobs:
                self._fork(*job)
            fields = {"address": "{}:{}".format(*self.address), "model": self._deployment.model.fingerprint[:16]}
            fields["source"] = self.source
            _log.info("serving", extra={"fields": {**fields, "workers": self._workers}})
            if started is not None:
                started()
            while not self._stopping:
                time.sleep(_TICK)
                self._replace_dead()
        finally:
            self._shut_down()

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    # Processes -----------------------------------------------------------------------------------------

    def _fork(self, target: Callable[[], None], name: str, row: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            self._children[pid] = _Child(target, name, row, time.monotonic())
            return
        code = 1
        try:
            self._children.clear()
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt from the terminal is the parent's business
            target()
            code = 0
        except Exception:
            _log.exception("a process of the server failed", extra={"fields": {"name": name}})
        finally:
            os._exit(code)

    def _reap(self) -> list[_Child]:
        dead = []
        for pid in list(self._children):
            try:
                found, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                found = pid
            if found:
                dead.append(self._children.pop(pid))
        return dead

    def _replace_dead(self) -> None:
        for child in self._reap():
            if self._stopping:
                continue
            _log.error("a process of the server died and is replaced", extra={"fields": {"name": child.name}})
            self._counters.reset_active(child.row)
            time.sleep(max(0.0, min(_RESPAWN_SECONDS, child.born + _RESPAWN_SECONDS - time.monotonic())))
            self._fork(child.target, child.name, child.row)

    def _shut_down(self) -> None:
        for number, seconds in ((signal.SIGTERM, self._stop_seconds), (signal.SIGKILL, 5.0)):
            for pid in self._children:
                os.kill(pid, number)
            self._listener.close()
            until = time.monotonic() + seconds
            while self._children and time.monotonic() < until:
                self._reap()
                time.sleep(_TICK / 4)
            if not self._children:
                break
            _log.warning("queries are still running: they are cut off")
        if self._metrics is not None:
            self._metrics.close()
        _log.info("stopped")

    def _orphaned(self) -> bool:
        return os.getppid() != self._parent

    # A worker ------------------------------------------------------------------------------------------

    def _work(self, row: int) -> None:
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        self._counters.own(row)
        watch = _Watch(self._listener, lambda: self._stopping or self._orphaned())
        while not self._stopping and not self._orphaned():
            channel = self._next_client()
            if channel is None:
                continue
            conversation = Conversation(self._deployment, channel, require_client=self._require_client)
            watch.current = conversation
            conversation.serve()
            watch.current = None

    def _next_client(self) -> Channel | None:
        """The next client; None if there is none yet, or if its connection failed."""
        if not _readable(self._listener, _TICK):
            return None
        stall = self._deployment.limits.stall_seconds
        try:
            return self._listener.accept(_TICK, channel_timeout=stall, handshake_timeout=_HANDSHAKE_SECONDS)
        except NobodyConnected:  # another worker was quicker
            return None
        except PeerError as error:
            self._lost(error)
            return None

    def _lost(self, error: CometError) -> None:
        if self._stopping:
            return
        self._counters.error(error)
        fields = {"error": type(error).__name__, "reason": str(error)}
        _log.info("a connection could not be established", extra={"fields": fields})
        time.sleep(0.02)  # out of file descriptors, accepting fails at once

    # The usher, and the metrics ------------------------------------------------------------------------

    def _usher(self) -> None:
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        self._counters.own(self._workers)
        threading.Thread(target=self._deployment.provider.await_third_party, name="third party", daemon=True).start()
        state: tuple[object, ...] = ()
        since = time.monotonic()
        while not self._stopping and not self._orphaned():
            time.sleep(_TICK)
            full = self._counters.active >= self._workers and _readable(self._listener, 0.0)
            now = (full, self._counters.total("sessions_total"))
            if now != state or not full:
                state, since = now, time.monotonic()
            elif time.monotonic() - since >= self._queue_seconds:
                self._refuse_one()

    def _refuse_one(self) -> None:
        """Tells the one who has waited longest that there is no room."""
        try:
            with self._listener.accept(_TICK, channel_timeout=1.0, handshake_timeout=1.0) as channel:
                introduce(channel, "server", self._deployment.model.fingerprint, self._deployment.source)
                error = ServerBusy(f"all {self._workers} workers are occupied; try again later")
                say(channel, refusal(error))
                self._counters.add(refused_busy_total=1)
                _log.warning("refused a client: all workers are occupied")
                channel.receive(MESSAGE_LIMIT)
        except PeerError:
            pass

    def _serve_metrics(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert self._metrics is not None

        def follow_parent() -> None:
            while not self._orphaned():
                time.sleep(1.0)
            os._exit(0)

        threading.Thread(target=follow_parent, daemon=True).start()
        self._metrics.serve_forever()

    def _metrics_text(self) -> str:
        return self._counters.text(bundles_ready=self._deployment.store.count(), workers=self._workers)


def _readable(listener: Listener, seconds: float) -> bool:
    poll = select.poll()
    poll.register(listener.fileno(), select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class _Watch:
    """A thread that ends the current conversation when it is overdue, or idle although its worker is needed."""

    def __init__(self, listener: Listener, stopping: Callable[[], bool]) -> None:
        self.current: Conversation | None = None
        self._listener = listener
        self._stopping = stopping
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def _run(self) -> None:
        crowded_since: float | None = None
        while True:
            time.sleep(_TICK)
            now = time.monotonic()
            crowded_since = (crowded_since or now) if _readable(self._listener, 0.0) else None
            conversation = self.current
            if conversation is None:
                continue
            idle_since = conversation.idle_since
            if now > conversation.deadline:
                _log.warning("a client took too long: the connection is closed")
                conversation.channel.close()
                continue
            grace = _GRACE_SECONDS if conversation.requests else _FIRST_GRACE_SECONDS
            crowded = crowded_since is not None and now - crowded_since > _GRACE_SECONDS
            if idle_since is not None and (self._stopping() or (crowded and now - idle_since > grace)):
                conversation.channel.close()
