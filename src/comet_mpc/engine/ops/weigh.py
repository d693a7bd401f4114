"""Products of a tensor that was given to the server with one of its weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from comet_mpc.engine import kernels
from comet_mpc.engine.correlations import Correlation, WeightProduct, WeightScale
from comet_mpc.engine.ops.operation import Drawn, Step, expect, product_error
from comet_mpc.engine.share import CLIENT, Share, Words
from comet_mpc.engine.tensors import Given, Weight
from comet_mpc.errors import ShapeError


@dataclass(frozen=True, eq=False)
class Weigh(Step):
    """x·Wᵀ for a matrix of the server's, x ⊙ w along the last axis for a vector."""

    x: Given
    weight: Weight
    bound: float | None = None
    cut: int = 0
    """Bits that the result will be truncated by, if it may be off by half a unit of what is left."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.x.shape[:-1], self.weight.shape[0])

    def check(self, part: str) -> None:
        if len(self.weight.shape) not in (1, 2) or self.x.shape[-1] != self.weight.shape[-1]:
            raise ShapeError(
                f"{part}: weight {self.weight.name} has shape {self.weight.shape}, its input {self.x.shape}"
            )

    def demand(self) -> tuple[Correlation, ...]:
        x, weight = self.x, self.weight
        rows = math.prod(x.shape[:-1])
        if len(weight.shape) == 1:
            return (WeightScale(x.mask, weight.name, rows, x.shape[-1], x.width, self.cut),)
        outputs, inputs = weight.shape
        return (WeightProduct(x.mask, weight.name, rows, inputs, outputs, x.width, self.cut),)

    def result(self, words: Words | None) -> Share:
        x, weight = self.x, self.weight
        bound = weight.gain * x.bound if self.bound is None else self.bound
        fraction = x.fraction + weight.fraction
        return Share(self.shape, fraction, bound, x.width, words, error=product_error(self.cut, fraction))

    def in_the_clear(self) -> Words:
        """The weight with what the server knows of x, which in the clear is all of it."""
        public, fixed = self.x.words(), self.weight.fixed()
        if fixed.ndim == 1:
            return public * fixed.astype(np.int64).view(np.uint64)
        return kernels.matmul_int32(public.reshape(-1, fixed.shape[1]), fixed).reshape(self.shape)

    def compute(self, party: int, drawn: Drawn | None) -> Words:
        (share,) = expect(drawn, 1)
        if party == CLIENT:
            return share.reshape(self.shape)
        if len(self.weight.shape) == 2:  # the server's share comes output by output
            share = share.reshape(self.weight.shape[0], -1).T
        return self.in_the_clear() + share.reshape(self.shape)
