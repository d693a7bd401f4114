"""The relay: bytes go through as they are, to the machine that is chosen, and end when it is lost. Without Ray."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from comet_mpc.cluster.relay import Relay, RelayLimits
from comet_mpc.errors import PeerError
from comet_mpc.net.sockets import Address
from comet_mpc.service.connection import ROUTE
from support.client_hello import client_hello

STATE = "0123456789abcdef" * 2
HELLO = client_hello(ROUTE + STATE)


@dataclass
class Machine:
    """Sends back what it gets, with its name before it."""

    name: str
    connections: set[asyncio.WriteTransport] = field(default_factory=set)
    address: Address = ("127.0.0.1", 0)
    missed: int = 0

    def unreachable(self) -> None:
        self.missed += 1

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.name.encode())
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
            writer.close()


@contextlib.asynccontextmanager
async def relaying(
    *machines: Machine, limits: RelayLimits | None = None, lost: int = 0
) -> AsyncIterator[tuple[Relay, list[str]]]:
    """A relay that takes the machines in turn, and what clients have named. The first `lost` ones do not listen."""
    named: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        for number, machine in enumerate(machines):
            server = await asyncio.start_server(machine.echo, "127.0.0.1", 0)
            machine.address = server.sockets[0].getsockname()[:2]
            if number < lost:
                server.close()
            else:
                stack.callback(server.close)

        async def choose(wanted: str) -> Machine:
            named.append(wanted)
            if not machines:
                raise PeerError("no node serves now")
            return machines[(len(named) - 1) % len(machines)]

        relay = Relay(choose, limits or RelayLimits())
        await relay.open("127.0.0.1", 0)
        stack.callback(relay.close)
        yield relay, named


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60.0):
            await test()

    asyncio.run(bounded())


def test_bytes_go_both_ways_as_they_are() -> None:
    async def test() -> None:
        async with relaying(Machine("a")) as (relay, named):
            reader, writer = await asyncio.open_connection(*relay.address)
            sent = HELLO + bytes(range(256)) * 4096
            writer.write(sent[:100])
            await writer.drain()
            writer.write(sent[100:])
            writer.write_eof()
            assert await reader.read(-1) == b"a" + sent
            assert named == [STATE]
            assert relay.passed_bytes == 2 * len(sent) + 1
            writer.close()

    run(test)


def test_connections_end_with_their_machine() -> None:
    async def test() -> None:
        machine = Machine("a")
        async with relaying(machine) as (relay, _):
            reader, writer = await asyncio.open_connection(*relay.address)
            writer.write(HELLO)
            assert await reader.readexactly(1 + len(HELLO)) == b"a" + HELLO
            for transport in machine.connections:
                transport.abort()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(test)


def test_a_machine_that_cannot_be_reached_is_told_and_another_is_chosen() -> None:
    async def test() -> None:
        gone, there = Machine("a"), Machine("b")
        async with relaying(gone, there, lost=1) as (relay, named):
            reader, writer = await asyncio.open_connection(*relay.address)
            writer.write(HELLO)
            writer.write_eof()
            assert await reader.read(-1) == b"b" + HELLO
            assert (gone.missed, there.missed, named) == (1, 0, [STATE, STATE])
            writer.close()

    run(test)


@pytest.mark.parametrize("first", [b"", b"GET /", HELLO[:50]], ids=["silent", "another protocol", "half a greeting"])
def test_whoever_says_nothing_useful_is_let_go(first: bytes) -> None:
    """The silent after a while; who speaks something else gets to a machine, whose TLS refuses it."""

    async def test() -> None:
        async with relaying(Machine("a"), limits=RelayLimits(hello_seconds=0.05)) as (relay, named):
            reader, writer = await asyncio.open_connection(*relay.address)
            writer.write(first)
            if first.startswith(b"GET"):
                writer.write_eof()
            with contextlib.suppress(ConnectionError):
                assert await reader.read(-1) in (b"", b"a" + first)
            assert named in ([], [""])
            writer.close()

    run(test)


def test_an_address_with_too_many_silent_connections_gets_no_more() -> None:
    async def test() -> None:
        async with relaying(Machine("a"), limits=RelayLimits(silent=2)) as (relay, _):
            silent = [await asyncio.open_connection(*relay.address) for _ in range(2)]
            while relay._silent.total() < 2:
                await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection(*relay.address)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            for _, one in silent:
                one.close()

    run(test)


def test_without_a_machine_the_connection_ends() -> None:
    async def test() -> None:
        async with relaying() as (relay, _):
            reader, writer = await asyncio.open_connection(*relay.address)
            writer.write(HELLO)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(test)
