"""Monomials of masks, in terms of what a source can share.

A mask m of an opened tensor is a uniform element u of a ring, unless the opening truncates: then it is a sum of u and
of bits with public factors. A monomial of masks is therefore a sum of monomials of u's and bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product as cartesian
from typing import NamedTuple

from comet_mpc.engine.polynomial import Exponents, needed_monomials
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.engine.tensors import MonomialKey, Opened


class MaskRef(NamedTuple):
    """A mask that belongs to an operand of a polynomial: the one that hides it or, in an odd ring, a party's bit."""

    operand: int
    owner: int | None = None
    """Of the bit, CLIENT or SERVER."""

    def index_in(self, operands: Sequence[Opened]) -> int:
        """Its index among the program's correlations."""
        opened = operands[self.operand]
        return opened.mask if self.owner is None else opened.bits[self.owner]


class MaskTerm(NamedTuple):
    """One term of a mask monomial: coefficient · Π public factors · Π u_i^power · top_i^carry.

    factors  (operand, which of its `Opened.factors`)
    masks    those that occur, in their order in the program; powers and carries are theirs. A term without masks is a
             public number.
    """

    coefficient: int
    factors: tuple[tuple[int, int], ...]
    masks: tuple[MaskRef, ...]
    powers: Exponents
    carries: Exponents

    def key(self, operands: Sequence[Opened]) -> MonomialKey:
        """The monomial's name, free of operands that do not occur in it."""
        return tuple(mask.index_in(operands) for mask in self.masks), self.powers, self.carries

    def holder(self, operands: Sequence[Opened]) -> Opened:
        """The operand that knows the monomial, once it was drawn: the last that occurs in it."""
        return operands[self.masks[-1].operand]


Expansions = dict[Exponents, tuple[MaskTerm, ...]]


class _Choice(NamedTuple):
    """One way to take a power of an operand's mask: what stands for it in a term."""

    coefficient: int
    exponent: int
    """Of 2, beside the coefficient."""
    factor: int | None
    power: int
    carry: int = 0
    owners: tuple[int, ...] = ()
    """Whose bits occur."""

    def masks(self, operand: int) -> Iterator[tuple[MaskRef, int, int]]:
        """(mask, power, carry) of what it is made of."""
        if self.power or self.carry:
            yield MaskRef(operand), self.power, self.carry
        for owner in self.owners:
            yield MaskRef(operand, owner), 1, 0


class _Kind(NamedTuple):
    """What there is to know of an operand's mask."""

    width: int
    step: int
    wrap: int
    modulus: int


_BITS: tuple[tuple[int, ...], ...] = ((), (CLIENT,), (SERVER,), (CLIENT, SERVER))
"""Whose bits each of the four factors of an opening into an odd ring goes with (`TruncateOpen`)."""


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
            for factor, owners in enumerate(_BITS):
                yield _Choice(coefficient, 0, factor, j, owners=owners)


def _expanded(monomial: Exponents, masks: Sequence[_Kind], order: Sequence[MaskRef]) -> Iterator[MaskTerm]:
    """Π m_i^E_i in terms of what a source can share. Terms whose coefficient vanishes in the ring are left out."""
    width = min(kind.width for kind, power in zip(masks, monomial, strict=True) if power)
    rank = {mask: position for position, mask in enumerate(order)}
    for combination in cartesian(*map(_choices, masks, monomial)):
        exponent = sum(choice.exponent for choice in combination)
        if exponent < width:
            made = [part for operand, choice in enumerate(combination) for part in choice.masks(operand)]
            made.sort(key=lambda part: rank[part[0]])
            yield MaskTerm(
                math.prod(choice.coefficient for choice in combination) * 2**exponent,
                tuple((i, choice.factor) for i, choice in enumerate(combination) if choice.factor is not None),
                tuple(mask for mask, _, _ in made),
                tuple(power for _, power, _ in made),
                tuple(carry for _, _, carry in made),
            )


@lru_cache(maxsize=1024)
def _expansions(exponents: tuple[Exponents, ...], masks: tuple[_Kind, ...], order: tuple[MaskRef, ...]) -> Expansions:
    """For every mask monomial of a polynomial, its terms. A program asks for few different ones, in every run again."""
    return {monomial: tuple(_expanded(monomial, masks, order)) for monomial in needed_monomials(exponents)}


def expansions(exponents: tuple[Exponents, ...], operands: Sequence[Opened]) -> Expansions:
    """The mask monomials of a polynomial, each in terms of what a source can share."""
    references = [
        MaskRef(operand, owner) for operand, opened in enumerate(operands) for owner in (None, *range(len(opened.bits)))
    ]
    return _expansions(
        exponents,
        tuple([_Kind(operand.width, operand.step, operand.wrap, operand.modulus) for operand in operands]),
        tuple(sorted(references, key=lambda mask: mask.index_in(operands))),
    )
