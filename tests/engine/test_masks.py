"""One mask hides one opening, and correlations refer to masks before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from comet_mpc.engine import Give, Open, Session, Truncate, TruncateOpen, Weight
from comet_mpc.engine.correlations import (
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    PartyBits,
    SquareSums,
    WeightProduct,
    WeightScale,
)
from comet_mpc.engine.ops import Request
from comet_mpc.engine.ops.operation import Drawn
from comet_mpc.engine.plan import PlanSession
from comet_mpc.engine.share import CLIENT, SERVER
from comet_research.look_up import Choose, TableTransfers
from support.every_message import LARGE, seeds
from support.recording import recording_pair
from support.two_parties import able, run_two_parties


class WatchfulPlan(PlanSession):
    """A plan that notes which mask every request uses."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__(abilities=able(fused))
        self.uses: list[tuple[int, Correlation, Request[Any]]] = []

    def _carry_out(self, requests: Sequence[Request[Any]], drawn: Sequence[Drawn | None]) -> list[Any]:
        for request, entry in zip(requests, drawn, strict=True):
            if entry is not None:
                self.uses.append((entry.index, self.correlations[entry.index], request))
        return super()._carry_out(requests, drawn)


def referred(correlation: Correlation) -> tuple[int, ...]:
    match correlation:
        case Monomials(masks=masks):
            return masks
        case SquareSums(mask=mask) | WeightProduct(mask=mask) | WeightScale(mask=mask):
            return (mask,)
        case MatrixProduct(left=left, right=right):
            return (left, right)
    return ()


@pytest.mark.parametrize("fused", [True, False])
def test_a_mask_is_used_for_one_opening_and_correlations_refer_backwards(fused: bool) -> None:
    session = WatchfulPlan(fused=fused)
    program, weights = LARGE
    program(session, {name: weight.public() for name, weight in weights.items()})
    indices = [index for index, _, _ in session.uses]
    assert len(indices) == len(set(indices))
    bits = {i for i, c in enumerate(session.correlations) if isinstance(c, PartyBits)}
    masks = [i for i, c in enumerate(session.correlations) if isinstance(c, Mask | ClientMask) and i not in bits]
    openings = [i for i, _, request in session.uses if isinstance(request, Open | TruncateOpen | Give)]
    assert sorted(openings) == masks
    for index, correlation, request in session.uses:
        assert index < len(session.correlations)
        assert request.wire_bytes() != (0, 0)
        if isinstance(request, Open | TruncateOpen):
            assert isinstance(correlation, Mask)
            ring = request.ring if isinstance(request, TruncateOpen) else request.share.ring
            assert (correlation.shape, correlation.ring) == (request.share.shape, ring)
            if isinstance(request, TruncateOpen) and request.modulus:
                owners = [session.correlations[index + 1 + party] for party in (CLIENT, SERVER)]
                assert [each.owner for each in owners if isinstance(each, PartyBits)] == [CLIENT, SERVER]
                bits -= {index + 1, index + 2}
        elif isinstance(request, Give):
            assert isinstance(correlation, ClientMask)
        elif isinstance(request, Choose):
            assert isinstance(correlation, TableTransfers)
        else:
            assert isinstance(request, Truncate)
    for place, correlation in enumerate(session.correlations):
        assert referred(correlation) == tuple(reference.mask for reference in correlation.facts.references)
        for mask in referred(correlation):
            assert 0 <= mask < place
            assert mask in masks or isinstance(session.correlations[mask], PartyBits)
    assert not bits


def test_two_openings_of_one_tensor_have_two_masks() -> None:
    def program(session: Session, _: Mapping[str, Weight]) -> object:
        x = session.private(SERVER, (64,), 12, 1.0, np.full(64, 0.5))
        return session.open(x), session.open(x)

    ends = recording_pair()
    run_two_parties(program, seeds=seeds(8), channels=ends)
    first, second = (np.frombuffer(frame, np.uint64) for frame in ends[CLIENT].received)
    assert not np.any(first == second)
