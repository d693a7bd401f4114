"""Fixed point and shares: local arithmetic on the parts is arithmetic on the whole."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_mpc.engine.share import WORD, Share, Words, concatenate, decode, encode, ring_width, word_bytes
from comet_mpc.errors import RangeError, ScaleError, ShapeError

FRACTION = 6


def random_words(seed: int, shape: tuple[int, ...]) -> Words:
    return np.random.default_rng(seed).integers(0, 2**64, shape, dtype=np.uint64)


def split(values: np.ndarray, fraction: int, seed: int, bound: float = 8.0, width: int = WORD) -> tuple[Share, Share]:
    """Uniform shares of a real tensor."""
    client = random_words(seed, values.shape)
    server = encode(values, fraction, width) - client
    if width < WORD:
        server += random_words(seed + 1, values.shape) << np.uint64(width)
    one, other = (Share(values.shape, fraction, bound, width, words) for words in (client, server))
    return one, other


def value(client: Share, server: Share) -> np.ndarray:
    assert client.values is not None
    assert server.values is not None
    assert (client.shape, client.fraction, client.width) == (server.shape, server.fraction, server.width)
    return decode(client.values + server.values, client.fraction, client.width)


@given(
    st.lists(st.floats(-1000, 1000), min_size=1, max_size=20),
    st.integers(0, 40),
    st.integers(0, 11),
)
def test_decoding_undoes_encoding_up_to_half_a_unit(values: list[float], fraction: int, spare: int) -> None:
    width = min(WORD, fraction + 13 + spare)
    decoded = decode(encode(values, fraction, width), fraction, width)
    assert np.all(np.abs(decoded - values) <= 2.0 ** -(fraction + 1))


@given(st.integers(2, 64), st.integers(0, 2**64 - 1))
def test_decoding_reads_the_low_bits_as_a_signed_integer(width: int, word: int) -> None:
    low = word % 2**width
    expected = low - 2**width if low >= 2 ** (width - 1) else low
    assert decode(np.array([word], np.uint64), 0, width)[0] == float(expected)


@pytest.mark.parametrize("width", [16, 24, 33, 64])
def test_encoding_refuses_what_a_truncation_could_not_carry(width: int) -> None:
    limit = 2.0 ** (width - 2)
    below = limit - max(1.0, limit * 2.0**-52)
    assert decode(encode([below, -below], 0, width), 0, width).tolist() == [below, -below]
    for outside in (limit, -limit):
        with pytest.raises(RangeError, match="outside the fixed-point range"):
            encode([outside], 0, width)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_encoding_refuses_numbers_that_are_not_finite(wrong: float) -> None:
    with pytest.raises(RangeError, match="not finite"):
        encode([1.0, wrong], 16)


@given(st.floats(1.0, 2.0**30), st.integers(0, 24))
def test_the_ring_is_wide_enough_and_one_bit_less_would_not_do(bound: float, fraction: int) -> None:
    width = ring_width(fraction, bound)
    assert bound * 2.0**fraction < 2.0 ** (width - 2)
    assert width == 8 or bound * 2.0**fraction >= 2.0 ** (width - 3)


@given(st.floats(2.0**-30, 1.0), st.integers(0, 40))
def test_the_ring_is_wide_enough_for_small_bounds_too(bound: float, fraction: int) -> None:
    assert bound * 2.0**fraction < 2.0 ** (ring_width(fraction, bound) - 2)


def test_no_ring_is_wider_than_a_word() -> None:
    assert ring_width(40, 2.0**21) == WORD
    with pytest.raises(RangeError, match="do not fit"):
        ring_width(40, 2.0**22)


@pytest.mark.parametrize(("width", "size"), [(2, 1), (8, 1), (9, 2), (24, 3), (57, 8), (64, 8)])
def test_an_element_takes_whole_bytes_where_it_is_stored(width: int, size: int) -> None:
    assert word_bytes(width) == size


LOCAL: dict[str, tuple[Callable[[Share, Share], Share], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "subtract": (lambda x, y: x - y, lambda x, y: x - y),
    "negate": (lambda x, y: -x, lambda x, y: -x),
    "times": (lambda x, y: x.times(-37), lambda x, y: x * -37),
    "lift": (lambda x, y: x.lift(FRACTION + 9), lambda x, y: x),
    "times a power": (lambda x, y: x.times_power(-3), lambda x, y: x / 8),
    "narrow": (lambda x, y: x.narrow(20), lambda x, y: x),
    "sum": (lambda x, y: x.sum(), lambda x, y: x.sum(axis=-1)),
    "sum, axis kept": (lambda x, y: x.sum(0, keep=True), lambda x, y: x.sum(axis=0, keepdims=True)),
    "reshape": (lambda x, y: x.reshape(4, 3, 2), lambda x, y: x.reshape(4, 3, 2)),
    "transpose": (lambda x, y: x.transpose(2, 0, 1), lambda x, y: x.transpose(2, 0, 1)),
    "slice": (lambda x, y: x[1, ..., ::2], lambda x, y: x[1, ..., ::2]),
    "concatenate": (lambda x, y: concatenate([x, y], axis=1), lambda x, y: np.concatenate([x, y], axis=1)),
    "broadcast": (lambda x, y: x + y[0, 0], lambda x, y: x + y[0, 0]),
}


@pytest.mark.parametrize("name", LOCAL)
def test_working_on_shares_is_working_on_values(name: str) -> None:
    on_shares, on_values = LOCAL[name]
    rng = np.random.default_rng(7)
    x, y = (rng.integers(-500, 501, (2, 3, 4)) * 2.0**-FRACTION for _ in range(2))
    parts = [split(real, FRACTION, seed) for seed, real in enumerate((x, y))]
    client, server = (on_shares(parts[0][party], parts[1][party]) for party in (0, 1))
    expected = on_values(x, y)
    assert np.array_equal(value(client, server), expected)
    assert client.shape == expected.shape
    assert np.max(np.abs(expected)) <= client.bound
    assert client.count == expected.size


@pytest.mark.parametrize("name", LOCAL)
def test_a_planned_share_has_the_shape_scale_and_bound_of_a_real_one(name: str) -> None:
    on_shares, _ = LOCAL[name]
    real = split(np.zeros((2, 3, 4)), FRACTION, 1)[0]
    planned = on_shares(real.with_values(None), real.with_values(None))
    done = on_shares(real, real)
    assert planned.values is None
    assert (planned.shape, planned.fraction, planned.bound, planned.width) == (
        done.shape,
        done.fraction,
        done.bound,
        done.width,
    )


def test_what_does_not_fit_together_is_refused() -> None:
    x = Share((2, 3), 8, 1.0, 32, random_words(1, (2, 3)))
    with pytest.raises(ScaleError, match="8 and 9"):
        _ = x + x.lift(9)
    with pytest.raises(ScaleError, match="that is a truncation"):
        x.lift(7)
    with pytest.raises(ScaleError, match="concatenated"):
        concatenate([x, x.lift(9)], axis=0)
    with pytest.raises(ShapeError, match="do not fit"):
        _ = x + Share((4,), 8, 1.0, 32, random_words(2, (4,)))
    with pytest.raises(ShapeError, match="do not fit"):
        concatenate([x, x.reshape(3, 2)], axis=0)
    with pytest.raises(ShapeError, match="mixed"):
        _ = x - x.with_values(None)
    with pytest.raises(ShapeError, match="widen"):
        x.narrow(40)
    with pytest.raises(ShapeError, match="reshape"):
        x.reshape(5)
    with pytest.raises(ShapeError, match="no values"):
        x.with_values(None).flat()
    with pytest.raises(ShapeError, match="given values of shape"):
        x.with_values(random_words(3, (3, 2)))
    for width in (1, 65):
        with pytest.raises(ShapeError, match="width"):
            Share((1,), 8, 1.0, width)
    for bound in (-1.0, math.nan, math.inf):
        with pytest.raises(RangeError, match="bound"):
            Share((1,), 8, bound)


def test_a_sum_of_rings_is_in_the_narrower_one() -> None:
    x, y = (Share((3,), 8, 1.0, width, random_words(width, (3,))) for width in (24, 40))
    assert (x + y).width == (y - x).width == concatenate([y, x], axis=0).width == 24


@given(st.integers(4, 64), st.integers(0, 63))
def test_a_ring_grows_along_with_the_bits_that_are_lifted(width: int, shift: int) -> None:
    """The words above the ring are rubbish, and stay out of the value."""
    values = np.array([-1.0, 0.0, 3.0])
    client, server = (part.lift(shift) for part in split(values, 0, 11, bound=3.0, width=width))
    assert client.width == min(WORD, width + shift)
    kept = min(WORD, width + shift) - shift
    if kept >= 4:
        assert np.array_equal(value(client, server), values)


def test_flat_words_are_in_the_order_of_the_view() -> None:
    words = np.arange(6, dtype=np.uint64).reshape(2, 3)
    assert Share((2, 3), 0, 6.0, 64, words).transpose(1, 0).flat().tolist() == [0, 3, 1, 4, 2, 5]
