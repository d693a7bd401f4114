"""Rings modulo an odd number: arithmetic, conversion from any ring into any other, and whole programs in them."""

from __future__ import annotations

import itertools
import secrets
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from comet_mpc.engine import Opened, Session, TruncateOpen
from comet_mpc.engine.ops.conversion import LARGEST_SCALED, MOST_OFF, Conversion, Cut
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.ring import (
    LATTICE_PRIMES,
    ODD_MODULI,
    Ring,
    is_prime,
    odd_ring,
    slot_primes,
)
from comet_mpc.engine.share import CLIENT, SERVER, Share, Words, concatenate
from comet_mpc.errors import PeerError, RangeError, ScaleError, ShapeError
from support.two_parties import Weights, run_two_parties, together, twin_value

X, Y = variables("x y")

RINGS = [odd_ring(2.0**bits) for bits in (30, 34, 44, 60)] + [Ring(width) for width in (24, 48, 56, 64)]


def random_integers(limit: int, count: int) -> list[int]:
    return [secrets.randbelow(2 * limit + 1) - limit for _ in range(count)]


def words(numbers: list[int], ring: Ring) -> Words:
    return np.array([number % ring.size for number in numbers], np.uint64)


@given(st.integers(2, 2**60))
@settings(max_examples=40, deadline=None)
def test_an_odd_ring_holds_what_it_was_asked_for(largest: int) -> None:
    ring = odd_ring(float(largest))
    assert ring.holds(largest)
    assert not any(Ring(t.bit_length(), t).holds(largest) for t in ODD_MODULI if t < ring.modulus)


@pytest.mark.parametrize(("modulus", "primes"), ODD_MODULI.items())
def test_the_primes_of_odd_rings_have_slots(modulus: int, primes: tuple[int, ...]) -> None:
    assert slot_primes(modulus) == primes
    assert all(is_prime(p) and p % 2**14 == 1 and p < 2**30 and p not in LATTICE_PRIMES for p in primes)


def test_what_no_odd_ring_holds_is_refused() -> None:
    with pytest.raises(RangeError, match="no odd ring"):
        odd_ring(2.0**62)
    for width, modulus in ((16, 65536), (17, 65539 * 3), (64, 2**63 + 1), (0, 3), (3, -5)):
        with pytest.raises(ShapeError):
            Ring(width, modulus)
    with pytest.raises(ShapeError, match="none of the odd rings"):
        slot_primes(2**40 + 1)


@pytest.mark.parametrize("ring", RINGS[:4])
def test_arithmetic_is_that_of_integers(ring: Ring) -> None:
    a, b = (random_integers(ring.size, 1000) for _ in range(2))
    x, y, t = words(a, ring), words(b, ring), ring.modulus
    assert ring.add(x, y).tolist() == [(i + j) % t for i, j in zip(a, b, strict=True)]
    assert ring.subtract(x, y).tolist() == [(i - j) % t for i, j in zip(a, b, strict=True)]
    assert ring.multiply(x, y).tolist() == [i * j % t for i, j in zip(a, b, strict=True)]
    assert ring.times(x, -12345678901234567890).tolist() == [i * -12345678901234567890 % t for i in a]
    assert ring.sum(x.reshape(10, 100), 1).tolist() == [sum(a[i : i + 100]) % t for i in range(0, 1000, 100)]
    assert ring.signed(x).tolist() == [i % t - t if 2 * (i % t) > t else i % t for i in a]
    assert ring.unpack(ring.pack(x).data, x.size).tolist() == x.tolist()
    assert ring.pack(x).size == ring.wire_bytes(x.size)


def test_numbers_that_are_no_residues_are_refused() -> None:
    ring = RINGS[1]
    with pytest.raises(PeerError, match="not below the modulus"):
        ring.unpack(b"\xff" * ring.wire_bytes(3), 3)
    with pytest.raises(ShapeError):
        ring.unpack(bytes(5), 3)


@pytest.mark.parametrize("ring", RINGS[:4])
def test_an_element_takes_two_words_of_a_seed_and_is_uniform_but_for_2_to_the_minus_64(ring: Ring) -> None:
    """⌊word·T/2^128⌋ of a word of 128 bits. One of 64 bits would not do: 2^64 mod T elements would come more often."""
    fresh = np.frombuffer(secrets.token_bytes(16 * 1000), np.uint64).copy()
    fresh[:4], fresh[-4:] = 0, 2**64 - 1
    assert ring.seed_words == 2
    wide = [int(low) | int(high) << 64 for low, high in fresh.reshape(-1, 2)]
    assert ring.from_seed(fresh).tolist() == [word * ring.modulus >> 128 for word in wide]


def surprising(elements: Words, ring: Ring, below: int) -> bool:
    """Whether more or fewer elements are below than a fair coin of that weight gives once in 10^10 times."""
    count = int(np.count_nonzero(elements < np.uint64(below)))
    coin = binom(elements.size, below / ring.modulus)
    return float(min(coin.cdf(count), coin.sf(count - 1))) < 1e-10


def test_elements_of_the_widest_odd_ring_are_spread_evenly() -> None:
    """T has 63 bits, so of a word of 64 bits mod T the first 2^64 mod T elements come three times, the others twice.

    These 1.8 % of the elements are counted, and those of either half, beside the control that takes such a word.
    """
    ring, count = RINGS[3], 200_000
    often = 2**64 % ring.modulus
    assert often < ring.modulus // 50
    fresh = np.frombuffer(secrets.token_bytes(16 * count), np.uint64)
    made = ring.from_seed(fresh)
    assert not surprising(made, ring, often)
    assert not surprising(made, ring, ring.modulus // 2)
    assert surprising(fresh[::2] % np.uint64(ring.modulus), ring, often)


def largest_converted(source: Ring, target: Ring, shift: float) -> int:
    """The largest |value| that fits; 0 where nothing is sent."""
    free = not source.modulus and not target.modulus and target.width <= source.width - shift
    limit = target.size / 4.1 if isinstance(shift, int) else min(target.size / 4.1, LARGEST_SCALED)
    fits = int(Fraction(2.0**shift) * int(limit))
    return 0 if free else min((int(source.size * 0.9985) >> 2) - int(2.0**shift) - 2, fits)


CONVERSIONS = [each for each in itertools.product(RINGS, RINGS, [0, 1, 9, 20, 7.614]) if largest_converted(*each) >= 2]


def shared(numbers: list[int], ring: Ring) -> tuple[Words, Words]:
    own = [secrets.randbelow(ring.size) for _ in numbers]
    return words(own, ring), words([a - b for a, b in zip(numbers, own, strict=True)], ring)


def converted(how: Conversion | Cut, z: list[int], ring: Ring) -> npt.NDArray[np.float64]:
    """Errors in units of the result, of values that are shared, converted with bits of products in `ring`, and put
    together."""
    count, shares = len(z), shared(z, how.source)
    bits = np.random.default_rng(1).integers(0, 2, (2, count)).astype(np.uint8)
    products = shared([int(a & b) for a, b in zip(*bits, strict=True)], ring)
    packed = [np.packbits(own, bitorder="little") for own in bits]
    sent = [how.mask(shares[i], packed[i], i == 0) for i in range(2)]
    made = [how.finish(shares[i], packed[i], sent[i], sent[1 - i], products[i], i == 0) for i in range(2)]
    return errors_of(made, z, how)


def errors_of(made: list[Words], z: list[int], how: Conversion | Cut) -> npt.NDArray[np.float64]:
    found = how.target.signed(how.target.add(*made)).tolist()
    return np.array([float(got - want * Fraction(2.0**-how.shift)) for got, want in zip(found, z, strict=True)])


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("source", "target", "shift"), CONVERSIONS)
def test_a_conversion_is_off_by_little_and_never_wraps(source: Ring, target: Ring, shift: float, small: bool) -> None:
    largest, count = largest_converted(source, target, shift), 2000
    z = [*random_integers(largest, count - 2), largest, -largest]
    if small:
        cut = Cut(source, shift, target, largest)
        errors = converted(cut, z, cut.product_ring)
    elif source.modulus or target.modulus:
        errors = converted(Conversion(source, shift, target), z, target)
    else:
        return
    assert np.max(np.abs(errors)) < MOST_OFF if shift else not errors.any()
    assert abs(errors.mean()) < 0.125 + 2.0 ** -(shift + 1) + 5 * 0.5 / np.sqrt(count)


def program(session: Session, weights: Weights) -> Share:
    """Into an odd ring and out of it again: squares, a product of two variables, sums of squares, a constant."""
    values = np.random.default_rng(5).uniform(-0.5, 0.5, (6, 40))
    x = session.private(CLIENT, (6, 40), 20, 0.5, values) + session.private(SERVER, (6, 40), 20, 0.5, values[::-1])
    ring = odd_ring(2.0**46)
    opened = session.open(session.truncate_to(x, 12, ring))
    rows = session.open(session.truncate_to(session.square_sum(opened, bound=40.0), 12, ring))
    y = session.evaluate(X**2 * Y - 0.5 * X + 0.25, {"x": opened, "y": rows}, fraction=36, bound=41.0)
    shifted = session.add_constant(y.lift(37), 1.5) - y.lift(37).times(2)
    return session.truncate_to(shifted.bounded(44.0), 12, 40)


@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_a_program_in_odd_rings_agrees_with_its_twin(source: str) -> None:
    run = run_two_parties(program, source=source, fused=False)  # type: ignore[arg-type]
    assert np.max(np.abs(together(run) - twin_value(program, fused=False))) < 0.02


@pytest.mark.parametrize("source", ["dealer", "pair"])
@pytest.mark.parametrize("before", [odd_ring(2.0**44), Ring(48)])
def test_an_opening_that_truncates_is_exactly_a_polynomial_of_a_neighbour(source: str, before: Ring) -> None:
    """Truncated and opened in one round: x is one number, off by less than 1.125 units, in every power of it."""
    values, ring, shift = np.random.default_rng(3).uniform(-0.9, 0.9, 300), odd_ring(2.0**60), 9
    factors = np.random.default_rng(4).uniform(-0.9, 0.9, 300)

    def program(session: Session, weights: Weights) -> Share:
        x, y = (session.private(owner, (300,), 20, 1.0, real) for owner, real in ((CLIENT, values), (SERVER, factors)))
        x = session.truncate_to(x.lift(21), 20, before)
        beside = session.open(session.truncate_to(y.lift(21), 8, ring))
        (opened,) = session.communicate(TruncateOpen(x, shift, ring.width, ring.modulus))
        assert isinstance(opened, Opened)
        whole = session.evaluate(X + 0 * Y, {"x": opened, "y": beside}, fraction=11, bound=1.0)
        cubed = session.evaluate(X**3 + 3 * X**2 * Y, {"x": opened, "y": beside}, fraction=33, bound=4.1)
        plain = session.evaluate(Y, {"y": beside}, fraction=8, bound=1.0)
        return concatenate([whole.lift(33), plain.lift(33), cubed], 0)

    run = run_two_parties(program, source=source, fused=False)  # type: ignore[arg-type]
    x, y, cubic = together(run).reshape(3, -1)
    assert np.max(np.abs(x - values)) < 1.2 * 2.0 ** (shift - 20)
    assert np.array_equal(cubic, x**3 + 3 * x**2 * y)


def test_rings_do_not_mix() -> None:
    ring = odd_ring(2.0**30)
    odd, even = (Share((2,), 4, 1.0, 32), Share((2,), 4, 1.0, ring.width, None, ring.modulus))
    with pytest.raises(ScaleError, match="different rings"):
        odd + even
    with pytest.raises(ShapeError, match="no smaller one"):
        even.narrow(8)
