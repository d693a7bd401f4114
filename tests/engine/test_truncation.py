"""Truncation, alone and in openings, run by two real parties: off by what it may be from the plaintext twin."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from comet_mpc.engine import Session, TruncateOpen, Weight
from comet_mpc.engine.correlations import Mask
from comet_mpc.engine.ops.truncate_open import opened_shifted, truncated_mask
from comet_mpc.engine.share import CLIENT, WORD, Share, Words, ring_width
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import RangeError
from support.protocols import (
    FEW,
    Integers,
    X,
    Y,
    both_ways,
    integers,
    polynomials,
    reach,
    secret,
    seeds,
    shapes,
    spread,
    uniform,
    units_of,
    whole,
)
from support.two_parties import Program, run_two_parties, together, twin_value


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


@pytest.mark.slow
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


@pytest.mark.slow
@given(st.data())
@FEW
def test_two_fused_openings_stay_within_what_two_units_can_do(data: st.DataObject) -> None:
    polynomial = data.draw(polynomials("xy", 2)) + X * Y
    assume(polynomial.names == ("x", "y"))  # what was drawn may be -x·y, and a number
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
        return session.evaluate(polynomial, {"x": x, "y": y}, bound=limit)

    expected = twin_value(program)
    allowed = spread(polynomial, bounds, {name: 2.0**-f for name, f in fractions.items()})
    for run in both_ways(program):
        assert np.max(np.abs(together(run) - expected), initial=0.0) <= allowed


def test_a_fused_opening_does_not_send_what_goes_but_for_three_bits() -> None:
    session = TwinSession()
    x = session.private(CLIENT, (80,), 30, 1.0, np.zeros(80), 40)
    assert [TruncateOpen(x, shift).wire_bytes() for shift in (1, 3, 4, 15)] == [
        (10 * width, 10 * width) for width in (40, 40, 39, 28)
    ]


@pytest.mark.parametrize("shift", [4, 11, 20])
def test_a_fused_opening_of_the_largest_values_of_a_ring_is_right(shift: int) -> None:
    """Rounded for free, some reach a quarter of the narrower ring, on either side."""
    largest = 2**22 - 1  # a ring of 24 bits holds it
    units = np.resize([largest, -largest, largest - 1, 0, 1 - largest], 5_000)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x = uniform(session, secret(session, units, shift).narrow(24))
        return session.evaluate(X, {"x": session.truncate_open(x, shift)}, bound=2.0 ** (23 - shift))

    for run in both_ways(program):
        result = whole(run)
        assert np.all((result == units >> shift) | (result == -(-units >> shift)))


@pytest.mark.parametrize(("width", "shift"), [(w, d) for w in (5, 6, 7) for d in range(1, w - 1)])
def test_a_fused_opening_is_right_for_every_share_and_mask_of_a_small_ring(width: int, shift: int) -> None:
    """All values that the ring holds, all shares, all masks: a neighbour of z / 2^shift, and as often what is opened is
    any number as any other, whatever the shares are."""
    largest = 2 ** (width - 2) - 1
    z, client = (part.reshape(-1) for part in np.meshgrid(np.arange(-largest, largest + 1), np.arange(2**width)))
    halves = [part.astype(np.uint64) for part in (client, (z - client) % 2**width)]
    bound = largest * 2.0**-shift
    opening, other = (TruncateOpen(Share((z.size,), shift, bound, width, own), shift) for own in halves)
    opening.check("here")
    ring, left, (mask,) = opening.ring, shift - opening.first, opening.demand()
    assert isinstance(mask, Mask)
    assert (mask.width, mask.shift) == (ring.width, left)
    parts = opening.cut(CLIENT) + other.cut(1 - CLIENT) + np.uint64(2 ** (ring.width - 2) - 1)
    seen = []
    for r in range(2**ring.width):
        c = (parts - np.uint64(r)) & np.uint64(2**ring.width - 1)
        public, sign = opened_shifted(c, ring.width, left)
        u, top = truncated_mask(np.array([r], np.uint64), ring.width, left)
        found = (public + u - sign * top * np.uint64(2 ** (width - 1 - shift))).view(np.int64)
        assert np.all((found == z >> shift) | (found == -(-z >> shift)))
        seen.append(c)
    assert np.array_equal(np.sort(seen, axis=0), np.tile(np.arange(2**ring.width)[:, None], z.size))


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
