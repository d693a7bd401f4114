"""A private prediction, from the client's side.

    with Client("localhost:7001", keys="keys") as client:
        for prediction in client.classify(["a warm and bright film", "dull"]):
            print(prediction.label, prediction.probability, prediction.cost.online_bytes)

A model of images takes files, their bytes or arrays in the place of texts: client.classify([Path("cat.png")]).

The server learns how many texts there are and the bucket (16, 32, 64, … tokens) that each fits into, nothing else.
The bucket follows from the server's tokenizer; `Client(bucket=64)` pads all texts alike, and then it tells nothing.
If it uses a dealer, this relies on the dealer being run by neither the client's nor the server's operator: a dealer and
a server together could read the text. `Client(source="pair")` insists on a server without one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypedDict, TypeVar, Unpack

from comet_mpc.errors import CometError, ConfigurationError, ImpossibleAnswer, NodeLost, PeerClosed, ProtocolMismatch
from comet_mpc.models.heads import Kind
from comet_mpc.models.queries import Input, TextRun
from comet_mpc.models.tokenizers.files import own_tokenizer
from comet_mpc.models.writing.packages import Model
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.transport import Transport
from comet_mpc.offline.source import Progress
from comet_mpc.offline.sources import find_source
from comet_mpc.service.bundle_pool import Kept
from comet_mpc.service.link import LinkOptions, ServerLink, Setup, Watch
from comet_mpc.service.model_cache import default_cache
from comet_mpc.service.prediction import Answer, Embedding, Prediction, Tagging, answers

if TYPE_CHECKING:
    from comet_mpc.service.writing.client import Token, Wanted

A = TypeVar("A")
Told = Callable[[int, A], None]

_CALLS: dict[Kind, str] = {"label": "classify", "tokens": "tag", "embedding": "embed"}

_LARGEST_BATCH = 8
_TIMEOUT = 120.0  # between two messages of a preparation the server computes for a while


class Asks(Protocol):
    """A client, or several that act as one."""

    def ask(self, texts: Sequence[Input], *, told: Told[Any] | None = None) -> list[Answer]:
        """One answer per text or image, in order; all of them or an error. told: as of `Client.classify`."""


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
    transport: Transport | None
    watch: Watch | None


class Client:
    """A connection to one server. Not for several threads at once: give each thread its own.

    address      HOST:PORT
    keys         directory with authority.pem, client.pem and client.key; or pass `identity`
    cache        directory for downloads and prepared randomness (default: the user's cache). Do not copy it
    timeout      seconds without progress, in any phase, after which `PeerTimeout` is raised
    ready        prepared queries to keep for each size in use. None: as many as the server suggests
    batch        largest number of texts in one run
    source       pair or dealer: refuse a server with another source of randomness. None: accept either
    dealer       HOST:PORT, if the dealer's address here differs from the one that the server gives
    model        name of the model, if the server has several
    fingerprint  accept only this model. Without it, the first model that this address and name had is pinned in the
                 cache, and any other is refused (`ModelChanged`)
    accept_model fingerprint of a new model to accept and pin
    bucket       pad every text to this many tokens and cut longer ones (`Answer.truncated`), so that the server sees
                 the same length for all. None: the smallest of the model's buckets that a text fits into
    tokenizer    your own tokenizer.json, or a directory with one, instead of the server's
    progress     callback(done, total) while a bundle is prepared, in bytes weighted by time, from any thread. total is
                 0 while waiting for the dealer
    downloading  callback(done, total) while the model is downloaded, in bytes
    transport    makes the connections to the server and the dealer instead of TCP and TLS (`net.transport`)
    watch        callback(texts, bucket) before each run. It returns a function that is given every message that this
                 client sends in the run (`service.clients.seen`)
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
        transport: Transport | None = None,
        watch: Watch | None = None,
    ) -> None:
        if (keys is None) == (identity is None):
            raise ConfigurationError("a client needs its certificate: pass either keys=DIRECTORY or identity")
        wanted = find_source(source) if source is not None else None
        if dealer is not None and wanted is not None and not wanted.has_third_party:
            raise ConfigurationError("source='pair' uses no dealer: leave out the dealer's address")
        if batch < 1 or not timeout > 0:
            raise ConfigurationError(f"batch and timeout must be positive, got {batch} and {timeout}")
        if fingerprint and accept_model:
            raise ConfigurationError("pass either fingerprint or accept_model, not both")
        self._batch, self._bucket = batch, bucket
        options = LinkOptions(
            cache=Path(cache) if cache is not None else default_cache(),
            timeout=timeout,
            ready=ready,
            source=wanted,
            dealer=dealer,
            model=model,
            fingerprint=fingerprint,
            accept_model=accept_model,
            bucket=bucket,
            tokenizer=None if tokenizer is None else own_tokenizer(Path(tokenizer)),
            progress=progress,
            downloading=downloading,
            transport=transport,
            watch=watch,
        )
        self._link = ServerLink(address, identity or TlsIdentity.find(keys or "", "client"), options)
        self._encoded: tuple[list[Input], list[TextRun]] | None = None

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> Model:
        """Connects and sets up the model unless that is done; returns what is public of it."""
        return self._link.connected().model.given

    def close(self) -> None:
        """Ends the connection. Randomness on disk stays for the next time."""
        self._link.close()

    @property
    def source(self) -> str:
        """Where the randomness comes from: pair or dealer."""
        return self._link.connected().model.source.name

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
        """Prepares randomness for `count` queries of one size now, and returns how many are ready.

        told  callback(ready) whenever that number grows
        warm  also do the work of the next query that needs no text. It is kept in memory, and is lost if this client
              ends before it is used; everything else stays on disk
        """
        setup = self._link.connected()
        bucket = self._usual(setup) if bucket is None else bucket
        pool = setup.pool
        pool.check_room({(batch, bucket): count})
        until = time.monotonic() + timeout
        try:
            while (ready := pool.count(batch, bucket)) < count and time.monotonic() < until:
                try:
                    made = pool.prepare(batch, bucket, count - ready)
                except (PeerClosed, NodeLost) as error:
                    pool = self._link.go_on_after(error).pool
                    continue
                if told is not None:
                    told(ready + len(made))
        finally:
            pool.pause()
        if ready and warm:
            pool.open_one(batch, bucket)
        return ready

    def check_room(self, sizes: Mapping[tuple[int, int], int]) -> None:
        """Raises if the server would evict some of these queries, by batch and bucket, to make room for others."""
        self._link.connected().pool.check_room(sizes)

    def fitting(self, sizes: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
        """The first of these queries, by batch and bucket, that server (`kept`) and local disk have room for."""
        return self._link.connected().pool.fitting(sizes)

    @property
    def kept(self) -> Kept:
        """How many prepared queries, and how many bytes of them, the server keeps for this client."""
        return self._link.connected().pool.kept

    def prepared(self, batch: int = 1, bucket: int | None = None) -> int:
        """Prepared queries of this size, in memory or on disk."""
        setup = self._link.connected()
        return setup.pool.count(batch, self._usual(setup) if bucket is None else bucket)

    @property
    def usual_bucket(self) -> int:
        """The bucket that was chosen for all texts, or else the model's smallest."""
        return self._usual(self._link.connected())

    def _usual(self, setup: Setup) -> int:
        return self._bucket or setup.model.given.buckets()[0]

    def sizes(self, texts: Sequence[Input]) -> dict[tuple[int, int], int]:
        """How many runs `classify` will make for these texts, by batch and bucket: what to `prepare` for them."""
        return Counter((len(run.indices), run.bucket) for run in self.runs(texts))

    def runs(self, texts: Sequence[Input]) -> list[TextRun]:
        """The texts or images, encoded, in the runs that answer them. `classify` does not encode them again."""
        return self._runs(texts, self._link.connected())

    def _runs(self, texts: Sequence[Input], setup: Setup) -> list[TextRun]:
        if self._encoded is not None and _same(texts, self._encoded[0]):
            return self._encoded[1]
        runs = setup.model.public.runs(texts, min(self._batch, setup.largest_batch), self._bucket)
        self._encoded = list(texts), runs
        return runs

    def classify(self, texts: Sequence[Input], *, told: Told[Prediction] | None = None) -> list[Prediction]:
        """One prediction per text (or pair of texts), or per image, in order; all of them or an error.

        An image is a file (PNG, JPEG, WebP or BMP), its bytes, or an array (height, width, 3) of bytes.

        told: callback(index, prediction) as soon as each prediction arrives. Texts of one bucket share runs of 1, 2, 4,
        … texts, so that prepared randomness fits. An impossible answer raises only after the last run: the server
        cannot tell from this client's messages whether there was one.
        """
        return self._ask("label", texts, told)

    def embed(self, texts: Sequence[Input], *, told: Told[Embedding] | None = None) -> list[Embedding]:
        """One vector per text or image, as `classify`, from a model that gives embeddings."""
        return self._ask("embedding", texts, told)

    def tag(self, texts: Sequence[str], *, told: Told[Tagging] | None = None) -> list[Tagging]:
        """The labels of every text's words, as `classify`, from a model that tags tokens."""
        if any(not isinstance(text, str) for text in texts):
            raise ConfigurationError("tag() takes single texts, not pairs")
        return self._ask("tokens", texts, told)

    def ask(self, texts: Sequence[Input], *, told: Told[Any] | None = None) -> list[Answer]:
        """Whatever the model answers: as `classify`, `embed` or `tag`."""
        return self._ask(None, texts, told)

    def _ask(self, kind: Kind | None, texts: Sequence[Input], told: Told[Any] | None) -> list[Any]:
        setup = self._link.connected()
        given = setup.model.public.config.head.kind
        if kind not in (None, given):
            raise ConfigurationError(f"this model supports {_CALLS[given]}(), not {_CALLS[kind]}()")
        runs, self._encoded = self._runs(texts, setup), None  # all of them, before the first run is asked for
        found: dict[int, Answer] = {}
        impossible: CometError | None = None
        try:
            for run in runs:
                try:
                    made = self._ask_run(run, [texts[index] for index in run.indices], setup)
                except ImpossibleAnswer as error:
                    impossible = impossible or error
                    continue
                for index, one in zip(run.indices, made, strict=True):
                    found[index] = one
                    if told is not None:
                        told(index, one)
        except ProtocolMismatch as error:
            self._link.check_model(error)
            raise
        finally:
            self._link.pause()
        if impossible is not None:
            raise impossible
        return [found[index] for index in range(len(texts))]

    def generate(self, prompt: str | Sequence[int], **wanted: Unpack[Wanted]) -> Generator[Token]:
        """The text that a model that writes puts after a prompt, token by token as they come (`Wanted`).

        The server learns how many tokens the prompt has and how many are written, and none of them. If it stops,
        `WritingStopped` has what was written. Whoever takes no more tokens closes what this returns, or this client
        """
        from comet_mpc.service.writing.client import write  # most clients ask, and write nothing

        return write(self._link, prompt, **wanted)

    def ask_run(self, run: TextRun, texts: Sequence[Input]) -> list[Answer]:
        """The answers to the texts of one run, which were encoded elsewhere."""
        setup = self._link.connected()
        try:
            return self._ask_run(run, texts, setup)
        finally:
            self._link.pause()

    def _ask_run(self, run: TextRun, texts: Sequence[Input], setup: Setup) -> list[Answer]:
        public = setup.model.public
        query = public.query(run.tokens, run.bucket)
        values, cost = self._link.run(query)
        try:
            return list(answers(values, query, texts, public, cost))
        except CometError as error:
            raise error if isinstance(error, ImpossibleAnswer) else ImpossibleAnswer(str(error)) from error


def _same(texts: Sequence[Input], before: list[Input]) -> bool:
    """Whether they are what was encoded before. Of arrays only the very same."""
    if isinstance(texts, (str, bytes)) or len(texts) != len(before):
        return False
    return all(
        one is other or (isinstance(one, (str, tuple)) and type(one) is type(other) and one == other)
        for one, other in zip(texts, before, strict=True)
    )
