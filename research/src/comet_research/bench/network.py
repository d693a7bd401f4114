"""A slower network in user space: a relay between the parties that delays and limits both directions."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time

from comet_mpc.engine.costs import Network
from comet_mpc.local.processes import LOOPBACK, Link

_PIECE = 1 << 16
_IN_FLIGHT = 1 << 12  # pieces that may be on their way: more than any bandwidth times delay here


def relay(link: Link, target: tuple[str, int], network: Network) -> None:
    """Process: accepts one connection, opens one to `target`, and carries bytes both ways at the network's pace."""
    with socket.create_server((LOOPBACK, 0)) as server:
        link.tell(server.getsockname()[:2])
        near, _ = server.accept()
    far = socket.create_connection(target)
    ends = (near, far)
    for end in ends:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    directions = [threading.Thread(target=_carry, args=(source, sink, network)) for source, sink in (ends, ends[::-1])]
    for thread in directions:
        thread.start()
    for thread in directions:
        thread.join()


def _carry(source: socket.socket, sink: socket.socket, network: Network) -> None:
    """A piece leaves when the link is free and arrives half a round trip after its last bit has left."""
    pieces: queue.Queue[tuple[float, bytes]] = queue.Queue(_IN_FLIGHT)
    writer = threading.Thread(target=_deliver, args=(pieces, sink))
    writer.start()
    free = 0.0
    with contextlib.suppress(OSError):
        while data := source.recv(_PIECE):
            free = max(free, time.perf_counter()) + 8.0 * len(data) / network.rate
            pieces.put((free + network.round_trip / 2, data))
            # read no faster than the link carries, as a full send buffer would
            ahead = free - time.perf_counter() - 0.01
            if ahead > 0:
                time.sleep(ahead)
    pieces.put((0.0, b""))
    writer.join()


def _deliver(pieces: queue.Queue[tuple[float, bytes]], sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            due, data = pieces.get()
            if not data:
                break
            wait = due - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
