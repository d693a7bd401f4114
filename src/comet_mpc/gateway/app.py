"""The gateway: what it answers over HTTP, as described in /openapi.json, and the page.

GET  /               the page
GET  /v1/model       what is public of the server's model, and where the randomness comes from
POST /v1/classify    labels or scores for texts, what they cost, and what the server saw
POST /v1/tag         the same with a label for every word, from a model of tokens
POST /v1/embed       the same with a vector for every text, from a model of embeddings
POST /v1/embeddings  the vectors alone, in the shape of OpenAI's API (`openai`); GET /v1/models names the model
POST /v1/completions a text after a prompt, whole or as a stream, in the same shape (`completions`)
POST /v1/prepare     randomness for queries to come
GET  /healthz        200 while the gateway runs; it does not ask the server
GET  /readyz         200 if the server answers, else 503 and the reason

Requests under /v1 show the gateway's token (`guard`). Every error has the same shape (`problems`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI
from fastapi.responses import PlainTextResponse
from fastapi.security import HTTPBearer
from pydantic import Field
from starlette.responses import Response

from comet_mpc import __version__
from comet_mpc.errors import CometError, PeerClosed, PeerError, ProtocolMismatch
from comet_mpc.gateway import completions as completing
from comet_mpc.gateway import openai, problems
from comet_mpc.gateway.connections import REQUEST_SECONDS
from comet_mpc.gateway.guard import Guard
from comet_mpc.gateway.problems import Problem
from comet_mpc.models.writing.model import WritingModel
from comet_mpc.models.writing.packages import Model as AnyModel
from comet_mpc.models.writing.packages import answering
from comet_mpc.offline.sources import find_source
from comet_mpc.service.clients.asynchronous import AsyncClient
from comet_mpc.service.clients.seen import Glimpse, Seen, glimpse
from comet_mpc.service.prediction import Embedding, Prediction, Tag, Tagging

_MOST_TEXTS = 256
_PAGE = {"": "index.html", "page.css": "page.css", "page.js": "page.js", "icon.svg": "icon.svg"}
_KINDS = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_LOOK_SECONDS = 10.0
_DESCRIPTION = (
    "Private predictions for programs on this machine. The texts are in the clear here, and the server that answers "
    "never sees them: so this gateway runs beside the client, and never beside the server."
)
_P_VALUE = (
    "How often uniform random numbers look at least as uneven as these: below 0.01 once in a hundred answers. Every "
    "message is compared with the uniform law of its own ring, a text with that of bytes. null: too few to tell."
)

OneText = Annotated[str, Field(max_length=100_000)]
Connect = Callable[[Seen], AsyncClient]


@dataclass
class Model:
    """What is public of the model, and what privacy rests on."""

    server: str
    fingerprint: str
    kind: Annotated[
        str, Field(description="What it gives: label (classify), tokens (tag), embedding (embed) or text (generate).")
    ]
    labels: list[str]
    longest: int
    buckets: list[int]
    source: str
    promise: str


@dataclass
class Texts:
    """Texts, or pairs of texts for a model that compares two."""

    texts: Annotated[list[OneText | tuple[OneText, OneText]], Field(min_length=1, max_length=_MOST_TEXTS)]


@dataclass
class Bytes:
    """Some bytes: how many, the first of them, and whether what they stand for looks random."""

    size: int
    first_bytes: str
    p_value: Annotated[float | None, Field(description=_P_VALUE)]


@dataclass
class Sight:
    """What the server learned of one run of the program: two numbers, and messages that tell it nothing."""

    texts: int
    tokens: Annotated[int, Field(description="That each text was padded to.")]
    received: Bytes


@dataclass(kw_only=True)
class _Asked:
    server_saw: list[Sight]
    text_itself: Annotated[Bytes, Field(description="The texts, as bytes, for comparison: they were not sent.")]


@dataclass(kw_only=True)
class Answers(_Asked):
    """One prediction per text, in order."""

    answers: list[Prediction]


@dataclass(kw_only=True)
class Tags(_Asked):
    """The labels of the words of each text, in order, and the words that belong together."""

    answers: list[Tagging]
    entities: list[list[Tag]]


@dataclass(kw_only=True)
class Vectors(_Asked):
    """One vector per text, in order."""

    answers: list[Embedding]


@dataclass
class Size:
    """How many queries of which size."""

    count: Annotated[int, Field(ge=1, le=1000)] = 1
    batch: Annotated[int, Field(ge=1, le=1024)] = 1
    bucket: int | None = None


@dataclass
class Prepared:
    """Queries of that size that have their randomness now."""

    ready: int


@dataclass
class _Desk:
    """The client of this gateway. A server that has a new model since is met anew."""

    connect: Connect
    seen: Seen = field(default_factory=Seen)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    current: AsyncClient | None = None
    trouble: CometError | None = field(default_factory=lambda: PeerError("the server has not answered yet"))
    looked: float = -math.inf

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """For one request at a time: what was seen belongs to it."""
        async with self.lock:
            if self.current is None:
                self.current = self.connect(self.seen)
            self.seen.clear()
            try:
                yield self.current
                self.trouble = None
            except PeerError as error:
                self.trouble = error
                if isinstance(error, ProtocolMismatch | PeerClosed):
                    await self.close()
                raise
            finally:
                self.looked = time.monotonic()

    async def look(self) -> CometError | None:
        """Why the server cannot be asked, as the last request found it, or as is found now if that is long ago."""
        if not self.lock.locked() and time.monotonic() - self.looked > _LOOK_SECONDS:
            try:
                async with self.client() as client:
                    await client.connect()
            except CometError as error:
                self.trouble = error
        return self.trouble

    def shown(self, texts: Sequence[str | tuple[str, str]]) -> dict[str, Any]:
        """What the server saw of the texts, and what it did not."""
        plain = "\n".join(text if isinstance(text, str) else "\n".join(text) for text in texts)
        sights = [Sight(run.texts, run.bucket, _bytes(run.glimpse())) for run in self.seen.runs]
        return {"server_saw": sights, "text_itself": _bytes(glimpse(plain.encode()))}

    async def close(self) -> None:
        client, self.current = self.current, None
        if client is not None:
            await client.close()


def make_app(
    server: str, names: frozenset[str], connect: Connect, token: str | None, seconds: float = REQUEST_SECONDS
) -> Guard:
    """The application, guarded.

    server   as it is shown: HOST:PORT
    connect  makes a client that has its runs recorded
    names, token, seconds  as of `Guard`
    """
    desk = _Desk(connect)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await desk.close()

    app = FastAPI(
        title="Comet gateway", version=__version__, description=_DESCRIPTION, lifespan=lifespan,
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    problems.add_to(app)
    _add_state(app, desk)
    _add_requests(app, desk, server)
    for path, name in _PAGE.items():
        content = (files("comet_mpc") / "gateway" / "page" / name).read_bytes()
        answer = _file(content, _KINDS[name.rpartition(".")[2]])
        app.add_api_route(f"/{path}", answer, include_in_schema=False)
    return Guard(app, names, token, seconds)


def _add_state(app: FastAPI, desk: _Desk) -> None:
    """As at a server and at a dealer."""

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        return "ok\n"

    @app.get("/readyz", response_class=PlainTextResponse, responses={503: {"model": Problem}})
    async def readyz() -> Response:
        trouble = await desk.look()
        if trouble is None:
            return PlainTextResponse("ok\n")
        return problems.answer(503, type(trouble).__name__, str(trouble))


def _add_requests(app: FastAPI, desk: _Desk, server: str) -> None:
    shown = HTTPBearer(auto_error=False, description="The gateway's token; none is asked for at a Unix socket.")
    v1 = APIRouter(
        prefix="/v1",
        dependencies=[Depends(shown)],  # for /openapi.json: the guard has looked at it
        responses={code: {"model": Problem} for code in problems.STATUSES},
    )

    @v1.get("/model")
    async def model() -> Model:
        async with desk.client() as client:
            return _described(server, await client.connect(), await client.source())

    @v1.post("/classify")
    async def classify(asked: Texts) -> Answers:
        async with desk.client() as client:
            return Answers(answers=await client.classify(asked.texts), **desk.shown(asked.texts))

    @v1.post("/tag")
    async def tag(asked: Texts) -> Tags:
        async with desk.client() as client:
            found = await client.tag([text if isinstance(text, str) else "\n".join(text) for text in asked.texts])
            entities = [list(one.entities) for one in found]
            return Tags(answers=found, entities=entities, **desk.shown(asked.texts))

    @v1.post("/embed")
    async def embed(asked: Texts) -> Vectors:
        async with desk.client() as client:
            return Vectors(answers=await client.embed(asked.texts), **desk.shown(asked.texts))

    @v1.post("/embeddings")
    async def embeddings(asked: openai.Asked) -> openai.Listed:
        texts = asked.texts()
        async with desk.client() as client:
            public = answering(await client.connect())
            asked.check_dimensions(public.config.encoder.hidden)
            return openai.listed(asked, await client.embed(texts), public.fingerprint)

    @v1.post("/completions")
    async def completions(asked: completing.Asked) -> Response:
        return await completing.complete(asked, desk.client)

    @v1.get("/models")
    async def models() -> openai.Models:
        async with desk.client() as client:
            return openai.Models(data=[openai.OneModel(id=(await client.connect()).fingerprint)])

    @v1.post("/prepare")
    async def prepare(size: Size) -> Prepared:
        async with desk.client() as client:
            return Prepared(await client.prepare(size.count, batch=size.batch, bucket=size.bucket))

    app.include_router(v1)


def _file(content: bytes, kind: str) -> Callable[[], Response]:
    def answer() -> Response:
        return Response(content, media_type=kind)

    return answer


def _described(server: str, public: AnyModel, source: str) -> Model:
    if isinstance(public, WritingModel):
        return Model(
            server=server,
            fingerprint=public.fingerprint,
            kind="text",
            labels=[],
            longest=public.longest,
            buckets=list(public.buckets()),
            source=source,
            promise=find_source(source).promise,
        )
    return Model(
        server=server,
        fingerprint=public.fingerprint,
        kind=public.config.head.kind,
        labels=list(public.config.encoder.labels),
        longest=public.longest,
        buckets=list(public.buckets()),
        source=source,
        promise=find_source(source).promise,
    )


def _bytes(found: Glimpse) -> Bytes:
    return Bytes(**msgspec.structs.asdict(found))
