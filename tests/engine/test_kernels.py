"""The C++ kernels agree with plain numpy or Python integers, and with each other, bit for bit."""

from collections.abc import Callable
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_mpc.engine import kernels
from comet_mpc.engine.kernels import Exponents, Words
from comet_mpc.errors import ConfigurationError, ShapeError

ISAS = kernels.isa_names()
seeds = st.integers(0, 2**32)
every_isa = pytest.mark.parametrize("isa", ISAS)


def words(rng: np.random.Generator, *shape: int) -> Words:
    """Uniform words, a tenth of them replaced by values at which carries and signs change."""
    edges = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    values = rng.integers(0, 2**64, shape, np.uint64)
    return np.where(rng.random(shape) < 0.1, rng.choice(edges, shape), values)


def mask_of(width: int) -> np.uint64:
    return np.uint64(2**width - 1)


def test_the_portable_kernels_are_always_available() -> None:
    assert kernels.isa_names()[0] == "portable"


# Matrix products


@given(
    seed=seeds,
    batch=st.lists(st.integers(0, 3), max_size=2),
    m=st.integers(0, 20),
    k=st.integers(0, 40),
    n=st.integers(0, 40),
    transpose=st.booleans(),
    width=st.sampled_from([1, 8, 31, 32, 33, 48, 63, 64]),
)
def test_matmul_is_numpys(seed: int, batch: list[int], m: int, k: int, n: int, transpose: bool, width: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = words(rng, *batch, m, k), words(rng, *batch, k, n)
    expected = (x @ y) & mask_of(width)
    right = np.swapaxes(y, -1, -2) if transpose else y  # not contiguous: the wrapper must cope
    for isa in ISAS:
        got = kernels.matmul(x, right, transpose_right=transpose, width=width, isa=isa)
        np.testing.assert_array_equal(got, expected)


@given(
    seed=seeds,
    m=st.integers(0, 20),
    k=st.integers(0, 40),
    n=st.integers(0, 40),
    width=st.sampled_from([1, 8, 31, 32, 33, 48, 63, 64]),
)
def test_matmul_int32_takes_signed_weights(seed: int, m: int, k: int, n: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    x = words(rng, m, k)
    w = rng.integers(-(2**31), 2**31, (n, k)).astype(np.int32)
    w[rng.random((n, k)) < 0.1] = -(2**31)
    expected = (x @ w.astype(np.int64).view(np.uint64).T) & mask_of(width)
    for isa in ISAS:
        np.testing.assert_array_equal(kernels.matmul_int32(x, w, width=width, isa=isa), expected)


@every_isa
@pytest.mark.parametrize("shape", [(131, 769, 67), (1, 1000, 9), (260, 385, 8)])
def test_matmul_is_right_across_block_boundaries(isa: str, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(7)
    m, k, n = shape
    x, y, w = words(rng, m, k), words(rng, k, n), rng.integers(-(2**31), 2**31, (n, k)).astype(np.int32)
    np.testing.assert_array_equal(kernels.matmul(x, y, isa=isa), x @ y)
    np.testing.assert_array_equal(kernels.matmul(x, y, width=32, isa=isa), (x @ y) & mask_of(32))
    signed = w.astype(np.int64).view(np.uint64)
    np.testing.assert_array_equal(kernels.matmul_int32(x, w, isa=isa), x @ signed.T)
    np.testing.assert_array_equal(kernels.matmul(x, signed, transpose_right=True, isa=isa), x @ signed.T)


def test_inputs_need_not_be_contiguous_or_writable() -> None:
    rng = np.random.default_rng(3)
    x, y = words(rng, 10, 24)[::2, ::3], words(rng, 8, 12)[:, ::-1]
    x.flags.writeable = False
    np.testing.assert_array_equal(kernels.matmul(x, y), x @ y)


# Mask polynomials


def polynomial_at(terms: list[tuple[int, Exponents]], point: tuple[int, ...]) -> int:
    total = sum(c * prod(v**e for v, e in zip(point, K, strict=True)) for c, K in terms)
    return int(total) % 2**64


@st.composite
def polynomials(draw: st.DrawFn) -> list[tuple[int, Exponents]]:
    variables = draw(st.integers(1, 3))
    highest = 8 if variables == 1 else 3
    exponents = st.tuples(*[st.integers(0, highest)] * variables)
    return draw(st.lists(st.tuples(st.integers(-(2**70), 2**70), exponents), min_size=1, max_size=4))


def shares_of_monomials(
    rng: np.random.Generator, terms: list[tuple[int, Exponents]], masks: list[Words]
) -> tuple[dict[Exponents, Words], dict[Exponents, Words]]:
    highest = [max(K[i] for _, K in terms) for i in range(len(masks))]
    first, second = {}, {}
    for E in product(*(range(h + 1) for h in highest)):
        if any(E):
            value = np.ones_like(masks[0])
            for mask, e in zip(masks, E, strict=True):
                value *= mask ** np.uint64(e)
            first[E] = words(rng, *value.shape)
            second[E] = value - first[E]
    return first, second


@given(seed=seeds, terms=polynomials(), n=st.sampled_from([0, 1, 5, 33, 130]))
@settings(max_examples=60)
def test_shares_of_a_polynomial_add_up_to_its_value(seed: int, terms: list[tuple[int, Exponents]], n: int) -> None:
    rng = np.random.default_rng(seed)
    variables = len(terms[0][1])
    values, masks = ([words(rng, n) for _ in range(variables)] for _ in range(2))
    opened = [v - m for v, m in zip(values, masks, strict=True)]
    first, second = shares_of_monomials(rng, terms, masks)
    expected = np.array([polynomial_at(terms, tuple(int(v[i]) for v in values)) for i in range(n)], dtype=np.uint64)
    outputs = [
        (
            kernels.evaluate(terms, opened, first, True, isa=isa),
            kernels.evaluate(terms, opened, second, False, isa=isa),
        )
        for isa in ISAS
    ]
    for leader, follower in outputs:
        np.testing.assert_array_equal(leader + follower, expected)
        np.testing.assert_array_equal(leader, outputs[0][0])


@every_isa
def test_a_long_array_is_evaluated_in_blocks(isa: str) -> None:
    rng = np.random.default_rng(5)
    terms: list[tuple[int, Exponents]] = [(7, (1, 1)), (-3, (2, 3)), (11, (0, 0))]
    t, y, a, b = (words(rng, 3, 1001) for _ in range(4))
    first, second = shares_of_monomials(rng, terms, [a, b])
    total = kernels.evaluate(terms, [t - a, y - b], first, True, isa=isa)
    total += kernels.evaluate(terms, [t - a, y - b], second, False, isa=isa)
    seven, three, eleven = (np.uint64(c) for c in (7, 3, 11))
    np.testing.assert_array_equal(total, seven * t * y - three * t * t * y * y * y + eleven)


def test_a_missing_monomial_is_named() -> None:
    one = np.ones(3, np.uint64)
    with pytest.raises(ShapeError, match=r"\(2,\)"):
        kernels.evaluate([(1, (2,))], [one], {(1,): one}, leader=True)


def test_a_monomial_with_zero_coefficient_is_not_needed() -> None:
    one = np.ones(3, np.uint64)
    terms = [(5, (2,)), (2**64 - 5, (2,)), (4, (1,))]
    assert kernels.evaluate(terms, [one], {(1,): one}, leader=True).tolist() == [8, 8, 8]


# Truncation


def truncate_both(
    rng: np.random.Generator, z: Words, x0: Words, width: int, shift: int, isa: str | None = None
) -> tuple[Words, Words]:
    """Shares of z truncated, for shares x0 and z - x0."""
    n = z.size
    x0 = x0 & mask_of(width)
    x1 = (z - x0) & mask_of(width)
    bits = [rng.integers(0, 2, n).astype(np.uint8) for _ in range(2)]
    packed = [np.packbits(b, bitorder="little") for b in bits]
    p0 = words(rng, n)
    p1 = (bits[0] & bits[1]).astype(np.uint64) - p0
    e0 = kernels.truncate_mask(x0, packed[0], width, True, isa=isa)
    e1 = kernels.truncate_mask(x1, packed[1], width, False, isa=isa)
    return (
        kernels.truncate_finish(x0, packed[0], e0, e1, p0, width, shift, True, isa=isa),
        kernels.truncate_finish(x1, packed[1], e1, e0, p1, width, shift, False, isa=isa),
    )


def in_range(rng: np.random.Generator, width: int, n: int) -> Words:
    """Values in -2^(width-2) < z < 2^(width-2), both ends included."""
    end = 2 ** (width - 2)
    z = rng.integers(1 - end, end, n, np.int64)
    z[: min(n, 4)] = [1 - end, end - 1, 0, -1][: min(n, 4)]
    return z.view(np.uint64)


@every_isa
@pytest.mark.parametrize("width", range(8, 65))
def test_truncation_never_wraps(isa: str, width: int) -> None:
    rng = np.random.default_rng(width)
    for shift in range(width - 1):
        z = in_range(rng, width, 203)
        out0, out1 = truncate_both(rng, z, words(rng, z.size), width, shift, isa)
        signed = z.view(np.int64)
        error = (out0 + out1).view(np.int64) - (signed >> np.int64(shift))
        assert set(error.tolist()) <= {0, 1}
        assert not error[signed & np.int64(2**shift - 1) == 0].any()  # exact where nothing is cut off


@pytest.mark.parametrize("width", [20, 32, 48, 64])
@pytest.mark.parametrize("shift", [1, 2, 5, 7, 12, 16, 18, 30, 40, 62])
def test_truncation_is_unbiased(width: int, shift: int) -> None:
    if shift > width - 2:
        return
    rng = np.random.default_rng(width * 64 + shift)
    z = in_range(rng, width, 100_000)
    out0, out1 = truncate_both(rng, z, rng.integers(0, 2**64, z.size, np.uint64), width, shift)
    signed, step = z.view(np.int64), 2**shift
    fraction = (signed & np.int64(step - 1)) / step
    error = (out0 + out1).view(np.int64) - (signed >> np.int64(shift)) - fraction
    assert abs(error.mean()) < 0.01


@given(seed=seeds, n=st.integers(0, 40), width=st.integers(2, 64), leader=st.booleans(), data=st.data())
def test_truncation_is_the_same_on_every_isa(seed: int, n: int, width: int, leader: bool, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    shift = data.draw(st.integers(0, width - 2))
    x, p = words(rng, n), words(rng, n)
    b, e, f = (rng.integers(0, 256, (n + 7) // 8).astype(np.uint8) for _ in range(3))
    masks = [kernels.truncate_mask(x, b, width, leader, isa=isa) for isa in ISAS]
    ends = [kernels.truncate_finish(x, b, e, f, p, width, shift, leader, isa=isa) for isa in ISAS]
    top = ((x + np.uint64(leader * (2 ** (width - 2) - 1))) >> np.uint64(width - 1)) & np.uint64(1)
    own = np.unpackbits(b, bitorder="little")[:n]
    expected = np.packbits(1 - top.astype(np.uint8) ^ own, bitorder="little")
    for mask, end in zip(masks, ends, strict=True):
        np.testing.assert_array_equal(mask, expected)
        np.testing.assert_array_equal(end, ends[0])


# Packing


@given(seed=seeds, n=st.integers(0, 40), size=st.integers(1, 8))
def test_words_survive_packing(seed: int, n: int, size: int) -> None:
    x = words(np.random.default_rng(seed), n)
    expected = b"".join(int(v).to_bytes(8, "little")[:size] for v in x)
    for isa in ISAS:
        packed = kernels.pack_words(x, size, isa=isa)
        assert packed.tobytes() == expected
        for data in (packed, expected, bytearray(expected), memoryview(expected)):
            np.testing.assert_array_equal(kernels.unpack_words(data, size, n, isa=isa), x & mask_of(8 * size))


# Errors

ONE = np.ones((2, 2), np.uint64)
FLAT = np.ones(9, np.uint64)
PACKED = np.zeros(2, np.uint8)


@pytest.mark.parametrize(
    "call",
    [
        lambda: kernels.matmul(ONE, ONE.astype(np.int64)),
        lambda: kernels.matmul(ONE, ONE[:1]),
        lambda: kernels.matmul(ONE, ONE[None]),
        lambda: kernels.matmul(ONE[0], ONE[0]),
        lambda: kernels.matmul(ONE, ONE, width=65),
        lambda: kernels.matmul(ONE, ONE, width=0),
        lambda: kernels.matmul_int32(ONE, ONE),  # type: ignore[arg-type]
        lambda: kernels.matmul_int32(ONE, np.ones((2, 3), np.int32)),
        lambda: kernels.evaluate([(1, (1,))], [], {}, True),
        lambda: kernels.evaluate([(1, (9,))], [FLAT], {}, True),
        lambda: kernels.evaluate([(1, (1, 1))], [FLAT], {}, True),
        lambda: kernels.evaluate([(1, (1, 1))], [FLAT, FLAT[:3]], {}, True),
        lambda: kernels.evaluate([(1, (1,))], [FLAT], {(1,): FLAT[:3]}, True),
        lambda: kernels.truncate_mask(FLAT, PACKED[:1], 64, True),
        lambda: kernels.truncate_mask(FLAT, PACKED, 1, True),
        lambda: kernels.truncate_finish(FLAT, PACKED, PACKED, PACKED, FLAT, 64, 63, True),
        lambda: kernels.truncate_finish(FLAT, PACKED, PACKED, PACKED, FLAT[:3], 64, 3, True),
        lambda: kernels.pack_words(FLAT, 9),
        lambda: kernels.unpack_words(b"123", 2, 2),
    ],
)
def test_arrays_that_do_not_fit_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ShapeError):
        call()


def test_an_unknown_isa_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="portable"):
        kernels.matmul(ONE, ONE, isa="neon")
