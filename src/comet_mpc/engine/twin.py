"""The plaintext fixed-point twin: the same program on the values themselves, in the same ring.

It rounds to nearest where the real parties round at random to one of the two neighbours, and is exact
everywhere else. It also checks on every value what the plan has proved from bounds, so a wrong bound shows up
here as a `RangeError` instead of as a silent wrap-around there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from comet_mpc.engine.ops import Request, Step
from comet_mpc.engine.ops.operation import FUSED, Abilities
from comet_mpc.engine.session import USUAL_WAYS, Session, Ways
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

    def _round(self, requests: Sequence[Request[Any]]) -> list[Any]:
        for request in requests:
            self._check(request.share)
        return [request.in_the_clear() for request in requests]

    def _locally(self, step: Step) -> Words | None:
        return step.in_the_clear()


def run_twin(
    program: Callable[[Session], Output],
    *,
    abilities: Abilities = FUSED,
    ways: Ways = USUAL_WAYS,
) -> Output:
    """Runs a program in the clear and returns what it returns."""
    return program(TwinSession(abilities=abilities, ways=ways))
