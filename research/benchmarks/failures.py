"""Counts wrong results among many homomorphic products, all ring widths in turn: element by element, in odd rings with
masks that ciphertexts define, and packed matrix products of 128×768 by 768×768, of masks that the client has and of
such as its ciphertexts define; uploads are turned where the plan turns them. New keys every few runs. What was counted
is kept in the file after every run, so that it can be stopped and started again; exits with status 1 if any result was
ever wrong.

    python research/benchmarks/failures.py [--results 100000000] [--kind slots] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TypedDict

import numpy as np
from lattice import Parties, slots_work, words

from comet_mpc.engine.ring import ODD_MODULI, Ring
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.offline.pair.workbench import WEIGHT_BITS, WEIGHT_LENGTH
from comet_mpc.offline.rlwe.odd_slots import OddJob, odd_plan
from comet_mpc.offline.rlwe.packing import Packing
from comet_mpc.offline.rlwe.products import MatrixJob, matrix_products
from comet_mpc.offline.rlwe.scheme import DEGREE
from comet_mpc.offline.rlwe.tiling import centred, choose_tiling

WIDTHS = (32, 40, 48, 56, 64)
SLOTS = 1 << 18
SHAPE = (128, 768, 768)
RUNS_PER_KEY = 25


class Count(TypedDict):
    results: int
    wrong: int


def wrong_words(got: Words, expected: Words, width: int) -> int:
    return int(np.count_nonzero((got - expected) << np.uint64(64 - width)))


def slot_products(parties: Parties, run: int) -> Count:
    width = WIDTHS[run % len(WIDTHS)]
    work, expected, _ = slots_work(parties, 1, ((0,),), width, SLOTS)
    return Count(results=expected.size, wrong=wrong_words(parties.run(work)[0], expected, width))


class Product(OddJob):
    """A mask that a ciphertext defines, times a factor of the server's, both in Z_T."""

    def __init__(self, ring: Ring) -> None:
        super().__init__(odd_plan(ring, 1, 1, (((0, 0),),)))
        self.ring, self.own = ring, words(DEGREE) % np.uint64(ring.modulus)

    def chosen(self, defined: list[Words]) -> list[Words]:
        (self.own,) = defined
        return []

    def factors(self) -> list[Words]:
        return [self.own]


def odd_products(parties: Parties, run: int) -> Count:
    modulus = [*ODD_MODULI][run % len(ODD_MODULI)]
    ring = Ring(modulus.bit_length(), modulus)
    jobs = [[Product(ring) for _ in range(SLOTS // DEGREE)] for _ in (CLIENT, SERVER)]

    def work(party: int) -> Words:
        parties.engines[party].run(jobs[party])
        return np.zeros(0, np.uint64)

    parties.run(work)
    wrong = 0
    for mine, theirs in zip(*jobs, strict=True):
        together = ring.add(mine.sums[0], theirs.sums[0])
        wrong += int(np.count_nonzero(together != ring.multiply(mine.own, theirs.own)))
    return Count(results=SLOTS, wrong=wrong)


def matrix_product(parties: Parties, run: int) -> Count:
    width, (rows, inputs, outputs) = WIDTHS[run % len(WIDTHS)], SHAPE
    x, y = words(1, rows, inputs), centred(words(1, outputs, inputs), WEIGHT_BITS)

    def work(party: int) -> Words:
        if party == CLIENT:
            return matrix_products(parties.engines[CLIENT], SHAPE, width, WEIGHT_BITS, x=x)
        return matrix_products(parties.engines[SERVER], SHAPE, width, WEIGHT_BITS, y=y)

    expected = x @ y.view(np.uint64).transpose(0, 2, 1)
    return Count(results=expected.size, wrong=wrong_words(parties.run(work)[0], expected, width))


def defined_product(parties: Parties, run: int) -> Count:
    """As for a model's weight. Of its rows, which are as long as they may be, half are alike but for their signs."""
    width, (rows, inputs, outputs) = WIDTHS[run % len(WIDTHS)], SHAPE
    tiling = choose_tiling(rows, inputs, outputs, width, WEIGHT_BITS, Packing.TURNS, length=WEIGHT_LENGTH, free=True)
    assert tiling.defines
    assert tiling.turns
    y = centred(words(outputs, inputs), WEIGHT_BITS)
    y[outputs // 2 :] = y[0] * np.where(np.arange(outputs - outputs // 2) % 2, -1, 1)[:, None]
    y = np.trunc(y * (WEIGHT_LENGTH / np.sqrt(np.square(y.astype(float)).sum(axis=1)))[:, None]).astype(np.int64)
    jobs = [MatrixJob(tiling, width), MatrixJob(tiling, width, y=y)]

    def work(party: int) -> Words:
        parties.engines[party].run([jobs[party]])
        return jobs[party].share

    got, _ = parties.run(work)
    expected = jobs[CLIENT].x @ y.view(np.uint64).T
    return Count(results=expected.size, wrong=wrong_words(got, expected, width))


KINDS = {
    "slots": (slot_products, False),
    "defined slots in odd rings": (odd_products, False),
    "packed matrices": (matrix_product, True),
    "defined, turned and packed matrices": (defined_product, True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Wrong results among many homomorphic products.")
    parser.add_argument("--results", type=int, default=10**8, help="results to check, of each kind")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only these; may be given again")
    parser.add_argument("--json", type=Path, default=Path("research/benchmarks/results/failures.json"), metavar="FILE")
    arguments = parser.parse_args()
    path: Path = arguments.json
    counts: dict[str, Count] = json.loads(path.read_text()) if path.exists() else {}
    wanted: list[str] = arguments.kind or [*KINDS]
    for kind in wanted:
        counts.setdefault(kind, Count(results=0, wrong=0))
    parties: dict[str, Parties] = {}
    run = 0
    while unfinished := [kind for kind in wanted if counts[kind]["results"] < arguments.results]:
        for kind in unfinished:
            multiply, packed = KINDS[kind]
            if run % RUNS_PER_KEY == 0:
                parties[kind] = Parties(packed)
            found, count = multiply(parties[kind], run), counts[kind]
            count["results"] += found["results"]
            count["wrong"] += found["wrong"]
            path.write_text(json.dumps(counts, indent=2) + "\n")
        run += 1
        seen = [f"{kind}: {count['results']} results, {count['wrong']} wrong" for kind, count in counts.items()]
        print("\r" + ", ".join(seen), end="", file=sys.stderr)
    print(file=sys.stderr)
    return int(any(count["wrong"] for count in counts.values()))


if __name__ == "__main__":
    raise SystemExit(main())
