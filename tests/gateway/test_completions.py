"""Texts over HTTP in the shape of OpenAI's API, asked for with the package that people have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from comet_mpc.gateway.app import make_app
from comet_mpc.local.service import local_service
from comet_mpc.offline.sources import DEALER
from comet_mpc.service.clients.asynchronous import AsyncClient
from comet_mpc.service.deployment import ServiceLimits
from support.toy_writer import ToyWriter
from support.waiting import PATIENCE

openai = pytest.importorskip("openai", reason="needs openai")

pytestmark = pytest.mark.service

MODEL = ToyWriter(18)
PROMPT, COUNT = "abc hi", 6
TEXT = b"".join(MODEL.tokenizer.spelling[token] for token in MODEL.written(PROMPT, COUNT)).decode()
GREEDY: dict[str, Any] = {"model": "private", "prompt": PROMPT, "max_tokens": COUNT, "temperature": 0}


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[str, Path, Path]]:
    limits = ServiceLimits(stall_seconds=PATIENCE, idle_seconds=PATIENCE, dealer_seconds=PATIENCE, tokens_per_day=30)
    with local_service(MODEL, DEALER, limits=limits) as found:
        yield found


def asked(place: tuple[str, Path, Path], work: Callable[[Any], Awaitable[Any]]) -> Any:
    """What the package makes of it, in front of the application itself: the toy is known in this process alone."""
    address, keys, directory = place

    async def ask() -> Any:
        def connect(_: object) -> AsyncClient:
            return AsyncClient(address, keys=keys, cache=directory / "gateway", timeout=PATIENCE)

        app = make_app(address, frozenset({"gateway"}), connect, "token", PATIENCE)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport) as http:
            client = openai.AsyncOpenAI(
                api_key="token", base_url="http://gateway/v1", http_client=http, max_retries=0, timeout=PATIENCE
            )
            return await work(client)

    return asyncio.run(ask())


def test_a_text_comes_whole_or_as_a_stream_or_not_at_all(place: tuple[str, Path, Path]) -> None:
    async def work(client: Any) -> None:
        whole = await client.completions.create(**GREEDY)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (TEXT, "length")
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (6, COUNT)
        assert whole.model == MODEL.fingerprint

        options = {"stream": True, "stream_options": {"include_usage": True}}
        pieces = [piece async for piece in await client.completions.create(**GREEDY, **options)]
        assert "".join(piece.choices[0].text for piece in pieces[:-1]) == TEXT
        assert len(pieces) == COUNT + 1
        assert pieces[-2].choices[0].finish_reason == "length"
        assert pieces[-1].usage.completion_tokens == COUNT

        stopped = await client.completions.create(**GREEDY | {"stop": TEXT[2:4]})
        assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == (TEXT[:2], "stop")

        wrong: dict[str, Any]
        for wrong in ({"prompt": ""}, {"prompt": "a" * 49}, {"prompt": ["a", "b"]}, {"n": 2}, {"max_tokens": 0}):
            with pytest.raises(openai.APIStatusError) as caught:
                await client.completions.create(**GREEDY | wrong)
            assert 400 <= caught.value.status_code < 500

        # the tokens of a day end in the middle of a stream: what came before stands
        found: list[str] = []

        async def go_on() -> None:
            for _ in range(4):
                async for piece in await client.completions.create(**GREEDY, stream=True):
                    found.append(piece.choices[0].text)  # noqa: PERF401  what came before an error counts

        with pytest.raises(openai.APIError, match="tokens a day"):
            await go_on()
        assert "".join(found).startswith(TEXT)
        assert len(found) == 30 - COUNT - COUNT - 4

    asked(place, work)
