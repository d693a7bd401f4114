"""Products that are asked for with a precision: off by as much as was stated, and cut before anything else is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_mpc.engine import Give, Open, Session, Weight
from comet_mpc.engine.correlations import MatrixProduct, WeightProduct, WeightScale
from comet_mpc.engine.ops.operation import Abilities
from comet_mpc.engine.ops.reveal import Reveal
from comet_mpc.engine.ops.truncate_open import TruncateOpen
from comet_mpc.engine.plan import PlanSession, plan_program
from comet_mpc.engine.share import CLIENT, SERVER, Share, concatenate
from comet_mpc.errors import RangeError
from support.two_parties import run_two_parties, twin_value

PAIR = Abilities(fused=False, odd=True, near=True)
RNG = np.random.default_rng(3)


def product(session: Session, precision: int | None = 10, width: int = 40, rows: int = 4) -> Share:
    """Of two secret matrices with 12 fraction bits each."""
    values = np.full((rows, 8), 0.5)
    x, y = (session.open(session.private(owner, values.shape, 12, 1.0, values, width)) for owner in (CLIENT, SERVER))
    return session.matmul(x, y, transposed=True, precision=precision)


def test_a_product_with_a_precision_is_off_by_half_a_unit_of_what_is_left() -> None:
    share = product(PlanSession(abilities=PAIR))
    assert share.error == 2.0**-11
    assert product(PlanSession(abilities=PAIR), None).error == 0.0
    assert product(PlanSession(abilities=PAIR), 24).error == 0.0
    assert product(PlanSession()).error == 0.0  # a dealer's products are exact


def test_a_source_that_makes_exact_products_is_asked_for_nothing_else() -> None:
    def cuts(abilities: Abilities) -> set[int]:
        correlations = plan_program(product, abilities=abilities).correlations
        return {entry.cut for entry in correlations if isinstance(entry, MatrixProduct)}

    assert cuts(Abilities()) == {0}
    assert cuts(PAIR) == {14}


def test_an_error_grows_with_what_is_made_of_it() -> None:
    share = product(PlanSession(abilities=PAIR))
    error = share.error
    assert (share + share).error == (share - share).error == 2 * error
    assert share.times(-3).error == 3 * error
    assert share.times_power(-5).error == error / 32
    assert share.lift(30).error == share.narrow(32).error == share[0].error == share.reshape(16).error == error
    assert share.sum().error == 4 * error
    assert share.bounded(1.0).error == concatenate([share, share.times(0)], axis=0).error == error


REFUSED: dict[str, Callable[[Session, Share], object]] = {
    "open": lambda session, share: session.request(Open(share)),
    "give": lambda session, share: session.request(Give(share)),
    "reveal": lambda session, share: session.request(Reveal(share, CLIENT)),
    "truncate by less and open": lambda session, share: session.open(session.truncate(share, 12)),
    "truncate a multiple and open": lambda session, share: session.open(session.truncate(share.times(1000), 14)),
    "open, truncated by less": lambda session, share: session.request(TruncateOpen(share, 12, 40)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_cut_an_error_away_is_refused(name: str) -> None:
    """While planning. Exact, the same is fine."""
    for precision, fine in ((10, False), (None, True)):
        session = PlanSession(abilities=PAIR)
        share = product(session, precision, 60)
        if fine:
            REFUSED[name](session, share)
        else:
            with pytest.raises(RangeError):
                REFUSED[name](session, share)


def test_a_truncation_has_room_for_the_error_and_adds_it_to_the_bound() -> None:
    session = PlanSession(abilities=PAIR)
    share = product(session, 10).bounded(1.0)
    cut = session.truncate(share, 14, 26)
    assert cut.error == 0.0
    assert cut.bound == 1.0 + 2.0**-10 + 2.0**-11
    full = share.bounded(2.0**14 - 2.0**-12)  # of 40 bits with 24 after the point: below 2^14, but not with the error
    with pytest.raises(RangeError, match="no longer exact"):
        session.truncate(full, 14, 40)
    session.truncate(product(PlanSession()).bounded(full.bound), 14, 40)


@given(st.data())
@settings(max_examples=5, deadline=None)
def test_two_parties_stay_within_the_stated_bound_of_their_twin(data: st.DataObject) -> None:
    """A product of secrets, one with a weight and a scaling, each cut: a rounding to either side and half a unit."""
    rows, inputs, outputs = (data.draw(st.integers(1, 40)) for _ in range(3))
    precision = data.draw(st.integers(8, 20))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, y = (rng.uniform(-1, 1, (size, inputs)) for size in (rows, outputs))
    matrix = Weight.encode("matrix", rng.uniform(-1, 1, (outputs, inputs)) / inputs, 18)
    vector = Weight.encode("vector", rng.uniform(-1, 1, inputs), 16)
    weights = {"matrix": matrix, "vector": vector}

    def program(session: Session, held: Mapping[str, Weight]) -> Share:
        left, right = (session.private(CLIENT, z.shape, 14, 1.0, z, 52) for z in (x, y))
        given_rows = session.give(left)
        near = (
            session.matmul(*session.open(left, right), transposed=True, precision=precision),
            session.linear(given_rows, held["matrix"], precision=precision),
            session.scale(given_rows, held["vector"], precision=precision),
        )
        return concatenate([session.truncate_to(share, precision, 32) for share in near], axis=1)

    run_two_parties(program, weights, source="pair", tolerance=2.0**-precision * (1.0 + 0.5 + 0.5))
    assert twin_value(program, weights).shape == (rows, 2 * outputs + inputs)


def test_the_kinds_say_what_is_cut() -> None:
    matrix, vector = (Weight.encode(name, np.ones(shape), 14) for name, shape in (("m", (3, 8)), ("v", 8)))

    def program(session: Session) -> None:
        rows = session.give(session.private(CLIENT, (2, 8), 12, 1.0, np.zeros((2, 8)), 48))
        session.linear(rows, matrix.public(), precision=12)
        session.scale(rows, vector.public(), precision=11)

    correlations = plan_program(program, abilities=PAIR).correlations
    assert [entry.cut for entry in correlations if isinstance(entry, WeightProduct)] == [14]
    assert [entry.cut for entry in correlations if isinstance(entry, WeightScale)] == [15]
