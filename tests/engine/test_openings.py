"""Openings and polynomials in opened tensors, run by two real parties: exactly the plaintext twin's."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.polynomial import Polynomial
from comet_mpc.engine.share import CLIENT, WORD, Share
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import RangeError, ScaleError, ShapeError
from support.protocols import (
    FEW,
    NAMES,
    X,
    Y,
    Z,
    assert_equal_to_twin,
    polynomials,
    reach,
    secret,
    seeds,
    shapes,
    units_of,
)
from support.two_parties import run_two_parties, twin_value


@given(st.data())
@FEW
def test_a_polynomial_in_opened_tensors_is_exact(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3))
    polynomial = data.draw(polynomials(NAMES[:count], 3))
    names = polynomial.names
    sizes = data.draw(
        mutually_broadcastable_shapes(num_shapes=len(names), min_dims=1, max_dims=3, max_side=4)
    ).input_shapes
    fractions = {name: data.draw(st.integers(0, 3)) for name in names}
    values = {name: units_of(data.draw(seeds), size, 6) for name, size in zip(names, sizes, strict=True)}
    limit = reach(polynomial, {name: 6 * 2.0 ** -fractions[name] for name in names})
    fraction = max(sum(power * fractions[name] for name, power in key) for key in polynomial.terms)
    narrowest = max(8, math.floor(math.log2(limit * 2.0**fraction)) + 3)
    assume(narrowest <= WORD)
    width = data.draw(st.integers(narrowest, WORD))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        secrets = [secret(session, values[name], fractions[name], width) for name in names]
        opened = [session.open(x) for x in secrets]
        return session.evaluate(polynomial, dict(zip(names, opened, strict=True)), bound=limit)

    assert_equal_to_twin(program)
    real = {name: values[name] * 2.0 ** -fractions[name] for name in names}
    exact = sum(
        (c * math.prod((real[n] ** p for n, p in key), start=np.float64(1.0)) for key, c in polynomial.terms.items()),
        start=np.zeros(np.broadcast_shapes(*sizes)),
    )
    assert np.array_equal(twin_value(program), exact)


@given(st.data())
@FEW
def test_one_opening_serves_any_number_of_polynomials(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    values = [units_of(data.draw(seeds), shape, 20) for _ in range(2)]
    first, second = data.draw(polynomials("xy", 2)), data.draw(polynomials("xy", 3))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x, y = session.open(secret(session, values[0], 4), secret(session, values[1], 4))
        bounds = {"x": 2.0, "y": 2.0}
        results = [session.evaluate(p, {"x": x, "y": y}, fraction=24, bound=reach(p, bounds)) for p in (first, second)]
        return results[0] + results[1]

    run = run_two_parties(program)
    assert run.plan.rounds == 1
    assert_equal_to_twin(program)


def test_a_polynomial_that_is_missing_a_variable_or_room_is_refused() -> None:
    def opened(session: Session, polynomial: Polynomial, bound: float) -> Share:
        x = session.private(CLIENT, (2,), 12, 4.0, np.ones(2), 32)
        y = session.private(CLIENT, (3,), 12, 4.0, np.ones(3), 32)
        return session.evaluate(polynomial, {"x": session.open(x), "y": session.open(y)}, bound=bound)

    with pytest.raises(ShapeError, match="needs z"):
        opened(TwinSession(), X * Z, 1.0)
    with pytest.raises(ShapeError, match="shapes do not fit"):
        opened(TwinSession(), X * Y, 1.0)
    with pytest.raises(RangeError, match="ring of 32 bits"):
        opened(TwinSession(), X**2, 64.0)
    with pytest.raises(ScaleError, match="vanishes"):
        opened(TwinSession(), X**2 + 2.0**-40 * X, 1.0)
