"""Products of matrices, sums along rows and the server's weights, run by two real parties: exactly the twin's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.share import CLIENT, WORD, Share
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import ScaleError, ShapeError
from support.protocols import FEW, assert_equal_to_twin, both_ways, secret, seeds, shapes, uniform, units_of
from support.two_parties import run_two_parties, together, twin_value


@given(st.data())
@FEW
def test_a_product_of_secret_matrices_is_exact(data: st.DataObject) -> None:
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2))
    m, k, n = (data.draw(st.integers(1, 6)) for _ in range(3))
    transposed = data.draw(st.booleans())
    width = data.draw(st.integers(20, WORD))
    a = units_of(data.draw(seeds), (*batch, m, k), 100)
    b = units_of(data.draw(seeds), (*batch, n, k) if transposed else (*batch, k, n), 100)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x, y = (session.open(secret(session, units, 6, width)) for units in (a, b))
        return session.matmul(x, y, transposed=transposed)

    assert_equal_to_twin(program)
    exact = a @ (b.swapaxes(-1, -2) if transposed else b)
    assert np.array_equal(twin_value(program), exact * 2.0**-12)


@given(shapes, st.integers(1, 9), st.integers(20, WORD), seeds)
@FEW
def test_a_sum_of_squares_is_exact(rows: tuple[int, ...], columns: int, width: int, seed: int) -> None:
    units = units_of(seed, (*rows, columns), 100)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.square_sum(session.open(secret(session, units, 5, width)))

    assert_equal_to_twin(program)
    assert np.array_equal(twin_value(program), (units**2).sum(axis=-1, keepdims=True) * 2.0**-10)


@given(shapes, st.integers(1, 9), st.integers(1, 12), seeds)
@FEW
def test_a_sum_of_squares_of_what_was_truncated_as_it_was_opened(
    rows: tuple[int, ...], columns: int, shift: int, seed: int
) -> None:
    units = units_of(seed, (*rows, columns), 100)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.square_sum(session.truncate_open(secret(session, units, 5 + shift), shift))

    exact = ((units * 2.0 ** -(5 + shift)) ** 2).sum(axis=-1, keepdims=True)
    size, unit = np.abs(units).max() * 2.0 ** -(5 + shift), 2.0**-5
    off = columns * (2 * size + unit) * unit  # every value within one unit of the exact one
    assert np.all(np.abs(twin_value(program) - exact) <= off)
    for run in both_ways(program):
        assert np.all(np.abs(together(run) - exact) <= off)


@given(st.data())
@FEW
def test_the_servers_weights_are_applied_exactly(data: st.DataObject) -> None:
    rows = data.draw(shapes)
    inputs, outputs = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8))
    width = data.draw(st.integers(24, WORD))
    rng = np.random.default_rng(data.draw(seeds))
    matrix = Weight.encode("matrix", rng.integers(-64, 65, (outputs, inputs)) / 64, 6)
    vector = Weight.encode("vector", rng.integers(-64, 65, inputs) / 64, 6)
    weights = {"matrix": matrix, "vector": vector}
    units = units_of(data.draw(seeds), (*rows, inputs), 1000)

    def linear(session: Session, held: Mapping[str, Weight]) -> Share:
        return session.linear(session.give(secret(session, units, 8, width)), held["matrix"])

    def scale(session: Session, held: Mapping[str, Weight]) -> Share:
        return session.scale(session.give(secret(session, units, 8, width)), held["vector"])

    for program in (linear, scale):
        assert_equal_to_twin(program, weights)
    assert matrix.values is not None
    assert vector.values is not None
    exact = units @ matrix.values.T.astype(np.int64) * 2.0**-14
    assert np.array_equal(twin_value(linear, weights), exact)
    assert np.array_equal(twin_value(scale, weights), units * vector.values * 2.0**-14)
    share = linear(TwinSession(), weights)
    assert np.max(np.abs(exact)) <= share.bound


def test_one_giving_serves_several_weights() -> None:
    rng = np.random.default_rng(5)
    weights = {name: Weight.encode(name, rng.normal(size=(4, 6)), 10) for name in ("query", "key", "value")}
    units = units_of(1, (3, 6), 2**12)

    def program(session: Session, held: Mapping[str, Weight]) -> Share:
        given_once = session.give(secret(session, units, 12))
        query, key, value = (session.linear(given_once, held[name]) for name in ("query", "key", "value"))
        return query + key - value

    assert run_two_parties(program, weights).plan.rounds == 1
    assert_equal_to_twin(program, weights)


def test_shapes_that_do_not_multiply_are_refused() -> None:
    session = TwinSession()
    x = session.open(session.private(CLIENT, (2, 3), 8, 1.0, np.ones((2, 3))))
    given_x = session.give(session.private(CLIENT, (2, 3), 8, 1.0, np.ones((2, 3))))
    with pytest.raises(ShapeError, match="cannot multiply"):
        session.matmul(x, x)
    for weight in (Weight.encode("w", np.ones((2, 2)), 4), Weight.encode("w", np.ones(3), 4)):
        with pytest.raises(ShapeError, match="weight w"):
            session.linear(given_x, weight)
    with pytest.raises(ShapeError, match="weight v"):
        session.scale(given_x, Weight.encode("v", np.ones(2), 4))
    fused = session.truncate_open(session.private(CLIENT, (2, 2), 8, 1.0, np.ones((2, 2))), 4)
    with pytest.raises(ShapeError, match="a truncation"):
        session.matmul(fused, fused)


@given(st.data())
@FEW
def test_a_mean_is_within_a_unit_and_its_factors_rounding(data: st.DataObject) -> None:
    shape = (data.draw(st.integers(1, 4)), data.draw(st.integers(1, 300)))
    axis = data.draw(st.sampled_from([0, 1, -1]))
    fraction = data.draw(st.integers(0, 16))
    units = units_of(data.draw(seeds), shape, 2 ** (fraction + 3))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.mean(uniform(session, secret(session, units, fraction)), axis)

    exact = units.mean(axis=axis, keepdims=True) * 2.0**-fraction
    size = shape[axis]
    factor = size * 2.0**-25 * np.abs(exact)  # 1/size is rounded to 24 fraction bits
    for run in both_ways(program):
        assert np.all(np.abs(together(run) - exact) <= 2.0**-fraction + factor)
    assert np.all(np.abs(twin_value(program) - exact) <= 0.5 * 2.0**-fraction + factor)


def test_a_mean_of_values_that_leave_no_room_for_its_factor_is_refused() -> None:
    def program(bound: float) -> Share:
        session = TwinSession()
        return session.mean(session.private(CLIENT, (3,), 16, bound, np.full(3, bound / 2)))

    with pytest.raises(ScaleError, match="no room in the ring for a mean over 3 values"):
        program(2.0**40)
    assert program(2.0**20).bound >= 2.0**19  # the control
