"""A private prediction, from the client's side.

    with Client("localhost:7001", keys="keys") as client:
        for prediction in client.classify(["a warm and bright film", "dull"]):
            print(prediction.label, prediction.probability, prediction.cost.online_bytes)

The server learns how many texts there are and the bucket (16, 32, 64, … tokens) that each fits into, nothing else.
If it uses a dealer, this relies on the dealer being run by neither the client's nor the server's operator: a dealer and
a server together could read the text. `Client(source="pair")` insists on a server without one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.party import PartySession, SourceName
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.engine.share import CLIENT
from comet_mpc.errors import (
    ConfigurationError,
    ForeignRandomness,
    NotAuthenticated,
    PeerClosed,
    PeerError,
    ProtocolMismatch,
    RandomnessSpent,
    ServerBusy,
    ShapeError,
)
from comet_mpc.models.served import PublicModel, Query
from comet_mpc.net.channel import DEFAULT_TIMEOUT, Channel, Traffic
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import connect
from comet_mpc.offline.dealer.fetch import fetch_bundle
from comet_mpc.offline.pair.commit import Progress, prepare_stored
from comet_mpc.offline.pair.prepare import Preparer
from comet_mpc.offline.store import new_bundle_id
from comet_mpc.service.bundle_pool import Portion, Reserve
from comet_mpc.service.messages import Accepted, Prepare, Ready, Run, Welcome, expect, introduce, parse_address, say
from comet_mpc.service.model_cache import SetUp, default_cache, set_up

__all__ = ["Client", "Cost", "Prediction"]

Text = str | tuple[str, str]
Reals = npt.NDArray[np.float64]
M = TypeVar("M", Accepted, Ready)

_LARGEST_BATCH = 8
_DEALER_STALL = 30.0  # its signs of life come every few seconds
_PREPARE_STALL = 120.0  # between two messages of a preparation the server computes for a while
_BUSY_PAUSE = 0.5  # before a server that prepares with others is asked again
_MOST_STALE = 16
_MOST_TRIES = 4  # a busy server ends idle connections to make room


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run of the program cost, for all its texts together."""

    texts: int
    """Texts that share this cost."""
    bucket: int
    """Tokens that each is padded to."""
    setup_bytes: int
    setup_seconds: float
    """Downloads of this client so far; 0 bytes if the cache had everything."""
    offline_bytes: int
    offline_seconds: float
    """Randomness: from the dealer to both parties, or between the two. It may have been prepared long before."""
    online_bytes: int
    online_seconds: float
    rounds: int
    source: SourceName
    """Who prepared the randomness: a dealer, or the two parties (pair)."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer for one text. With a single label (a regression) the score is logits[0]."""

    label: str
    probability: float
    logits: tuple[float, ...]
    probabilities: dict[str, float]
    truncated: bool
    """The text was longer than the model takes, and was cut."""
    cost: Cost


class Client:
    """A connection to one server. Not for several threads at once: give each thread its own.

    address      HOST:PORT
    keys         directory with authority.pem, client.pem and client.key; or pass `identity`
    cache        directory for downloads and prepared randomness (default: the user's cache). Do not copy it
    timeout      seconds without any progress after which `PeerTimeout` is raised; also for a free worker
    ready        queries whose randomness is kept ready for each size in use; None: as many as the server suggests
    batch        most texts in one run
    source       pair or dealer: refuse a server with another source of randomness; None takes what the server has
    dealer       HOST:PORT if the dealer has another address here than at the server
    fingerprint  refuse any other model than this one
    progress     is told bytes so far and of how many while a bundle is prepared without a dealer; from any thread
    """

    def __init__(
        self,
        address: str,
        *,
        keys: Path | str | None = None,
        identity: TlsIdentity | None = None,
        cache: Path | str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        ready: int | None = None,
        batch: int = _LARGEST_BATCH,
        source: SourceName | None = None,
        dealer: str | None = None,
        fingerprint: str = "",
        progress: Progress | None = None,
    ) -> None:
        if (keys is None) == (identity is None):
            raise ConfigurationError("a client needs its certificate: pass either keys=DIRECTORY or identity")
        if keys is not None:
            directory = Path(keys)
            identity = TlsIdentity(directory / "client.pem", directory / "client.key", directory / "authority.pem")
        if source not in (None, *get_args(SourceName)):
            raise ConfigurationError(f"unknown source of randomness {source!r}: choose pair or dealer")
        if source == "pair" and dealer is not None:
            raise ConfigurationError("a dealer's address is of no use where randomness is prepared without one")
        if batch < 1 or not timeout > 0:
            raise ConfigurationError(f"batch and timeout must be positive, got {batch} and {timeout}")
        assert identity is not None
        self._address = parse_address(address)
        self._tls = identity.client_context()
        self._cache = Path(cache) if cache is not None else default_cache()
        self._timeout = timeout
        self._ready = ready
        self._batch = batch
        self._dealer = parse_address(dealer) if dealer is not None else None
        self._fingerprint = fingerprint
        self._source = source
        self._progress = progress
        self._lock = threading.RLock()  # of the channel: the background asks for bundles between queries
        self._channel: Channel | None = None
        self._errands: set[Channel] = set()
        self._preparing = threading.Lock()  # of the connection on which bundles are prepared without a dealer
        self._preparer: Preparer | None = None
        self._welcomed = False
        self._welcome: Welcome | None = None
        self._set_up: SetUp | None = None
        self._reserve: Reserve | None = None
        self._setup = (0, 0.0)
        self._closed = False

    # Connection ----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> PublicModel:
        """Connects and sets up the model unless that is done; returns what is public of it."""
        with self._lock:
            self._connected()
            assert self._set_up is not None
            return self._set_up.model

    def close(self) -> None:
        """Ends the connection. Randomness on disk stays for the next time."""
        self._closed = True
        if self._reserve is not None:
            self._reserve.close()
        for channel in (self._channel, *tuple(self._errands)):
            if channel is not None:
                channel.close()

    @property
    def source(self) -> SourceName:
        """Where the randomness comes from: dealer or pair."""
        self.connect()
        assert self._source is not None
        return self._source

    def _dial(self) -> Channel:
        return connect(*self._address, self._tls, self._timeout, connect_timeout=self._timeout)

    def _connected(self) -> Channel:
        """The channel to the server, greeted; a server may have ended an idle one."""
        if self._closed:
            raise PeerClosed("this client is closed")
        if self._channel is not None:
            if not self._channel.lost:
                return self._channel
            self._channel.close()
        for last in range(_MOST_TRIES - 1, -1, -1):
            try:
                self._channel = self._greeted(self._dial())
                return self._channel
            except PeerClosed:
                if not last or not self._welcomed or self._closed:
                    raise
        raise AssertionError("unreachable")

    def _greeted(self, channel: Channel) -> Channel:
        try:
            if channel.peer_role != "server":
                raise NotAuthenticated(f"the peer is no server: its certificate says {channel.peer_role!r}")
            source = introduce(channel, "client", self._fingerprint, self._source)
            welcome = expect(channel, Welcome)
            self._welcomed = True  # from here on, a connection that ends is one that the server had to give to another
            self._accept(channel, source, welcome)
        except BaseException:
            channel.close()
            raise
        return channel

    def _accept(self, channel: Channel, source: SourceName, welcome: Welcome) -> None:
        """Sets the model up; after that, only the same model with the same secret will do."""
        if self._welcome is None or self._set_up is None:
            start, before = time.monotonic(), channel.traffic
            self._set_up = set_up(channel, source, welcome, self._cache)
            traffic = channel.traffic - before
            self._setup = traffic.sent + traffic.received, time.monotonic() - start
            ready = welcome.ready if self._ready is None else min(self._ready, welcome.ready)
            self._reserve = Reserve(self._set_up, ready, self._fetch, self._rest)
            self._fingerprint, self._source, self._welcome = welcome.fingerprint, source, welcome
        elif (welcome.fingerprint, welcome.state) != (self._fingerprint, self._welcome.state):
            raise ProtocolMismatch(
                "the model since this client was set up", got=welcome.fingerprint, expected=self._fingerprint
            )

    def _ask(self, request: Prepare | Run, kind: type[M]) -> Channel:
        """One request and its answer. An idle connection that the server has ended is made anew."""
        for last in range(_MOST_TRIES - 1, -1, -1):
            channel = self._connected()
            try:
                say(channel, request)
                expect(channel, kind)
                return channel
            except PeerClosed:
                if not last or not channel.closed or self._closed:
                    raise
                if isinstance(request, Run):  # the server may have consumed its part before the line broke
                    raise RandomnessSpent("the connection ended when a run was asked for") from None
        raise AssertionError("unreachable")

    # Randomness ----------------------------------------------------------------------------------------

    def prepare(
        self,
        count: int = 1,
        *,
        batch: int = 1,
        bucket: int | None = None,
        timeout: float = 3600.0,
        warm: bool = True,
    ) -> int:
        """Prepares randomness for `count` queries of one size now; returns how many are ready.

        warm: with a dealer, also does the work of the next query that needs no text. What is in memory is lost if this
        client ends before it is used; the others stay on disk for the next time.
        """
        model = self.connect()
        assert self._reserve is not None
        assert self._set_up is not None
        bucket = model.buckets()[0] if bucket is None else bucket
        plan = self._set_up.programs.plan(batch, bucket)
        until = time.monotonic() + timeout
        try:
            while (ready := self._reserve.count(batch, bucket)) < count and time.monotonic() < until:
                self._fetch(batch, bucket, plan)
        finally:
            self._rest()
        if ready and warm:
            self._reserve.warm(batch, bucket)
        return ready

    def _fetch(self, batch: int, bucket: int, plan: Plan) -> str:
        """A new bundle in the store, by agreement with the server."""
        assert self._set_up is not None
        store, name = self._set_up.store, new_bundle_id()
        if self._set_up.source == "pair":
            with self._preparing:
                preparer = self._ask_to_prepare(Prepare(name, batch, bucket, plan.digest), plan)
                prepare_stored(preparer, name, plan, store, self._progress)
            return name
        with self._lock:
            self._ask(Prepare(name, batch, bucket, plan.digest), Accepted)
            assert self._welcome is not None
            address = self._dealer or self._welcome.dealer
        if address is None:
            raise PeerError("the server does not say where its dealer is")
        spent = plan.correction_bytes + 2 * SEED_BYTES
        stall = max(self._timeout, _DEALER_STALL)
        channel = connect(*address, self._tls, stall, connect_timeout=self._timeout)
        with self._errand(channel):
            sink = partial(store.add, name, plan.digest, spent=spent)
            fetch_bundle(channel, CLIENT, name, plan.correlations, sink)
        return name

    def _ask_to_prepare(self, request: Prepare, plan: Plan) -> Preparer:
        """A connection on which the server has begun to prepare: the last one if it fits, else a new one."""
        until = time.monotonic() + self._timeout
        while True:
            preparer = self._preparer
            fits = preparer is not None and preparer.correlations == plan.correlations and preparer.room
            try:
                if preparer is None or not fits:
                    preparer = self._new_preparer(plan)
                preparer.channel.timeout = self._timeout
                say(preparer.channel, request)
                expect(preparer.channel, Accepted)
            except PeerClosed:
                self._end_preparing()
                if not fits or self._closed:  # the server ends idle connections to make room
                    raise
            except ServerBusy:
                if time.monotonic() >= until:
                    raise
                time.sleep(_BUSY_PAUSE)
            else:
                preparer.channel.timeout = max(self._timeout, _PREPARE_STALL)
                return preparer

    def _new_preparer(self, plan: Plan) -> Preparer:
        self._end_preparing()
        channel = self._greeted(self._dial())
        self._errands.add(channel)
        self._preparer = Preparer(channel, CLIENT, plan.correlations)
        if self._closed:
            self._end_preparing()
            raise PeerClosed("this client is closed")
        return self._preparer

    def _end_preparing(self) -> None:
        if self._preparer is not None:
            self._preparer.channel.close()
            self._errands.discard(self._preparer.channel)
            self._preparer = None

    def _rest(self) -> None:
        """Gives the server its worker back, unless another thread is preparing."""
        if self._preparing.acquire(blocking=False):
            try:
                self._end_preparing()
            finally:
                self._preparing.release()

    @contextlib.contextmanager
    def _errand(self, channel: Channel) -> Iterator[None]:
        self._errands.add(channel)
        try:
            if self._closed:
                raise PeerClosed("this client is closed")
            yield
        finally:
            channel.close()
            self._errands.discard(channel)

    # Queries -------------------------------------------------------------------------------------------

    def classify(self, texts: Sequence[Text]) -> list[Prediction]:
        """One prediction per text (or pair of texts), in order; all of them or an error.

        Texts of one bucket go together, in batches of 1, 2, 4, … so that prepared randomness fits.
        """
        model = self.connect()
        if isinstance(texts, str):
            raise ConfigurationError("classify takes a list of texts, not one text")
        if not texts:
            raise ConfigurationError("there is no text to classify")
        buckets: dict[int, list[tuple[int, Query]]] = {}
        for place, text in enumerate(texts):
            try:
                query = model.prepare([text])
            except ConfigurationError as error:
                raise ConfigurationError(str(error).replace("text 1 ", f"text {place + 1} ")) from error
            buckets.setdefault(query.bucket, []).append((place, query))
        predictions: dict[int, Prediction] = {}
        try:
            for members in buckets.values():
                while members:
                    size = 1 << (min(len(members), self._largest_batch).bit_length() - 1)
                    part, members = members[:size], members[size:]
                    found = self._predict(_together([query for _, query in part]))
                    predictions.update(zip((place for place, _ in part), found, strict=True))
        finally:
            self._rest()
        return [predictions[place] for place in range(len(texts))]

    @property
    def _largest_batch(self) -> int:
        assert self._welcome is not None
        return min(self._batch, self._welcome.largest_batch)

    def _predict(self, query: Query) -> list[Prediction]:
        assert self._set_up is not None
        assert self._reserve is not None
        portion, logits, traffic, seconds = self._run(query)
        self._reserve.replenish(query.batch, query.bucket)
        cost = Cost(
            texts=query.batch,
            bucket=query.bucket,
            setup_bytes=self._setup[0],
            setup_seconds=self._setup[1],
            offline_bytes=portion.bundle.spent,
            offline_seconds=portion.seconds,
            online_bytes=traffic.sent + traffic.received,
            online_seconds=seconds,
            rounds=traffic.rounds,
            source=self._set_up.source,
        )
        labels = self._set_up.model.config.encoder.labels
        return [_prediction(row, labels, cut, cost) for row, cut in zip(logits, query.truncated, strict=True)]

    def _run(self, query: Query) -> tuple[Portion, Reals, Traffic, float]:
        """Randomness that both sides have, then the rounds. A bundle that is named to the server is never kept."""
        assert self._reserve is not None
        for attempt in range(_MOST_STALE + 1):
            portion = self._reserve.take(query.batch, query.bucket, max(self._timeout, 10 * _DEALER_STALL))
            with self._lock:
                start = time.monotonic()
                try:
                    request = Run(portion.bundle_id, query.batch, query.bucket, portion.plan.digest)
                    channel = self._ask(request, Ready)
                except (RandomnessSpent, ForeignRandomness):
                    if attempt == _MOST_STALE:  # the server has lost its parts again and again
                        raise
                    continue
                logits, traffic = self._compute(channel, query, portion)
                return portion, logits, traffic, time.monotonic() - start
        raise AssertionError("unreachable")

    def _compute(self, channel: Channel, query: Query, portion: Portion) -> tuple[Reals, Traffic]:
        assert self._set_up is not None
        model = self._set_up.model
        before = channel.traffic
        try:
            session = PartySession(CLIENT, channel, portion.source, fused=self._set_up.source == "dealer")
            weights = {**model.weights(), **self._set_up.weights}
            logits = model.answer(query.batch, query.bucket, query)(session, weights)
            return _checked(logits, query, model), channel.traffic - before
        except BaseException:
            channel.close()  # the other side must not wait for rounds that will not come
            raise
        finally:
            portion.bundle.close()


def _together(queries: list[Query]) -> Query:
    return Query(
        np.concatenate([query.rows for query in queries]),
        np.concatenate([query.mask for query in queries]),
        tuple(flag for query in queries for flag in query.truncated),
    )


def _checked(logits: Reals | None, query: Query, model: PublicModel) -> Reals:
    """What the server's last message makes of the logits must be possible at all."""
    if logits is None or logits.shape != (query.batch, len(model.config.encoder.labels)):
        raise ShapeError("the program did not give this client its logits")
    if not np.all(np.isfinite(logits)) or float(np.max(np.abs(logits))) > model.logit_bound:
        raise PeerError("the server's answer is outside the model's range: there is no result")
    return logits


def _prediction(logits: Reals, labels: tuple[str, ...], truncated: bool, cost: Cost) -> Prediction:
    weights = np.exp(logits - np.max(logits))
    shares = weights / weights.sum()
    best = int(np.argmax(shares))
    return Prediction(
        label=labels[best],
        probability=float(shares[best]),
        logits=tuple(map(float, logits)),
        probabilities=dict(zip(labels, map(float, shares), strict=True)),
        truncated=truncated,
        cost=cost,
    )
