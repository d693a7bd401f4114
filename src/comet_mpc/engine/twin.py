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
from comet_mpc.engine import requests as ask
from comet_mpc.engine.requests import Opened, Request, Result, Step
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.session import FUSED, USUAL_WAYS, Abilities, Session, Ways
from comet_mpc.engine.share import Share, Words, decode
from comet_mpc.errors import RangeError

Output = TypeVar("Output")

_SLACK = 1.0 + 1e-9  # bounds are computed in floating point


class TwinSession(Session):
    """Runs a program in the clear. A `Share` holds the whole value."""

    def holds(self, party: int) -> bool:
        return True

    def _trivial(self, owner: int, shape: tuple[int, ...], words: Words | None) -> Words | None:
        return words

    def _check(self, share: Share) -> None:
        real = decode(share.flat(), share.fraction, share.ring)
        largest = float(np.max(np.abs(real), initial=0.0))
        if largest > share.bound * _SLACK:
            raise RangeError(
                f"{self.here}: a value is {largest / share.bound:.3g} times the bound that was claimed for it"
                if share.bound
                else f"{self.here}: a value that was claimed to be zero is not"
            )

    def _shifted(self, share: Share, shift: int, ring: Ring) -> Words:
        signed = share.ring.signed(share.flat())
        if shift:
            signed = (signed + (np.int64(1) << np.int64(shift - 1))) >> np.int64(shift)
        return ring.reduced(signed.view(np.uint64)).reshape(share.shape)

    def _round(self, requests: Sequence[Request]) -> list[Result]:
        for request in requests:
            self._check(request.share)
        return [self._result(request) for request in requests]

    def _result(self, request: Request) -> Result:
        shift = request.shift if isinstance(request, ask.Truncate | ask.TruncateOpen) else 0
        ring = request.share.ring
        if isinstance(request, ask.Truncate) or (isinstance(request, ask.TruncateOpen) and request.modulus):
            ring = request.conversion.target
        value = self._shifted(request.share, shift, ring)
        match request:
            case ask.Open() | ask.TruncateOpen():
                return ask.opened(request, -1, value)
            case ask.Truncate():
                return ask.truncated(request, value)
            case ask.Give():
                return ask.given(request, -1, value)
            case ask.Reveal():
                return value
            case ask.Choose(share=share, table=table):
                return ask.Chosen(share, table)
            case ask.Fetch(chosen=chosen):
                place = value & np.uint64(chosen.table.entries - 1)
                return ask.looked_up(chosen, [column[place] for column in chosen.table.words])

    def _locally(self, step: Step) -> Words | None:
        match step:
            case ask.Evaluate():
                return self._evaluate(step)
            case ask.SquareSum(x=x):
                words = _integers(x)
                return x.ring.reduced(np.asarray((words * words).sum(axis=-1, keepdims=True, dtype=np.uint64)))
            case ask.MatMul(x=x, y=y, transposed=transposed):
                return kernels.matmul(x.words(), y.words(), transpose_right=transposed)
            case ask.Weigh():
                return step.public_product()

    @staticmethod
    def _evaluate(step: ask.Evaluate) -> Words:
        values = [np.broadcast_to(_integers(operand), step.shape) for operand in step.operands]
        total = np.zeros(step.shape, np.uint64)
        for coefficient, exponents in step.terms:
            term = np.full(step.shape, np.uint64(coefficient % 2**64))
            for value, power in zip(values, exponents, strict=True):
                for _ in range(power):
                    term *= value
            total += term
        return step.ring.reduced(total)


def _integers(opened: Opened) -> Words:
    """The values mod 2^64. What is computed with them wraps freely: only the result must fit."""
    return opened.ring.signed(opened.words()).view(np.uint64) if opened.modulus else opened.words()


def run_twin(
    program: Callable[[Session], Output],
    *,
    abilities: Abilities = FUSED,
    permits_leaks: bool = False,
    ways: Ways = USUAL_WAYS,
) -> Output:
    """Runs a program in the clear and returns what it returns."""
    return program(TwinSession(abilities=abilities, permits_leaks=permits_leaks, ways=ways))
