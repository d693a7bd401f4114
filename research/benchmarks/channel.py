"""Rate and latency of `Channel.exchange` on loopback between two processes, both directions at once.

python research/benchmarks/channel.py [--megabytes 32] [--rounds 40] [--json FILE|-]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import ssl
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from comet_mpc.net.authority import make_test_set
from comet_mpc.net.channel import Channel
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import connect, listen

SMALL_ROUNDS = 2000


@dataclass(frozen=True)
class Result:
    kind: str
    megabytes: int
    rounds: int
    gigabytes_per_second_each_way: float
    gigabytes_per_second_both_ways: float
    microseconds_per_small_round: float


def exchange_repeatedly(channel: Channel, size: int, rounds: int) -> float:
    """Median seconds per round, after a warm-up."""
    payload = bytes(size)
    seconds = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        channel.exchange([payload], size)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def peer(port: int, tls_directory: str | None, size: int, rounds: int) -> None:
    with connect("127.0.0.1", port, _context(tls_directory, "client")) as channel:
        exchange_repeatedly(channel, size, rounds)
        exchange_repeatedly(channel, 8, SMALL_ROUNDS)


def _context(tls_directory: str | None, role: str) -> ssl.SSLContext | None:
    if tls_directory is None:
        return None
    directory = Path(tls_directory)
    identity = TlsIdentity(directory / f"{role}.pem", directory / f"{role}.key", directory / "authority.pem")
    return identity.client_context() if role == "client" else identity.server_context(require_client=True)


def measure(kind: str, tls_directory: str | None, megabytes: int, rounds: int) -> Result:
    size = megabytes << 20
    with listen("127.0.0.1", 0, _context(tls_directory, "server")) as listener:
        other = multiprocessing.get_context("spawn").Process(
            target=peer, args=(listener.address[1], tls_directory, size, rounds), daemon=True
        )
        other.start()
        with listener.accept(timeout=30) as channel:
            large = exchange_repeatedly(channel, size, rounds)
            small = exchange_repeatedly(channel, 8, SMALL_ROUNDS)
        other.join(10)
    rate = size / large / 1e9
    return Result(kind, megabytes, rounds, rate, 2 * rate, small * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=32, help="payload each way per round (MiB)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON; - for standard output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        make_test_set(Path(directory))
        results = [
            measure("tcp", None, options.megabytes, options.rounds),
            measure("tls", directory, options.megabytes, options.rounds),
        ]
    if options.json != "-":
        print(f"{'':4} {'GB/s each way':>14} {'GB/s both ways':>15} {'µs per 8-byte round':>20}")
        for result in results:
            each, both = result.gigabytes_per_second_each_way, result.gigabytes_per_second_both_ways
            print(f"{result.kind:4} {each:14.2f} {both:15.2f} {result.microseconds_per_small_round:20.1f}")
    if options.json:
        text = json.dumps([asdict(result) for result in results], indent=2) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            Path(options.json).write_text(text)


if __name__ == "__main__":
    main()
