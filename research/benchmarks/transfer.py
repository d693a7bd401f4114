"""Rates and bytes of oblivious transfer: set-up, kernels by instruction set, products of random bits by fold and width.

Two parties in two threads over a memory channel. Rates are per second of CPU time of one party, the best of several
runs; bytes are those of both parties together, as the channel counts them.

    python research/benchmarks/transfer.py [--count 1048576] [--json FILE|-]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np

from comet_mpc import _native
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.ot.extension import FOLDS, Transfers, bit_products, extension_bytes, set_up_transfers

REPEATS = 3


class Row(TypedDict):
    what: str
    fold: int
    width: int
    isa: str
    million_per_cpu_second: float
    bytes_each: float
    set_up_cpu_seconds: float


def report(rows: list[Row], row: Row) -> None:
    rows.append(row)
    print(
        f"{row['what']:9} fold {row['fold']} width {row['width']:2} {row['isa']:9}"
        f" {row['million_per_cpu_second']:8.2f} M/s {row['bytes_each']:7.3f} B",
        file=sys.stderr,
    )


def cpu_seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def kernels(rows: list[Row], fold: int, isa: str) -> None:
    """The extension alone, both of its sides; keys need not belong together for that."""
    count = 1 << (13 if isa == "portable" else 17)
    rng = np.random.default_rng(0)
    keys, key = (np.frombuffer(rng.bytes(size), np.uint8) for size in ((128 // fold << fold) * 16, 16))
    bits, message = np.zeros(count // 8, np.uint8), np.zeros(extension_bytes(count, fold), np.uint8)
    zeros, ones = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    planes, digests = np.zeros(16 * count, np.uint8), np.zeros(128 * 16, np.uint8)
    sides: dict[str, Callable[[], object]] = {
        "receiver": lambda: _native.extend_receiver(keys, fold, key, 0, bits, message, zeros, 1, planes, isa),
        "sender": lambda: _native.extend_sender(keys, fold, key, 0, key, message, zeros, ones, 1, planes, isa),
        "check": lambda: _native.transfer_hash_planes(key, planes, digests, isa),
    }
    for what, call in sides.items():
        seconds = min(cpu_seconds(call) for _ in range(REPEATS))
        each = message.size / count if what == "receiver" else 0.0
        report(
            rows,
            Row(
                what=what,
                fold=fold,
                width=64,
                isa=isa,
                million_per_cpu_second=count / seconds / 1e6,
                bytes_each=each,
                set_up_cpu_seconds=0.0,
            ),
        )


def set_up(end: Channel, party: int, fold: int) -> tuple[Transfers, float]:
    start = time.thread_time()
    transfers = set_up_transfers(end, party, fold)
    return transfers, time.thread_time() - start


def products(rows: list[Row], fold: int, widths: list[int], count: int) -> None:
    ends = memory_pair()
    with ThreadPoolExecutor(2) as pool:
        ready = [future.result() for future in [pool.submit(set_up, ends[p], p, fold) for p in (0, 1)]]
        for width in widths:
            before = ends[0].traffic
            spent = []
            for _ in range(REPEATS):
                calls = [
                    pool.submit(cpu_seconds, partial(bit_products, ends[p], ready[p][0], count, width)) for p in (0, 1)
                ]
                spent.append(max(call.result() for call in calls))
            traffic = ends[0].traffic - before
            report(
                rows,
                Row(
                    what="product",
                    fold=fold,
                    width=width,
                    isa=_native.transfer_isa_names()[-1],
                    million_per_cpu_second=count / min(spent) / 1e6,
                    bytes_each=(traffic.sent + traffic.received) / count / REPEATS,
                    set_up_cpu_seconds=max(seconds for _, seconds in ready),
                ),
            )


def main() -> int:
    parser = argparse.ArgumentParser(description="Rates and bytes of oblivious transfer.")
    parser.add_argument("--count", type=int, default=1 << 20, help="products in a run")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON; - for standard output")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for fold in FOLDS:
        for isa in _native.transfer_isa_names():
            kernels(rows, fold, isa)
    for fold in FOLDS:
        products(rows, fold, [1, 16, 32, 64], arguments.count)
    if arguments.json:
        text = json.dumps(rows, indent=2) + "\n"
        sys.stdout.write(text) if arguments.json == "-" else Path(arguments.json).write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
