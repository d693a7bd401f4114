"""The server's side of a conversation with one client.

A failure before the rounds of a program begin is a refusal, and the client may go on; a failure in the middle ends
the connection. Either way the bundle is spent: it leaves the store before the server says that it is ready.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.session import Ways
from comet_mpc.engine.share import SERVER
from comet_mpc.errors import (
    CometError,
    ConfigurationError,
    NotAuthenticated,
    PeerClosed,
    PeerError,
    PeerTimeout,
    RandomnessDamaged,
    RandomnessSpent,
)
from comet_mpc.models.served import ServedModel
from comet_mpc.models.writing.model import WritingModel, told
from comet_mpc.net.channel import Channel
from comet_mpc.net.messages import refusal
from comet_mpc.net.metrics import refusal_reason
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.header import owned_by
from comet_mpc.offline.source import Order
from comet_mpc.retry import retry
from comet_mpc.service.catalogue import Catalogue
from comet_mpc.service.messages import (
    MESSAGE_LIMIT,
    Accepted,
    Begin,
    End,
    FromClient,
    GetPackage,
    GetWeights,
    Prepare,
    Ready,
    Run,
    Step,
    from_client,
    introduce,
    say,
    send_blob,
)
from comet_mpc.service.writing.server import Writing

_log = logging.getLogger(__name__)

_PARTING_SECONDS = 0.5


class Slots(Protocol):
    """Where the work of all clients is done, in turn."""

    def slot(self, kind: Literal["run", "prepare", "download"], channel: Channel) -> AbstractContextManager[None]:
        """One of the slots, for as long as the block takes; `ServerBusy` if there is none in time.
        A download gets one in any case.

        channel: of the client that waits for it.
        """

    def idle(self, idle: bool, *, refused: bool = False) -> None:
        """The client is to ask for something, or has. refused: it got nothing of what it asked for last."""


class Conversation:
    """One client, from the greeting to the end. `idle_since` and `deadline` are for whoever watches over it."""

    def __init__(self, offer: Catalogue, channel: Channel, slots: Slots, *, require_client: bool = True) -> None:
        self._offer = offer
        self._deployment = offer.first
        """The model that the client has chosen, once it is greeted."""
        self._limits = offer.limits
        self._counters = offer.counters
        self.channel = channel
        self._require_client = require_client
        self._reserved = False
        self._slots = slots
        self._refused = False
        self._writing: Writing | None = None
        self._went_on = 0.0
        """When the text that is being written was last begun or gone on with."""
        self.idle_since: float | None = None
        self.deadline = time.monotonic() + self._limits.stall_seconds

    def serve(self) -> None:
        """Serves until the client leaves; whatever happens in it ends here."""
        with self.channel, self._counters.session():
            try:
                self._converse()
            except CometError as error:
                self._counters.error(error)
                self._log_error("a client was not served to the end", error, midway=self._reserved)
                if isinstance(error, NotAuthenticated):
                    self.abandon()
                self._part(error)
            except Exception as error:
                self._counters.error(error)
                _log.exception("an error in the server", extra={"fields": self._fields()})
                self._part(PeerError("the server failed; nothing was computed"))

    def abandon(self) -> None:
        """Gives up what it has begun in the background."""
        self._deployment.provider.abandon()

    def settle(self) -> None:
        """Waits for what it has begun in the background."""
        self._deployment.provider.settle(self._limits.preparation_seconds)

    @property
    def _client(self) -> str:
        """The name of the client's certificate; all clients without one count as the same."""
        return self.channel.peer_name or ""

    def _fields(self, **more: object) -> dict[str, object]:
        return {"client": self.channel.peer_name, **more}

    def _log_error(self, event: str, error: Exception, **more: object) -> None:
        fields = self._fields(error=type(error).__name__, **more, reason=str(error))
        _log.warning(event, extra={"fields": fields})

    def _part(self, error: CometError) -> None:
        """Tells the client why, if it can still hear it; in the middle of a run, that another bundle will do."""
        if self.channel.closed or (self._reserved and not isinstance(error, RandomnessDamaged)):
            return
        self.deadline = time.monotonic() + 2 * _PARTING_SECONDS
        if self._reserved:
            self.channel.give_up(_PARTING_SECONDS)
            return
        self._counters.refused(refusal_reason(error))
        self.channel.timeout = _PARTING_SECONDS
        with contextlib.suppress(PeerError):
            say(self.channel, refusal(error))
            self.channel.receive(MESSAGE_LIMIT)  # closing at once could discard the refusal

    def _converse(self) -> None:
        _, wanted = introduce(self.channel, "server", self._offer.greeted, self._offer.source)
        role = self.channel.peer_role
        if role not in (None, "client") or (role is None and self._require_client):
            raise NotAuthenticated(f"a certificate with the role {role!r} may not act as a client")
        self._deployment = self._offer.choose(*wanted)
        say(self.channel, self._deployment.welcome)
        while (message := self._next()) is not None:
            try:
                with _own_troubles_named():
                    self._handle(message)
            except CometError as error:
                if self._reserved or self.channel.closed or isinstance(error, NotAuthenticated):
                    raise
                self._refused = True
                self._counters.error(error)
                self._counters.refused(refusal_reason(error))
                self._log_error("a request was refused", error, request=type(message).__name__)
                say(self.channel, refusal(error))

    def _next(self) -> FromClient | None:
        """The next request; None if the client has left, or has been silent for too long."""
        self.channel.timeout = self._limits.idle_seconds
        self.deadline = float("inf")
        if self._writing is not None and time.monotonic() - self._went_on > self._limits.idle_seconds:
            self._writing = None  # other requests do not keep it
        if self._writing is None:  # a text that is being written is not ended to make room
            self._slots.idle(True, refused=self._refused)
            self.idle_since = time.monotonic()
        self._refused = False
        try:
            data = self.channel.receive(MESSAGE_LIMIT)
        except (PeerClosed, PeerTimeout):
            return None
        finally:
            self.idle_since = None
            self.deadline = time.monotonic() + self._limits.query_seconds
            self.channel.timeout = self._limits.stall_seconds
        self._slots.idle(False)
        return from_client(data)

    def _handle(self, message: FromClient) -> None:
        match message:
            case GetPackage():
                self._send([memoryview(self._deployment.package)])
            case GetWeights():
                pieces = self._deployment.provider.masked_weights()
                if pieces is None:
                    raise ConfigurationError("there is no dealer, so nobody needs masked weights")
                self._send(pieces)
            case Prepare():
                self._check_quota(message.batch)
                plan = self._plan(message)
                self._deployment.check_room(plan, message.count)
                order = Order(message.bundle_id, message.batch, message.bucket, plan, self._client, message.count)
                self._deployment.provider.prepare(order, self._deployment.store, self)
            case Run():
                encoder = self._deployment.encoder  # before anything is used
                self._deployment.quota.check(self._client, message.batch)
                plan = self._plan(message)
                with (
                    self._slots.slot("run", self.channel),
                    contextlib.closing(self._take(message, plan)) as bundle,
                ):
                    self._deployment.quota.charge(self._client, message.batch)
                    self._compute(message, bundle, encoder, plan.ways)
            case Begin():
                self._writing, writer = None, self._deployment.writer  # instead of the one before
                self._check_quota(1)
                plan = self._plan(message)
                with (
                    self._slots.slot("run", self.channel),
                    contextlib.closing(self._take(message, plan)) as bundle,
                ):
                    self._writing = Writing(self._deployment, writer, self.channel, bundle, message.bucket)
                self._went_on = time.monotonic()
                say(self.channel, Ready())
            case Step():
                with self._slots.slot("run", self.channel):
                    self._write(message)
            case End():
                self._writing = None

    def _check_quota(self, texts: int) -> None:
        deployment = self._deployment
        quota = deployment.tokens if isinstance(deployment.model, WritingModel) else deployment.quota
        quota.check(self._client, texts)

    def _write(self, message: Step) -> None:
        if self._writing is None:
            raise ConfigurationError("there is no conversation to go on with: begin one")
        start = time.monotonic()
        window, places = self._writing.check(message)
        self._deployment.tokens.charge(self._client, told(window))
        with self.reserved():
            say(self.channel, Ready())
            begun = self.channel.traffic
            self._writing.run(window, places)
        self._went_on = time.monotonic()
        traffic, seconds = self.channel.traffic - begun, time.monotonic() - start
        count = traffic.sent + traffic.received
        self._counters.add(
            written_total=1, online_bytes_total=count, online_seconds_total=seconds, rounds_total=traffic.rounds
        )
        fields = self._fields(positions=window.size, after=window.first, bytes=count, rounds=traffic.rounds)
        _log.info("wrote", extra={"fields": {**fields, "seconds": round(seconds, 6)}})

    def _plan(self, message: Prepare | Run | Begin) -> Plan:
        """Planning takes a core for a second or two: if it must be done, it is done in a slot that stands for one."""
        computes = isinstance(message, Prepare) and self._deployment.provider.computes
        return self._deployment.plan(message, self._slots.slot("prepare" if computes else "run", self.channel))

    @contextlib.contextmanager
    def reserved(self, seconds: float | None = None) -> Iterator[None]:
        """What is sent now belongs to a download, a preparation or a run: an error in it just ends the connection."""
        if seconds is not None:
            self.deadline = time.monotonic() + seconds
        self._reserved = True
        yield
        self._reserved = False  # not after an error: nothing else can be said then

    def _send(self, pieces: Iterable[memoryview]) -> None:
        limits = self._limits

        def timed() -> Iterator[memoryview]:
            latest = time.monotonic() + limits.setup_seconds
            for piece in pieces:
                self.deadline = min(latest, time.monotonic() + limits.stall_seconds + piece.nbytes / limits.slowest)
                yield piece

        with self._slots.slot("download", self.channel), self.reserved(), self._counters.timed("download"):
            count = send_blob(self.channel, timed())
        self._counters.add(setup_bytes_total=count)
        _log.info("sent a download", extra={"fields": self._fields(bytes=count)})

    # A preparation: what its provider tells (`source.Visitor`) ----------------------------------------------

    def slot(self) -> AbstractContextManager[None]:
        return self._slots.slot("prepare", self.channel)

    def accept(self) -> None:
        say(self.channel, Accepted())

    def prepared(self, order: Order, count: int, seconds: float) -> None:
        self._counters.add(bundles_prepared_total=order.count, offline_bytes_total=count, offline_seconds_total=seconds)
        self._counters.observe("prepare", seconds)
        fields = self._fields(
            owner=self._deployment.pseudonym(owned_by(order.owner)),
            batch=order.batch, bucket=order.bucket, bundles=order.count, bytes=count, seconds=round(seconds, 6),
        )  # fmt: skip
        _log.info("prepared a bundle", extra={"fields": fields})

    def failed(self, order: Order, error: Exception) -> None:
        self._counters.error(error)
        if isinstance(error, CometError):
            self._log_error("a bundle could not be prepared", error, batch=order.batch, bucket=order.bucket)
        else:
            fields = self._fields(batch=order.batch, bucket=order.bucket)
            _log.error("an error while preparing a bundle", extra={"fields": fields}, exc_info=error)

    # One run -------------------------------------------------------------------------------------------

    def _take(self, message: Run | Begin, plan: Plan) -> Bundle:
        """The bundle, consumed. The client may have heard that it is ready a moment before this side has."""
        store, lag = self._deployment.store, self._deployment.provider.lag_seconds

        def once() -> Bundle:
            return store.take(message.bundle_id, plan.digest, plan.correlations, owner=self._client)

        bundle = retry(once, RandomnessSpent, seconds=lag, pause=0.02)
        _log.info("a bundle is consumed", extra={"fields": self._fields(bundle=message.bundle_id)})
        return bundle

    def _compute(self, message: Run, bundle: Bundle, encoder: ServedModel, ways: Ways) -> None:
        deployment, start = self._deployment, time.monotonic()
        with self.reserved():
            say(self.channel, Ready())
            begun = self.channel.traffic
            randomness = deployment.source.open(bundle, deployment.weights)
            session = PartySession(SERVER, self.channel, randomness, ways=ways)
            encoder.answer(message.batch, message.bucket)(session, deployment.weights)
        traffic, seconds = self.channel.traffic - begun, time.monotonic() - start
        count = traffic.sent + traffic.received
        self._counters.add(
            queries_total=1,
            texts_total=message.batch,
            online_bytes_total=count,
            online_seconds_total=seconds,
            rounds_total=traffic.rounds,
        )
        self._counters.observe("run", seconds)
        fields = self._fields(batch=message.batch, bucket=message.bucket, bytes=count, rounds=traffic.rounds)
        _log.info("answered", extra={"fields": {**fields, "seconds": round(seconds, 6)}})


@contextlib.contextmanager
def _own_troubles_named() -> Iterator[None]:
    """What the operating system refuses this server (disk, file descriptors) is told, not shown as a failure."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"the server cannot do this now: {error.strerror or error}") from error
