"""Every protocol, run by two real parties, against its plaintext twin: equal, or off by what truncation may do.

Truncation gives one of the two neighbours of z/2^d (and z/2^d itself where that is an integer), the twin the nearer
one. So a truncated value differs from the twin's by at most one unit in the last place, and whatever is computed from
truncated values by at most what those units can do to it (`spread`). Where nothing is truncated, the two are equal.

`run_two_parties` also asserts that bytes and rounds are those of the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from comet_mpc.engine import Open, Reveal, Session, Truncate, TruncateOpen, Weight
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.share import BOTH, CLIENT, SERVER, WORD, Share, Words, decode, ring_width
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import RangeError, ScaleError, ShapeError
from support.two_parties import Program, Run, run_two_parties, together, twin_value

Integers = npt.NDArray[np.int64]

X, Y, Z = variables("x y z")
NAMES = ("x", "y", "z")
FEW = settings(max_examples=60)


def spread(polynomial: Polynomial, bounds: Mapping[str, float], units: Mapping[str, float]) -> float:
    """How much a polynomial can change when every |v| <= bounds[v] is off by at most units[v].

    |Π (v + e)^k - Π v^k| <= Π (b + u)^k - Π b^k, term by term.
    """
    total = 0.0
    for key, coefficient in polynomial.terms.items():
        above = math.prod((bounds[name] + units.get(name, 0.0)) ** power for name, power in key)
        total += abs(coefficient) * (above - math.prod(bounds[name] ** power for name, power in key))
    return total


def reach(polynomial: Polynomial, bounds: Mapping[str, float]) -> float:
    """The largest |value| for |v| <= bounds[v]."""
    return sum(abs(c) * math.prod(bounds[n] ** p for n, p in key) for key, c in polynomial.terms.items())


def secret(session: Session, units: Integers, fraction: int, width: int = WORD) -> Share:
    """units·2^-fraction, of which each party holds a part."""
    rng = np.random.default_rng(units.size)
    largest = int(np.max(np.abs(units), initial=1))
    client = rng.integers(-largest, largest + 1, units.shape)
    parts = [(CLIENT, client, largest), (SERVER, units - client, 2 * largest)]
    halves = [
        session.private(owner, units.shape, fraction, bound * 2.0**-fraction, part * 2.0**-fraction, width)
        for owner, part, bound in parts
    ]
    return (halves[0] + halves[1]).bounded(largest * 2.0**-fraction)


def uniform(session: Session, x: Share) -> Share:
    """The same value in shares that are uniform, as they are in the middle of a program."""
    return session.evaluate(X, {"x": session.open(x)}, bound=x.bound)


def integers(words: Words, width: int) -> Integers:
    return (words << np.uint64(WORD - width)).view(np.int64) >> np.int64(WORD - width)


def whole(run: Run[Share]) -> Integers:
    """The integer behind the two parties' shares."""
    assert run.client.values is not None
    assert run.server.values is not None
    return integers(run.client.values + run.server.values, run.client.width)


def units_of(seed: int, shape: Sequence[int], largest: int) -> Integers:
    return np.random.default_rng(seed).integers(-largest, largest + 1, tuple(shape))


def both_ways(program: Program[Share], weights: Mapping[str, Weight] | None = None) -> list[Run[Share]]:
    return [run_two_parties(program, weights, fused=fused) for fused in (True, False)]


def assert_equal_to_twin(program: Program[Share], weights: Mapping[str, Weight] | None = None) -> None:
    expected = twin_value(program, weights)
    for run in both_ways(program, weights):
        assert np.array_equal(together(run), expected)


seeds = st.integers(0, 2**32)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


# Openings and polynomials -----------------------------------------------------------------------------------


@st.composite
def polynomials(draw: st.DrawFn, names: Sequence[str], degree: int) -> Polynomial:
    terms: dict[tuple[tuple[str, int], ...], float] = {}
    for _ in range(draw(st.integers(1, 4))):
        powers = [draw(st.integers(0, degree)) for _ in names]
        key = tuple((name, power) for name, power in zip(names, powers, strict=True) if power)
        terms[key] = float(draw(st.sampled_from([-3, -2, -1, 1, 2, 5])))
    assume(any(terms))
    return Polynomial(terms)


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


# Truncation -------------------------------------------------------------------------------------------------


@st.composite
def truncations(draw: st.DrawFn) -> tuple[int, int, int, Integers]:
    """(width, shift, width afterwards, integers that fit)."""
    width = draw(st.integers(4, WORD))
    shift = draw(st.integers(0, width - 2))
    size = draw(st.integers(0, min(width - 3, 50)))
    values = units_of(draw(seeds), (draw(st.integers(1, 40)),), 2**size)
    values[0] = draw(st.sampled_from([0, 2**size, -(2**size)]))
    left = max(0, size - shift)
    return width, shift, draw(st.integers(min(WORD, left + 3), WORD)), values


@given(truncations(), st.booleans())
@settings(max_examples=150)
def test_truncation_gives_a_neighbour_and_whole_numbers_exactly(
    case: tuple[int, int, int, Integers], masked: bool
) -> None:
    width, shift, after, values = case

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x = secret(session, values, 0, WORD).narrow(width)
        return session.truncate(uniform(session, x) if masked else x, shift, after)

    result = whole(run_two_parties(program))
    below = values >> shift
    above = -((-values) >> shift)
    assert np.all((result == below) | (result == above))
    nearest = integers(np.asarray(twin_words(program)), after)
    assert np.all(np.abs(result - nearest) <= 1)
    assert np.all(np.abs(nearest * 2.0**shift - values) <= 2.0**shift / 2)


def twin_words(program: Program[Share]) -> Words:
    share = program(TwinSession(), {})
    assert share.values is not None
    return share.values


@pytest.mark.parametrize(("width", "shift", "after"), [(64, 12, 64), (64, 40, 64), (40, 12, 64), (48, 12, 24)])
def test_truncation_never_wraps(width: int, shift: int, after: int) -> None:
    """The largest values that fit, 200,000 times: a local truncation would break about every fourth of them."""
    size = 2.0 ** (width - 2) * (1 - 2.0**-20)
    count = 200_000
    if after < 64:
        size = min(size, 2.0 ** (after - 2 + shift) * (1 - 2.0**-10))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        ends = np.resize([size, -size], count)
        return session.truncate(uniform(session, session.private(CLIENT, (count,), 0, size, ends, width)), shift, after)

    result = together(run_two_parties(program))
    assert np.max(np.abs(result - np.resize([size, -size], count))) <= 2.0**shift


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", ["truncate", "truncate and open", "free"])
def test_truncation_is_unbiased(kind: str, fused: bool) -> None:
    count, shift = 40_000, 10
    units = np.resize([100, 1023, 1, 512, -300], count)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x = uniform(session, secret(session, units, shift))
        if kind == "truncate and open":
            return session.evaluate(X, {"x": session.truncate_open(x, shift)}, bound=4.0)
        return session.truncate(x, shift, 64 if kind == "truncate" else 48)

    error = together(run_two_parties(program, fused=fused)) - units * 2.0**-shift
    for residue in range(5):
        mean = float(np.mean(error[residue::5]))
        assert abs(mean) < 6.0 * 0.5 / math.sqrt(count / 5)


def test_a_truncation_out_of_range_is_refused() -> None:
    session = TwinSession()
    x = session.private(CLIENT, (1,), 20, 2.0, [1.0], 24)
    with pytest.raises(RangeError, match="cannot truncate by 23"):
        session.truncate(x, 23)
    with pytest.raises(RangeError, match="cannot truncate by -1"):
        session.truncate(x, -1)
    with pytest.raises(RangeError, match="no longer exact"):
        session.truncate(x.bounded(4.0), 4)
    with pytest.raises(RangeError, match="does not fit"):
        session.truncate(x, 4, 16)
    with pytest.raises(RangeError, match="does not fit"):
        session.truncate_open(x, 4, 16)


@given(st.data())
@settings(max_examples=80)
def test_a_fused_opening_is_exactly_a_polynomial_of_a_neighbour(data: st.DataObject) -> None:
    """p(floor(z/2^d)) or p(ceil(z/2^d)), to the last bit, for every degree up to 4 and shift up to 40."""
    power = data.draw(st.integers(1, 4))
    coefficient = data.draw(st.sampled_from([-1.0, 1.0, 3.0]))
    polynomial = coefficient * X**power + data.draw(st.sampled_from([0.0, 2.0])) * X
    shift = data.draw(st.integers(1, 40))
    size = data.draw(st.integers(1, 5))
    values = units_of(data.draw(seeds), data.draw(shapes), 2 ** (size + shift))
    limit = reach(polynomial, {"x": 2.0**size + 1})
    after = data.draw(st.integers(math.floor(math.log2(limit)) + 3, WORD))
    before = data.draw(st.integers(size + shift + 4, WORD))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x = uniform(session, secret(session, values, shift, before))
        return session.evaluate(polynomial, {"x": session.truncate_open(x, shift, after)}, bound=limit)

    def plain(v: Integers) -> Integers:
        return np.asarray(sum(int(c) * v ** sum(p for _, p in key) for key, c in polynomial.terms.items()))

    below, above = plain(values >> shift), plain(-((-values) >> shift))
    for run in both_ways(program):
        result = whole(run)
        assert np.all((result == below) | (result == above))


@given(st.data())
@FEW
def test_two_fused_openings_stay_within_what_two_units_can_do(data: st.DataObject) -> None:
    polynomial = data.draw(polynomials("xy", 2)) + X * Y
    assume(polynomial.terms)  # what was drawn may be -x·y
    shifts = [data.draw(st.integers(1, 40)) for _ in range(2)]
    fractions = {"x": data.draw(st.integers(0, 6)), "y": data.draw(st.integers(0, 6))}
    sizes = data.draw(mutually_broadcastable_shapes(num_shapes=2, min_dims=1, max_dims=3, max_side=3)).input_shapes
    values = [
        units_of(data.draw(seeds), size, 2 ** (fraction + shift + 2))
        for size, fraction, shift in zip(sizes, fractions.values(), shifts, strict=True)
    ]
    bounds = {name: 4.0 + 2.0**-fraction for name, fraction in fractions.items()}
    limit = reach(polynomial, bounds)
    fraction = max(sum(power * fractions[name] for name, power in key) for key in polynomial.terms)
    widths = [data.draw(st.integers(ring_width(fraction, limit), WORD)) for _ in range(2)]

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        secrets = [
            uniform(session, secret(session, v, f + s))
            for v, f, s in zip(values, fractions.values(), shifts, strict=True)
        ]
        requests = [TruncateOpen(x, s, w) for x, s, w in zip(secrets, shifts, widths, strict=True)]
        x, y = session.communicate(*requests)
        return session.evaluate(polynomial, {"x": x, "y": y}, bound=limit)  # type: ignore[dict-item]

    expected = twin_value(program)
    allowed = spread(polynomial, bounds, {name: 2.0**-f for name, f in fractions.items()})
    for run in both_ways(program):
        assert np.max(np.abs(together(run) - expected), initial=0.0) <= allowed


def test_a_fused_opening_by_no_bits_is_an_opening() -> None:
    units = units_of(6, (40,), 20)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.evaluate(X, {"x": session.truncate_open(secret(session, units, 0), 0)}, bound=21.0)

    assert np.array_equal(whole(run_two_parties(program)), units)


@pytest.mark.parametrize(("fraction", "width"), [(20, 64), (14, 64), (8, 64), (8, 24), (8, 48), (20, 32)])
def test_reopening_gives_the_value_with_the_bits_asked_for(fraction: int, width: int) -> None:
    values = units_of(3, (50,), 2**14)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x = uniform(session, secret(session, values, 14, 40))
        return session.evaluate(X, {"x": session.reopen(x, fraction, width)}, bound=1.01)

    unit = 2.0**-fraction if fraction < 14 else 0.0
    for run in both_ways(program):
        assert run.client.fraction == fraction
        assert np.max(np.abs(together(run) - values * 2.0**-14)) <= unit


# Matrices, rows, weights --------------------------------------------------------------------------------------


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
    with pytest.raises(ShapeError, match="a truncation"):
        session.square_sum(fused)


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


def test_a_mean_of_large_values_is_accurate_or_refused() -> None:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.mean(session.private(CLIENT, (3,), 16, 2.0**40, np.full(3, 2.0**39)))

    try:
        result = twin_value(program)
    except ScaleError:
        return
    assert np.max(np.abs(result / 2.0**39 - 1.0)) < 1e-3


# Inputs and results -------------------------------------------------------------------------------------------


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
    session = TwinSession()
    session.open(session.private(CLIENT, (1,), 1, 0.9, [0.9]))


def test_constants_cost_nothing_and_broadcast() -> None:
    units = units_of(2, (3, 4), 99)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.add_constant(secret(session, units, 8), [1.0, 2.0, -3.0, 0.5])

    run = run_two_parties(program)
    assert run.plan.online_bytes == 0
    assert np.array_equal(together(run), units * 2.0**-8 + [1.0, 2.0, -3.0, 0.5])


def test_a_constant_polynomial_is_a_constant_or_a_typed_error() -> None:
    try:
        TwinSession().evaluate(Polynomial.of(1.0), {}, bound=1.0)
    except ShapeError:
        return


# Rounds ---------------------------------------------------------------------------------------------------------


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
