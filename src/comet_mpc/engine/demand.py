"""What every step of a program costs in correlated randomness; shared by the plan and by the real parties.

A `DrawingSession` decides *what* is drawn and leaves *doing* to its two heirs: a plan only writes the
descriptions down, a party uses the words it gets for them. So the two cannot disagree.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product as cartesian
from typing import NamedTuple

import numpy as np

from comet_mpc.engine import correlations as kinds
from comet_mpc.engine import requests as ask
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.polynomial import Exponents, needed_monomials
from comet_mpc.engine.requests import Evaluate, Opened, Request, Result, Step
from comet_mpc.engine.session import Session
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import ForeignRandomness, RandomnessExhausted


@dataclass(frozen=True, eq=False)
class Drawn:
    """A correlation that was drawn: its place in the program and this party's words (none in a plan)."""

    index: int
    arrays: tuple[Words, ...] = field(default=(), repr=False)


class InOrder:
    """The correlations that were prepared, handed out in the program's order and each once: for every source."""

    def __init__(self, correlations: Sequence[Correlation]) -> None:
        self.correlations = tuple(correlations)
        self._next = 0

    @property
    def remaining(self) -> int:
        """Correlations not drawn yet."""
        return len(self.correlations) - self._next

    def take(self, correlation: Correlation) -> int:
        """The place of the next one, which must be the one that the program asks for."""
        place = self._next
        if place >= len(self.correlations):
            raise RandomnessExhausted(
                f"the program asks for more than the {place} correlations that were prepared for it"
            )
        if (prepared := self.correlations[place]) != correlation:
            raise ForeignRandomness(
                f"correlation {place} was prepared for another program: it is {type(prepared).__name__}, "
                f"and this program asks for {type(correlation).__name__}, or for other dimensions"
            )
        self._next += 1
        return place


def demand(asked: Request | Step) -> Correlation | None:
    """The correlation that a request or a step uses; the monomials that a polynomial needs are not among them."""
    match asked:
        case ask.Open(share=share):
            return kinds.Mask(share.shape, share.width, 0, share.width, share.modulus)
        case ask.TruncateOpen(share=share, modulus=modulus, width=width) if modulus:
            return kinds.Mask(share.shape, width, 0, width, modulus)
        case ask.TruncateOpen(share=share, shift=shift, width=width):
            return kinds.Mask(share.shape, share.width, shift, width)
        case ask.Truncate(share=share, conversion=conversion, free=False):
            return kinds.BitProducts(share.count, conversion.product_ring.width, conversion.product_ring.modulus)
        case ask.Give(share=share):
            return kinds.ClientMask(share.shape, share.width)
        case ask.Choose(share=share, table=table):
            return kinds.TableTransfers(share.count, table.entries, table.sizes)
        case ask.SquareSum(x=x):
            return kinds.SquareSums(x.mask, math.prod(x.shape[:-1]), x.shape[-1], x.width, x.modulus)
        case ask.MatMul(x=x, y=y, transposed=transposed, shape=(*batch, m, n), width=width):
            return kinds.MatrixProduct(x.mask, y.mask, math.prod(batch), m, x.shape[-1], n, transposed, width)
        case ask.Weigh(x=x, weight=weight) if len(weight.shape) == 1:
            return kinds.WeightScale(x.mask, weight.name, math.prod(x.shape[:-1]), x.shape[-1], x.width)
        case ask.Weigh(x=x, weight=weight):
            outputs, inputs = weight.shape
            return kinds.WeightProduct(x.mask, weight.name, math.prod(x.shape[:-1]), inputs, outputs, x.width)
    return None


@dataclass(frozen=True)
class MaskTerm:
    """One term of a mask monomial: coefficient · Π public factors · Π u_i^power · top_i^carry.

    factors  (operand, which of its `Opened.factors`)
    places   the masks that occur, in their order; powers and carries are theirs. Three times an operand's number is its
             mask, the next two are the bits of the client and of the server that go with it in an odd ring. A term
             without places is a public number.
    """

    coefficient: int
    factors: tuple[tuple[int, int], ...]
    places: tuple[int, ...]
    powers: Exponents
    carries: Exponents

    def name(self, operands: Sequence[Opened]) -> MonomialKey:
        """The monomial's name, free of operands that do not occur in it."""
        masks = [operands[place // 3].mask + place % 3 for place in self.places]
        return tuple(masks), self.powers, self.carries

    def holder(self, operands: Sequence[Opened]) -> Opened:
        """The operand that knows the monomial, once it was drawn: the last that occurs in it."""
        return operands[self.places[-1] // 3]


MonomialKey = tuple[tuple[int, ...], Exponents, Exponents]
Expansions = dict[Exponents, tuple[MaskTerm, ...]]


class _Choice(NamedTuple):
    """One way to take a power of an operand's mask: what stands for it in a term."""

    coefficient: int
    exponent: int
    """Of 2, beside the coefficient."""
    factor: int | None
    power: int
    carry: int = 0
    bits: int = 0
    """1: the client's, 2: the server's, 3: both."""

    def masks(self, operand: int) -> Iterator[tuple[int, int, int]]:
        """(place, power, carry) of what it is made of."""
        if self.power or self.carry:
            yield 3 * operand, self.power, self.carry
        for party in (0, 1):
            if self.bits >> party & 1:
                yield 3 * operand + 1 + party, 1, 0


class _Kind(NamedTuple):
    """What there is to know of an operand's mask."""

    width: int
    step: int
    wrap: int
    modulus: int


def _choices(kind: _Kind, power: int) -> Iterator[_Choice]:
    """m^power, as a sum.

    An ordinary mask is m = u. One that truncates in Z_2^w is m = u - s·2^step·top, with a public sign s and the secret
    top bit of the opening's mask (top² = top), hence m^E = u^E + top·Σ_{j<E} C(E,j)·(-s·2^step)^(E-j)·u^j.

    One that truncates into an odd ring is m = u + wrap·n, n = n_0·n_1 being the product of the parties' bits, each of
    which was sent as n_i xor b_i. So n is a sum of 1, b_0, b_1 and b_0·b_1 with public factors, and n² = n.
    """
    yield _Choice(1, 0, None, power)
    for j in range(power if kind.step or kind.wrap else 0):
        rest = power - j
        if kind.step:
            sign = 0 if rest % 2 == 1 else None
            yield _Choice(math.comb(power, j) * (-1) ** rest, rest * kind.step, sign, j, carry=1)
        else:
            coefficient = math.comb(power, j) * pow(kind.wrap, rest, kind.modulus) % kind.modulus
            for bits in range(4):
                yield _Choice(coefficient, 0, bits, j, bits=bits)


def _mask_expansion(monomial: Exponents, masks: Sequence[_Kind], order: Sequence[int]) -> Iterator[MaskTerm]:
    """Π m_i^E_i in terms of what a source can share. Terms whose coefficient vanishes in the ring are left out."""
    width = min(kind.width for kind, power in zip(masks, monomial, strict=True) if power)
    rank = {place: position for position, place in enumerate(order)}
    for combination in cartesian(*map(_choices, masks, monomial)):
        exponent = sum(choice.exponent for choice in combination)
        if exponent < width:
            made = [part for operand, choice in enumerate(combination) for part in choice.masks(operand)]
            made.sort(key=lambda part: rank[part[0]])
            yield MaskTerm(
                math.prod(choice.coefficient for choice in combination) * 2**exponent,
                tuple((i, choice.factor) for i, choice in enumerate(combination) if choice.factor is not None),
                tuple(place for place, _, _ in made),
                tuple(power for _, power, _ in made),
                tuple(carry for _, _, carry in made),
            )


@lru_cache(maxsize=1024)
def _expansions(exponents: tuple[Exponents, ...], masks: tuple[_Kind, ...], order: tuple[int, ...]) -> Expansions:
    """For every mask monomial of a polynomial, its terms. A program asks for few different ones, in every run again.

    order: places (`MaskTerm`), by mask
    """
    return {monomial: tuple(_mask_expansion(monomial, masks, order)) for monomial in needed_monomials(exponents)}


def expansions(step: Evaluate) -> Expansions:
    """The mask monomials of a polynomial, each in terms of what a source can share."""
    operands = step.operands
    return _expansions(
        tuple([exponents for _, exponents in step.terms]),
        tuple([_Kind(operand.width, operand.step, operand.wrap, operand.modulus) for operand in operands]),
        tuple(sorted(range(3 * len(operands)), key=lambda place: operands[place // 3].mask + place % 3)),
    )


class DrawingSession(Session):
    """A session that draws correlated randomness."""

    @abstractmethod
    def _draw(self, correlation: Correlation) -> Drawn:
        """The next correlation of the program."""

    @abstractmethod
    def _carry_out(self, requests: Sequence[Request], drawn: Sequence[Drawn | None]) -> list[Result]:
        """One round, with what was drawn for each request."""

    @abstractmethod
    def _compute(self, step: Step, drawn: Drawn | None) -> Words | None:
        """One step, with what was drawn for it."""

    def _drawn(self, asked: Request | Step) -> Drawn | None:
        correlation = demand(asked)
        if correlation is None:
            return None
        drawn = self._draw(correlation)
        if not (isinstance(asked, ask.TruncateOpen) and asked.modulus):
            return drawn
        size = asked.share.shape, asked.width, 0, asked.width, asked.modulus
        bits = [self._draw(kinds.PartyBits(*size, owner=party)) for party in (CLIENT, SERVER)]
        return Drawn(drawn.index, (*drawn.arrays, *(words for each in bits for words in each.arrays)))

    def _round(self, requests: Sequence[Request]) -> list[Result]:
        return self._carry_out(requests, [self._drawn(request) for request in requests])

    def _locally(self, step: Step) -> Words | None:
        if isinstance(step, Evaluate):
            terms = [term for expansion in expansions(step).values() for term in expansion]
            self._draw_monomials(terms, step.operands)
        return self._compute(step, self._drawn(step))

    def _draw_monomials(self, terms: list[MaskTerm], operands: Sequence[Opened]) -> None:
        """Draws shares of the mask monomials that are not known yet, one correlation per set of masks."""
        unknown = [term for term in terms if term.places and term.name(operands) not in term.holder(operands).known]
        if any(operand.wrap for operand in operands):
            self._draw_together(unknown, operands)
            return
        wanted: dict[tuple[int, ...], dict[MonomialKey, list[Opened]]] = {}
        for term in unknown:
            key = term.name(operands)
            wanted.setdefault(key[0], {})[key] = [operands[place // 3] for place in term.places]
        for masks, entries in sorted(wanted.items()):
            used = next(iter(entries.values()))
            width = min(operand.width for operand in used)
            keys = sorted(entries)
            steps = [operand.step for operand in used]
            described = tuple(
                kinds.MonomialTerm(powers, carries, width - sum(s for s, c in zip(steps, carries, strict=True) if c))
                for _, powers, carries in keys
            )
            shape = np.broadcast_shapes(*(operand.shape for operand in used))
            drawn = self._draw(kinds.Monomials(masks, shape, described, used[0].modulus))
            for position, key in enumerate(keys):
                words = drawn.arrays[position].reshape(shape) if drawn.arrays else np.empty(0, np.uint64)
                used[-1].known[key] = words

    def _draw_together(self, terms: list[MaskTerm], operands: Sequence[Opened]) -> None:
        """The same for masks that truncate into an odd ring: one correlation, since most are of the same factors."""
        if not terms:
            return
        named = {term.name(operands): term.holder(operands) for term in terms}
        masks = tuple(sorted({mask for found, _, _ in named for mask in found}))
        ring = operands[0].ring
        described = tuple(
            kinds.MonomialTerm(
                tuple(dict(zip(found, powers, strict=True)).get(mask, 0) for mask in masks),
                (0,) * len(masks),
                ring.width,
            )
            for found, powers, _ in sorted(named)
        )
        shape = np.broadcast_shapes(*(operand.shape for operand in operands))
        drawn = self._draw(kinds.Monomials(masks, shape, described, ring.modulus))
        for position, key in enumerate(sorted(named)):
            words = drawn.arrays[position].reshape(shape) if drawn.arrays else np.empty(0, np.uint64)
            named[key].known[key] = words
