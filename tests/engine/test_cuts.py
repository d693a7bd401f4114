"""Cuts from one ring into another: small products of bits, and cuts that send nothing into odd rings."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.correlations import BitProducts
from comet_mpc.engine.ops.conversion import LARGEST_SCALED, LEAST_SHIFT, LEAST_WIDTH, MOST_OFF, Cut, free_shift
from comet_mpc.engine.ring import ODD_MODULI, Ring
from comet_mpc.engine.share import CLIENT, Share, Words
from comet_mpc.errors import RangeError, ScaleError, ShapeError
from support.protocols import X, secret, seeds, shapes, uniform, units_of
from support.two_parties import run_two_parties, together, twin_value

T33, T37, T41, T50, T59, T63 = (Ring(modulus.bit_length(), modulus) for modulus in ODD_MODULI)
ANY_RING = [T33, T37, T41, T50, T59, T63, *(Ring(width) for width in range(20, 65))]


def elements(numbers: list[int], ring: Ring) -> Words:
    return np.array([number % ring.size for number in numbers], np.uint64)


def shared(numbers: list[int], ring: Ring) -> list[Words]:
    own = [secrets.randbelow(ring.size) for _ in numbers]
    return [elements(own, ring), elements([a - b for a, b in zip(numbers, own, strict=True)], ring)]


def errors(made: list[Words], z: list[int], cut: Cut) -> npt.NDArray[np.float64]:
    """Of what two shares make, in units of the result."""
    found, scale = cut.target.signed(cut.target.add(*made)).tolist(), Fraction(2.0**-cut.shift)
    return np.array([float(got - want * scale) for got, want in zip(found, z, strict=True)])


def carried_out(cut: Cut, z: list[int], *, ring: Ring | None = None) -> npt.NDArray[np.float64]:
    """ring: of the product of the bits, if another than the cut asks for"""
    shares = shared(z, cut.source)
    if cut.free:
        return errors([cut.free_part(share, i == 0) for i, share in enumerate(shares)], z, cut)
    bits = [np.frombuffer(secrets.token_bytes(len(z)), np.uint8) & 1 for _ in range(2)]
    products = shared((bits[0] & bits[1]).tolist(), ring or cut.product_ring)
    packed = [np.packbits(own, bitorder="little") for own in bits]
    sent = [cut.mask(shares[i], packed[i], i == 0) for i in range(2)]
    return errors([cut.finish(shares[i], packed[i], sent[i], sent[1 - i], products[i], i == 0) for i in (0, 1)], z, cut)


def values_up_to(largest: int, count: int) -> list[int]:
    return [largest, -largest, 0, *(secrets.randbelow(2 * largest + 1) - largest for _ in range(count - 3))]


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    source, target = (draw(st.sampled_from(ANY_RING)) for _ in range(2))
    shift = draw(st.one_of(st.integers(1, source.width - 4), st.floats(LEAST_SHIFT, source.width - 4.0)))
    room = int(min(source.size / 4.1, target.size / 4.1 * 2.0**shift)) - int(2.0**shift) - 2
    assume(room > 2)
    if isinstance(shift, float):
        assume(source.width >= LEAST_WIDTH)
        room = min(room, int(LARGEST_SCALED * 2.0**shift))
    largest = draw(st.one_of(st.just(room), st.integers(1, room)))
    return Cut(source, shift, target, largest)


@given(cuts())
@settings(max_examples=300, deadline=None)
def test_a_cut_is_off_by_little_whatever_the_rings(cut: Cut) -> None:
    found = carried_out(cut, values_up_to(int(cut.largest), 60))
    assert np.max(np.abs(found)) < MOST_OFF
    assert cut.free or cut.product_ring.width <= cut.target.width


@pytest.mark.parametrize(
    ("cut", "bits"),
    [
        (Cut(T33, 13, T33, 2.0**26), 13),
        (Cut(T33, 16, T33, 1.1 * 2**30), 16),
        (Cut(Ring(32), 16, T33, 2.0**29), 17),
        (Cut(T33, 16, Ring(46), 1.1 * 2**30), 30),
        (Cut(T33, 8, Ring(47), 1.25 * 2**28), 25),
        (Cut(T33, 14, Ring(32), 1.01 * 2**28), 20),
        (Cut(T63, 33, Ring(49), 32.7 * 2**48), 24),
        (Cut(T50, 8, Ring(53), 27.9 * 2**26), 21),
        (Cut(T63, 51, T63, 24.9 * 2.0**56), 51),
    ],
)
def test_products_of_bits_are_small(cut: Cut, bits: int) -> None:
    """Those of a layer of BERT-base. In the target's ring they have 32 to 63 bits."""
    assert cut.product_ring.width <= bits
    assert np.max(np.abs(carried_out(cut, values_up_to(int(cut.largest), 3000)))) < MOST_OFF


def test_a_product_in_a_ring_that_is_too_small_would_be_noticed() -> None:
    """The control: a modulus that is two less makes K·P another number than N, and what wraps is not zero any more."""
    cut = Cut(T33, 16, Ring(46), 1.1 * 2**30)
    ring = cut.product_ring
    other = Ring((ring.modulus - 2).bit_length(), ring.modulus - 2)
    z = values_up_to(int(cut.largest), 1000)
    assert np.max(np.abs(carried_out(cut, z))) < MOST_OFF
    assert np.max(np.abs(carried_out(cut, z, ring=other))) > 1000


@pytest.mark.parametrize("ring", [Ring(40), T33, T63])
def test_a_change_of_ring_alone_is_exact(ring: Ring) -> None:
    """Bits of a padding mask, say: whatever else is near enough is not good enough for them."""
    for source in (Ring(64), Ring(48), T63):
        found = carried_out(Cut(source, 0, ring, 1.0), [0, 1, -1] * 500)
        assert not found.any()


def test_whole_numbers_are_exact_within_a_ring() -> None:
    z = [unit << 13 for unit in values_up_to(2**17, 2000)]
    assert not carried_out(Cut(T33, 13, T33, 2.0**30), z).any()


# Cuts that send nothing ------------------------------------------------------------------------------------------


@given(st.sampled_from([T33, T37, T50]), st.integers(50, 64), st.integers(8, 16), st.integers(30, 44))
@settings(max_examples=100, deadline=None)
def test_a_free_cut_into_an_odd_ring_is_off_by_less_than_a_unit(
    ring: Ring, width: int, least: int, fraction: int
) -> None:
    assume(2.0 ** (width + least - fraction) < 2**15 * ring.size)
    shift = free_shift(Ring(width), fraction, least, ring)
    assume(shift > 0.0)
    assert least - 2.0**-30 <= fraction - shift <= max(least + 1, fraction + math.log2(ring.size) - width + 2.0**-30)
    largest = int(min(2.0 ** (width - 2) * 0.99, ring.size / 4.1 * 2.0**shift))
    assume(largest * 2.0**-shift < 2.0**34)
    cut = Cut(Ring(width), shift, ring, largest)
    assert cut.free
    assert np.max(np.abs(carried_out(cut, values_up_to(largest, 200)))) < 1.0 + 1.0 / 32


def test_a_free_cut_never_wraps_and_one_by_any_other_scale_would() -> None:
    """100,000 values up to the limit; the control divides by 2^22 as if it were free, and is mostly wrong."""
    ring, width, count = T33, 55, 100_000
    shift = free_shift(Ring(width), 36, 13, ring)
    largest = int(ring.size / 4.1 * 2.0**shift)
    z = values_up_to(largest, count)
    assert np.max(np.abs(carried_out(Cut(Ring(width), shift, ring, largest), z))) < 1.0 + 1.0 / 32
    shares = shared(z, Ring(width))
    made = [share >> np.uint64(22) for share in shares]
    wrong = errors([ring.reduced(made[0]), ring.reduced(made[1])], z, Cut(Ring(width), 22, ring, largest))
    assert np.mean(np.abs(wrong) > 1000) > 0.3


def test_a_free_cut_is_unbiased_whatever_is_cut_off() -> None:
    """The share is uniform and T odd, so its part below the unit is uniform too, and so is the coin."""
    ring, width, count = T33, 55, 40_000
    shift = free_shift(Ring(width), 36, 13, ring)
    for unit in (1.25, 7.5, -3.01):
        found = carried_out(Cut(Ring(width), shift, ring, 2.0**36), [round(unit * 2.0**shift)] * count)
        assert abs(found.mean()) < 6 * 0.5 / math.sqrt(count)
        assert len(np.unique(np.round(found, 6))) == 2


def test_rounding_down_at_both_parties_would_be_noticed() -> None:
    """The control of the test above."""
    ring, width, count = T33, 55, 40_000
    shift = free_shift(Ring(width), 36, 13, ring)
    z = [round(1.25 * 2.0**shift)] * count
    cut = Cut(Ring(width), shift, ring, 2.0**36)
    made = [cut.free_part(share, False) for share in shared(z, Ring(width))]
    assert abs(errors(made, z, cut).mean()) > 0.4


# In programs -----------------------------------------------------------------------------------------------------


@given(shapes, seeds, st.integers(52, 58), st.sampled_from(["dealer", "pair"]))
@settings(max_examples=12, deadline=None)
def test_a_program_with_a_free_cut_agrees_with_its_twin(
    shape: tuple[int, ...], seed: int, width: int, source: str
) -> None:
    """x² and x from one opening, as an activation has them; the scale is none of a power of two in between."""
    units = units_of(seed, shape, 2**36)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x = uniform(session, secret(session, units, 36, width))
        opened = session.open(session.cut_to(x, 13, T33, 15.2))
        square = session.evaluate(X**2, {"x": opened}, bound=1.01)
        again = session.reopen(session.add_constant(square, 0.25), 13, T33)
        value = session.evaluate(X + 0.5, {"x": again}, fraction=28, bound=2.0)
        half = session.evaluate(0.5 * X, {"x": opened}, fraction=28, bound=0.6)
        return session.truncate_to(value + half, 14, 40)

    run = run_two_parties(program, source=source, fused=False)  # type: ignore[arg-type]
    unit = 2.0**-13
    allowed = (2 * 1.01 + 0.5 + 1.0) * (MOST_OFF + 0.5) * unit + (MOST_OFF + 0.5) * 2.0**-14
    assert np.max(np.abs(together(run) - twin_value(program, fused=False))) <= allowed
    real = units * 2.0**-36
    assert np.max(np.abs(together(run) - (real**2 + 0.75 + 0.5 * real))) <= allowed + unit


def test_a_free_cut_sends_nothing_and_draws_nothing() -> None:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.cut_to(session.private(CLIENT, (5,), 36, 1.0, np.linspace(-1, 1, 5), 55), 13, T33, 15.0)

    run = run_two_parties(program, fused=False)
    assert (run.plan.rounds, run.plan.correlations) == (0, ())
    assert run.client.ring == T33
    assert run.client.fraction == pytest.approx(36 + math.log2(T33.size) - 55)


@pytest.mark.parametrize("most", [13.0, 13.5])
def test_where_a_free_cut_would_leave_too_many_bits_a_round_is_taken(most: float) -> None:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.cut_to(session.private(CLIENT, (5,), 36, 1.0, np.linspace(-1, 1, 5), 55), 13, T33, most)

    run = run_two_parties(program, fused=False)
    assert run.plan.rounds == 1
    (products,) = run.plan.correlations
    assert isinstance(products, BitProducts)
    assert products.width < 16
    assert run.client.fraction == 13


def test_in_powers_of_two_a_cut_is_a_truncation() -> None:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.cut_to(session.private(CLIENT, (5,), 36, 1.0, np.linspace(-1, 1, 5), 55), 13, Ring(32), 15.0)

    run = run_two_parties(program)
    assert (run.plan.rounds, run.client.fraction) == (0, 13)


def test_scales_that_differ_by_a_part_of_a_bit_are_not_mixed() -> None:
    odd, whole = (
        Share((2,), 13.807, 1.0, T33.width, None, T33.modulus),
        Share((2,), 13, 1.0, T33.width, None, T33.modulus),
    )
    with pytest.raises(ScaleError, match="fraction bits differ"):
        odd + whole
    with pytest.raises(ScaleError, match="not by whole bits"):
        odd.lift(15)


@pytest.mark.parametrize(("largest", "shift", "width"), [(2.0**60, 8.5, 64), (2.0**20, 0.5, 64), (2.0**20, 6.5, 31)])
def test_a_large_value_or_one_that_loses_few_bits_is_truncated_by_whole_bits(
    largest: float, shift: float, width: int
) -> None:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return session.truncate(session.private(CLIENT, (1,), 0, largest, [largest], width), shift, 64)

    with pytest.raises(RangeError, match="only by whole bits"):
        run_two_parties(program)


def test_an_opening_that_truncates_in_a_power_of_two_is_by_whole_bits() -> None:
    def program(session: Session, _: Mapping[str, Weight]) -> object:
        return session.truncate_open(session.private(CLIENT, (2,), 20, 1.0, [0.5, 0.5], 40), 6.5, 40)

    with pytest.raises(ShapeError, match="by whole bits"):
        run_two_parties(program)
