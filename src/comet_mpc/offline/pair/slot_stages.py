"""Products of masks in Z_2^w, element by element, in the slots of ciphertexts: monomials, sums of squares, scalings.

    Monomials     Π (a_c + a_s)^p = Σ C(p, j)·(a_c^j)·(a_s^(p-j)): uploads are shared between monomials
    SquareSums    2·Σ a_c·a_s, and each party's own squares
    WeightScale   the client's mask times the server's vector, where no matrix product takes it along (`matrices`)

Those in odd rings are prepared in another way (`units`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from comet_mpc.engine.correlations import Monomials, SquareSums, WeightScale
from comet_mpc.engine.ring import WORD, Ring
from comet_mpc.engine.share import CLIENT, Words
from comet_mpc.offline.pair.crossed import Powers, crossed, server_factor
from comet_mpc.offline.pair.elements import monomial
from comet_mpc.offline.pair.stages import PairPreparer, Stage, Unprepared
from comet_mpc.offline.pair.workbench import WEIGHT_BITS, Workbench
from comet_mpc.offline.rlwe.scheme import DEGREE
from comet_mpc.offline.rlwe.slots import SlotPlan, choose_plan, slot_sum_sizes
from comet_mpc.offline.rlwe.tiling import centred
from comet_mpc.offline.streaming import Sizes, Steps

_WORDS = Ring(WORD)
"""Narrower rings are its low bits."""


class PairMonomials(PairPreparer):
    order = 50

    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        for (terms, modulus), members in unprepared.batches(Monomials, lambda entry: (entry.terms, entry.modulus)):
            if not modulus:
                yield _Monomials(tuple(term.powers for term in terms), max(term.width for term in terms), members)


@dataclass(frozen=True)
class _Monomials(Stage):
    part = "monomials"

    powers: tuple[Powers, ...]
    width: int
    members: tuple[tuple[int, Monomials], ...]

    @property
    def prepared(self) -> tuple[int, ...]:
        return tuple(index for index, _ in self.members)

    @property
    def plan(self) -> SlotPlan | None:
        """None if nothing is crossed: every monomial is a mask itself."""
        uploads, sums = crossed(self.powers)
        mixed = tuple(entry for entry in sums if entry)
        return choose_plan(len(uploads), mixed, self.width, self.width) if mixed else None

    @property
    def sizes(self) -> list[list[Sizes]]:
        count = sum(math.prod(entry.shape) for _, entry in self.members)
        return slot_sum_sizes(self.plan, count, self.width) if self.plan else []

    def run(self, bench: Workbench) -> Steps[None]:
        powers, width, members = self.powers, self.width, self.members
        masks = [
            np.concatenate([bench.mask(entry.masks[i], entry.shape).reshape(-1) for _, entry in members])
            for i in range(len(powers[0]))
        ]
        uploads, sums = crossed(powers)
        left, right = [], []
        if bench.party == CLIENT:
            left = [centred(monomial(_WORDS, masks, exponents), width) for exponents in uploads]
        else:
            for term, places in zip(powers, sums, strict=True):
                right.append([centred(_server_factor(masks, term, uploads[place]), width) for place in places])
        shares = np.stack([monomial(_WORDS, masks, term) for term in powers])  # what each party can compute alone
        if plan := self.plan:
            mixed = [place for place, entry in enumerate(sums) if entry]
            factors = [right[place] for place in mixed] if right else []
            shares[mixed] += yield from bench.slot_sums(plan, masks[0].size, width, left, factors)
        bench.hand_out({index: math.prod(entry.shape) for index, entry in members}, shares)


def _server_factor(masks: Sequence[Words], term: Powers, client: Powers) -> Words:
    """Π C(p, j)·a_s^(p - j)."""
    factor, rest = server_factor(term, client)
    return _WORDS.times(monomial(_WORDS, masks, rest), factor)


class PairSquareSums(PairPreparer):
    order = 60

    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        for (columns, width, modulus), members in unprepared.batches(
            SquareSums, lambda entry: (entry.columns, entry.width, entry.modulus)
        ):
            if not modulus:
                yield _SquareSums(columns, width, members)


@dataclass(frozen=True)
class _SquareSums(Stage):
    part = "sums of squares"

    columns: int
    width: int
    members: tuple[tuple[int, SquareSums], ...]

    @property
    def prepared(self) -> tuple[int, ...]:
        return tuple(index for index, _ in self.members)

    @property
    def rows(self) -> int:
        return sum(entry.rows for _, entry in self.members)

    @property
    def terms(self) -> int:
        """How many columns are added up under encryption: uploads stay as many, responses become fewer."""

        def cost(terms: int) -> float:
            plan = self.plan(terms)
            blocks = -(-self.rows * -(-self.columns // terms) // DEGREE)
            return blocks * (plan.upload_bytes + plan.response_bytes)

        return min({min(self.columns, count) for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)}, key=cost)

    def plan(self, terms: int) -> SlotPlan:
        return choose_plan(terms, (tuple(range(terms)),), self.width, self.width)

    @property
    def sizes(self) -> list[list[Sizes]]:
        terms = self.terms
        return slot_sum_sizes(self.plan(terms), self.rows * -(-self.columns // terms), self.width)

    def run(self, bench: Workbench) -> Steps[None]:
        columns, width, rows, terms = self.columns, self.width, self.rows, self.terms
        masks = np.concatenate([bench.mask(entry.mask).reshape(entry.rows, columns) for _, entry in self.members])
        groups = -(-columns // terms)
        padded = np.zeros((rows, groups * terms), np.uint64)
        padded[:, :columns] = masks
        factors = padded.reshape(rows * groups, terms).T
        left = [centred(np.ascontiguousarray(x), width) for x in factors]
        right = [[centred(x * np.uint64(2), width) for x in factors]]
        crossing = yield from bench.slot_sums(self.plan(terms), rows * groups, width, left, right)
        total = crossing.reshape(rows, groups).sum(axis=1, dtype=np.uint64)
        total += (masks * masks).sum(axis=1, dtype=np.uint64)
        bench.hand_out({index: entry.rows for index, entry in self.members}, [total])


class PairWeightScales(PairPreparer):
    order = 70

    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        for width, members in unprepared.batches(WeightScale, lambda entry: entry.width):
            yield _WeightScales(width, members)


@dataclass(frozen=True)
class _WeightScales(Stage):
    part = "scales"

    width: int
    members: tuple[tuple[int, WeightScale], ...]

    @property
    def prepared(self) -> tuple[int, ...]:
        return tuple(index for index, _ in self.members)

    @property
    def plan(self) -> SlotPlan:
        return choose_plan(1, ((0,),), self.width, WEIGHT_BITS)

    @property
    def count(self) -> int:
        return sum(entry.facts.elements for _, entry in self.members)

    @property
    def sizes(self) -> list[list[Sizes]]:
        return slot_sum_sizes(self.plan, self.count, self.width)

    def run(self, bench: Workbench) -> Steps[None]:
        left, right = np.empty(0, np.uint64), np.empty(0, np.int64)
        if bench.party == CLIENT:
            left = np.concatenate([bench.mask(entry.mask).reshape(-1) for _, entry in self.members])
        else:
            rows = [np.tile(bench.weight(e.weight, (e.size,)), e.rows) for _, e in self.members]
            right = np.concatenate(rows).astype(np.int64)
        shares = yield from bench.slot_sums(self.plan, self.count, self.width, [centred(left, self.width)], [[right]])
        bench.hand_out({index: entry.facts.elements for index, entry in self.members}, shares)
