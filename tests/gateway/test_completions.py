"""Texts over HTTP in the shape of OpenAI's API, asked for with the package that people have."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from comet_mpc.gateway.app import make_app
from comet_mpc.local.service import local_service
from comet_mpc.models.writing.decoder import Decoder
from comet_mpc.models.writing.stored import load_decoder
from comet_mpc.models.writing.twin import written_by_twin
from comet_mpc.offline.sources import DEALER
from comet_mpc.service.clients.asynchronous import AsyncClient
from comet_mpc.service.deployment import ServiceLimits
from support.gateways import Gateway, gateway_process
from support.processes import ServerProcess, server_process
from support.small_writers import LLAMA, write_small
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


def test_a_whole_text_that_an_error_ends_has_what_was_written(tmp_path: Path) -> None:
    limits = ServiceLimits(stall_seconds=PATIENCE, idle_seconds=PATIENCE, dealer_seconds=PATIENCE, tokens_per_day=4)

    async def work(client: Any) -> None:
        with pytest.raises(openai.RateLimitError, match="tokens a day") as caught:
            await client.completions.create(**GREEDY)
        assert caught.value.response.json()["text"] == TEXT[:4]

    with local_service(MODEL, DEALER, limits=limits) as found:
        asked(found, work)


# As people run it: a gateway in front of a server, both processes of their own ---------------------------------------


@dataclass(frozen=True)
class Desk:
    model: Decoder
    server: ServerProcess
    gateway: Gateway

    @property
    def client(self) -> Any:
        token = self.gateway.header["authorization"].removeprefix("Bearer ")
        url = f"{self.gateway.url.rstrip('/')}/v1"
        return openai.OpenAI(base_url=url, api_key=token, timeout=PATIENCE, max_retries=0)

    def said(self, ids: Sequence[int]) -> str:
        return b"".join(self.model.tokenizer.spelling[token] for token in ids).decode()


@pytest.fixture
def desk(tmp_path: Path, keys: Path, shared_dealer: int) -> Iterator[Desk]:
    checkpoint = write_small(tmp_path / "writer", LLAMA, tied=False, seed=1)
    with (
        server_process(keys, checkpoint, shared_dealer, tmp_path / "state", workers=2) as server,
        gateway_process(server.address, keys, tmp_path / "cache") as gateway,
    ):
        yield Desk(load_decoder(checkpoint), server, gateway)


def test_openai_writes_over_a_real_socket_and_keeps_what_was_written(desk: Desk) -> None:
    text = desk.said([*written_by_twin(desk.model, PROMPT, COUNT)])
    with desk.client as client:
        (one,) = client.models.list().data
        assert one.id == desk.model.fingerprint
        whole = client.completions.create(**GREEDY)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == (text, "length")
        plan = desk.model.conversation(16, DEALER)
        runs = [plan.window(0, 6), *(plan.window(at, at + 1) for at in range(6, 5 + COUNT))]
        assert whole.cost["online_bytes"] == sum(run.online_bytes for run in runs)
        assert whole.cost["rounds"] == sum(run.rounds for run in runs)

        with client.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}) as stream:
            pieces = list(stream)
        assert "".join(piece.choices[0].text for piece in pieces[:-1]) == text
        assert pieces[-1].usage.completion_tokens == COUNT

        with client.completions.create(**GREEDY, stream=True) as stream:
            assert next(iter(stream)).choices[0].text == text[:1]  # whoever leaves frees what it held
        assert client.completions.create(**GREEDY).choices[0].text == text

        wrong: dict[str, Any]
        for wrong in ({"prompt": ""}, {"prompt": []}, {"prompt": [270]}, {"prompt": "a" * 49}, {"max_tokens": 44}):
            with pytest.raises(openai.BadRequestError):
                client.completions.create(**GREEDY | wrong)
        with pytest.raises(openai.BadRequestError, match=r"supports generate\(\)"):
            client.embeddings.create(model="private", input=["abc"])

        with client.completions.create(**GREEDY, stream=True) as stream:
            found = [next(stream).choices[0].text for _ in range(3)]
            desk.server.process.kill()
            with pytest.raises(openai.APIError, match="What was written is kept") as caught:
                found += [piece.choices[0].text for piece in stream]
        assert caught.value.body["type"] == "WritingStopped"
        assert text.startswith("".join(found))


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Debian's chromium")
def test_the_page_writes_on_a_desk_and_on_a_phone(desk: Desk) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    text = desk.said([*written_by_twin(desk.model, PROMPT, COUNT)])
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width in (1280, 360):
            page, said = browser.new_page(viewport={"width": width, "height": 800}), list[str]()
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.goto(f"{desk.gateway.url}#token={desk.gateway.header['authorization'].split()[1]}")
            page.wait_for_selector("#wanted:not([hidden])", timeout=1000 * PATIENCE)
            assert page.input_value("#text") == "Once upon a time"
            page.fill("#text", PROMPT)
            page.fill("#most", str(COUNT))
            page.click("#send")
            page.wait_for_selector("#cost:not([hidden])", timeout=1000 * PATIENCE)
            assert page.text_content("#label") == PROMPT + text
            assert "6 tokens" in page.inner_text("#cut")
            page.fill("#most", "48")
            page.click("#send")
            page.wait_for_selector("#status.wrong", timeout=1000 * PATIENCE)
            assert "there is room for 43" in page.inner_text("#status")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert [line for line in said if "400" not in line] == []  # a browser tells of that refusal by itself
        browser.close()
