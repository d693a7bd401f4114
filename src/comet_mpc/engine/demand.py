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

import numpy as np

from comet_mpc.engine import correlations as kinds
from comet_mpc.engine import requests as ask
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.polynomial import Exponents, needed_monomials
from comet_mpc.engine.requests import Evaluate, Opened, Request, Result, Step
from comet_mpc.engine.session import Session
from comet_mpc.engine.share import Words
from comet_mpc.errors import ForeignRandomness, RandomnessExhausted

__all__ = ["DrawingSession", "Drawn", "InOrder", "MaskTerm", "demand", "expansions"]


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
    """One term of a mask monomial: coefficient · Π sign_i (i in signs) · Π u_i^power · top_i^carry.

    places  the operands that occur, by mask; powers and carries are theirs
    """

    coefficient: int
    signs: tuple[int, ...]
    places: tuple[int, ...]
    powers: Exponents
    carries: Exponents

    def name(self, operands: Sequence[Opened]) -> MonomialKey:
        """The monomial's name, free of operands that do not occur in it."""
        return tuple([operands[place].mask for place in self.places]), self.powers, self.carries


MonomialKey = tuple[tuple[int, ...], Exponents, Exponents]
Expansions = dict[Exponents, tuple[MaskTerm, ...]]


def _mask_expansion(monomial: Exponents, rings: Sequence[tuple[int, int]], order: Sequence[int]) -> Iterator[MaskTerm]:
    """Π m_i^E_i in terms of what a source can share.

    An ordinary mask is m = u. One that truncates is m = u - s·2^step·top, with a public sign s and the secret top
    bit of the opening's mask (top² = top), hence m^E = u^E + top·Σ_{j<E} C(E,j)·(-s·2^step)^(E-j)·u^j.
    Terms whose coefficient vanishes in the ring are left out.
    """
    width = min(width for (width, _), power in zip(rings, monomial, strict=True) if power)
    choices = []
    for (_, step), power in zip(rings, monomial, strict=True):
        options = [(1, 0, False, power, 0)]
        if step:
            for j in range(power):
                rest = power - j
                options.append((math.comb(power, j) * (-1) ** rest, rest * step, rest % 2 == 1, j, 1))
        choices.append(options)
    for combination in cartesian(*choices):
        exponent = sum(option[1] for option in combination)
        if exponent < width:
            places = tuple(i for i in order if combination[i][3] or combination[i][4])
            yield MaskTerm(
                math.prod(option[0] for option in combination) * 2**exponent,
                tuple(i for i, option in enumerate(combination) if option[2]),
                places,
                tuple(combination[i][3] for i in places),
                tuple(combination[i][4] for i in places),
            )


@lru_cache(maxsize=1024)
def _expansions(
    exponents: tuple[Exponents, ...], rings: tuple[tuple[int, int], ...], order: tuple[int, ...]
) -> Expansions:
    """For every mask monomial of a polynomial, its terms. A program asks for few different ones, in every run again.

    rings  (width, step) of each operand;  order  the operands, by mask
    """
    return {monomial: tuple(_mask_expansion(monomial, rings, order)) for monomial in needed_monomials(exponents)}


def expansions(step: Evaluate) -> Expansions:
    """The mask monomials of a polynomial, each in terms of what a source can share."""
    operands = step.operands
    return _expansions(
        tuple([exponents for _, exponents in step.terms]),
        tuple([(operand.width, operand.step) for operand in operands]),
        tuple(sorted(range(len(operands)), key=lambda place: operands[place].mask)),
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
        return None if correlation is None else self._draw(correlation)

    def _round(self, requests: Sequence[Request]) -> list[Result]:
        return self._carry_out(requests, [self._drawn(request) for request in requests])

    def _locally(self, step: Step) -> Words | None:
        if isinstance(step, Evaluate):
            terms = [term for expansion in expansions(step).values() for term in expansion]
            self._draw_monomials(terms, step.operands)
        return self._compute(step, self._drawn(step))

    def _draw_monomials(self, terms: list[MaskTerm], operands: Sequence[Opened]) -> None:
        """Draws shares of the mask monomials that are not known yet, one correlation per set of masks."""
        wanted: dict[tuple[int, ...], dict[MonomialKey, list[Opened]]] = {}
        for term in terms:
            key = term.name(operands)
            if key not in operands[term.places[-1]].known:
                wanted.setdefault(key[0], {})[key] = [operands[place] for place in term.places]
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
