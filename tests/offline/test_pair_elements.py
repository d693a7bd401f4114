"""Products of masks in odd rings, by two parties: what is shared adds up, uploads are shared, masks are uniform."""

from __future__ import annotations

import math
import tracemalloc
from typing import cast

import numpy as np
import pytest

from comet_mpc.engine.correlations import Correlation, Mask, Monomials, MonomialTerm, SquareSums
from comet_mpc.engine.ring import Ring, odd_ring
from comet_mpc.engine.seeds import new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.net.channel import Channel
from comet_mpc.offline.ot.extension import Transfers
from comet_mpc.offline.pair.costs import preparation_traffic
from comet_mpc.offline.pair.elements import Flat, Wide
from comet_mpc.offline.pair.prepare import Preparer
from comet_mpc.offline.pair.stages import masks_by_ciphertext
from comet_mpc.offline.pair.units import units
from comet_mpc.offline.pair.workbench import HeldShares, Workbench
from comet_mpc.offline.rlwe.products import Homomorphic, Job
from comet_mpc.offline.rlwe.scheme import DEGREE
from support.two_parties import as_parties

SMALL, LARGE = odd_ring(2.0**30), odd_ring(2.0**57)


def mask(ring: Ring, *shape: int) -> Mask:
    return Mask(shape, ring.width, 0, ring.width, ring.modulus)


def monomials(ring: Ring, masks: tuple[int, ...], shape: tuple[int, ...], *powers: tuple[int, ...]) -> Monomials:
    terms = tuple(MonomialTerm(each, (0,) * len(each), ring.width) for each in powers)
    return Monomials(masks, shape, terms, ring.modulus)


def squares(ring: Ring, place: int, rows: int, columns: int) -> SquareSums:
    return SquareSums(place, rows, columns, ring.width, ring.modulus)


PROGRAMS: dict[str, list[Correlation]] = {
    "a square": [mask(SMALL, 3, 70), monomials(SMALL, (0,), (3, 70), (2,))],
    "powers of one mask": [mask(LARGE, 40), monomials(LARGE, (0,), (40,), (2,), (3,), (4,))],
    "powers of y along with products of t and y": [
        mask(LARGE, 9, 1),
        mask(LARGE, 9, 1),
        monomials(LARGE, (1,), (9, 1), (2,), (3,)),
        monomials(LARGE, (0, 1), (9, 1), (1, 1), (1, 2), (1, 3)),
    ],
    "a mask that enters two of them": [
        mask(SMALL, 20),
        mask(SMALL, 20),
        mask(SMALL, 20),
        monomials(SMALL, (0,), (20,), (2,)),
        monomials(SMALL, (0, 1), (20,), (1, 1)),
        monomials(SMALL, (0, 2), (20,), (1, 1)),
    ],
    "powers that were asked for one after the other": [
        mask(SMALL, 20),
        monomials(SMALL, (0,), (20,), (2,)),
        monomials(SMALL, (0,), (20,), (3,)),
    ],
    "rows: sums of squares and a product": [
        mask(SMALL, 5, 24, 12),
        squares(SMALL, 0, 120, 12),
        mask(SMALL, 5, 24, 1),
        monomials(SMALL, (0, 2), (5, 24, 12), (1, 1)),
    ],
    "rows: more than slots": [mask(SMALL, DEGREE + 3, 2), squares(SMALL, 0, DEGREE + 3, 2)],
    "rows: products with two": [
        mask(SMALL, 6, 5),
        mask(SMALL, 6, 1),
        mask(SMALL, 6, 1),
        monomials(SMALL, (0, 1), (6, 5), (1, 1)),
        monomials(SMALL, (0, 2), (6, 5), (1, 1)),
    ],
    "a mask spread over columns": [
        mask(SMALL, 4, 7),
        mask(SMALL, 1, 7),
        monomials(SMALL, (0, 1), (4, 7), (1, 1), (2, 1)),
    ],
    "two rings, and a monomial that is a mask": [
        mask(SMALL, 8),
        mask(LARGE, 8),
        monomials(SMALL, (0,), (8,), (2,)),
        monomials(LARGE, (1,), (8,), (1,), (2,)),
    ],
}


class Waiting:
    """The server's engine, of which no question has come yet."""

    party = SERVER

    def requests(self, jobs: list[Job]) -> list[Job]:
        return jobs


def test_a_stage_that_waits_for_questions_takes_no_memory_for_numbers() -> None:
    """The server has very many of them waiting at once: masks, sums and shares come with the answers."""
    program = [mask(SMALL, 1 << 16), monomials(SMALL, (0,), (1 << 16,), (2,), (3,))]
    (unit,) = units(program)
    engine, unused = cast("Homomorphic", Waiting()), cast("Transfers", None)
    bench = Workbench(engine, unused, program, [new_seed()], {}, HeldShares(lambda index: []))
    tracemalloc.start()
    try:
        jobs = next(unit.run(bench))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(jobs) == 8
    assert held < 1 << 16  # one number of 64 bits for every element would be eight times as much


def prepared(program: list[Correlation], threads: int = 1) -> list[dict[int, tuple[Words, ...]]]:
    """Both parties' words of every mask and correlation, as a program would draw them."""

    def work(channel: Channel, party: int) -> dict[int, tuple[Words, ...]]:
        preparer = Preparer(channel, party, program, threads=threads)
        opened = preparer.prepare()[0].open()
        if party == CLIENT:
            assert channel.traffic == preparation_traffic(program)
        return {place: opened.draw(entry).arrays for place, entry in enumerate(program)}

    return list(as_parties(work))


def whole(program: list[Correlation], drawn: list[dict[int, tuple[Words, ...]]], place: int, array: int = 0) -> Words:
    entry = program[place]
    assert isinstance(entry, Mask | Monomials | SquareSums)
    width = entry.terms[0].width if isinstance(entry, Monomials) else entry.width
    ring = Ring(width, entry.modulus)
    return ring.add(drawn[0][place][array], drawn[1][place][array])


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_shares_of_products_add_up_and_the_plan_is_exact(name: str, threads: int) -> None:
    program = PROGRAMS[name]
    drawn = prepared(program, threads)
    for place, entry in enumerate(program):
        if isinstance(entry, SquareSums):
            values = whole(program, drawn, entry.mask).astype(object).reshape(entry.rows, entry.columns)
            assert whole(program, drawn, place).tolist() == [sum(v * v for v in row) % entry.modulus for row in values]
        if isinstance(entry, Monomials):
            for array, term in enumerate(entry.terms):
                expected = np.ones(entry.shape, object)
                for each, power in zip(entry.masks, term.powers, strict=True):
                    described = program[each]
                    assert isinstance(described, Mask)
                    value = whole(program, drawn, each).astype(object).reshape(described.shape)
                    expected = expected * value**power % entry.modulus
                assert whole(program, drawn, place, array).tolist() == expected.reshape(-1).tolist()


def test_uploads_are_shared() -> None:
    (unit,) = units(PROGRAMS["powers of y along with products of t and y"])
    assert isinstance(unit, Flat)
    assert unit.defines == (True, True)
    assert unit.plan.uploads == 6  # t, y, y², y³, t·y, t·y²
    (wide,) = units(PROGRAMS["rows: sums of squares and a product"])
    assert isinstance(wide, Wide)
    assert [(plan.defined, plan.uploads, len(plan.sums)) for plan in wide.jobs] == [
        (math.ceil(12 / (DEGREE // rows)), math.ceil(12 / (DEGREE // rows)) + 1, math.ceil(12 / (DEGREE // rows)) + 1)
        for rows in (128,)  # 120, and padding: 64, 32, 16 and 8 would be four times as many ciphertexts
    ]


@pytest.mark.parametrize(
    ("rows", "columns", "jobs"), [(12, 64, [16]), (640, 768, [512, 128]), (4620, 64, [4096, 512, 16]), (3, 1, [4])]
)
def test_rows_are_padded_only_where_that_takes_fewer_ciphertexts(rows: int, columns: int, jobs: list[int]) -> None:
    program: list[Correlation] = [mask(SMALL, rows, columns), squares(SMALL, 0, rows, columns)]
    (unit,) = units(program)
    assert isinstance(unit, Wide)
    assert unit.chunks == jobs


def test_a_mask_is_defined_once_and_before_it_is_used() -> None:
    for program in PROGRAMS.values():
        met: set[int] = set()
        for unit in units(program):
            assert not unit.free_masks & met
            met |= unit.free_masks
            assert not unit.used & (masks_by_ciphertext(program) - met)


def test_masks_that_ciphertexts_define_are_uniform_and_differ_from_bundle_to_bundle() -> None:
    """χ² of 64 cells. The control is a mask of too few values, which the same test must catch."""
    program: list[Correlation] = [mask(SMALL, 4 * DEGREE), monomials(SMALL, (0,), (4 * DEGREE,), (2,))]
    assert masks_by_ciphertext(program) == {0}
    first, second = (prepared(program)[CLIENT][0][0] for _ in range(2))
    assert np.mean(first == second) < 0.001

    def chi_square(elements: Words) -> float:
        counts = np.histogram(elements.astype(np.float64) / SMALL.modulus, 64, (0.0, 1.0))[0]
        return float(((counts - elements.size / 64) ** 2 / (elements.size / 64)).sum())

    limit = 63 + 8 * math.sqrt(2 * 63)
    assert chi_square(first) < limit
    assert chi_square(first // np.uint64(2)) > limit
