"""Malformed connections to a server and a dealer, one after another and many at once: are good clients served well?

PYTHONPATH=tests python tests/attacks/malformed.py --connections 2000 --json FILE
"""

from __future__ import annotations

import contextlib
import random
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from comet_mpc.errors import CometError
from comet_mpc.net.channel import Channel, greet, greeting_frame
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import connect
from support.processes import World, send_raw
from support.siege import Outcome, ask, besieged, judged, main, median

_AT_ONCE = 50
_SECONDS = 3.0
"""That a malformed connection waits for an answer, which may never come."""


def _plain(port: int, dice: random.Random) -> None:
    """Not even TLS, or the beginning of it."""
    with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as line:
        start = dice.choice(
            [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"\x16\x03\x01\x00\x10", b"COMET\x00\x02"]
        )
        line.sendall(start + dice.randbytes(dice.choice([0, 1, 5, 100, 20_000])))
        if dice.random() < 0.3:
            line.recv(100)


def _garbage(channel: Channel, dice: random.Random) -> None:
    send_raw(channel, dice.randbytes(dice.choice([1, 7, 8, 9, 200, 70_000])))


def _lengths(channel: Channel, dice: random.Random) -> None:
    """A frame that says that it is longer, or shorter, than what comes."""
    said = dice.choice([0, 1, 100, 8193, 1 << 20, 1 << 40, (1 << 64) - 1])
    send_raw(channel, said.to_bytes(8, "little") + dice.randbytes(dice.randrange(300)))


def _greetings(channel: Channel, dice: random.Random) -> None:
    """A greeting that is damaged, or of another kind."""
    frame = bytearray(greeting_frame({"role": dice.choice(["client", "server", "x"]), "version": "0", "model": ""}))
    for _ in range(dice.randrange(3)):
        frame[dice.randrange(len(frame))] ^= 1 << dice.randrange(8)
    channel.send(bytes(frame))


def _messages(channel: Channel, dice: random.Random) -> None:
    """A good greeting, and then rubbish in JSON."""
    greet(channel, {"role": "client", "version": "?", "source of randomness": "", "model": ""}, _SECONDS)
    texts = [
        b"{", b"[" * 4000, b'{"type":"Run"}', b'{"type":"Prepare","bundle_id":"../../x","batch":-1}', b'{"type":"Ask"}',
        b'{"type":"Ask","bundle_id":"' + b"0" * 32 + b'","digest":"' + b"1" * 64 + b'","program_bytes":99999999999}',
        b'{"type":"GetWeights","x":1}', b"\xff\xfe", b'"' + b"a" * 5000 + b'"',
    ]  # fmt: skip
    channel.send(dice.choice(texts))
    with contextlib.suppress(CometError):
        channel.receive(10_000)


_KINDS: list[Callable[[Channel, random.Random], None]] = [_garbage, _lengths, _greetings, _messages]


def _one(keys: Path, port: int, seed: int) -> None:
    dice = random.Random(seed)
    if dice.random() < 0.4:
        with contextlib.suppress(OSError):
            _plain(port, dice)
        return
    name = dice.choice(["client-0", "client-1", "server", "dealer"])
    with contextlib.suppress(CometError, OSError):
        context = TlsIdentity.find(keys, name).client_context()
        with connect("127.0.0.1", port, context, _SECONDS, connect_timeout=_SECONDS) as channel:
            dice.choice(_KINDS)(channel, dice)


def _tracebacks(world: World) -> int:
    return sum("where" in event or "Traceback" in str(event) for event in world.server.events())


def malformed(connections: int, seed: int, queries: int = 7) -> Outcome:
    """Half of the connections go to the server, half to the dealer; half one after another, half fifty at once.

    queries: of a good client before, between and after them, whose median time is reported
    """
    limits = {"stall_seconds": 60.0}
    with (
        besieged(with_dealer=True, clients=3, workers=2, limits=limits) as world,
        tempfile.TemporaryDirectory() as name,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        assert world.dealer is not None
        ports = (world.server.port, world.dealer)
        cache, asked = Path(name), []

        def good(times: int) -> float:
            found = judged(world, [ask(world, 2, cache) for _ in range(times)])
            asked.extend(found)
            return median([one["seconds"] for one in found])

        ask(world, 2, cache)  # sets the model up
        calm = good(queries)
        slow = []
        for place in range(connections // 2):
            _one(world.keys, ports[place % 2], seed + place)
            if place % 50 == 0:
                slow.append(good(1))
        after = good(queries)
        rest = range(connections // 2, connections)
        jobs = [pool.submit(_one, world.keys, ports[place % 2], seed + place) for place in rest]
        during = [good(1)]  # fifty strangers take their part of the same cores
        while not all(job.done() for job in jobs):
            during.append(good(1))
        for job in jobs:
            job.result()
        last = good(queries)
        return {
            "right": sum(one.get("right") is True for one in asked),
            "wrong": sum(one.get("right") is False for one in asked),
            "errors": sorted({one["error"] for one in asked if "error" in one}),
            "tracebacks": _tracebacks(world),
            "calm seconds": round(calm, 3),
            "between them, in calm times": round(median(slow) / calm, 2),
            "after them, in calm times": round(after / calm, 2),
            "beside fifty at once, in calm times": round(median(during) / calm, 2),
            "after fifty at once, in calm times": round(last / calm, 2),
        }


if __name__ == "__main__":
    main(malformed, connections=2000, seed=1, queries=7)
