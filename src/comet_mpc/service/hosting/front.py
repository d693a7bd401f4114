"""The front desk: every connection comes in here, shakes hands, waits if it must, and gets a process of its own.

The desk is one thread that never waits for anybody, in a process that has the model in memory. A connection that is
through its handshake is handed to a process forked for it, which shares the model's pages and costs two megabytes. The
desk forgets its copy of the connection's keys and never writes with them. What costs time, runs and preparations, is
done in slots that the desk gives in turn (`turns`); so an idle or a stalled client costs a process and nothing else.

Where there are as many processes as there may be, connections wait here. The certificate with the fewest processes
goes first, and processes that are idle make room, from the certificate with the most. Nothing that a client does, or
stops doing, reaches the others.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import selectors
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from comet_mpc.errors import CometError, NotAuthenticated, PeerError, ServerBusy
from comet_mpc.net.live import REVOKED, LiveContext
from comet_mpc.net.messages import refusal
from comet_mpc.net.reception import Reception, ReceptionLimits, Visitor
from comet_mpc.net.sockets import Listener, TlsChannel
from comet_mpc.service.catalogue import Catalogue
from comet_mpc.service.hosting.cores import Cores
from comet_mpc.service.hosting.lifeline import ended, forked
from comet_mpc.service.hosting.pipe import Pipe, Said
from comet_mpc.service.hosting.turns import KINDS, Slots, Turns
from comet_mpc.service.hosting.worker import WANTS, work
from comet_mpc.service.messages import greeting, say

_log = logging.getLogger(__name__)

_TICK = 0.1
_ABORT_SECONDS = 3.0  # to remove what was half done
_GRACE_SECONDS = 1.0  # an idle client keeps its process for so long although others wait
_FIRST_GRACE_SECONDS = 5.0  # … and for so long before its first request: it may be checking its cache
_WANTED = {said: kind for kind, said in WANTS.items()}


@dataclass(frozen=True)
class FrontLimits:
    """Who gets in."""

    slots: Slots
    connections: int = 96
    """Processes at a time."""
    per_client: int = 16
    """Of one certificate, or of one address where there is none."""
    waiting: int = 16
    """Connections of one client that wait for a process."""
    queue_seconds: float = 30.0
    """Then whoever still waits, for a process or for a slot, is told that the server is busy."""
    stop_seconds: float = 30.0
    reception: ReceptionLimits = field(default_factory=ReceptionLimits)


@dataclass
class _Guest:
    """A connection that waits for a process."""

    channel: TlsChannel
    client: str
    since: float


@dataclass
class _Worker:
    pid: int
    pipe: Pipe
    row: int
    client: str
    serial: int | None
    number: int
    idle_since: float | None
    idle_before: float | None = None
    """When it began to be idle, before the request that it has now."""
    requests: int = -1
    """That were granted; the first message says that it has been greeted."""
    leaving: bool = False


class FrontDesk:
    """Made in the process that will run it: `run` returns when the server is asked to stop.

    counters' row 0 is the desk's own; each process has one from `first_row` on.
    """

    def __init__(
        self,
        offer: Catalogue,
        listener: Listener,
        context: LiveContext,
        limits: FrontLimits,
        *,
        require_client: bool,
        first_row: int,
        stopping: Callable[[], bool],
    ) -> None:
        self._offer, self._listener, self._context = offer, listener, context
        self._limits, self._require_client, self._stopping = limits, require_client, stopping
        self._counters = offer.counters
        self._rows = list(range(first_row, first_row + limits.connections))
        self._selector = selectors.DefaultSelector()
        self._turns, self._cores = Turns(limits.slots), Cores(time.monotonic())
        self._guests: list[_Guest] = []
        self._workers: dict[int, _Worker] = {}
        self._ended: set[int] = set()
        self._numbers = 0
        self._reception = Reception(
            listener,
            lambda: self._context.current,
            self._selector,
            arrived=self._arrived,
            refused=self._lost,
            limits=limits.reception,
            channel_timeout=offer.limits.stall_seconds,
        )
        self._succeeded = False
        self._certificates = context.version

    def run(self) -> None:
        """Until it is to stop; then what was begun is finished, for as long as there is time."""
        gc.collect()
        gc.freeze()  # what is there now is shared with all processes to come
        self._look(at_once=True)  # what was read before the fork may be old
        while not self._stopping():
            self._turn()
            self._admit()
        if self._succeeded:
            self._let_all_in()
        self._reception.close()
        if self._succeeded:
            self._listener.forget()
        else:
            self._listener.close()
        for guest in self._guests:
            guest.channel.close()
        self._guests.clear()
        for worker in self._workers.values():
            self._ask_to_leave(worker)
        if not self._succeeded:  # what is being prepared would not be run any more, and may wait for a client that left
            self._await_workers(_GRACE_SECONDS)
            runs = self._turns.connections("run")
            for worker in self._workers.values():
                if worker.number not in runs:
                    self._say(worker, Said.ABORT)
        self._await_workers(self._limits.stop_seconds)
        if self._workers:
            _log.warning("queries are still running: they are cut off")
        for worker in self._workers.values():
            self._say(worker, Said.ABORT)
        self._await_workers(_ABORT_SECONDS)
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _await_workers(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._workers and time.monotonic() < until:
            self._turn()

    def succeed(self, seconds: float) -> None:
        """Another desk listens from now on: this one stops when all that it has let in is done, in so many seconds."""
        self._succeeded = True
        self._limits = replace(self._limits, stop_seconds=seconds)

    def _let_all_in(self) -> None:
        """Those who came before the other desk: a handshake and a queue take so long and no longer."""
        self._reception.shut()
        while self._guests or self._reception.sockets:
            self._turn()
            self._admit()

    def _turn(self) -> None:
        """What has happened since the last one."""
        self._counters.beat()
        for key, events in self._selector.select(_TICK):
            try:
                key.data(events)
            except Exception:  # one connection's trouble is not the others'
                _log.exception("an error at the front desk")
                self._counters.refused("other")
        self._reception.tick()
        self._reap()
        self._give_slots()
        self._look()

    # Who comes in ------------------------------------------------------------------------------------------

    def _lost(self, reason: str, error: PeerError) -> None:
        self._counters.error(error)
        self._counters.refused(reason)
        fields = {"error": type(error).__name__, "reason": str(error)}
        _log.info("a connection could not be established", extra={"fields": fields})

    def _arrived(self, visitor: Visitor) -> None:
        channel = visitor.channel
        if objection := self._objection(channel.peer_serial):
            self._refuse(channel, "certificate", objection)
            return
        client = channel.peer_name or f"[{visitor.address}]"
        if sum(guest.client == client for guest in self._guests) >= self._limits.waiting:
            text = "this client has too many connections; end some, or try again later"
            self._refuse(channel, "connections", ServerBusy(text))
            return
        self._counters.observe("handshake", visitor.seconds)
        self._guests.append(_Guest(channel, client, time.monotonic()))

    def _admit(self) -> None:
        now = time.monotonic()
        while self._guests and self._rows:
            present = Counter(worker.client for worker in self._workers.values())
            fitting = [guest for guest in self._guests if present[guest.client] < self._limits.per_client]
            if not fitting:
                break
            guest = min(fitting, key=lambda guest: (present[guest.client], guest.since))
            self._guests.remove(guest)
            self._hand_over(guest)
        for guest in [guest for guest in self._guests if now - guest.since >= self._limits.queue_seconds]:
            self._guests.remove(guest)
            text = "the server has as many connections as it can serve; try again later"
            self._refuse(guest.channel, "busy", ServerBusy(text))
        for guest in self._guests:
            self._make_room(guest.client, now)

    def _make_room(self, client: str, now: float) -> None:
        """Asks an idle process to leave: one of the same client if it has too many, else one of whoever has most."""
        present = Counter(worker.client for worker in self._workers.values())
        own = present[client] >= self._limits.per_client
        idle = []
        for worker in self._workers.values():
            grace = _GRACE_SECONDS if worker.requests > 0 else _FIRST_GRACE_SECONDS
            if worker.leaving or worker.idle_since is None or now - worker.idle_since < grace:
                continue
            if not own or worker.client == client:
                idle.append(worker)
        if idle:
            self._ask_to_leave(min(idle, key=lambda worker: (-present[worker.client], worker.idle_since)))

    def _ask_to_leave(self, worker: _Worker) -> None:
        if not worker.leaving:
            worker.leaving = True
            self._say(worker, Said.LEAVE)

    def _say(self, worker: _Worker, what: Said, number: int = 0) -> None:
        """Unless it is ending: its slots are given back when its pipe ends."""
        with contextlib.suppress(OSError):
            worker.pipe.say(what, number)

    def _refuse(self, channel: TlsChannel, reason: str, error: PeerError) -> None:
        """A greeting and the reason, in place of a conversation: what is sent fits into the socket's buffer."""
        self._counters.refused(reason)
        fields = {"client": channel.peer_name, "reason": str(error)}
        _log.warning("refused a client", extra={"fields": fields})
        try:
            channel.send(greeting("server", self._offer.greeted, self._offer.source))
            say(channel, refusal(error))
        except CometError:
            return
        self._reception.dismiss(channel)

    def _look(self, *, at_once: bool = False, asks: _Worker | None = None) -> None:
        """Ends what goes on with certificates that were revoked. asks: one that will be told in its own words."""
        self._context.look(at_once=at_once)
        if self._certificates == self._context.version:
            return
        self._certificates = self._context.version
        for worker in self._workers.values():
            if worker.serial in self._context.revoked and worker is not asks:
                fields = {"client": worker.client}
                _log.warning("a certificate was revoked: its connection is closed", extra={"fields": fields})
                self._say(worker, Said.ABORT)
        for guest in [guest for guest in self._guests if guest.channel.peer_serial in self._context.revoked]:
            self._guests.remove(guest)
            self._refuse(guest.channel, "certificate", NotAuthenticated(REVOKED))

    def _objection(self, serial: int | None, asks: _Worker | None = None) -> PeerError | None:
        """At this moment: the list may have changed since the handshake began, or since the last request."""
        self._look(at_once=True, asks=asks)
        return self._context.objection(serial)

    # Processes ---------------------------------------------------------------------------------------------

    def _hand_over(self, guest: _Guest) -> None:
        """A process for a connection. It has the connection from now on, and nobody else."""
        if objection := self._objection(guest.channel.peer_serial):
            self._refuse(guest.channel, "certificate", objection)
            return
        row, self._numbers = self._rows.pop(), self._numbers + 1
        with contextlib.ExitStack() as undone:
            undone.callback(self._rows.append, row)
            try:
                here, there = Pipe.pair()
                undone.callback(here.close)
                undone.callback(there.close)
                pid = forked(partial(self._become_worker, guest, there, row), client=guest.client)
            except OSError as error:  # no more descriptors or processes
                _log.error("no process for a client", extra={"fields": {"reason": error.strerror}})
                text = "the server cannot start another process; try again later"
                self._refuse(guest.channel, "out_of_processes", ServerBusy(text))
                return
            undone.pop_all()
        there.close()
        guest.channel.detach().close()  # without a word: the connection goes on
        self._counters.observe("entry", time.monotonic() - guest.since)
        worker = _Worker(pid, here, row, guest.client, guest.channel.peer_serial, self._numbers, time.monotonic())
        self._workers[pid] = worker
        self._selector.register(here.fileno(), selectors.EVENT_READ, lambda events: self._hear(worker))

    def _become_worker(self, guest: _Guest, pipe: Pipe, row: int) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the desk says when to leave
        others: list[socket.socket] = self._reception.sockets
        others += [other.channel.detach() for other in self._guests]
        for connection in others:
            connection.close()
        for worker in self._workers.values():
            worker.pipe.close()
        self._selector.close()
        self._listener.forget()
        self._counters.own(row)
        work(self._offer, guest.channel, pipe, require_client=self._require_client)

    def _hear(self, worker: _Worker) -> None:
        try:
            heard = worker.pipe.hear()
        except OSError:
            heard = None
        if heard is None:
            self._part_with(worker)
            return
        now, (what, number) = time.monotonic(), heard
        ticket = worker.number, number
        match what:
            case Said.WANT_RUN | Said.WANT_PREPARE | Said.WANT_DOWNLOAD:
                if objection := self._objection(worker.serial, worker):
                    revoked = isinstance(objection, NotAuthenticated)
                    self._say(worker, Said.REVOKED if revoked else Said.UNREADABLE, number)
                else:
                    self._turns.ask(ticket, worker.client, _WANTED[what], now)
            case Said.DONE:
                self._turns.done(ticket, now)
            case Said.REST | Said.RESUME:
                self._turns.rest(ticket, what is Said.REST, now)
            case Said.IDLE:
                worker.idle_since = now
                worker.requests += 1
            case Said.REFUSED:  # that was no activity
                worker.idle_since = worker.idle_before
            case Said.BUSY:
                worker.idle_before, worker.idle_since = worker.idle_since, None
            case _:
                _log.error("a process of the server said something that it cannot say")

    def _give_slots(self) -> None:
        now = time.monotonic()
        by_number = {worker.number: worker for worker in self._workers.values()}
        idle_core = self._turns.idle_core_helps and self._cores.spare(now)
        said = [(ticket, Said.GO) for ticket in self._turns.grant(now, idle_core=idle_core)]
        for ticket, _ in self._turns.overdue(now, self._limits.queue_seconds):
            said.append((ticket, Said.FULL))
        for (number, request), what in said:
            self._say(by_number[number], what, request)
        if not self._succeeded:
            self._measure()

    def _measure(self) -> None:
        states = {"clients": len({worker.client for worker in self._workers.values()})}
        states["waiting connection"] = len(self._guests)
        for kind in KINDS:
            states[f"waiting {kind}"] = self._turns.waiting(kind)
            states[f"working {kind}"] = self._turns.working(kind)
        self._counters.measure(**states)

    def _part_with(self, worker: _Worker) -> None:
        """Its pipe has ended, so it has, or is about to."""
        self._selector.unregister(worker.pipe.fileno())
        worker.pipe.close()
        self._turns.leave(worker.number, time.monotonic())
        self._ended.add(worker.pid)

    def _reap(self) -> None:
        for pid in list(self._ended):
            status = ended(pid)
            if status is None:
                continue
            self._ended.discard(pid)
            worker = self._workers.pop(pid)
            self._counters.reset_active(worker.row)
            self._rows.append(worker.row)
            if status:
                fields = {"client": worker.client, "status": os.waitstatus_to_exitcode(status)}
                _log.error("a process of the server died", extra={"fields": fields})
