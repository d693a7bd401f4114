"""The server's side of a conversation with one client, and what all conversations share.

A failure before the rounds of a program begin is a refusal, and the client may go on; a failure in the middle ends
the connection. Either way the bundle is spent: it leaves the store before the server says that it is ready.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from comet_mpc.engine.party import PartySession, SourceName
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.seeds import derive_seed
from comet_mpc.engine.share import SERVER
from comet_mpc.errors import (
    CometError,
    ConfigurationError,
    NotAuthenticated,
    PeerClosed,
    PeerError,
    PeerTimeout,
    ProtocolMismatch,
    RandomnessSpent,
    ServerBusy,
    ShapeError,
)
from comet_mpc.models.served import ServedModel
from comet_mpc.net.channel import Channel
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.messages import refusal
from comet_mpc.net.sockets import connect
from comet_mpc.offline.dealer.bundles import Bundle, mask_weight, weight_key, weights_digest
from comet_mpc.offline.dealer.fetch import fetch_bundle
from comet_mpc.offline.pair.commit import prepare_stored
from comet_mpc.offline.pair.prepare import Preparer
from comet_mpc.offline.store import BundleStore
from comet_mpc.service.messages import (
    MESSAGE_LIMIT,
    Accepted,
    GetPackage,
    GetWeights,
    Prepare,
    Programs,
    Ready,
    Run,
    Welcome,
    from_client,
    introduce,
    say,
    send_blob,
)
from comet_mpc.service.metrics import Counters

__all__ = ["Conversation", "Service", "ServiceLimits"]

_log = logging.getLogger(__name__)

_SECRET_BYTES = 32
_PARTING_SECONDS = 0.5


@dataclass(frozen=True)
class ServiceLimits:
    """What a server does for one client, and how long it waits for it."""

    batch: int = 8
    """Texts in one run of the program."""
    ready: int = 4
    """Bundles that a client is told it may keep ready per program."""
    store_bytes: int = 1 << 34
    """Of prepared randomness on disk; beyond that the oldest, whose clients have not come back, is dropped."""
    fetches: int = 4
    """Bundles on their way from the dealer at a time, per worker."""
    preparations: int = 0
    """Bundles being prepared with clients at a time, in all workers together; 0: in all workers but one."""
    stall_seconds: float = 30.0
    idle_seconds: float = 60.0
    query_seconds: float = 600.0
    setup_seconds: float = 3600.0
    slowest: float = 64e3
    """Bytes a second of a download, on top of `stall_seconds` for every tensor; who is slower is not waited for."""
    dealer_seconds: float = 5.0
    """To reach the dealer."""
    preparation_seconds: float = 3600.0
    """For a bundle, from the dealer or with the client."""
    step_seconds: float = 120.0
    """Between two messages of a preparation with a client, which computes for a while."""


def _secret(state: Path) -> bytes:
    """The secret of the weight masks, made on first use. Whoever reads it and a client's download has the model."""
    path = state / "weights.secret"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            beside = state / f".weights.secret.{secrets.token_hex(8)}"  # one left by a crash is in nobody's way
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(beside, path)  # unlike a rename it does not replace what another process has just made
            except FileExistsError:
                pass
            finally:
                beside.unlink()
        found = path.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigurationError(f"{path} holds a secret: it must belong to this user alone (chmod 600)")
        secret = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot use {state} for the server's state: {error.strerror}") from error
    if len(secret) != _SECRET_BYTES:
        raise ConfigurationError(f"{path} has {len(secret)} bytes, expected {_SECRET_BYTES}: remove it to make another")
    return secret


class Service:
    """One model made ready for any number of conversations. Made once, before workers are forked.

    dealer: where the randomness comes from; None: the server prepares it with each client, and there is no third party.
    """

    def __init__(
        self,
        model: ServedModel,
        dealer: tuple[str, int] | None,
        identity: TlsIdentity,
        state: Path,
        limits: ServiceLimits | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.limits = limits or ServiceLimits()
        self.counters = counters or Counters()
        self.fetches = threading.BoundedSemaphore(self.limits.fetches)
        self.dealer = dealer
        self.source: SourceName = "pair" if dealer is None else "dealer"
        self.identity = identity
        self.model = replace(model, folded={})  # real numbers are for the plaintext model only
        self.programs = Programs(self.model, self.source)
        self.weights = self.model.weights()
        # bound to the very numbers that are masked: another way to fold or round the same checkpoint gets other masks
        secret, numbers = _secret(Path(state)), weights_digest(model.weights())
        self.key = weight_key(secret, numbers)
        self._masked = [self.weights[weight.name] for weight in self.programs.weights()]
        self._package = model.public().package()
        name = hashlib.sha256(derive_seed(secret, "state", f"{self.source} {numbers}")).hexdigest()
        self.welcome = Welcome(
            fingerprint=model.fingerprint,
            package_bytes=len(self._package),
            package_digest=hashlib.sha256(self._package).hexdigest(),
            weights=None if dealer is None else self._masked_download(),
            state=name,
            dealer=dealer,
            largest_batch=self.limits.batch,
            ready=self.limits.ready,
        )
        # Randomness for other weights, or other masks of them, is of no use, so each of them has a store of its own.
        self.store = BundleStore(Path(state) / f"bundles-{name[:32]}", SERVER, self.source)
        self._places = [Path(state) / f"preparing-{place}" for place in range(max(1, self.limits.preparations))]

    def _masked_download(self) -> tuple[int, str]:
        digest, size = hashlib.sha256(), 0
        for piece in self.masked_weights():
            digest.update(piece)
            size += piece.nbytes
        return size, digest.hexdigest()

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """One of the places for preparations, of all processes together: a lock that ends with its process."""
        for path in self._places:
            with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        raise ServerBusy(f"{len(self._places)} bundles are being prepared already; try again later")

    def masked_weights(self) -> Iterator[memoryview]:
        """D = W - B, one tensor at a time."""
        for weight in self._masked:
            yield mask_weight(self.key, weight).reshape(-1).view("u1").data

    def package(self) -> memoryview:
        return memoryview(self._package)

    def make_room(self, needed: int) -> None:
        """Drops the oldest bundles until there is room for another. Their clients will notice and ask for new ones."""
        found = []
        for path in self.store.directory.glob("*.bundle"):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path.stem))
        needed += sum(size for _, size, _ in found)
        for _, size, name in sorted(found):
            if needed <= self.limits.store_bytes:
                return
            self.store.discard(name)
            needed -= size

    def reach_dealer(self) -> Channel:
        """A connection to the dealer, or an error that says that it cannot be had."""
        limits = self.limits
        assert self.dealer is not None
        try:
            return connect(
                *self.dealer,
                self.identity.client_context(),
                limits.stall_seconds,
                limits.dealer_seconds,
                connect_timeout=limits.dealer_seconds,
            )
        except CometError as error:
            _log.warning(
                "the dealer cannot be reached: waiting for it",
                extra={"fields": {"dealer": "{}:{}".format(*self.dealer), "error": type(error).__name__}},
            )
            raise PeerClosed(f"the server cannot reach its dealer: {error}") from error


class Conversation:
    """One client, from the greeting to the end. `idle_since` and `deadline` are for whoever watches over it."""

    def __init__(self, service: Service, channel: Channel, *, require_client: bool = True) -> None:
        self._service = service
        self._limits = service.limits
        self.channel = channel
        self._require_client = require_client
        self._preparer: Preparer | None = None
        self._midway = False
        self.requests = 0
        self.idle_since: float | None = None
        self.deadline = time.monotonic() + self._limits.stall_seconds

    @property
    def _fields(self) -> dict[str, object]:
        return {"client": self.channel.peer_name}

    def serve(self) -> None:
        """Serves until the client leaves; whatever happens in it ends here."""
        counters = self._service.counters
        with self.channel, counters.session():
            try:
                self._converse()
            except CometError as error:
                counters.error(error)
                fields = {**self._fields, "error": type(error).__name__, "midway": self._midway}
                _log.warning("a client was not served to the end", extra={"fields": {**fields, "reason": str(error)}})
                self._part(error)
            except Exception as error:
                counters.error(error)
                _log.exception("an error in the server", extra={"fields": self._fields})
                self._part(PeerError("the server failed; nothing was computed"))

    def _part(self, error: CometError) -> None:
        """Tells the client why, if it can still hear it."""
        if self._midway or self.channel.closed:
            return
        self.channel.timeout = _PARTING_SECONDS
        self.deadline = time.monotonic() + 2 * _PARTING_SECONDS
        with contextlib.suppress(PeerError):
            say(self.channel, refusal(error))
            self.channel.receive(MESSAGE_LIMIT)  # closing at once could discard the refusal

    def _converse(self) -> None:
        introduce(self.channel, "server", self._service.model.fingerprint, self._service.source)
        role = self.channel.peer_role
        if role not in (None, "client") or (role is None and self._require_client):
            raise NotAuthenticated(f"a certificate of role {role!r} does not entitle to act as client")
        say(self.channel, self._service.welcome)
        while (message := self._next()) is not None:
            try:
                self._handle(message)
            except CometError as error:
                if self._midway or self.channel.closed:
                    raise
                self._service.counters.error(error)
                fields = {**self._fields, "error": type(error).__name__, "request": type(message).__name__}
                _log.warning("a request was refused", extra={"fields": {**fields, "reason": str(error)}})
                say(self.channel, refusal(error))

    def _next(self) -> GetPackage | GetWeights | Prepare | Run | None:
        """The next request; None if the client has left, or has been silent for too long."""
        self.channel.timeout = self._limits.idle_seconds
        self.deadline = float("inf")
        self.idle_since = time.monotonic()
        try:
            data = self.channel.receive(MESSAGE_LIMIT)
        except (PeerClosed, PeerTimeout):
            return None
        finally:
            self.idle_since = None
            self.deadline = time.monotonic() + self._limits.query_seconds
            self.channel.timeout = self._limits.stall_seconds
        self.requests += 1
        return from_client(data)

    def _handle(self, message: GetPackage | GetWeights | Prepare | Run) -> None:
        match message:
            case GetPackage():
                self._send([self._service.package()])
            case GetWeights():
                if self._service.source == "pair":
                    raise ConfigurationError("there is no dealer, so nobody needs masked weights")
                self._send(self._service.masked_weights())
            case Prepare() if self._service.source == "pair":
                self._prepare_here(message)
            case Prepare():
                self._prepare(message)
            case Run():
                self._run(message)

    def _send(self, pieces: Iterator[memoryview] | list[memoryview]) -> None:
        latest, limits = time.monotonic() + self._limits.setup_seconds, self._limits

        def timed() -> Iterator[memoryview]:
            for piece in pieces:
                self.deadline = min(latest, time.monotonic() + limits.stall_seconds + piece.nbytes / limits.slowest)
                yield piece

        self._midway = True
        count = send_blob(self.channel, timed())
        self._midway = False
        self._service.counters.add(setup_bytes_total=count)
        _log.info("sent a download", extra={"fields": {**self._fields, "bytes": count}})

    def _plan(self, message: Prepare | Run) -> Plan:
        if message.batch > self._limits.batch:
            raise ShapeError(f"a batch of {message.batch} texts: this server takes {self._limits.batch} at a time")
        plan = self._service.programs.plan(message.batch, message.bucket)
        if plan.digest != message.digest:
            raise ProtocolMismatch("the parameters of the program", got=message.digest, expected=plan.digest)
        return plan

    # Randomness ----------------------------------------------------------------------------------------

    def _prepare_here(self, message: Prepare) -> None:
        """With the client, on this connection. From `Accepted` on, whatever fails just ends it."""
        service, plan = self._service, self._plan(message)
        if self._preparer is None:
            self._preparer = Preparer(self.channel, SERVER, plan.correlations, service.weights)
        elif self._preparer.correlations != plan.correlations:
            raise ConfigurationError("bundles of one size are prepared on a connection: connect again for another size")
        with service.place():
            service.make_room(service.store.part_bytes(plan.correlations))
            self.deadline = time.monotonic() + self._limits.preparation_seconds
            self.channel.timeout = self._limits.step_seconds
            self._midway = True
            say(self.channel, Accepted())
            start = time.monotonic()
            traffic = prepare_stored(self._preparer, message.bundle_id, plan, service.store)
            self._midway = False
        self._prepared(message, traffic.sent + traffic.received, time.monotonic() - start)

    def _prepared(self, message: Prepare, count: int, seconds: float) -> None:
        self._service.counters.add(bundles_prepared_total=1, offline_bytes_total=count, offline_seconds_total=seconds)
        fields = {**self._fields, "batch": message.batch, "bucket": message.bucket}
        _log.info("prepared a bundle", extra={"fields": {**fields, "bytes": count, "seconds": round(seconds, 6)}})

    def _prepare(self, message: Prepare) -> None:
        plan = self._plan(message)
        if not self._service.fetches.acquire(blocking=False):
            raise PeerError(f"{self._limits.fetches} bundles are being prepared already; try again")
        with contextlib.ExitStack() as undo:  # if the client is gone before it could be told
            undo.callback(self._service.fetches.release)
            channel = undo.enter_context(self._service.reach_dealer())
            say(self.channel, Accepted())
            undo.pop_all()
        threading.Thread(target=self._fetch, args=(channel, message, plan), name="fetch", daemon=True).start()

    def _fetch(self, channel: Channel, message: Prepare, plan: Plan) -> None:
        service, name = self._service, message.bundle_id
        start = time.monotonic()
        fields = {**self._fields, "batch": message.batch, "bucket": message.bucket}
        try:
            service.make_room(plan.correction_bytes)
            fetch_bundle(
                channel,
                SERVER,
                name,
                plan.correlations,
                lambda seed: service.store.add(name, plan.digest, seed),
                key=service.key,
                patience=self._limits.preparation_seconds,
            )
        except CometError as error:
            service.counters.error(error)
            fields |= {"error": type(error).__name__, "reason": str(error)}
            _log.warning("a bundle could not be prepared", extra={"fields": fields})
        except Exception as error:
            service.counters.error(error)
            _log.exception("an error while preparing a bundle", extra={"fields": fields})
        else:
            self._prepared(message, plan.correction_bytes, time.monotonic() - start)
        finally:
            self._service.fetches.release()

    def _take(self, message: Run, plan: Plan) -> Bundle:
        """The bundle, consumed. The client may have heard from the dealer a moment before this side has."""
        until = time.monotonic() + (1.0 if self._service.source == "dealer" else 0.0)
        while True:
            try:
                return self._service.store.take(message.bundle_id, plan.digest, plan.correlations)
            except RandomnessSpent:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.02)

    # One run -------------------------------------------------------------------------------------------

    def _run(self, message: Run) -> None:
        plan = self._plan(message)
        bundle = self._take(message, plan)
        try:
            self._compute(message, bundle)
        finally:
            bundle.close()

    def _compute(self, message: Run, bundle: Bundle) -> None:
        service = self._service
        self._midway = True
        start = time.monotonic()
        say(self.channel, Ready())
        begun = self.channel.traffic
        source = service.store.draw_from(bundle, service.weights)
        session = PartySession(SERVER, self.channel, source, fused=service.source == "dealer")
        service.model.answer(message.batch, message.bucket)(session, service.weights)
        traffic, seconds = self.channel.traffic - begun, time.monotonic() - start
        self._midway = False
        count = traffic.sent + traffic.received
        service.counters.add(
            queries_total=1,
            texts_total=message.batch,
            online_bytes_total=count,
            online_seconds_total=seconds,
            rounds_total=traffic.rounds,
        )
        fields = {**self._fields, "batch": message.batch, "bucket": message.bucket, "bytes": count}
        _log.info("answered", extra={"fields": {**fields, "rounds": traffic.rounds, "seconds": round(seconds, 6)}})
