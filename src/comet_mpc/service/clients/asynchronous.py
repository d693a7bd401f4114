"""Private predictions for programs that use asyncio: the event loop keeps running while the protocol does.

    async with AsyncClient("localhost:7001", keys="keys") as client:
        print((await client.classify(["a warm and bright film"]))[0].label)

A `Client` blocks: it sends, receives and computes. So each connection has its own `Client` and thread, and a
call waits for a free one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar, Unpack

from comet_mpc.errors import ConfigurationError, PeerClosed
from comet_mpc.models.queries import Input
from comet_mpc.models.writing.packages import Model
from comet_mpc.service.client import Client, ClientOptions
from comet_mpc.service.prediction import Embedding, Prediction, Tagging
from comet_mpc.service.writing.client import Token, Wanted

A = TypeVar("A")
T = TypeVar("T")


class _NobodyWaits(Exception):
    """Ends a call, between two runs, whose caller was cancelled or has left."""


class _Seat:
    """One connection: a client, and the only thread that uses it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="comet client")

    def close(self) -> None:
        self.client.close()  # a run that is under way ends with PeerClosed
        self.thread.shutdown()


class AsyncClient:
    """Connections to one server. Any number of tasks may use it at once.

    connections  calls that run concurrently; others wait. All share one cache, and so the prepared randomness
    The other arguments are those of `Client`.

    A cancelled call returns at once. The run in progress still finishes, since its randomness is spent; later texts are
    not sent.
    """

    def __init__(self, address: str, *, connections: int = 1, **options: Unpack[ClientOptions]) -> None:
        if connections < 1:
            raise ConfigurationError(f"a client needs at least one connection, got {connections}")
        self._seats = [_Seat(Client(address, **options)) for _ in range(connections)]
        self._free: asyncio.LifoQueue[_Seat] = asyncio.LifoQueue()  # one that is connected is used before others
        for seat in reversed(self._seats):
            self._free.put_nowait(seat)
        self._closed = False

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> Model:
        """Connects and sets up the model unless that is done; returns what is public of it."""
        return await self._call(Client.connect)

    async def source(self) -> str:
        """Where the randomness comes from: pair or dealer."""
        return await self._call(lambda client: client.source)

    async def close(self) -> None:
        """Ends all connections. Randomness on disk stays for the next time."""
        self._closed = True
        await asyncio.gather(*(asyncio.to_thread(seat.close) for seat in self._seats))

    async def prepare(self, count: int = 1, *, batch: int = 1, bucket: int | None = None) -> int:
        """As `Client.prepare`; all of it stays on disk, for any of the connections."""
        return await self._call(lambda client: client.prepare(count, batch=batch, bucket=bucket, warm=False))

    async def prepared(self, batch: int = 1, bucket: int | None = None) -> int:
        """As `Client.prepared`."""
        return await self._call(lambda client: client.prepared(batch, bucket))

    async def sizes(self, texts: Sequence[Input]) -> dict[tuple[int, int], int]:
        """As `Client.sizes`."""
        return await self._call(lambda client: client.sizes(texts))

    async def classify(self, texts: Sequence[Input]) -> list[Prediction]:
        """One prediction per text (or pair of texts) or image, in order; all of them or an error."""
        found = {index: one async for index, one in self.stream(texts)}
        return [found[index] for index in sorted(found)]

    async def embed(self, texts: Sequence[Input]) -> list[Embedding]:
        """As `Client.embed`."""
        return await self._call(lambda client: client.embed(texts))

    async def tag(self, texts: Sequence[str]) -> list[Tagging]:
        """As `Client.tag`."""
        return await self._call(lambda client: client.tag(texts))

    async def generate(self, prompt: str | Sequence[int], **wanted: Unpack[Wanted]) -> AsyncIterator[Token]:
        """As `Client.generate`: each token as it comes. Leaving the loop ends the text at the server as well."""

        def generate(client: Client, told: Callable[[Token], None]) -> None:
            with contextlib.closing(client.generate(prompt, **wanted)) as tokens:
                for token in tokens:
                    told(token)

        async with contextlib.aclosing(self._streamed(generate)) as tokens:
            async for token in tokens:
                yield token

    async def stream(self, texts: Sequence[Input]) -> AsyncIterator[tuple[int, Prediction]]:
        """Each prediction as soon as it arrives, with the index of its text. Texts of one size come together."""

        def classify(client: Client, told: Callable[[tuple[int, Prediction]], None]) -> None:
            client.classify(texts, told=lambda index, one: told((index, one)))

        async with contextlib.aclosing(self._streamed(classify)) as found:
            async for one in found:
                yield one

    async def _streamed(self, work: Callable[[Client, Callable[[A], None]], None]) -> AsyncGenerator[A]:
        """What a call tells as it goes. It is told in turn that nobody waits any more."""
        loop, gone = asyncio.get_running_loop(), threading.Event()
        found: asyncio.Queue[A | None] = asyncio.Queue()

        def told(one: A) -> None:
            if gone.is_set():
                raise _NobodyWaits
            loop.call_soon_threadsafe(found.put_nowait, one)

        task = asyncio.ensure_future(self._call(lambda client: work(client, told)))
        task.add_done_callback(lambda _: found.put_nowait(None))
        try:
            while (one := await found.get()) is not None:
                yield one
            await task
        finally:
            gone.set()
            task.cancel()

    async def _call(self, work: Callable[[Client], T]) -> T:
        """In the thread of a free connection. It is free again when the thread has finished, cancelled or not."""
        seat = await self._free.get()
        if self._closed:
            self._free.put_nowait(seat)
            raise PeerClosed("this client is closed")
        future = asyncio.get_running_loop().run_in_executor(seat.thread, work, seat.client)
        future.add_done_callback(lambda _: self._free.put_nowait(seat))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody else looks at it
        return await asyncio.shield(future)
