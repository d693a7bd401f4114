"""What the relay of a cluster's front costs: CPU seconds for a gigabyte that it passes on, between processes here.

PYTHONPATH=tests python research/benchmarks/relay.py [--gigabytes 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import time
from pathlib import Path
from typing import Any

from comet_mpc.cluster.relay import Relay
from comet_mpc.net.sockets import Address
from support.client_hello import client_hello

PIECE = 1 << 18


class Machine:
    """The one that all is passed on to."""

    name = "sink"

    def __init__(self, address: Address) -> None:
        self.address = address
        self.connections: set[asyncio.WriteTransport] = set()

    def unreachable(self) -> None:
        raise AssertionError("the sink is gone")


def swallow(queue: Any) -> None:
    """Reads one connection to its end; says where it listens, and then how much there was."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        queue.put(server.getsockname()[:2])
        connection, _ = server.accept()
        buffer, count = bytearray(4 * PIECE), 0
        while got := connection.recv_into(buffer):
            count += got
        queue.put(count)


def pour(address: Address, count: int) -> None:
    with socket.create_connection(address) as connection:
        connection.sendall(client_hello())
        for _ in range(count // PIECE):
            connection.sendall(bytes(PIECE))


async def measure(gigabytes: float) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    sink = context.Process(target=swallow, args=[queue], daemon=True)
    sink.start()
    machine = Machine(await asyncio.to_thread(queue.get))

    async def choose(wanted: str) -> Machine:
        return machine

    relay = Relay(choose)
    await relay.open("127.0.0.1", 0)
    before = time.process_time()
    source = context.Process(target=pour, args=[relay.address, round(gigabytes * 1e9)], daemon=True)
    source.start()
    count: int = await asyncio.to_thread(queue.get)
    relay.close()
    return {"bytes": count, "CPU seconds for a GB": round((time.process_time() - before) / count * 1e9, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    text = json.dumps(asyncio.run(measure(given.gigabytes)), indent=1)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
