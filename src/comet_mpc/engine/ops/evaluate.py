"""Polynomials in opened tensors: local work, given shares of the monomials of their masks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from comet_mpc.engine import kernels
from comet_mpc.engine.correlations import Correlation, Monomials, MonomialTerm
from comet_mpc.engine.ops.monomials import Expansions, MaskTerm, expansions
from comet_mpc.engine.ops.operation import Draw, Drawn, Step
from comet_mpc.engine.polynomial import Exponents
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import CLIENT, Share, Words
from comet_mpc.engine.tensors import MonomialKey, Opened
from comet_mpc.errors import RangeError, ShapeError


def integers(opened: Opened) -> Words:
    """The values of a twin mod 2^64. What is computed with them wraps freely: only the result must fit."""
    return opened.ring.signed(opened.words()).view(np.uint64) if opened.modulus else opened.words()


def _broadcast(operands: Iterable[Opened]) -> tuple[int, ...]:
    return np.broadcast_shapes(*(operand.shape for operand in operands))


class _Wanted(NamedTuple):
    """Monomials that are drawn together, and the operands that will know them, in the same order."""

    correlation: Monomials
    keys: Sequence[MonomialKey]
    holders: Sequence[Opened]


@dataclass(frozen=True, eq=False)
class Evaluate(Step):
    """A polynomial in opened tensors, with ring coefficients, broadcast to a common shape."""

    terms: list[tuple[int, Exponents]]
    operands: list[Opened]
    fraction: float
    bound: float

    @property
    def shape(self) -> tuple[int, ...]:
        return _broadcast(self.operands)

    @property
    def ring(self) -> Ring:
        """The narrowest of the operands'; if one is odd, all are in it."""
        return min((operand.ring for operand in self.operands), key=lambda ring: ring.width)

    def check(self, part: str) -> None:
        if len({operand.modulus for operand in self.operands}) > 1:
            raise ShapeError(f"{part}: a polynomial's variables were opened in different rings")
        if not self.ring.holds(self.bound * 2.0**self.fraction):
            raise RangeError(
                f"{part}: a polynomial's value up to {self.bound:g} with {self.fraction} fraction bits does not fit "
                f"into a ring of {self.ring.width} bits"
            )
        try:
            _broadcast(self.operands)
        except ValueError as error:
            raise ShapeError(f"{part}: shapes do not fit: {[each.shape for each in self.operands]}") from error

    def result(self, words: Words | None) -> Share:
        return Share(self.shape, self.fraction, self.bound, self.ring.width, words, self.ring.modulus)

    # Its randomness ----------------------------------------------------------------------------------

    def expansions(self) -> Expansions:
        return expansions(tuple([exponents for _, exponents in self.terms]), self.operands)

    def demand(self) -> tuple[Correlation, ...]:
        """Shares of the mask monomials that are not known yet."""
        return tuple(wanted.correlation for wanted in self._wanted())

    def draw(self, source: Draw) -> None:
        """Draws them; the operands know them from then on."""
        for wanted in self._wanted():
            drawn, shape = source(wanted.correlation), wanted.correlation.shape
            for i, (key, holder) in enumerate(zip(wanted.keys, wanted.holders, strict=True)):
                holder.known[key] = drawn.arrays[i].reshape(shape) if drawn.arrays else np.empty(0, np.uint64)

    def _wanted(self) -> list[_Wanted]:
        operands = self.operands
        unknown = {
            key: term
            for expansion in self.expansions().values()
            for term in expansion
            if term.masks and (key := term.key(operands)) not in term.holder(operands).known
        }
        if not unknown:
            return []
        if any(operand.wrap for operand in operands):
            return [self._together(unknown)]
        return list(self._by_masks(unknown))

    def _by_masks(self, unknown: dict[MonomialKey, MaskTerm]) -> Iterator[_Wanted]:
        """One correlation per set of masks."""
        for masks in sorted({key[0] for key in unknown}):
            keys = sorted(key for key in unknown if key[0] == masks)
            used = [self.operands[mask.operand] for mask in unknown[keys[0]].masks]
            width = min(operand.width for operand in used)
            steps = [operand.step for operand in used]
            described = tuple(
                MonomialTerm(powers, carries, width - sum(s for s, c in zip(steps, carries, strict=True) if c))
                for _, powers, carries in keys
            )
            correlation = Monomials(masks, _broadcast(used), described, used[0].modulus)
            yield _Wanted(correlation, keys, [used[-1]] * len(keys))

    def _together(self, unknown: dict[MonomialKey, MaskTerm]) -> _Wanted:
        """The same for masks that truncate into an odd ring: one correlation, since most are of the same factors."""
        masks = tuple(sorted({mask for found, _, _ in unknown for mask in found}))
        ring, keys = self.operands[0].ring, sorted(unknown)
        described = tuple(
            MonomialTerm(
                tuple(dict(zip(found, powers, strict=True)).get(mask, 0) for mask in masks),
                (0,) * len(masks),
                ring.width,
            )
            for found, powers, _ in keys
        )
        correlation = Monomials(masks, self.shape, described, ring.modulus)
        return _Wanted(correlation, keys, [unknown[key].holder(self.operands) for key in keys])

    # Its value ---------------------------------------------------------------------------------------

    def in_the_clear(self) -> Words:
        shape = self.shape
        values = [np.broadcast_to(integers(operand), shape) for operand in self.operands]
        total = np.zeros(shape, np.uint64)
        for coefficient, exponents in self.terms:
            term = np.full(shape, np.uint64(coefficient % 2**64))
            for value, power in zip(values, exponents, strict=True):
                for _ in range(power):
                    term *= value
            total += term
        return self.ring.reduced(total)

    def compute(self, party: int, drawn: Drawn | None) -> Words:
        shape, leader = self.shape, party == CLIENT

        def spread(words: Words) -> Words:
            whole = words if words.shape == shape else np.broadcast_to(words, shape)
            return np.ascontiguousarray(whole).reshape(-1)

        monomials = {
            monomial: spread(self._monomial(expansion, leader)) for monomial, expansion in self.expansions().items()
        }
        publics = [spread(operand.words()) for operand in self.operands]
        total = kernels.evaluate(self.terms, publics, monomials, leader, modulus=self.ring.modulus)
        return total.reshape(shape)

    def _monomial(self, expansion: Sequence[MaskTerm], leader: bool) -> Words:
        """A share of a mask monomial, put together from what was drawn."""
        operands, ring = self.operands, self.ring
        total: Words | None = None
        for term in expansion:
            words = np.full((), np.uint64(leader))  # without masks it is a public number: the leader's
            if term.masks:
                words = term.holder(operands).known[term.key(operands)]
            if term.coefficient != 1:
                words = ring.times(words, term.coefficient)
            for operand, which in term.factors:
                words = ring.multiply(words, operands[operand].factors[which])
            total = words if total is None else ring.add(total, words)
        assert total is not None
        return total
