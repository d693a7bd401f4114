"""Products of masks in odd rings, element by element: what they send, and each party's part in them.

Two shapes of work, each of which shares its uploads between all that it makes:

    flat   monomials of masks of one shape: Π (a_c + a_s)^p = Σ C(p, j)·(a_c^j)·(a_s^(p-j)). The client uploads the
           powers that occur, the first ones as ciphertexts that define its masks.
    wide   a mask a of many columns: Σ a² of every row, and the products a·b with masks b of one column. Slots are rows:
           a ciphertext holds so many columns as fit beside each other, b once for all of them, and a sum over columns
           is a sum of ciphertexts.

`units` puts a program's correlations together in these; here is what each of them sends, and how it is carried out.
"""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import CLIENT, Words
from comet_mpc.offline.pair.crossed import Powers, crossed, server_factor
from comet_mpc.offline.pair.stages import BATCH, Stage
from comet_mpc.offline.pair.workbench import Workbench
from comet_mpc.offline.rlwe.odd_slots import OddJob, OddPlan, Term, odd_plan
from comet_mpc.offline.rlwe.products import run_sizes
from comet_mpc.offline.rlwe.scheme import DEGREE
from comet_mpc.offline.streaming import Sizes, Steps


class _Odd(Stage):
    part = "products in odd rings"
    most: ClassVar[int] = BATCH
    """Elements of a unit, unless one of its members has more."""

    @property
    @abstractmethod
    def jobs(self) -> list[OddPlan]:
        """What each of its uploads is for."""

    @property
    def sizes(self) -> list[list[Sizes]]:
        return [run_sizes([(job.upload_bytes, job.response_bytes) for job in self.jobs])]


@dataclass(frozen=True)
class FlatMember:
    """Correlations on the same masks."""

    masks: tuple[int, ...]
    shape: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Flat(_Odd):
    """Monomials of masks of one shape."""

    ring: Ring
    terms: tuple[Powers, ...]
    parts: tuple[int, ...]
    """How many of the terms belong to each of a member's correlations, in order."""
    owners: tuple[int | None, ...]
    """For each of the masks the party that knows it, if one does."""
    defines: tuple[bool, ...]
    """Which of the masks are defined here."""
    members: tuple[FlatMember, ...] = ()

    @property
    def count(self) -> int:
        return sum(member.count for member in self.members)

    @property
    def alone(self) -> Self:
        """Without its members: what those that are prepared together have in common."""
        return replace(self, members=())

    @property
    def prepared(self) -> tuple[int, ...]:
        return tuple(place for member in self.members for place in member.places)

    @property
    def free_masks(self) -> frozenset[int]:
        pairs = [pair for member in self.members for pair in zip(member.masks, self.defines, strict=True)]
        return frozenset(mask for mask, here in pairs if here)

    @property
    def used(self) -> set[int]:
        """Masks that must be known before."""
        return {mask for member in self.members for mask in member.masks} - self.free_masks

    @property
    def uploads(self) -> list[Powers]:
        """Of the client: those that define a mask come first."""
        found = crossed(self.terms, self.owners)[0]
        return sorted(found, key=lambda powers: powers not in self._defining)  # stable

    @property
    def plan(self) -> OddPlan:
        uploads = {powers: place for place, powers in enumerate(self.uploads)}
        mine = {factor: place for place, factor in enumerate(self.server_factors)}
        sums = tuple(
            tuple((uploads[client], mine[term, client]) for client in clients) for term, clients in self._crossed()
        )
        return odd_plan(self.ring, sum(powers in self._defining for powers in uploads), len(uploads), sums)

    @property
    def _defining(self) -> list[Powers]:
        return [unit_power(i, len(self.defines)) for i, defined in enumerate(self.defines) if defined]

    def _crossed(self) -> list[tuple[Powers, list[Powers]]]:
        """The terms that are crossed, each with the client's factors in it."""
        found, places = crossed(self.terms, self.owners)
        return [(term, [found[i] for i in used]) for term, used in zip(self.terms, places, strict=True) if used]

    @property
    def server_factors(self) -> list[tuple[Powers, Powers]]:
        """(term, the client's powers in it): what the server multiplies them by."""
        return [(term, client) for term, clients in self._crossed() for client in clients]

    @property
    def jobs(self) -> list[OddPlan]:
        return [self.plan] * -(-self.count // DEGREE) if self._crossed() else []

    def run(self, bench: Workbench) -> Steps[None]:
        ring, masks = self.ring, _FlatMasks(self, bench)
        made = [_FlatJob(self, masks, start) for start in range(0, self.count, DEGREE)] if self.jobs else []
        yield bench.engine.requests(made)
        own = masks.own()
        whole = [
            np.concatenate([job.defined[i] for job in made])[: self.count] if mask is None else mask
            for i, mask in enumerate(own)
        ]
        shares = [monomial(ring, whole, term) for term in self.terms]
        places = [i for i, term in enumerate(self.terms) if any(term == each for each, _ in self._crossed())]
        for row, place in enumerate(places):
            crossing = np.concatenate([job.sums[row] for job in made])[: self.count]
            shares[place] = ring.add(shares[place], crossing)
        start = 0
        for member in self.members:
            cut = slice(start, start + member.count)
            for i, mask in enumerate(member.masks):
                if own[i] is None:
                    bench.keep(mask, (whole[i][cut].copy(),))
            first = 0
            for place, terms in zip(member.places, self.parts, strict=True):
                bench.keep(place, tuple(share[cut].copy() for share in shares[first : first + terms]))
                first += terms
            start = cut.stop


class _FlatMasks:
    """A party's parts of all masks, made when the first job needs them and again in the end: many stages wait at once,
    first for questions and then for all answers."""

    def __init__(self, unit: Flat, bench: Workbench) -> None:
        self._unit, self._bench = unit, bench
        self._own: list[Words | None] | None = None
        self._due = len(unit.jobs)
        self._making = threading.Lock()  # jobs run side by side

    def own(self) -> list[Words | None]:
        """None: the client's, which are defined."""
        return [
            None if defined and self._bench.party == CLIENT else self._all(i)
            for i, defined in enumerate(self._unit.defines)
        ]

    def part(self, place: slice) -> list[Words | None]:
        """Those of one job."""
        with self._making:
            own = self.own() if self._own is None else self._own
            self._due -= 1
            self._own = own if self._due > 0 else None
        return [None if mask is None else _filled(mask[place]) for mask in own]

    def _all(self, i: int) -> Words:
        members = self._unit.members
        return np.concatenate([self._bench.mask(member.masks[i], member.shape).reshape(-1) for member in members])


class _FlatJob(OddJob):
    def __init__(self, unit: Flat, masks: _FlatMasks, start: int) -> None:
        super().__init__(unit.plan)
        self._unit, self._masks, self._place = unit, masks, slice(start, start + DEGREE)
        self.defined: dict[int, Words] = {}
        """At the client: its parts of the masks that its ciphertexts define, by their places, slot by slot."""

    def chosen(self, defined: list[Words]) -> list[Words]:
        unit, own = self._unit, self._masks.part(self._place)
        for powers, words in zip(unit.uploads, defined, strict=False):
            self.defined[powers.index(1)] = own[powers.index(1)] = words
        return [monomial(unit.ring, own, powers) for powers in unit.uploads[self.plan.defined :]]

    def factors(self) -> list[Words]:
        ring, own = self._unit.ring, self._masks.part(self._place)
        made = []
        for term, client in self._unit.server_factors:
            factor, rest = server_factor(term, client)
            made.append(ring.times(monomial(ring, own, rest), factor))
        return made


@dataclass(frozen=True)
class WideMember:
    mask: int
    rows: int
    squares: int | None
    """The place of the sums of squares."""
    products: tuple[tuple[int, int], ...]
    """The place of a product, and the other mask's."""


@dataclass(frozen=True)
class Wide(_Odd):
    """Sums of squares of a mask's rows, and its products with masks of one column."""

    most = 2 * BATCH
    """Each job uploads the columns' other factors once, so few large ones take less."""
    ring: Ring
    columns: int
    squares: bool
    products: int
    members: tuple[WideMember, ...] = ()

    @property
    def count(self) -> int:
        return self.columns * sum(member.rows for member in self.members)

    @property
    def alone(self) -> Self:
        return replace(self, members=())

    @property
    def prepared(self) -> tuple[int, ...]:
        squares = [member.squares for member in self.members if member.squares is not None]
        return (*squares, *(place for member in self.members for place, _ in member.products))

    @property
    def free_masks(self) -> frozenset[int]:
        return frozenset(member.mask for member in self.members)

    @property
    def used(self) -> set[int]:
        return {mask for member in self.members for _, mask in member.products}

    @property
    def chunks(self) -> list[int]:
        """Rows of each job: powers of two, so that no slot is lost, unless ciphertexts are saved by that."""
        rows, found = sum(member.rows for member in self.members), []
        while rows:
            found.append(min(DEGREE, 1 << rows.bit_length() - 1))
            rows -= found[-1]
        while len(found) > 1 and self._ciphertexts(2 * found[-2]) <= sum(map(self._ciphertexts, found[-2:])):
            found[-2:] = [2 * found[-2]]  # the last rows of it are padding
        return found

    def _ciphertexts(self, rows: int) -> int:
        """That a job of so many rows takes, both ways."""
        blocks = self._blocks(rows)
        return blocks + self.products + self.products * blocks + self.squares

    def _blocks(self, rows: int) -> int:
        return -(-self.columns // (DEGREE // rows)) if rows <= DEGREE else DEGREE

    def plan(self, rows: int) -> OddPlan:
        """Uploads: the columns, then each b. The server's factors: its columns, then each of its b."""
        blocks = self._blocks(rows)
        sums: list[tuple[Term, ...]] = [
            ((block, blocks + b), (blocks + b, block)) for b in range(self.products) for block in range(blocks)
        ]
        if self.squares:
            sums.append(tuple((block, block) for block in range(blocks)))
        return odd_plan(self.ring, blocks, blocks + self.products, tuple(sums))

    @property
    def jobs(self) -> list[OddPlan]:
        return [self.plan(rows) for rows in self.chunks]

    def run(self, bench: Workbench) -> Steps[None]:
        ring, client = self.ring, bench.party == CLIENT
        columns = None if client else np.concatenate([self._rows(bench, member) for member in self.members])
        others = [
            np.concatenate([bench.mask(member.products[b][1], (member.rows,)) for member in self.members])
            for b in range(self.products)
        ]
        made, start = [], 0
        for rows in self.chunks:
            cut = slice(start, start + rows)
            made.append(_WideJob(self, rows, None if columns is None else columns[cut], [b[cut] for b in others]))
            start = cut.stop
        yield bench.engine.requests(made)
        total = sum(member.rows for member in self.members)
        whole = np.concatenate([job.columns() for job in made])[:total] if columns is None else columns
        found = [np.concatenate([job.product(b) for job in made])[:total] for b in range(self.products)]
        shares = [ring.add(each, ring.multiply(whole, b[:, None])) for each, b in zip(found, others, strict=True)]
        start = 0
        for member in self.members:
            cut = slice(start, start + member.rows)
            if client:
                bench.keep(member.mask, (whole[cut].reshape(-1).copy(),))
            for (place, _), share in zip(member.products, shares, strict=True):
                bench.keep(place, (share[cut].reshape(-1).copy(),))
            start = cut.stop
        if self.squares:
            self._keep_squares(made, whole, bench)

    def _rows(self, bench: Workbench, member: WideMember) -> Words:
        return bench.mask(member.mask, (member.rows, self.columns))

    def _keep_squares(self, made: list[_WideJob], whole: Words, bench: Workbench) -> None:
        ring = self.ring
        crossing = np.concatenate([job.squares() for job in made])[: len(whole)]
        total = ring.add(ring.times(crossing, 2), ring.sum(ring.multiply(whole, whole), 1))
        start = 0
        for member in self.members:
            assert member.squares is not None
            bench.keep(member.squares, (total[start : start + member.rows].copy(),))
            start += member.rows


class _WideJob(OddJob):
    """Slot g·rows + r of upload k holds column k·groups + g of row r. Rows beyond those that are given are padding."""

    def __init__(self, unit: Wide, rows: int, columns: Words | None, others: list[Words]) -> None:
        super().__init__(unit.plan(rows))
        self._unit, self._rows, self._groups, self._others = unit, rows, DEGREE // rows, others
        self._blocks = -(-unit.columns // self._groups)
        self._slots = [] if columns is None else self._spread(columns)

    def _spread(self, columns: Words) -> list[Words]:
        padded = np.zeros((self._blocks * self._groups, self._rows), np.uint64)
        padded[: self._unit.columns, : len(columns)] = columns.T
        return list(padded.reshape(self._blocks, DEGREE))

    def _repeated(self) -> list[Words]:
        return [np.tile(_filled(other, self._rows), self._groups) for other in self._others]

    def _gathered(self, blocks: Sequence[Words]) -> Words:
        """(rows, columns) from slots."""
        whole = np.concatenate(blocks).reshape(self._blocks * self._groups, self._rows)
        return np.ascontiguousarray(whole[: self._unit.columns].T)

    def chosen(self, defined: list[Words]) -> list[Words]:
        self._slots = defined
        return self._repeated()

    def factors(self) -> list[Words]:
        return [*self._slots, *self._repeated()]

    def columns(self) -> Words:
        return self._gathered(self._slots)

    def product(self, b: int) -> Words:
        return self._gathered(list(self.sums[b * self._blocks : (b + 1) * self._blocks]))

    def squares(self) -> Words:
        """Σ a_c·a_s of each row: over the columns that lie beside each other too."""
        return self._unit.ring.sum(self.sums[-1].reshape(self._groups, self._rows), 0)


Unit = Flat | Wide


def monomial(ring: Ring, values: Sequence[Words | None], powers: Powers) -> Words:
    """Π values^powers; at least one power is not zero."""
    out: Words | None = None
    for value, power in zip(values, powers, strict=True):
        for _ in range(power):
            assert value is not None
            out = value if out is None else ring.multiply(out, value)
    assert out is not None
    return out


def unit_power(place: int, size: int) -> Powers:
    """The powers of one of so many masks alone."""
    return tuple(int(i == place) for i in range(size))


def _filled(words: Words, size: int = DEGREE) -> Words:
    """So many elements; what is beyond the last is not used."""
    return words if words.size == size else np.concatenate([words, np.zeros(size - words.size, np.uint64)])
