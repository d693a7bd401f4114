"""Cost of homomorphic products: matrix products with the server's weights and of masks, element-wise monomials.

Two parties in two threads over a memory channel, one thread each. Seconds are CPU seconds of one party, the best of
several runs; bytes are those on the channel, keys not included (they are sent once and listed). Every result is
checked; `failures.py` counts wrong ones among many.

    python research/benchmarks/lattice.py [--repeats 3] [--json FILE|-]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.ot.extension import Transfers, set_up_transfers
from comet_mpc.offline.rlwe.packing import Packing
from comet_mpc.offline.rlwe.products import Homomorphic, matrix_products
from comet_mpc.offline.rlwe.public_key import PublicKey
from comet_mpc.offline.rlwe.slots import Sum, choose_plan, slot_sums
from comet_mpc.offline.rlwe.tiling import centred, choose_tiling

RNG = np.random.default_rng(0)
ELEMENTS = 1 << 15


@dataclass(frozen=True)
class Row:
    what: str
    elements: int
    limbs: int
    client_seconds: float
    server_seconds: float
    bytes_up: int
    bytes_down: int
    """The largest seen, in steps between messages; decryption fails at 0.5."""


class Parties:
    """Two engines, set up once."""

    def __init__(self, packed: bool) -> None:
        self.ends = memory_pair(timeout=600.0)
        self.pool = ThreadPoolExecutor(2)
        ready = [self.pool.submit(self._set_up, self.ends[p], p, packed) for p in (CLIENT, SERVER)]
        self.engines, self.transfers = zip(*(future.result() for future in ready), strict=True)

    @staticmethod
    def _set_up(channel: Channel, party: int, packed: bool) -> tuple[Homomorphic, Transfers]:
        engine = Homomorphic(channel, party, threads=1)
        if packed:
            engine.set_up_packing()
        return engine, set_up_transfers(channel, party)

    def run(self, work: Callable[[int], Words]) -> tuple[Words, list[float]]:
        """The sum of both parties' shares, and the CPU seconds of each."""

        def timed(party: int) -> tuple[Words, float]:
            start = time.thread_time()
            share = work(party)
            return share, time.thread_time() - start

        futures = [self.pool.submit(timed, party) for party in (CLIENT, SERVER)]
        (client, first), (server, second) = (future.result() for future in futures)
        return client + server, [first, second]

    def measure(self, what: str, elements: int, limbs: int, repeats: int, work: Callable[[int], Words]) -> Row:
        before = self.ends[CLIENT].traffic
        spent = [self.run(work)[1] for _ in range(repeats)]
        traffic = self.ends[CLIENT].traffic - before
        client, server = (min(times) for times in zip(*spent, strict=True))
        return Row(
            what,
            elements,
            limbs,
            client,
            server,
            traffic.sent // repeats,
            traffic.received // repeats,
        )


def words(*shape: int) -> Words:
    return RNG.integers(0, 2**64, shape, dtype=np.uint64)


def same(x: Words, y: Words, width: int) -> bool:
    return not np.any((x - y) << np.uint64(64 - width))


def matrix(parties: Parties, shape: tuple[int, int, int], width: int, bits: int, repeats: int) -> Row:
    rows, inputs, outputs = shape
    x, y = words(1, rows, inputs), centred(words(1, outputs, inputs), bits)
    engines = parties.engines

    def work(party: int) -> Words:
        if party == CLIENT:
            return matrix_products(engines[CLIENT], shape, width, bits, x=x)
        return matrix_products(engines[SERVER], shape, width, bits, y=y)

    assert same(parties.run(work)[0], x @ y.view(np.uint64).transpose(0, 2, 1), width)
    packing = engines[SERVER].packing
    tiling = choose_tiling(rows, inputs, outputs, width, bits, packing)
    what = f"{rows}x{inputs}x{outputs}, {width} bits x {bits}" + (", packed" if packing else "")
    return parties.measure(what, rows * outputs, tiling.scheme.limbs, repeats, work)


def slots_work(
    parties: Parties, uploads: int, sums: tuple[Sum, ...], width: int, count: int
) -> tuple[Callable[[int], Words], Words, int]:
    """What both parties run, the result that is expected, and the number of primes."""
    plan = choose_plan(uploads, sums, width, width)
    left = [centred(words(count), width) for _ in range(uploads)]
    right = [[centred(words(count), width) for _ in entry] for entry in sums]
    expected = [
        sum((left[place] * y for place, y in zip(entry, factors, strict=True)), np.zeros(count, np.int64))
        for entry, factors in zip(sums, right, strict=True)
    ]

    def work(party: int) -> Words:
        engine, transfers = parties.engines[party], parties.transfers[party]
        if party == CLIENT:
            return slot_sums(engine, transfers, plan, count, width, left=left)
        return slot_sums(engine, transfers, plan, count, width, right=right)

    return work, np.stack(expected).view(np.uint64), sum(modulus.scheme.limbs for modulus in plan.moduli)


def monomials(parties: Parties, what: str, uploads: int, sums: tuple[Sum, ...], width: int, repeats: int) -> Row:
    work, expected, limbs = slots_work(parties, uploads, sums, width, ELEMENTS)
    assert same(parties.run(work)[0], expected, width)
    return parties.measure(f"{what}, {width} bits", ELEMENTS, limbs, repeats, work)


def report(row: Row) -> Row:
    print(
        f"{row.what:42} {row.limbs:2} primes  client {row.client_seconds:6.3f} s  server {row.server_seconds:6.3f} s"
        f"  up {row.bytes_up / 1e6:7.3f} MB  down {row.bytes_down / 1e6:7.3f} MB"
        f"  per element {(row.client_seconds + row.server_seconds) / row.elements * 1e6:6.2f} us"
        f" {(row.bytes_up + row.bytes_down) / row.elements:6.1f} B",
        file=sys.stderr,
    )
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of homomorphic products.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON; - for standard output")
    arguments = parser.parse_args()
    repeats: int = arguments.repeats
    print(f"keys: {PublicKey.SIZE / 1e6:.3f} MB; for packing {Packing.TURNS.key_bytes / 1e6:.3f} MB", file=sys.stderr)
    rows = []
    for parties in (plain := Parties(packed=False), Parties(packed=True)):
        rows += [report(matrix(parties, (128, 768, 768), width, 24, repeats)) for width in (56, 64)]
        rows.append(report(matrix(parties, (128, 64, 128), 32, 32, repeats)))
        rows.append(report(matrix(parties, (128, 128, 64), 56, 56, repeats)))
    rows += [report(monomials(plain, "square", 1, ((0,),), width, repeats)) for width in (32, 40, 48, 56, 64)]
    rows.append(report(monomials(plain, "product", 2, ((0, 1),), 64, repeats)))
    rows.append(report(monomials(plain, "powers 2 to 5", 4, ((0,), (0, 1), (0, 1, 2), (0, 1, 2, 3)), 64, repeats)))
    if arguments.json:
        text = json.dumps({"rows": [asdict(row) for row in rows]}, indent=2)
        sys.stdout.write(text + "\n") if arguments.json == "-" else Path(arguments.json).write_text(text + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
