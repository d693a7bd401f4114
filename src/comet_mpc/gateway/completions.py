"""Texts in the shape of OpenAI's API: POST /v1/completions, whole or as a stream of server-sent events.

https://platform.openai.com/docs/api-reference/completions

Where it differs: one prompt and one text a request; what a private model cannot give (log probabilities, several
texts, a suffix) and penalties of other kinds are refused; `usage` counts this model's tokens; and beside it `cost` says
what they cost. If the text ends early by an error, what was written so far comes along with it, as `text`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.responses import JSONResponse, Response

from comet_mpc.errors import CometError, ConfigurationError
from comet_mpc.gateway import problems
from comet_mpc.models.writing.sampling import Sampling
from comet_mpc.service.clients.asynchronous import AsyncClient
from comet_mpc.service.writing.client import Token

OneText = Annotated[str, Field(max_length=100_000)]
Clients = Callable[[], AbstractAsyncContextManager[AsyncClient]]

_COST = ("online_bytes", "rounds", "seconds", "offline_bytes", "offline_seconds")
"""Of `Token`."""


@dataclass
class StreamOptions:
    """include_usage: a last event counts the tokens."""

    include_usage: bool = False


@dataclass
class Asked:
    """A request for a text. `user` is accepted and ignored."""

    prompt: OneText | list[int] | list[OneText]
    model: str = ""
    max_tokens: Annotated[int | None, Field(ge=1)] = 16
    temperature: float = 1.0
    top_p: float = 1.0
    stop: str | list[str] | None = None
    seed: Annotated[int | None, Field(ge=0)] = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    echo: bool = False
    n: int = 1
    best_of: int = 1
    logprobs: int | None = None
    suffix: str | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    user: str | None = None

    def beginning(self) -> str | list[int]:
        """The prompt, of which there must be one."""
        if isinstance(self.prompt, str):
            return self.prompt
        texts = [one for one in self.prompt if isinstance(one, str)]
        if texts:
            if len(self.prompt) > 1:
                raise ConfigurationError("send one prompt at a time: a private text is a conversation of its own")
            return texts[0]
        return [one for one in self.prompt if isinstance(one, int)]

    def sampling(self) -> Sampling:
        """How tokens are picked."""
        other = self.n != 1 or self.best_of != 1 or self.logprobs is not None or self.suffix is not None
        if other or self.echo or self.frequency_penalty or self.presence_penalty:
            raise ConfigurationError(
                "leave out n, best_of, logprobs, suffix, echo, frequency_penalty and presence_penalty: a private model "
                "writes one text, by temperature, top_p and seed"
            )
        return Sampling(temperature=self.temperature, top_p=self.top_p, seed=self.seed)

    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


def _tokens(asked: Asked, client: AsyncClient) -> AsyncIterator[Token]:
    return client.generate(
        asked.beginning(), tokens=asked.max_tokens, sampling=asked.sampling(), stop=asked.stops()
    )  # fmt: skip


@dataclass
class _Answer:
    """What is said of one text, all at once or piece by piece."""

    id: str
    model: str
    created: int
    prompt: int = 0
    count: int = 0
    text: str = ""
    cost: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_COST, 0))

    def piece(self, text: str, token: Token | None) -> dict[str, Any]:
        finish = None if token is None or token.finish is None else "length" if token.finish == "length" else "stop"
        return self._said([{"text": text, "index": 0, "logprobs": None, "finish_reason": finish}])

    def usage(self) -> dict[str, int]:
        total = self.prompt + self.count
        return {"prompt_tokens": self.prompt, "completion_tokens": self.count, "total_tokens": total}

    def add(self, token: Token) -> None:
        self.prompt, self.count = self.prompt + token.prompt_tokens, self.count + 1
        self.text += token.text
        self.cost = {name: self.cost[name] + getattr(token, name) for name in _COST}

    def _said(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        known = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return known | {"choices": choices}

    def end(self) -> dict[str, Any]:
        return self._said([]) | self.spent()

    def spent(self) -> dict[str, Any]:
        return {"usage": self.usage(), "cost": self.cost}

    def broken(self, error: CometError) -> dict[str, Any]:
        """Why it ended early, and what was written."""
        return {"error": {"type": type(error).__name__, "message": str(error)}, "text": self.text}


async def complete(asked: Asked, clients: Clients) -> Response:
    """The answer to a request. What is wrong with it is raised before anything is sent.

    clients: gives the gateway's client, for one request at a time
    """
    asked.sampling()
    pieces = _pieces(asked, clients)
    first = await anext(pieces)  # an error up to here has its own status
    if asked.stream:
        return StreamingResponse(_events(asked, first, pieces), media_type="text/event-stream")
    answer, last = first
    async with contextlib.aclosing(pieces):
        try:
            async for _, token in pieces:
                last = token
        except CometError as error:
            return JSONResponse(answer.broken(error), problems.status_of(error))
    return JSONResponse(answer.piece(answer.text, last) | answer.spent())


async def _pieces(asked: Asked, clients: Clients) -> AsyncGenerator[tuple[_Answer, Token]]:
    async with clients() as client:
        model = await client.connect()
        answer = _Answer(f"cmpl-{secrets.token_hex(12)}", model.fingerprint, int(time.time()))
        async for token in _tokens(asked, client):
            answer.add(token)
            yield answer, token


async def _events(
    asked: Asked, first: tuple[_Answer, Token], pieces: AsyncGenerator[tuple[_Answer, Token]]
) -> AsyncIterator[bytes]:
    """Server-sent events. An error in the middle is one of them; what came before it stands."""
    answer, token = first
    async with contextlib.aclosing(pieces):
        try:
            yield _event(answer.piece(token.text, token))
            async for _, token in pieces:
                yield _event(answer.piece(token.text, token))
        except CometError as error:
            yield _event(answer.broken(error))
            return
    if asked.stream_options is not None and asked.stream_options.include_usage:
        yield _event(answer.end())
    yield b"data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()
