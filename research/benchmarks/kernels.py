"""Rates of the ring kernels against numpy, on one core, in one run.

Times are CPU times, the best of several calls: the kernels are single-threaded, like numpy's integer code.
Exits with status 1 if the ring matmul is less than 12 times as fast as numpy's.

    python research/benchmarks/kernels.py [--json FILE|-]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from math import comb
from pathlib import Path
from typing import TypedDict

import numpy as np

from comet_mpc.engine import kernels
from comet_mpc.engine.kernels import Exponents, Words

REQUIRED_SPEEDUP = 12.0
M, K, N = 128, 768, 3072
ELEMENTS = M * N


class Row(TypedDict):
    kernel: str
    isa: str
    unit: str
    rate: float
    times_numpy: float


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The best CPU time of several calls, after one that warms caches and plans."""
    call()
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return min(times)


class Bench:
    """Collects one row per kernel and instruction set."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def compare(
        self,
        kernel: str,
        unit: str,
        amount: float,
        plain: Callable[[], object],
        fast: Callable[[str], object],
    ) -> None:
        """`amount` is how many units one call does; `plain` is numpy's way to the same result."""
        baseline = seconds(plain, 2)
        rates = [("numpy", baseline)]
        rates += [(isa, seconds(lambda isa=isa: fast(isa), 7)) for isa in kernels.isa_names()]  # type: ignore[misc]
        for isa, spent in rates:
            row = Row(kernel=kernel, isa=isa, unit=unit, rate=amount / spent, times_numpy=baseline / spent)
            self.rows.append(row)
            print(
                f"{kernel:28} {isa:9} {row['rate']:8.3f} {unit:12} {row['times_numpy']:6.1f} x",
                file=sys.stderr,
            )


def matrices(bench: Bench, rng: np.random.Generator) -> None:
    x, y = (rng.integers(0, 2**64, shape, np.uint64) for shape in ((M, K), (K, N)))
    w = rng.integers(-(2**31), 2**31, (N, K)).astype(np.int32)
    wide = w.astype(np.int64).view(np.uint64)
    giga = M * K * N / 1e9
    bench.compare("matmul", "GMAC/s", giga, lambda: x @ y, lambda isa: kernels.matmul(x, y, isa=isa))
    bench.compare(
        "matmul width 32",
        "GMAC/s",
        giga,
        lambda: x.astype(np.uint32) @ y.astype(np.uint32),
        lambda isa: kernels.matmul(x, y, width=32, isa=isa),
    )
    bench.compare("matmul_int32", "GMAC/s", giga, lambda: x @ wide.T, lambda isa: kernels.matmul_int32(x, w, isa=isa))
    heads = [rng.integers(0, 2**64, (12, 128, 64), np.uint64) for _ in range(2)]
    bench.compare(
        "matmul QKᵀ 12×128×64×128",
        "GMAC/s",
        12 * 128 * 64 * 128 / 1e9,
        lambda: heads[0] @ heads[1].swapaxes(1, 2),
        lambda isa: kernels.matmul(*heads, transpose_right=True, isa=isa),
    )


def elementwise(bench: Bench, rng: np.random.Generator) -> None:
    def words() -> Words:
        return rng.integers(0, 2**64, ELEMENTS, np.uint64)

    mega = ELEMENTS / 1e6
    t, y = words(), words()
    terms: list[tuple[int, Exponents]] = [(3, (1, 1)), (-5, (2, 3))]
    monomials: dict[Exponents, Words] = {(i, j): words() for i in range(3) for j in range(4) if i + j}

    def numpy_polynomial() -> Words:
        out = np.zeros(ELEMENTS, np.uint64)
        for coef, (a, b) in terms:
            for i in range(a + 1):
                for j in range(b + 1):
                    share = monomials[i, j] if i + j else np.uint64(1)
                    factor = np.uint64(coef * comb(a, i) * comb(b, j) % 2**64)
                    out += share * factor * t ** np.uint64(a - i) * y ** np.uint64(b - j)
        return out

    bench.compare(
        "evaluate a·t·y - b·t²·y³",
        "M elements/s",
        mega,
        numpy_polynomial,
        lambda isa: kernels.evaluate(terms, [t, y], monomials, True, isa=isa),
    )

    bits, mine, theirs = (rng.integers(0, 256, ELEMENTS // 8).astype(np.uint8) for _ in range(3))

    def numpy_mask() -> object:
        top = (t + np.uint64(2**62)) >> np.uint64(63)
        return np.packbits(1 - top.astype(np.uint8), bitorder="little") ^ bits

    def numpy_finish() -> Words:
        b, e0, e1 = (np.unpackbits(p, bitorder="little").astype(np.int64) for p in (bits, mine, theirs))
        s0, s1 = 1 - 2 * e0, 1 - 2 * e1
        both = (s0 * s1).view(np.uint64) * y + (e0 * e1 + e1 * s0 * b).view(np.uint64)
        constant = np.uint64((1 - 2**48 - 2**46) % 2**64)
        return ((t + np.uint64(2**62)) >> np.uint64(16)) + both * np.uint64(2**48) + constant

    bench.compare(
        "truncate_mask",
        "M elements/s",
        mega,
        numpy_mask,
        lambda isa: kernels.truncate_mask(t, bits, 64, True, isa=isa),
    )
    bench.compare(
        "truncate_finish",
        "M elements/s",
        mega,
        numpy_finish,
        lambda isa: kernels.truncate_finish(t, bits, mine, theirs, y, 64, 16, True, isa=isa),
    )
    for size in (4, 5, 8):
        packed = kernels.pack_words(t, size)

        def numpy_unpack(size: int = size, packed: kernels.Bytes = packed) -> Words:
            out = np.zeros((ELEMENTS, 8), np.uint8)
            out[:, :size] = packed.reshape(-1, size)
            return out.view(np.uint64)

        bench.compare(
            f"pack_words {size} bytes",
            "M elements/s",
            mega,
            lambda size=size: t.view(np.uint8).reshape(-1, 8)[:, :size].copy(),  # type: ignore[misc]
            lambda isa, size=size: kernels.pack_words(t, size, isa=isa),  # type: ignore[misc]
        )
        bench.compare(
            f"unpack_words {size} bytes",
            "M elements/s",
            mega,
            numpy_unpack,
            lambda isa, size=size, packed=packed: kernels.unpack_words(packed, size, ELEMENTS, isa=isa),  # type: ignore[misc]
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Rates of the ring kernels against numpy.")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON; - for standard output")
    arguments = parser.parse_args()
    bench, rng = Bench(), np.random.default_rng(0)
    matrices(bench, rng)
    elementwise(bench, rng)
    if arguments.json:
        text = json.dumps(bench.rows, indent=2, ensure_ascii=False) + "\n"
        sys.stdout.write(text) if arguments.json == "-" else Path(arguments.json).write_text(text)
    best = max(row["times_numpy"] for row in bench.rows if row["kernel"] == "matmul")
    if best < REQUIRED_SPEEDUP:
        print(f"matmul: got {best:.1f} times numpy, expected {REQUIRED_SPEEDUP:.0f}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
