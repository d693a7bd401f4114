"""The client for asyncio: the loop goes on, calls wait for a connection, a cancelled call leaves all in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from comet_mpc import AsyncClient
from comet_mpc.errors import ConfigurationError, PeerClosed, PeerError
from comet_mpc.service.client import Client
from support.processes import World, running_world
from support.toy_model import some_texts
from support.waiting import PATIENCE

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, keys: Path, tiny_checkpoint: Path) -> Iterator[World]:
    state = tmp_path_factory.mktemp("async")
    with running_world(keys, tiny_checkpoint, state, with_dealer=True, limits={"batch": 2}, workers=4) as running:
        yield running


def client(world: World, cache: Path, connections: int = 1) -> AsyncClient:
    return AsyncClient(world.server.address, connections=connections, keys=world.keys, cache=cache, ready=0)


def test_answers_are_the_models_and_stream_as_they_come(world: World, tmp_path: Path) -> None:
    texts = some_texts(5, words=4)

    async def main() -> None:
        async with client(world, tmp_path) as asking:
            assert (await asking.connect()).fingerprint == world.model.fingerprint
            assert await asking.source() == "dealer"
            assert await asking.sizes(texts) == {(2, 16): 2, (1, 16): 1}
            assert await asking.prepare(2, batch=2) == 2 == await asking.prepared(2, 16)
            seen = {place: one async for place, one in asking.stream(texts)}
            assert sorted(seen) == [0, 1, 2, 3, 4]
            assert all(world.right(seen[place].logits, text) for place, text in enumerate(texts))
            answers = await asking.classify(texts[:2])
            assert all(world.right(one.logits, text) for one, text in zip(answers, texts, strict=False))

    asyncio.run(main())


def test_calls_share_connections_and_the_loop_goes_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs are inside `classify` at once, as many as there are connections, while the loop does something else."""
    inside, most, both = 0, 0, threading.Event()
    lock, classify = threading.Lock(), Client.classify

    def counted(self: Client, *arguments: object, **more: object) -> object:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            if inside == 2:
                both.set()
        assert both.wait(PATIENCE)
        try:
            return classify(self, *arguments, **more)  # type: ignore[arg-type]
        finally:
            with lock:
                inside -= 1

    monkeypatch.setattr(Client, "classify", counted)

    async def main() -> None:
        async with client(world, tmp_path, connections=2) as asking:
            tasks = [asyncio.ensure_future(asking.classify([text])) for text in some_texts(5, words=4)]
            turns = 0
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0)
                turns += 1
            assert turns > 5
            for text, task in zip(some_texts(5, words=4), tasks, strict=True):
                assert world.right(task.result()[0].logits, text)

    asyncio.run(main())
    assert most == 2


def test_a_cancelled_call_sends_no_further_text(world: World, tmp_path: Path) -> None:
    async def main() -> None:
        async with client(world, tmp_path) as asking:
            stream = asking.stream(some_texts(20, words=4))
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            assert world.right((await asking.classify(["a film"]))[0].logits, "a film")
            waiting = asyncio.ensure_future(asking.classify(some_texts(20, words=4)))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert world.right((await asking.classify(["a plot"]))[0].logits, "a plot")

    asyncio.run(main())
    world.server.logged("answered")
    answered = sum(event["batch"] for event in world.server.events() if event["event"] == "answered")
    assert answered < 40


def test_errors_are_the_clients(world: World, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigurationError, match="at least one connection"):
            client(world, tmp_path, connections=0)
        with pytest.raises(PeerError):
            async with AsyncClient("127.0.0.1:1", keys=world.keys, cache=tmp_path, timeout=PATIENCE):
                pass
        asking = client(world, tmp_path)
        async with asking:
            with pytest.raises(ConfigurationError, match="text 2 is empty"):
                await asking.classify(["a film", " "])
        with pytest.raises(PeerClosed, match="closed"):
            await asking.classify(["a film"])

    asyncio.run(main())
