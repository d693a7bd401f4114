"""Products of two opened matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from comet_mpc.engine import kernels
from comet_mpc.engine.correlations import Correlation, MatrixProduct
from comet_mpc.engine.ops.operation import Drawn, Step, expect, product_error
from comet_mpc.engine.share import CLIENT, Share, Words
from comet_mpc.engine.tensors import Opened
from comet_mpc.errors import ShapeError


@dataclass(frozen=True, eq=False)
class MatMul(Step):
    """x·y, or x·yᵀ if transposed, over the last two axes; equal batch axes."""

    x: Opened
    y: Opened
    transposed: bool
    bound: float | None = None
    cut: int = 0
    """Bits that the result will be truncated by, if it may be off by half a unit of what is left."""
    causal: int | None = None
    """Row i of x has its first causal + i + 1 elements, and zeros in place of all others."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.x.shape[:-1], self.y.shape[-2 if self.transposed else -1])

    @property
    def width(self) -> int:
        return min(self.x.width, self.y.width)

    def check(self, part: str) -> None:
        x, y = self.x, self.y
        inner = y.shape[-1] if self.transposed else y.shape[-2]
        if x.shape[:-2] != y.shape[:-2] or x.shape[-1] != inner or len(x.shape) < 2:
            raise ShapeError(f"{part}: cannot multiply matrices {x.shape} and {y.shape}, transposed={self.transposed}")
        if x.step or y.step or x.modulus or y.modulus:
            raise ShapeError(f"{part}: a matrix product needs tensors opened in Z_2^w without a truncation")
        if self.causal is not None and (self.transposed or self.causal + x.shape[-2] != x.shape[-1]):
            raise ShapeError(f"{part}: {x.shape[-2]} causal rows after {self.causal} cannot have {x.shape[-1]} columns")

    def demand(self) -> tuple[Correlation, ...]:
        x, y, (*batch, m, n) = self.x, self.y, self.shape
        size = math.prod(batch), m, x.shape[-1], n
        causal = self.causal is not None
        return (MatrixProduct(x.mask, y.mask, *size, self.transposed, self.width, self.cut, causal),)

    def _left(self, words: Words) -> Words:
        return words if self.causal is None else np.tril(words, self.causal)

    def result(self, words: Words | None) -> Share:
        x, y = self.x, self.y
        bound = x.shape[-1] * x.bound * y.bound if self.bound is None else self.bound
        fraction = x.fraction + y.fraction
        return Share(self.shape, fraction, bound, self.width, words, error=product_error(self.cut, fraction))

    def in_the_clear(self) -> Words:
        return kernels.matmul(self._left(self.x.words()), self.y.words(), transpose_right=self.transposed)

    def compute(self, party: int, drawn: Drawn | None) -> Words:
        """(P + a)(R + b) = P·R + P·b + a·R + a·b; the client takes P·R along with P·b."""
        (share,), x, y, transposed, width = expect(drawn, 1), self.x, self.y, self.transposed, self.width
        right = y.own_mask() + y.words() if party == CLIENT else y.own_mask()
        first = kernels.matmul(self._left(x.words()), right, transpose_right=transposed, width=width)
        second = kernels.matmul(self._left(x.own_mask()), y.words(), transpose_right=transposed, width=width)
        return first + second + share.reshape(self.shape)
