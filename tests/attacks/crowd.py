"""Many clients at once without a dealer, and strangers who keep connections half open: who waits for how long?

    PYTHONPATH=tests python tests/attacks/crowd.py --clients 32 --strangers 200 --json FILE

Server and clients share this machine's cores. Every client is a process of its own, with a certificate of its own and
an empty cache. The processes are there and have imported what they need before the clock starts; then all of them
connect at the same moment, download the model, prepare randomness and ask. A client's seconds are counted from that
moment to its answer. The lone time is the median of one such process alone, measured in the same way, before the others
come. Whether answers are right is found at the end, when no clock runs. The server has as many workers as it takes
without being told: as there are cores.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from comet_mpc.net.identity import TlsIdentity
from comet_mpc.service.client import Client
from support.processes import World
from support.siege import Outcome, ask, at_once, besieged, judged, main, median

_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the beginning of a handshake that never goes on


@contextlib.contextmanager
def half_open(port: int, count: int) -> Iterator[list[int]]:
    """Strangers on so many connections, renewed as soon as the server hangs up. Gives the number of renewals."""
    renewed, stopping = [0], threading.Event()

    def keep(lines: list[socket.socket]) -> None:
        while not stopping.wait(0.02):
            for place, line in enumerate(lines):
                try:
                    if line.recv(1):
                        continue
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                line.close()
                lines[place] = open_one()
                renewed[0] += 1

    def open_one() -> socket.socket:
        line = socket.create_connection(("127.0.0.1", port))
        line.setblocking(False)
        with contextlib.suppress(OSError):
            line.send(_HELLO)
        return line

    lines = [open_one() for _ in range(count)]
    thread = threading.Thread(target=keep, args=(lines,), daemon=True)
    thread.start()
    try:
        yield renewed
    finally:
        stopping.set()
        thread.join()
        for line in lines:
            line.close()


def waits(world: World, cache: Path, times: int) -> list[float]:
    """Seconds of a good client whose model is set up and whose randomness is prepared: it connects and asks."""
    identity = TlsIdentity.find(world.keys, "client-0")
    with Client(world.server.address, identity=identity, cache=cache, ready=0) as client:
        client.prepare(times, warm=False)
    found = judged(world, [ask(world, 0, cache) for _ in range(times)])
    assert all(one.get("right") for one in found), found
    return [one["seconds"] for one in found]


def crowd(clients: int, strangers: int, model: str, repeats: int) -> Outcome:
    """Many clients at once, and strangers who keep connections half open."""
    with (
        besieged(with_dealer=False, clients=clients, model=model) as world,
        tempfile.TemporaryDirectory() as name,
    ):
        directory = Path(name)

        def together(count: int, name: str) -> list[Outcome]:
            return at_once(lambda number: ask(world, number, directory / f"{name}-{number}"), count, 600.0)

        lone = [one["seconds"] for place in range(repeats) for one in together(1, f"lone-{place}")]
        outcomes = judged(world, together(clients, "crowd"))
        answered = sorted(one["seconds"] for one in outcomes if one.get("right"))
        calm = waits(world, directory / "lone-0-0", repeats)
        with half_open(world.server.port, strangers) as renewed:
            besieged_waits = waits(world, directory / "lone-0-0", repeats)
    return {
        "answered": len(answered),
        "wrong": sum(one.get("right") is False for one in outcomes),
        "errors": sorted({one["error"] for one in outcomes if "error" in one}),
        "lone seconds": round(median(lone), 3),
        "first, in lone times": round(answered[0] / median(lone), 2) if answered else None,
        "first seconds": round(answered[0], 2) if answered else None,
        "last seconds": round(answered[-1], 2) if answered else None,
        "half-open renewals": renewed[0],
        "calm seconds": round(median(calm), 3),
        "half-open seconds": round(median(besieged_waits), 3),
        "growth seconds": round(median(besieged_waits) - median(calm), 3),
    }


if __name__ == "__main__":
    main(crowd, clients=32, strangers=200, model="demo", repeats=5)
