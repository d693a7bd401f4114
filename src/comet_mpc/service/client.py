"""A private prediction, from the client's side.

    with Client("localhost:7001", keys="keys") as client:
        for prediction in client.classify(["a warm and bright film", "dull"]):
            print(prediction.label, prediction.probability, prediction.cost.online_bytes)

The server learns how many texts there are and the bucket (16, 32, 64, … tokens) that each fits into, nothing else.
The bucket follows from the server's tokenizer; `Client(bucket=64)` pads all texts alike, and then it tells nothing.
If it uses a dealer, this relies on the dealer being run by neither the client's nor the server's operator: a dealer and
a server together could read the text. `Client(source="pair")` insists on a server without one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, TypedDict, TypeVar

from comet_mpc.engine.party import PartySession, Sent
from comet_mpc.engine.share import CLIENT, Reals
from comet_mpc.errors import (
    CometError,
    ConfigurationError,
    ImpossibleAnswer,
    ModelChanged,
    NodeLost,
    PeerClosed,
    PeerError,
    PeerGaveUp,
    ProtocolMismatch,
    RandomnessError,
)
from comet_mpc.models.heads import Kind
from comet_mpc.models.hugging_face import own_tokenizer
from comet_mpc.models.runs import TextRun, text_runs
from comet_mpc.models.served import PublicModel, Query
from comet_mpc.models.tokenizing import Text
from comet_mpc.net.channel import Channel, Traffic
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import parse_address
from comet_mpc.offline.bundle import OpenBundle
from comet_mpc.offline.source import Progress, Source
from comet_mpc.offline.sources import find_source
from comet_mpc.service.bundle_pool import BundlePool, Kept
from comet_mpc.service.connection import Connection, Wrap
from comet_mpc.service.messages import Ready, Run, Welcome
from comet_mpc.service.model_cache import (
    ClientModel,
    KnownModel,
    KnownModels,
    default_cache,
    obtain_model,
    state_in_use,
)
from comet_mpc.service.prediction import Answer, Cost, Embedding, Prediction, Tagging, answers

A = TypeVar("A")
Told = Callable[[int, A], None]
Watch = Callable[[int, int], Sent]
"""Is told how many texts a run has and their bucket; what it returns is given every message of that run."""

_CALLS: dict[Kind, str] = {"label": "classify", "tokens": "tag", "embedding": "embed"}

_LARGEST_BATCH = 8
_TIMEOUT = 120.0  # between two messages of a preparation the server computes for a while
_BUNDLE_SECONDS = 300.0  # to wait for a bundle that is being prepared already
_MOST_STALE = 16


class Asks(Protocol):
    """A client, or several that act as one."""

    def ask(self, texts: Sequence[Text], *, told: Told[Any] | None = None) -> list[Answer]:
        """One answer per text, in order; all of them or an error. told: as of `Client.classify`."""


class ClientOptions(TypedDict, total=False):
    """What a `Client` is given beside the address of its server."""

    keys: Path | str | None
    identity: TlsIdentity | None
    cache: Path | str | None
    timeout: float
    ready: int | None
    batch: int
    source: str | None
    dealer: str | None
    model: str
    fingerprint: str
    accept_model: str
    bucket: int | None
    tokenizer: Path | str | None
    progress: Progress | None
    downloading: Progress | None
    wrap: Wrap
    watch: Watch | None


class Client:
    """A connection to one server. Not for several threads at once: give each thread its own.

    address      HOST:PORT
    keys         directory with authority.pem, client.pem and client.key; or pass `identity`
    cache        directory for downloads and prepared randomness (default: the user's cache). Do not copy it
    timeout      seconds without any progress, in whatever phase, after which `PeerTimeout` is raised; also for a place
    ready        queries whose randomness is kept ready for each size in use; None: as many as the server suggests
    batch        most texts in one run
    source       pair or dealer: refuse a server with another source of randomness; None takes what the server has
    dealer       HOST:PORT if the dealer has another address here than at the server
    model        the name of a model, if the server has several
    fingerprint  refuse any other model than this one. Without it, the model that was met first under this address and
                 name is pinned, in the cache, and another one is refused (`ModelChanged`)
    accept_model the fingerprint of a new model to accept, and to pin from now on
    bucket       pad every text to so many tokens, and cut longer ones (`Answer.truncated`): what the server sees is the
                 same for all texts. None: the smallest of the model's buckets that a text fits into
    tokenizer    your own tokenizer.json, or a directory with one: the server's is not used then
    progress     is told how far a bundle is, in bytes and of how many, in proportion to the time it takes; from any
                 thread. Until a dealer begins it is 0 of 0 bytes, again and again; then what the server has got of the
                 dealer, every second
    downloading  is told the same of what is downloaded to set up a model
    wrap         is given every connection to the server and returns what is used instead, for example to record it
    watch        is told of every run, and given what this client sends in its rounds: see `service.clients.seen`
    """

    def __init__(
        self,
        address: str,
        *,
        keys: Path | str | None = None,
        identity: TlsIdentity | None = None,
        cache: Path | str | None = None,
        timeout: float = _TIMEOUT,
        ready: int | None = None,
        batch: int = _LARGEST_BATCH,
        source: str | None = None,
        dealer: str | None = None,
        model: str = "",
        fingerprint: str = "",
        accept_model: str = "",
        bucket: int | None = None,
        tokenizer: Path | str | None = None,
        progress: Progress | None = None,
        downloading: Progress | None = None,
        wrap: Wrap = lambda channel: channel,
        watch: Watch | None = None,
    ) -> None:
        if (keys is None) == (identity is None):
            raise ConfigurationError("a client needs its certificate: pass either keys=DIRECTORY or identity")
        wanted = find_source(source) if source is not None else None
        if dealer is not None and wanted is not None and not wanted.has_third_party:
            raise ConfigurationError("a dealer's address is of no use where randomness is prepared without one")
        if batch < 1 or not timeout > 0:
            raise ConfigurationError(f"batch and timeout must be positive, got {batch} and {timeout}")
        if fingerprint and accept_model:
            raise ConfigurationError("give fingerprint, or accept_model to pin it from now on, not both")
        self._cache = Path(cache) if cache is not None else default_cache()
        self._ready, self._batch, self._downloading = ready, batch, downloading
        self._watch = watch
        self._server = f"{address} {model}".strip()
        self._bucket, self._tokenizer = bucket, None if tokenizer is None else own_tokenizer(Path(tokenizer))
        self._known, self._pins, self._accepts = KnownModels(self._cache), not fingerprint, bool(accept_model)
        known = self._known.find(self._server) if self._pins else None
        wanted_model = fingerprint or accept_model or (known.fingerprint if known is not None else "")
        self._connection = Connection(
            parse_address(address),
            identity or TlsIdentity.find(keys or "", "client"),
            timeout=timeout,
            source=wanted,
            third_party=parse_address(dealer) if dealer is not None else None,
            model=model,
            fingerprint=wanted_model,
            state=state_in_use(self._cache, self._server, wanted_model),
            progress=progress,
            wrap=wrap,
            welcomed=self._set_up,
        )
        self._model: ClientModel | None = None
        self._pool: BundlePool | None = None
        self._setup = (0, 0.0)
        self._encoded: tuple[list[Text], list[TextRun]] | None = None

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> PublicModel:
        """Connects and sets up the model unless that is done; returns what is public of it."""
        return self._connected()[0].public

    def close(self) -> None:
        """Ends the connection. Randomness on disk stays for the next time."""
        self._connection.close()
        if self._pool is not None:
            self._pool.close()

    @property
    def source(self) -> str:
        """Where the randomness comes from: pair or dealer."""
        return self._connected()[0].source.name

    def _connected(self) -> tuple[ClientModel, BundlePool]:
        try:
            with self._connection.lock:
                self._connection.channel()
        except NodeLost:
            self._leave()
            with self._connection.lock:
                self._connection.channel()
        except ProtocolMismatch as error:
            self._look_at_another(error)
        assert self._model is not None
        assert self._pool is not None
        return self._model, self._pool

    def _look_at_another(self, error: ProtocolMismatch) -> None:
        """Raises the error; or, if the server no longer has the model that is pinned, what has changed."""
        if error.field != "model" or isinstance(error, ModelChanged) or not self._pins or self._accepts:
            raise error
        self._leave(model=True)
        with self._connection.lock:
            self._connection.channel()  # sets up what there is instead, and so compares it with what is known

    def _leave(self, *, model: bool = False) -> None:
        """Takes leave of the machine that this client was set up with, or also of the model. What was prepared with it
        stays on disk."""
        with self._connection.lock:
            pool, self._model, self._pool = self._pool, None, None
            self._connection.forget(model=model)
        if pool is not None:
            pool.close()

    def _go_on_after(self, error: PeerClosed | NodeLost) -> tuple[ClientModel, BundlePool]:
        """Raises the error, unless another machine answers for the server now: then this client is set up with it."""
        before = self._pool
        if isinstance(error, NodeLost):
            self._leave()
        try:
            model, pool = self._connected()
        except PeerError:
            raise error from None
        if pool is before:
            raise error
        return model, pool

    def _set_up(self, channel: Channel, source: Source, welcome: Welcome) -> None:
        """After the first greeting: the model, by download or from the cache, and a pool of bundles for it."""
        if self._model is not None:
            return
        start, before = time.monotonic(), channel.traffic
        met: list[KnownModel] = []

        def check(package: bytes) -> None:
            met.append(KnownModel.of(self._server, package))
            if self._pins and not self._accepts and (known := self._known.find(self._server)) is not None:
                known.check(met[0])

        model = obtain_model(
            channel, source, welcome, self._cache, self._downloading,
            server=self._server, check=check, tokenizer=self._tokenizer,
        )  # fmt: skip
        if self._bucket is not None and self._bucket not in model.public.buckets():
            sizes = ", ".join(map(str, model.public.buckets()))
            raise ConfigurationError(f"this model has no bucket of {self._bucket} tokens: its buckets are {sizes}")
        if self._pins:
            self._known.keep(met[0], instead=self._accepts)
        traffic = channel.traffic - before
        self._setup = traffic.sent + traffic.received, time.monotonic() - start
        self._batch = min(self._batch, welcome.largest_batch)
        ready = welcome.ready if self._ready is None else min(self._ready, welcome.ready)
        kept = Kept(welcome.kept, welcome.kept_bytes)
        self._model, self._pool = model, BundlePool(model, ready, source.supplier(self._connection), kept)

    def prepare(
        self,
        count: int = 1,
        *,
        batch: int = 1,
        bucket: int | None = None,
        timeout: float = 3600.0,
        warm: bool = True,
        told: Callable[[int], None] | None = None,
    ) -> int:
        """Prepares randomness for `count` queries of one size now; returns how many are ready.

        told: is given that number whenever it grows. warm: also does the work of the next query that needs no text.
        What is in memory is lost if this client ends before it is used; the others stay on disk for the next time.
        """
        _, pool = self._connected()
        bucket = self.usual_bucket if bucket is None else bucket
        pool.check_room({(batch, bucket): count})
        until = time.monotonic() + timeout
        try:
            while (ready := pool.count(batch, bucket)) < count and time.monotonic() < until:
                try:
                    made = pool.prepare(batch, bucket, count - ready)
                except (PeerClosed, NodeLost) as error:
                    _, pool = self._go_on_after(error)
                    continue
                if told is not None:
                    told(ready + len(made))
        finally:
            pool.pause()
        if ready and warm:
            pool.open_one(batch, bucket)
        return ready

    def check_room(self, sizes: Mapping[tuple[int, int], int]) -> None:
        """Raises if the server would not keep so many prepared queries, by batch and bucket: older ones would go."""
        _, pool = self._connected()
        pool.check_room(sizes)

    def fitting(self, sizes: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
        """As many of these queries, by batch and bucket, the first ones, as can be kept ready at once: by the server
        (`kept`), and on the disk here."""
        return self._connected()[1].fitting(sizes)

    @property
    def kept(self) -> Kept:
        """How many prepared queries, and bytes of them, the server keeps for this client."""
        return self._connected()[1].kept

    def prepared(self, batch: int = 1, bucket: int | None = None) -> int:
        """For how many queries of this size randomness is ready, in memory or on disk."""
        _, pool = self._connected()
        return pool.count(batch, self.usual_bucket if bucket is None else bucket)

    @property
    def usual_bucket(self) -> int:
        """What every text is padded to, if that was chosen; else the model's smallest bucket."""
        return self._bucket or self.connect().buckets()[0]

    def sizes(self, texts: Sequence[Text]) -> dict[tuple[int, int], int]:
        """How many runs `classify` will make for these texts, by batch and bucket: what to `prepare` for them."""
        runs = self._runs(texts)
        self._encoded = list(texts), runs
        return Counter((len(run.places), run.bucket) for run in runs)

    def _runs(self, texts: Sequence[Text]) -> list[TextRun]:
        """The texts, encoded: those that `sizes` was just asked about are."""
        public = self.connect()
        if self._encoded is not None and not isinstance(texts, str) and list(texts) == self._encoded[0]:
            return self._encoded[1]
        return text_runs(public, texts, self._batch, self._bucket)

    def classify(self, texts: Sequence[Text], *, told: Told[Prediction] | None = None) -> list[Prediction]:
        """One prediction per text (or pair of texts), in order; all of them or an error.

        told: is given each prediction as soon as it is there, with the place of its text. Texts of one bucket go
        together, in batches of 1, 2, 4, … so that prepared randomness fits. An answer that is impossible is an error
        when all of them are there: the server cannot tell from this client's messages whether there was one.
        """
        return self._ask("label", texts, told)

    def embed(self, texts: Sequence[Text], *, told: Told[Embedding] | None = None) -> list[Embedding]:
        """One vector per text, as `classify`, from a model that gives embeddings."""
        return self._ask("embedding", texts, told)

    def tag(self, texts: Sequence[str], *, told: Told[Tagging] | None = None) -> list[Tagging]:
        """The labels of every text's words, as `classify`, from a model that tags tokens."""
        if any(not isinstance(text, str) for text in texts):
            raise ConfigurationError("words are tagged in single texts, not in pairs")
        return self._ask("tokens", texts, told)

    def ask(self, texts: Sequence[Text], *, told: Told[Any] | None = None) -> list[Answer]:
        """Whatever the model answers: as `classify`, `embed` or `tag`."""
        return self._ask(self.connect().config.head.kind, texts, told)

    def _ask(self, kind: Kind, texts: Sequence[Text], told: Told[Any] | None) -> list[Any]:
        public = self._connected()[0].public
        given = public.config.head.kind
        if given != kind:
            raise ConfigurationError(f"this server's model is one to {_CALLS[given]} with, not to {_CALLS[kind]}")
        runs, self._encoded = self._runs(texts), None  # all of them, before the first run is asked for
        found: dict[int, Answer] = {}
        impossible: CometError | None = None
        try:
            for run in runs:
                try:
                    made = self._ask_run(run, [texts[place] for place in run.places])
                except ImpossibleAnswer as error:
                    impossible = impossible or error
                    continue
                for place, one in zip(run.places, made, strict=True):
                    found[place] = one
                    if told is not None:
                        told(place, one)
        except ProtocolMismatch as error:
            self._look_at_another(error)
            raise
        finally:
            if self._pool is not None:
                self._pool.pause()
        if impossible is not None:
            raise impossible
        return [found[place] for place in range(len(texts))]

    def ask_run(self, run: TextRun, texts: Sequence[Text]) -> list[Answer]:
        """The answers to the texts of one run, which were encoded elsewhere."""
        self.connect()
        try:
            return self._ask_run(run, texts)
        finally:
            if self._pool is not None:
                self._pool.pause()

    def _ask_run(self, run: TextRun, texts: Sequence[Text]) -> list[Answer]:
        public = self._connected()[0].public
        query = public.query(run.tokens, run.bucket)
        values, cost = self._answer(query)
        try:
            return list(answers(values, query, texts, public, cost))
        except CometError as error:
            raise error if isinstance(error, ImpossibleAnswer) else ImpossibleAnswer(str(error)) from error

    def _answer(self, query: Query) -> tuple[Reals | None, Cost]:
        """The answers as the server's last message makes them, whatever they are, and the next bundle is ordered."""
        randomness, logits, traffic, seconds = self._run(query)
        assert self._model is not None
        assert self._pool is not None
        self._pool.replenish(query.batch, query.bucket)
        cost = Cost(
            texts=query.batch,
            bucket=query.bucket,
            setup_bytes=self._setup[0],
            setup_seconds=self._setup[1],
            offline_bytes=randomness.bundle.spent,
            offline_seconds=randomness.seconds,
            online_bytes=traffic.sent + traffic.received,
            online_seconds=seconds,
            rounds=traffic.rounds,
            source=self._model.source.name,
        )
        return logits, cost

    def _run(self, query: Query) -> tuple[OpenBundle, Reals | None, Traffic, float]:
        """Randomness that both sides have, then the rounds. A bundle that is named to the server is never kept.

        A run that ended with the machine that it ran on is made again by another one, with other randomness.
        """
        patience = max(self._connection.timeout, _BUNDLE_SECONDS)
        model, pool = self._connected()
        digest = model.programs.plan(query.batch, query.bucket).digest
        for left in range(_MOST_STALE, -1, -1):
            try:
                randomness = pool.take(query.batch, query.bucket, patience)
                request = Run(randomness.bundle.bundle_id, query.batch, query.bucket, digest)
                found = self._run_with(randomness, request, query, model, last=not left)
            except PeerGaveUp:
                raise
            except (PeerClosed, NodeLost) as error:
                if not left:
                    raise
                model, pool = self._go_on_after(error)
                continue
            if found is not None:
                return randomness, *found
        raise AssertionError("unreachable")

    def _run_with(
        self, randomness: OpenBundle, request: Run, query: Query, model: ClientModel, *, last: bool
    ) -> tuple[Reals | None, Traffic, float] | None:
        """None: another bundle will do, unless this was the last that is tried."""
        with self._connection.lock:
            start = time.monotonic()
            try:
                channel = self._connection.request(request, Ready)
            except RandomnessError:
                if last:  # the server has lost its parts again and again
                    raise
                return None
            before = channel.traffic
            try:
                sent = self._watch(query.batch, query.bucket) if self._watch is not None else None
                logits = _compute(channel, query, model, randomness, sent)
            except PeerGaveUp:  # its part of this bundle was damaged
                if last:
                    raise
                return None
            return logits, channel.traffic - before, time.monotonic() - start


def _compute(
    channel: Channel, query: Query, model: ClientModel, randomness: OpenBundle, sent: Sent | None
) -> Reals | None:
    try:
        ways = model.programs.plan(query.batch, query.bucket).ways
        session = PartySession(CLIENT, channel, randomness, ways=ways, watch=sent)
        return model.public.answer(query.batch, query.bucket, query)(session, model.weights)
    except BaseException:
        channel.close()  # the other side must not wait for rounds that will not come
        raise
    finally:
        randomness.bundle.close()
