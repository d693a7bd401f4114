"""Sums of squares of an opened tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from comet_mpc.engine.correlations import Correlation, SquareSums
from comet_mpc.engine.ops.evaluate import integers
from comet_mpc.engine.ops.operation import Drawn, Step, expect
from comet_mpc.engine.share import CLIENT, Share, Words
from comet_mpc.engine.tensors import Opened
from comet_mpc.errors import ShapeError


@dataclass(frozen=True, eq=False)
class SquareSum(Step):
    """Σ x² along the last axis, that axis kept with length 1."""

    x: Opened
    bound: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.x.shape[:-1], 1)

    def check(self, part: str) -> None:
        if self.x.step:
            raise ShapeError(f"{part}: a sum of squares needs a tensor that was opened without a truncation")

    def demand(self) -> tuple[Correlation, ...]:
        x = self.x
        return (SquareSums(x.mask, math.prod(x.shape[:-1]), x.shape[-1], x.width, x.modulus),)

    def result(self, words: Words | None) -> Share:
        x = self.x
        bound = x.shape[-1] * x.bound**2 if self.bound is None else self.bound
        return Share(self.shape, 2 * x.fraction, bound, x.width, words, x.modulus)

    def in_the_clear(self) -> Words:
        words = integers(self.x)
        return self.x.ring.reduced(np.asarray((words * words).sum(axis=-1, keepdims=True, dtype=np.uint64)))

    def compute(self, party: int, drawn: Drawn | None) -> Words:
        """Σ (P + a)² = Σ P·(P + 2a) + Σ a²; the client takes P²."""
        (share,), public, ring = expect(drawn, 1), self.x.words(), self.x.ring
        beside = ring.times(self.x.own_mask(), 2)
        if party == CLIENT:
            beside = ring.add(beside, public)
        crossed = ring.sum(ring.multiply(public, beside), -1, keep=True)
        return ring.add(crossed, share.reshape(crossed.shape))
