"""The plaintext fixed-point twin: the same program on the values themselves, in the same ring.

It rounds to nearest where the real parties round at random to one of the two neighbours, and is exact
everywhere else. It also checks on every value what the plan has proved from bounds, so a wrong bound shows up
here as a `RangeError` instead of as a silent wrap-around there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from comet_mpc.engine import kernels
from comet_mpc.engine.polynomial import Exponents
from comet_mpc.engine.session import (
    Choose,
    Chosen,
    Fetch,
    Give,
    Given,
    Open,
    Opened,
    Request,
    Result,
    Reveal,
    Session,
    Truncate,
    TruncateOpen,
    Weight,
    given,
    looked_up,
    opened,
    truncated,
)
from comet_mpc.engine.share import Share, Words, decode
from comet_mpc.errors import RangeError, ShapeError

__all__ = ["TwinSession", "run_twin"]

Output = TypeVar("Output")

_SLACK = 1.0 + 1e-9  # bounds are computed in floating point


def _values(words: Words | None) -> Words:
    if words is None:
        raise ShapeError("a planned tensor was given to a twin")
    return words


class TwinSession(Session):
    """Runs a program in the clear. A `Share` holds the whole value."""

    def holds(self, party: int) -> bool:
        return True

    def _trivial(self, owner: int, shape: tuple[int, ...], words: Words | None) -> Words | None:
        return words

    def _check(self, share: Share) -> None:
        real = decode(_values(share.values), share.fraction, share.width)
        largest = float(np.max(np.abs(real), initial=0.0))
        if largest > share.bound * _SLACK:
            raise RangeError(
                f"{self.here}: a value is {largest / share.bound:.3g} times the bound that was claimed for it"
                if share.bound
                else f"{self.here}: a value that was claimed to be zero is not"
            )

    def _shifted(self, share: Share, shift: int) -> Words:
        left = np.uint64(64 - share.width)
        signed = (_values(share.values) << left).view(np.int64) >> np.int64(left)
        if shift:
            signed = (signed + (np.int64(1) << np.int64(shift - 1))) >> np.int64(shift)
        return signed.view(np.uint64)

    def _round(self, requests: Sequence[Request]) -> list[Result]:
        results: list[Result] = []
        for request in requests:
            self._check(request.share)
            match request:
                case Open(share=share):
                    results.append(opened(request, -1, self._shifted(share, 0)))
                case Truncate(share=share, shift=shift):
                    results.append(truncated(request, self._shifted(share, shift)))
                case TruncateOpen(share=share, shift=shift):
                    results.append(opened(request, -1, self._shifted(share, shift)))
                case Give(share=share):
                    results.append(given(request, -1, self._shifted(share, 0)))
                case Reveal(share=share):
                    results.append(self._shifted(share, 0))
                case Choose(share=share, table=table):
                    results.append(Chosen(share, table, start=self._shifted(share, 0)))
                case Fetch(chosen=chosen):
                    place = _values(chosen.start) & np.uint64(chosen.table.entries - 1)
                    results.append(looked_up(chosen, [column[place] for column in chosen.table.words]))
        return results

    def _evaluate(
        self, terms: list[tuple[int, Exponents]], operands: list[Opened], shape: tuple[int, ...]
    ) -> Words | None:
        values = [np.broadcast_to(_values(operand.public), shape) for operand in operands]
        total = np.zeros(shape, np.uint64)
        for coefficient, exponents in terms:
            term = np.full(shape, np.uint64(coefficient % 2**64))
            for value, power in zip(values, exponents, strict=True):
                for _ in range(power):
                    term *= value
            total += term
        return total

    def _square_sum(self, x: Opened) -> Words | None:
        value = _values(x.public)
        return np.asarray((value * value).sum(axis=-1, keepdims=True, dtype=np.uint64))

    def _matmul(self, x: Opened, y: Opened, transposed: bool, shape: tuple[int, ...], width: int) -> Words | None:
        return kernels.matmul(_values(x.public), _values(y.public), transpose_right=transposed)

    def _linear(self, x: Given, weight: Weight, shape: tuple[int, ...]) -> Words | None:
        if weight.values is None:
            raise ShapeError(f"weight {weight.name} has no values")
        flat = _values(x.public).reshape(-1, x.shape[-1])
        return kernels.matmul_int32(flat, weight.values).reshape(shape)

    def _scale(self, x: Given, weight: Weight) -> Words | None:
        if weight.values is None:
            raise ShapeError(f"weight {weight.name} has no values")
        return _values(x.public) * weight.values.astype(np.int64).view(np.uint64)


def run_twin(program: Callable[[Session], Output]) -> Output:
    """Runs a program in the clear and returns what it returns."""
    return program(TwinSession())
