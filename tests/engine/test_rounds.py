"""Inputs and results of a program, and requests that share rounds, run by two real parties."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from comet_mpc.engine import Open, Reveal, Session, Truncate, TruncateOpen, Weight
from comet_mpc.engine.polynomial import Polynomial
from comet_mpc.engine.share import BOTH, CLIENT, SERVER, Share, Words, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import RangeError, ShapeError
from support.protocols import X, Y, Z, both_ways, secret, spread, uniform, units_of
from support.two_parties import run_two_parties, together, twin_value


@pytest.mark.parametrize(("to", "client", "server"), [(CLIENT, True, False), (SERVER, False, True), (BOTH, True, True)])
@pytest.mark.parametrize("width", [24, 64])
def test_a_result_is_revealed_to_those_it_is_for(to: int, client: bool, server: bool, width: int) -> None:
    units = units_of(9, (4, 3), 1000)

    def program(session: Session, _: Mapping[str, Weight]) -> Words | None:
        return session.reveal(uniform(session, secret(session, units, 8, width)), to)

    run = run_two_parties(program)
    for words, learns in ((run.client, client), (run.server, server)):
        assert (words is not None) == learns
        if words is not None:
            assert np.array_equal(decode(words, 8, width), units * 2.0**-8)


@pytest.mark.parametrize("owner", [CLIENT, SERVER])
def test_a_private_value_needs_its_owner_only(owner: int) -> None:
    values = np.array([1.5, -2.25])

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        mine = values if session.holds(owner) else None
        return session.private(owner, (2,), 8, 4.0, mine)

    run = run_two_parties(program)
    assert np.array_equal(together(run), values)
    other = (run.server, run.client)[owner]
    assert other.values is not None
    assert not other.values.any()
    assert run.plan.online_bytes == 0


def test_a_private_value_is_held_to_its_shape_and_bound() -> None:
    session = TwinSession()
    with pytest.raises(ShapeError, match="must supply it"):
        session.private(CLIENT, (2,), 8, 1.0)
    with pytest.raises(ShapeError, match=r"shape \(3,\), expected \(2,\)"):
        session.private(CLIENT, (2,), 8, 1.0, np.zeros(3))
    with pytest.raises(RangeError, match="exceeds its bound 1"):
        session.private(CLIENT, (2,), 8, 1.0, [0.0, -1.5])


def test_a_private_value_at_its_bound_is_still_within_it_when_rounded() -> None:
    """0.9 is 1.0 with one fraction bit: the twin, which checks every bound on every value, lets it pass."""
    session = TwinSession()
    rounded = session.private(CLIENT, (1,), 1, 0.9, [0.9])
    session.open(rounded)
    assert decode(rounded.flat(), 1).tolist() == [1.0]


def test_constants_cost_nothing_and_broadcast() -> None:
    units = units_of(2, (3, 4), 99)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.add_constant(secret(session, units, 8), [1.0, 2.0, -3.0, 0.5])

    run = run_two_parties(program)
    assert run.plan.online_bytes == 0
    assert np.array_equal(together(run), units * 2.0**-8 + [1.0, 2.0, -3.0, 0.5])


def test_a_polynomial_without_a_variable_is_refused() -> None:
    with pytest.raises(ShapeError, match="use `constant` instead"):
        TwinSession().evaluate(Polynomial.of(1.0), {}, bound=1.0)


def test_independent_requests_share_a_round() -> None:
    a, b, c = (units_of(seed, (2, 5), 2**12) for seed in range(3))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        shares = [secret(session, units, 12) for units in (a, b, c)]
        x, y, z = session.communicate(Open(shares[0]), Truncate(shares[1], 6), TruncateOpen(shares[2], 6))
        assert isinstance(y, Share)
        product = session.evaluate(X * Z, {"x": x, "z": z}, bound=1.5)  # type: ignore[dict-item]
        return product + y.lift(18)

    expected = twin_value(program)
    allowed = 2.0**-6 + spread(X * Z, {"x": 1.0, "z": 1.1}, {"z": 2.0**-6})
    for run, rounds in zip(both_ways(program), (1, 2), strict=True):
        assert run.plan.rounds == rounds
        assert np.max(np.abs(together(run) - expected)) <= allowed


@pytest.mark.parametrize("fused", [True, False])
def test_a_deferred_request_rides_along_and_changes_nothing(fused: bool) -> None:
    a, b = (units_of(seed, (2, 8), 2**12) for seed in range(2))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        later = session.defer(Truncate(uniform(session, secret(session, a, 12)), 6), Open)
        x = session.open(secret(session, b, 12))
        y = session.open(session.evaluate(X**2, {"x": x}, bound=1.0))
        return session.evaluate(X * Y, {"x": later.result(), "y": y}, bound=1.1)

    run = run_two_parties(program, fused=fused)
    assert run.plan.rounds == 3
    allowed = spread(X * Y, {"x": 1.0, "y": 1.0}, {"x": 2.0**-6})
    assert np.max(np.abs(together(run) - twin_value(program))) <= allowed


def test_a_deferred_request_without_company_takes_rounds_of_its_own() -> None:
    units = units_of(3, (8,), 2**12)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        later = session.defer(Truncate(secret(session, units, 12), 6), Open)
        return session.evaluate(X, {"x": later.result()}, bound=1.1)

    run = run_two_parties(program)
    assert run.plan.rounds == 2
    assert np.max(np.abs(together(run) - units * 2.0**-12)) <= 2.0**-6


def test_revealing_rides_along_with_other_requests() -> None:
    units = units_of(4, (3,), 100)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x = secret(session, units, 4)
        opened, result = session.communicate(Open(x), Reveal(x, BOTH))
        assert result is None or np.array_equal(decode(np.asarray(result), 4), units / 16)
        return session.evaluate(X, {"x": opened}, bound=x.bound)  # type: ignore[dict-item]

    assert run_two_parties(program).plan.rounds == 1


def test_what_is_dealt_in_chunks_fits_together() -> None:
    """More elements than the dealer holds at a time, and rows of odd lengths, for every kind of correlation."""
    rng = np.random.default_rng(11)
    weights = {
        "wide": Weight.encode("wide", rng.integers(-8, 9, (2100, 33)) / 8, 3),
        "vector": Weight.encode("vector", rng.integers(-8, 9, 33) / 8, 3),
    }
    tall, row = units_of(1, (2003, 33), 50), units_of(2, (33,), 50)

    def elementwise(session: Session, _: Mapping[str, Weight]) -> Share:
        x, y = session.open(secret(session, tall, 3), secret(session, row, 3))
        return session.truncate(session.evaluate(X**2 * Y, {"x": x, "y": y}, bound=300.0), 0)

    def rows(session: Session, held: Mapping[str, Weight]) -> Share:
        x = session.open(secret(session, tall, 3))
        return session.square_sum(x) + session.matmul(x, x, transposed=True)[:, :1].lift(6)

    def weighted(session: Session, held: Mapping[str, Weight]) -> Share:
        few = session.give(secret(session, tall[:3], 3))
        return session.linear(few, held["wide"])[:, :33] + session.scale(few, held["vector"])

    def scaled(session: Session, held: Mapping[str, Weight]) -> Share:
        return session.scale(session.give(secret(session, tall, 3)), held["vector"])

    for program in (elementwise, rows, weighted, scaled):
        run = run_two_parties(program, weights)
        assert np.array_equal(together(run), twin_value(program, weights))
