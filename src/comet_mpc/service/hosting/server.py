"""The server: a process that has loaded the model, and those forked from it, which share its pages.

The first one, the parent, starts the others, and starts them again if they die. The front desk lets clients in and
gives each connection a process of its own (`hosting.front`). The lookout answers for metrics and health by HTTP, and
watches for the dealer (`hosting.lookout`). All of them end with the parent, however that ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from comet_mpc.errors import CometError, ConfigurationError
from comet_mpc.net.identity import REVOKED, TlsIdentity
from comet_mpc.net.live import LiveContext
from comet_mpc.net.reception import ReceptionLimits
from comet_mpc.net.sockets import listen
from comet_mpc.offline.source import Source
from comet_mpc.processors import cores
from comet_mpc.service.catalogue import Catalogue, check_name
from comet_mpc.service.deployment import Deployment, Served, ServiceLimits, server_counters
from comet_mpc.service.hosting.front import FrontDesk, FrontLimits
from comet_mpc.service.hosting.lifeline import ended, forked
from comet_mpc.service.hosting.lookout import Lookout
from comet_mpc.service.hosting.state import claim
from comet_mpc.service.hosting.turns import Slots

_log = logging.getLogger(__name__)

_TICK = 0.1
_RESPAWN_SECONDS = 1.0
_ONLY = "model"
"""The name of a model that was given none."""
_DESK, _LOOKOUT, _FIRST = 0, 1, 2
"""Rows of the counters: the front desk's, the lookout's, the first connection's."""


@dataclass(frozen=True)
class _Child:
    target: Callable[[], None]
    name: str
    row: int
    born: float
    succeeded: bool = False
    """Another one has taken its place; it finishes what it has begun."""


class Server:
    """Listens as soon as it is made; `serve_forever` serves until SIGTERM or SIGINT.

    model           one model, or several by name. Clients that name none get the first
    reload          returns the models again after SIGHUP. New versions are served without downtime: connected clients
                    keep their version until the next SIGHUP, and a failure changes nothing
    listen_at       (host, port); with port 0 the system chooses, see `address`
    source          who prepares the randomness: `PairSource()`, server and client between themselves, or
                    `DealerSource(address)`. A dealer run by the server's operator gives no privacy: the two together
                    could read the texts
    state           directory for the secret of the weight masks, prepared randomness, and the newest list of revoked
                    certificates. No other server may use it (`StateInUse`). Never copy it
    workers         concurrent requests, runs and preparations together. 0: one per core, at least two
    require_client  refuse clients without a certificate (a dealer always does)
    metrics         (host, port) for Prometheus metrics and health checks, or None
    connections     connected clients; each takes a process of a few megabytes, and further ones wait
    per_client      connections per certificate. 0: a quarter of all
    queue_seconds   how long a client waits for a process or a slot before it is refused with `ServerBusy`
    stop_seconds    how long a stopping server waits for running queries
    handshakes      limits for connections that have not shown a certificate yet
    """

    def __init__(
        self,
        model: Served | Mapping[str, Served],
        listen_at: tuple[str, int],
        source: Source,
        identity: TlsIdentity,
        state: Path,
        *,
        workers: int = 0,
        require_client: bool = True,
        metrics: tuple[str, int] | None = None,
        limits: ServiceLimits | None = None,
        connections: int = 96,
        per_client: int = 0,
        queue_seconds: float = 30.0,
        stop_seconds: float = 30.0,
        handshakes: ReceptionLimits | None = None,
        reload: Callable[[], Mapping[str, Served]] | None = None,
    ) -> None:
        if workers < 0:
            raise ConfigurationError(f"a server needs at least one worker, got {workers}")
        if connections < 2:
            raise ConfigurationError(f"a server needs at least two connections, got {connections}")
        self._workers = workers = workers or max(2, cores())
        self._require_client = require_client
        self._stop_seconds = stop_seconds
        identity = replace(identity, kept_list=Path(state) / REVOKED)
        self._counters = server_counters(_FIRST + 2 * connections)
        limits = limits or ServiceLimits()
        limits = replace(limits, preparations=limits.preparations or max(1, workers - 1))

        def deploy(one: Served) -> Deployment:
            return Deployment(one, source, identity, state, limits, self._counters)

        self._deploy = deploy
        named = model if isinstance(model, Mapping) else {_ONLY: model}
        with contextlib.ExitStack() as undone:
            self._lock = undone.enter_context(claim(Path(state)))
            self._context = LiveContext(identity, require_client=require_client)
            self._listener = undone.enter_context(listen(*listen_at, self._context.current, backlog=1024))
            self._offer = Catalogue({check_name(name): self._deploy(one) for name, one in named.items()})
            self._lookout = Lookout(self._offer, identity, metrics, desk_row=_DESK, workers=workers)
            undone.pop_all()
        self._front = FrontLimits(
            self._slots(),
            connections=connections,
            per_client=per_client or max(2, connections // 4),
            queue_seconds=queue_seconds,
            stop_seconds=stop_seconds,
            reception=handshakes or ReceptionLimits(),
        )
        self._children: dict[int, _Child] = {}
        self._stopping, self._ended_by = False, 0
        self._load, self._reload_wanted, self._generation = reload, False, 0

    def _slots(self) -> Slots:
        provider = self._offer.first.provider
        together = self._workers if provider.computes else self._workers + provider.slots
        return Slots(run=self._workers, prepare=provider.slots, together=together)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which it listens."""
        return self._listener.address

    @property
    def source(self) -> str:
        """Where the randomness comes from: pair or dealer."""
        return self._offer.source.name

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        return self._lookout.address

    def serve_forever(self, started: Callable[[], None] | None = None) -> int:
        """Runs in the main thread of a process without other threads. `started` is called once clients are let in.

        Returns the signal that ended it.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        if self._load is not None:
            signal.signal(signal.SIGHUP, self._ask_to_reload)
        try:
            self._start()
            fields = {"address": "{}:{}".format(*self.address), **self._models(), "source": self.source}
            _log.info("serving", extra={"fields": {**fields, "workers": self._workers}})
            if started is not None:
                started()
            while not self._stopping:
                time.sleep(_TICK)
                self._replace_dead()
                if self._reload_wanted and not any(child.succeeded for child in self._children.values()):
                    self._reload_wanted = False
                    self._reload()
        finally:
            self._shut_down()
        return self._ended_by

    def _models(self) -> dict[str, object]:
        """For the log."""
        names = {name: one.model.fingerprint for name, one in self._offer.models.items()}
        return {"model": names[_ONLY]} if [*names] == [_ONLY] else {"models": names}

    def _start(self) -> None:
        self._fork(self._receive, "front desk", _DESK)
        if self._lookout.needed:
            self._fork(self._lookout.run, "lookout", _LOOKOUT)

    # New versions ---------------------------------------------------------------------------------------

    def _ask_to_reload(self, number: int, frame: FrameType | None) -> None:
        self._reload_wanted = True

    def _reload(self) -> None:
        """Loads the models again. A new front desk serves them; the old one ends when its clients have left it.

        Meanwhile there are as many slots again. What fails, fails before anything is changed.
        """
        assert self._load is not None
        now = {one.model.fingerprint: one for one in self._offer.models.values()}
        try:
            loaded = self._load()
            models = {check_name(name): now.get(one.fingerprint) or self._deploy(one) for name, one in loaded.items()}
            offer = self._offer.replaced(models)
        except CometError as error:
            fields = {"error": type(error).__name__, "reason": str(error)}
            _log.error("the models could not be loaded again: nothing has changed", extra={"fields": fields})
            return
        self._offer = self._lookout.offer = offer
        self._generation += 1
        old = dict(self._children)
        self._start()
        for pid, child in old.items():
            self._children[pid] = replace(child, succeeded=True)
            os.kill(pid, signal.SIGUSR1 if child.row == _DESK else signal.SIGTERM)
        _log.info("the models were loaded again", extra={"fields": self._models()})

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping, self._ended_by = True, number

    def _receive(self) -> None:
        desk = FrontDesk(
            self._offer,
            self._listener,
            self._context,
            self._front,
            require_client=self._require_client,
            first_row=_FIRST + self._generation % 2 * self._front.connections,
            stopping=lambda: self._stopping,
        )

        def succeeded(number: int, frame: FrameType | None) -> None:
            desk.succeed(self._offer.limits.preparation_seconds)
            self._stopping = True

        signal.signal(signal.SIGUSR1, succeeded)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        desk.run()

    # Processes -----------------------------------------------------------------------------------------

    def _fork(self, target: Callable[[], None], name: str, row: int) -> None:
        def run() -> None:
            self._children.clear()
            self._lock.close()
            for number in (signal.SIGINT, signal.SIGHUP):  # what a terminal sends is the parent's business
                signal.signal(number, signal.SIG_IGN)
            self._counters.own(row)
            target()

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # until the front desk can handle it
        pid = forked(run, name=name)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        self._children[pid] = _Child(target, name, row, time.monotonic())

    def _reap(self) -> list[_Child]:
        dead = [pid for pid in self._children if ended(pid) is not None]
        return [self._children.pop(pid) for pid in dead]

    def _replace_dead(self) -> None:
        for child in self._reap():
            if self._stopping or child.succeeded:
                continue
            _log.error("a process of the server died and is replaced", extra={"fields": {"name": child.name}})
            time.sleep(max(0.0, min(_RESPAWN_SECONDS, child.born + _RESPAWN_SECONDS - time.monotonic())))
            self._fork(child.target, child.name, child.row)

    def _shut_down(self) -> None:
        for number, seconds in ((signal.SIGTERM, self._stop_seconds + 8.0), (signal.SIGKILL, 5.0)):
            for pid in self._children:
                os.kill(pid, number)
            self._listener.forget()
            until = time.monotonic() + seconds
            while self._children and time.monotonic() < until:
                self._reap()
                time.sleep(_TICK / 4)
            if not self._children:
                break
        self._lookout.close()
        self._lock.close()
        _log.info("stopped")
