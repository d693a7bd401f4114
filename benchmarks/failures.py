"""Counts wrong results among many homomorphic products, all ring widths in turn: element by element, and packed
matrix products of 128×768 by 768×768. New keys every few runs. What was counted is kept in the file after every run, so
that it can be stopped and started again; exits with status 1 if any result was ever wrong.

    python benchmarks/failures.py [--results 100000000] [--json benchmarks/results/failures.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TypedDict

import numpy as np
from lattice import Parties, slots_work, words

from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.offline.rlwe.products import matrix_products
from comet_mpc.offline.rlwe.tiling import centred

WIDTHS = (32, 40, 48, 56, 64)
SLOTS = 1 << 18
SHAPE, BITS = (128, 768, 768), 24
RUNS_PER_KEY = 25


class Count(TypedDict):
    results: int
    wrong: int


def slot_products(parties: Parties, width: int) -> tuple[Words, Words]:
    work, expected, _ = slots_work(parties, 1, ((0,),), width, SLOTS)
    return parties.run(work)[0], expected


def matrix_product(parties: Parties, width: int) -> tuple[Words, Words]:
    rows, inputs, outputs = SHAPE
    x, y = words(1, rows, inputs), centred(words(1, outputs, inputs), BITS)

    def work(party: int) -> Words:
        if party == CLIENT:
            return matrix_products(parties.engines[CLIENT], SHAPE, width, BITS, x=x)
        return matrix_products(parties.engines[SERVER], SHAPE, width, BITS, y=y)

    return parties.run(work)[0], x @ y.view(np.uint64).transpose(0, 2, 1)


KINDS = {"slots": (slot_products, False), "packed matrices": (matrix_product, True)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Wrong results among many homomorphic products.")
    parser.add_argument("--results", type=int, default=10**8, help="results to check, of each kind")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/failures.json"), metavar="FILE")
    arguments = parser.parse_args()
    path: Path = arguments.json
    counts: dict[str, Count] = json.loads(path.read_text()) if path.exists() else {}
    for kind in KINDS:
        counts.setdefault(kind, Count(results=0, wrong=0))
    parties: dict[str, Parties] = {}
    run = 0
    while unfinished := [kind for kind in KINDS if counts[kind]["results"] < arguments.results]:
        for kind in unfinished:
            multiply, packed = KINDS[kind]
            if run % RUNS_PER_KEY == 0:
                parties[kind] = Parties(packed)
            width, count = WIDTHS[run % len(WIDTHS)], counts[kind]
            got, expected = multiply(parties[kind], width)
            count["results"] += expected.size
            count["wrong"] += int(np.count_nonzero((got - expected) << np.uint64(64 - width)))
            path.write_text(json.dumps(counts, indent=2) + "\n")
        run += 1
        seen = [f"{kind}: {count['results']} results, {count['wrong']} wrong" for kind, count in counts.items()]
        print("\r" + ", ".join(seen), end="", file=sys.stderr)
    print(file=sys.stderr)
    return int(any(count["wrong"] for count in counts.values()))


if __name__ == "__main__":
    raise SystemExit(main())
