"""The process of one connection: a conversation, its slots, and a watch over both.

It asks the front desk for a slot before it computes, gives it back afterwards, and says when its peer is to act, so
that the slot can be lent meanwhile. The watch ends a conversation that is overdue, and one that is idle when the desk
asks it to leave.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import select
import threading
import time
from collections.abc import Iterator

from comet_mpc.errors import NotAuthenticated, PeerClosed, ServerBusy
from comet_mpc.net.channel import Channel
from comet_mpc.net.live import REVOKED, UNREADABLE
from comet_mpc.net.metrics import Counters
from comet_mpc.service.catalogue import Catalogue
from comet_mpc.service.conversation import Conversation
from comet_mpc.service.hosting.pipe import Pipe, Said
from comet_mpc.service.hosting.turns import Kind

_log = logging.getLogger(__name__)

_TICK = 0.1
_RESTING_SECONDS = 3.0
_RESTING_LOAD = 0.05
"""Of a core, over so many seconds: a process that computes less waits for its peer."""

WANTS: dict[Kind, Said] = {
    "run": Said.WANT_RUN,
    "prepare": Said.WANT_PREPARE,
    "download": Said.WANT_DOWNLOAD,
}
_FULL: dict[Kind, str] = {
    "run": "all workers of the server are busy; try again later",
    "prepare": "the server prepares as many bundles as it can already; try again later",
}


class _Slots:
    """This connection's side of the front desk's slots. Several threads may ask."""

    def __init__(self, pipe: Pipe, counters: Counters) -> None:
        self._pipe, self._counters = pipe, counters
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._answers: dict[int, Said] = {}
        self.held: set[int] = set()

    @contextlib.contextmanager
    def slot(self, kind: Kind, channel: Channel) -> Iterator[None]:
        number = next(self._numbers)
        self._pipe.say(WANTS[kind], number)
        try:
            with self._counters.timed(f"wait_{kind}"):
                self._await(number, kind, channel)
            yield
        finally:
            with self._changed:
                self.held.discard(number)
            self._pipe.say(Said.DONE, number)

    def idle(self, idle: bool, *, refused: bool = False) -> None:
        self._pipe.say(Said.BUSY if not idle else Said.REFUSED if refused else Said.IDLE)

    def answer(self, what: Said, number: int) -> None:
        with self._changed:
            if what is Said.GO:
                self.held.add(number)
            self._answers[number] = what
            self._changed.notify_all()

    def _await(self, number: int, kind: Kind, channel: Channel) -> None:
        with self._changed:
            while number not in self._answers:
                self._changed.wait(0.5)
                if channel.lost:
                    raise PeerClosed("the client did not wait for its turn")
            answer = self._answers.pop(number)
        if answer is Said.REVOKED:
            raise NotAuthenticated(REVOKED)
        if answer is Said.UNREADABLE:
            raise ServerBusy(UNREADABLE)
        if answer is Said.FULL:
            raise ServerBusy(_FULL[kind])


def work(offer: Catalogue, channel: Channel, pipe: Pipe, *, require_client: bool) -> None:
    """One conversation, from the greeting to its end, and what it has begun in the background."""
    slots = _Slots(pipe, offer.counters)
    conversation = Conversation(offer, channel, slots, require_client=require_client)
    threading.Thread(target=_watch, args=(conversation, slots, pipe), name="watch", daemon=True).start()
    conversation.serve()
    conversation.settle()


def _watch(conversation: Conversation, slots: _Slots, pipe: Pipe) -> None:
    load = _Load()
    leaving = False
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLIN)
    while True:
        if poll.poll(_TICK * 1000):
            heard = pipe.hear()
            if heard is None:  # the desk is gone, and so will this process be
                conversation.channel.close()
                return
            what, number = heard
            if what in (Said.GO, Said.FULL, Said.REVOKED, Said.UNREADABLE):
                slots.answer(what, number)
                load.reset()
            elif what is Said.LEAVE:
                leaving = True
            elif what is Said.ABORT:
                conversation.channel.close()
                conversation.abandon()
        if time.monotonic() > conversation.deadline:
            _log.warning("a client took too long: the connection is closed")
            conversation.channel.close()
        if leaving and conversation.idle_since is not None:
            conversation.channel.close()
        if slots.held:
            said = load.look()
            if said is not None:
                for number in tuple(slots.held):
                    pipe.say(said, number)


class _Load:
    """Whether this process computes, as the watch sees it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._since, self._used, self._resting = time.monotonic(), time.process_time(), False

    def look(self) -> Said | None:
        """What has changed since the last look."""
        now, used = time.monotonic(), time.process_time()
        if self._resting:
            if used - self._used > _RESTING_LOAD:
                self.reset()
                return Said.RESUME
            self._since, self._used = now, used
            return None
        if now - self._since < _RESTING_SECONDS:
            return None
        self._resting = used - self._used < _RESTING_LOAD * (now - self._since)
        self._since, self._used = now, used
        return Said.REST if self._resting else None
