"""What a client has of one server: the model, bundles for it, and the connection on which it is run.

A server may be several machines behind one address, and may get a new model. A client that meets another machine is set
up with that one, and goes on; a model that is not the one that is pinned is refused (`ModelChanged`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from comet_mpc.engine.party import PartySession, Sent
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import CLIENT, Reals
from comet_mpc.errors import (
    ConfigurationError,
    ModelChanged,
    NodeLost,
    PeerClosed,
    PeerError,
    PeerGaveUp,
    ProtocolMismatch,
    RandomnessError,
)
from comet_mpc.models.queries import Query
from comet_mpc.models.tokenizers.texts import TextTokenizer
from comet_mpc.net.channel import Channel
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import parse_address
from comet_mpc.net.transport import Transport
from comet_mpc.offline.bundle import OpenBundle
from comet_mpc.offline.source import Progress, Source
from comet_mpc.service.bundle_pool import BundlePool, Kept
from comet_mpc.service.connection import Connection
from comet_mpc.service.messages import Ready, Run, Welcome
from comet_mpc.service.model_cache import ClientModel, KnownModel, KnownModels, obtain_model, state_in_use
from comet_mpc.service.prediction import Cost

Watch = Callable[[int, int], Sent]
"""Is told how many texts a run has and their bucket; what it returns is given every message of that run."""

Made = TypeVar("Made")
Use = Callable[[OpenBundle, Plan, "Setup", bool], Made | None]

_BUNDLE_SECONDS = 300.0  # to wait for a bundle that is being prepared already
_MOST_STALE = 16


@dataclass(frozen=True)
class Setup:
    """What a client is set up with."""

    model: ClientModel
    pool: BundlePool
    largest_batch: int
    """Texts in one run that the server takes."""
    bytes: int
    seconds: float
    """What it took, the download included."""


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """As of `Client`."""

    cache: Path
    timeout: float
    ready: int | None
    source: Source | None
    dealer: str | None
    model: str
    fingerprint: str
    accept_model: str
    bucket: int | None
    tokenizer: TextTokenizer | None
    progress: Progress | None
    downloading: Progress | None
    transport: Transport | None
    watch: Watch | None


class ServerLink:
    """Made without a connection; the first use makes one. Not for several threads at once, but for `close`."""

    def __init__(self, address: str, identity: TlsIdentity, options: LinkOptions) -> None:
        self._options = options
        self._server = f"{address} {options.model}".strip()
        self._known, self._pins = KnownModels(options.cache), not options.fingerprint
        known = self._known.find(self._server) if self._pins else None
        wanted = options.fingerprint or options.accept_model or (known.fingerprint if known is not None else "")
        self.connection = Connection(
            parse_address(address),
            identity,
            timeout=options.timeout,
            source=options.source,
            third_party=parse_address(options.dealer) if options.dealer is not None else None,
            model=options.model,
            fingerprint=wanted,
            state=state_in_use(options.cache, self._server, wanted),
            progress=options.progress,
            transport=options.transport,
            welcomed=self._set_up,
        )
        self.setup: Setup | None = None
        """None until it is connected, and after the machine that it was set up with is lost."""
        self.writes: object = None
        """The text that is being written, of which the server has one at a time."""

    def close(self) -> None:
        """Ends the connection. Randomness on disk stays for the next time."""
        self.connection.close()
        if self.setup is not None:
            self.setup.pool.close()

    def pause(self) -> None:
        """Nothing more is asked for now: gives the server back what it keeps busy for this client."""
        if self.setup is not None:
            self.setup.pool.pause()

    def connected(self) -> Setup:
        """Connects, and sets up the model, unless that is done and the connection lasts."""
        try:
            self._greet()
        except NodeLost:
            self._leave()
            self._greet()
        except ProtocolMismatch as error:
            self.check_model(error)
        assert self.setup is not None
        return self.setup

    def _greet(self) -> None:
        with self.connection.lock:
            self.connection.channel()

    def check_model(self, error: ProtocolMismatch) -> None:
        """Raises the error; or, if the server no longer has the model that is pinned, what has changed."""
        if error.field != "model" or isinstance(error, ModelChanged) or not self._pins or self._options.accept_model:
            raise error
        self._leave(model=True)
        self._greet()  # sets up what there is instead, and so compares it with what is known

    def _leave(self, *, model: bool = False) -> None:
        """Takes leave of the machine that this client was set up with, or also of the model. What was prepared with it
        stays on disk."""
        with self.connection.lock:
            setup, self.setup = self.setup, None
            self.connection.forget(model=model)
        if setup is not None:
            setup.pool.close()

    def go_on_after(self, error: PeerClosed | NodeLost) -> Setup:
        """Raises the error, unless another machine answers for the server now: then this client is set up with it."""
        before = self.setup
        if isinstance(error, NodeLost):
            self._leave()
        try:
            setup = self.connected()
        except PeerError:
            raise error from None
        if setup is before:
            raise error
        return setup

    def _set_up(self, channel: Channel, source: Source, welcome: Welcome) -> None:
        """After the first greeting: the model, by download or from the cache, and a pool of bundles for it."""
        if self.setup is not None:
            return
        options, accepts = self._options, bool(self._options.accept_model)
        start, before = time.monotonic(), channel.traffic
        met: list[KnownModel] = []

        def check(package: bytes) -> None:
            met.append(KnownModel.of(self._server, package))
            if self._pins and not accepts and (known := self._known.find(self._server)) is not None:
                known.check(met[0])

        model = obtain_model(
            channel, source, welcome, options.cache, options.downloading,
            server=self._server, check=check, tokenizer=options.tokenizer,
        )  # fmt: skip
        if options.bucket is not None and options.bucket not in model.given.buckets():
            sizes = ", ".join(map(str, model.given.buckets()))
            raise ConfigurationError(f"this model has no bucket of {options.bucket} tokens: its buckets are {sizes}")
        if self._pins:
            self._known.keep(met[0], instead=accepts)
        traffic, seconds = channel.traffic - before, time.monotonic() - start
        ready = welcome.ready if options.ready is None else min(options.ready, welcome.ready)
        kept = Kept(welcome.kept, welcome.kept_bytes)
        pool = BundlePool(model, ready, source.supplier(self.connection), kept)
        self.setup = Setup(model, pool, welcome.largest_batch, traffic.sent + traffic.received, seconds)

    # One run -------------------------------------------------------------------------------------------

    def run(self, query: Query) -> tuple[Reals | None, Cost]:
        """The answers as the server's last message makes them, whatever they are, and the next bundle is ordered.

        Randomness that both sides have, then the rounds. A run that ended with the machine that it ran on is made again
        by another one, with other randomness.
        """
        found, setup = self.with_bundle(query.batch, query.bucket, partial(self._run_with, query))
        setup.pool.replenish(query.batch, query.bucket)
        return found

    def with_bundle(self, batch: int, bucket: int, use: Use[Made]) -> tuple[Made, Setup]:
        """What is made with a bundle. One that is named to the server is never kept.

        use: is given a bundle, its plan, what the client is set up with, and whether this bundle is the last that is
        tried. It returns None if another one will do
        """
        patience = max(self.connection.timeout, _BUNDLE_SECONDS)
        setup, found, left = self.connected(), None, _MOST_STALE
        while found is None:
            plan = setup.model.programs.plan(batch, bucket)
            try:
                randomness = setup.pool.take(batch, bucket, patience)
                found = use(randomness, plan, setup, not left)
            except PeerGaveUp:
                raise
            except (PeerClosed, NodeLost) as error:
                if not left:
                    raise
                setup = self.go_on_after(error)
            left -= 1
        return found, setup

    def _run_with(
        self, query: Query, randomness: OpenBundle, plan: Plan, setup: Setup, last: bool
    ) -> tuple[Reals | None, Cost] | None:
        """None: another bundle will do, unless this was the last that is tried."""
        with self.connection.lock:
            start = time.monotonic()
            try:
                request = Run(randomness.bundle.bundle_id, query.batch, query.bucket, plan.digest)
                channel = self.connection.request(request, Ready)
            except RandomnessError:
                if last:  # the server has lost its parts again and again
                    raise
                return None
            before = channel.traffic
            watch = self._options.watch
            try:
                sent = watch(query.batch, query.bucket) if watch is not None else None
                session = PartySession(CLIENT, channel, randomness, ways=plan.ways, watch=sent)
                answer = setup.model.public.answer(query.batch, query.bucket, query)(session, setup.model.weights)
            except BaseException as error:
                channel.close()  # the other side must not wait for rounds that will not come
                if isinstance(error, PeerGaveUp) and not last:  # its part of this bundle was damaged
                    return None
                raise
            finally:
                randomness.bundle.close()
            traffic, seconds = channel.traffic - before, time.monotonic() - start
        return answer, Cost(
            texts=query.batch,
            bucket=query.bucket,
            setup_bytes=setup.bytes,
            setup_seconds=setup.seconds,
            offline_bytes=randomness.bundle.spent,
            offline_seconds=randomness.seconds,
            online_bytes=traffic.sent + traffic.received,
            online_seconds=seconds,
            rounds=traffic.rounds,
            source=setup.model.source.name,
        )
