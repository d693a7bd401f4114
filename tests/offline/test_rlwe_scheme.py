"""The lattice arithmetic is exact, its parameters are within the security table, and its noise is as derived."""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from comet_mpc import _native
from comet_mpc.engine.seeds import new_seed
from comet_mpc.errors import PeerError, RangeError, ShapeError, WrongSize
from comet_mpc.offline.rlwe.packing import (
    Packing,
    PackingKeys,
    multiply_turned,
    packed_scheme,
    packing_keys,
    packing_noise,
    turning_noise,
)
from comet_mpc.offline.rlwe.public_key import PublicKey, common_seed, make_public_key, respond
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    ERROR_VARIANCE,
    FAILURE_BITS,
    MAX_LOG_Q,
    PRIMES,
    Residues,
    Scheme,
    SecretKey,
    Stream,
    basis,
    by_rows,
    choose_scheme,
    multiply_short,
    read_uploads,
    round_words,
    scale_words,
)
from comet_mpc.offline.rlwe.slots import PrimeModulus, choose_plan, split
from support.big_polynomials import lift, negacyclic, noise, secret_of

RNG = np.random.default_rng(7)
every_isa = pytest.mark.parametrize("isa", _native.lattice_isa_names())
SLOT_PRIMES = (2572289, 2654209, 2752513)


def random_residues(primes: tuple[int, ...], count: int = DEGREE) -> Residues:
    return np.concatenate([RNG.integers(0, prime, count, dtype=np.uint32) for prime in primes])


def forward(primes: tuple[int, ...], x: Residues, isa: str = "") -> Residues:
    out = np.empty_like(x)
    _native.lattice_forward(basis(primes), x, out, isa)
    return out


def backward(primes: tuple[int, ...], x: Residues, isa: str = "") -> Residues:
    out = np.empty_like(x)
    _native.lattice_backward(basis(primes), x, out, isa)
    return out


def random_words(count: int, width: int = 64) -> npt.NDArray[np.uint64]:
    return RNG.integers(0, 2**width, count, dtype=np.uint64)


# Transforms ------------------------------------------------------------------------------------------------


@every_isa
@pytest.mark.parametrize("primes", [PRIMES, SLOT_PRIMES, (65537,)])
def test_a_product_of_transforms_is_the_product_of_polynomials(primes: tuple[int, ...], isa: str) -> None:
    x, y = random_residues(primes), random_residues(primes)
    x[:3] = primes[0] - 1
    product = np.concatenate(
        [
            (a.astype(np.uint64) * b % prime).astype(np.uint32)
            for a, b, prime in zip(
                forward(primes, x, isa).reshape(-1, DEGREE),
                forward(primes, y, isa).reshape(-1, DEGREE),
                primes,
                strict=True,
            )
        ]
    )
    result = backward(primes, product, isa).reshape(-1, DEGREE)
    for i in range(min(2, len(primes))):
        part = slice(i * DEGREE, (i + 1) * DEGREE)
        expected = negacyclic([int(v) for v in x[part]], [int(v) for v in y[part]])
        assert [int(v) for v in result[i]] == [value % primes[i] for value in expected]


@every_isa
def test_transforms_are_the_same_on_every_instruction_set_and_undo_each_other(isa: str) -> None:
    for x in (random_residues(PRIMES), np.zeros(7 * DEGREE, np.uint32), random_residues(PRIMES) * 0 + 1):
        transformed = forward(PRIMES, x, isa)
        assert np.array_equal(transformed, forward(PRIMES, x, "portable"))
        assert np.array_equal(backward(PRIMES, transformed, isa), x)


@every_isa
@pytest.mark.parametrize("live", [2**k for k in range(1, 11)])
def test_a_short_polynomial_is_a_long_one_with_zeros(live: int, isa: str) -> None:
    short = random_residues(PRIMES[:2], live)
    full = np.zeros((2, DEGREE), np.uint32)
    full[:, :live] = short.reshape(2, live)
    out = np.empty(2 * DEGREE, np.uint32)
    _native.lattice_forward_short(basis(PRIMES[:2]), short, live, out, isa)
    assert np.array_equal(out, forward(PRIMES[:2], full.reshape(-1), "portable"))


def test_known_answers() -> None:
    """The transform of 1 + 2·X + 3·X² + …, and an encryption under fixed seeds: a change of either shows up here."""
    counting = np.tile(np.arange(1, DEGREE + 1, dtype=np.uint32), len(PRIMES))
    assert digest(forward(PRIMES, counting)) == "c41ee6e2945f9d03f9577d590c2b6bde"
    key = SecretKey(Stream(bytes(16)))
    words = np.arange(DEGREE, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert (
        digest(key.encrypt_words(Scheme(6, 64), words, 64, bytes(range(16)), 3)) == "b0d0c6fc4e00a54775cd09f5cb7d9135"
    )


def key_pair() -> tuple[SecretKey, PublicKey]:
    key, seed = SecretKey(), new_seed()
    return key, PublicKey.decode(make_public_key(key, seed), seed)


def digest(array: npt.NDArray[np.generic]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:32]


@pytest.mark.parametrize("number", [1073692673 + 2, 2**14 + 1, 3, 2**31 - 1, 163841 * 16385])
def test_a_number_that_is_no_such_prime_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="prime"):
        _native.Basis([number % 2**32])


def test_a_basis_of_equal_primes_is_refused() -> None:
    with pytest.raises(ValueError, match="differ"):
        _native.Basis([PRIMES[0], PRIMES[0]])


# Parameters and noise ---------------------------------------------------------------------------------------


def test_every_modulus_is_within_the_security_table() -> None:
    assert math.log2(math.prod(PRIMES)) <= MAX_LOG_Q == 214
    assert all(prime < 2**30 and prime % (2 * DEGREE) == 1 for prime in PRIMES)


@pytest.mark.parametrize("width", [32, 40, 48, 56, 64])
@pytest.mark.parametrize("norm", [1.0, 2.0**31 * 55, 2.0**36])
def test_a_wrong_rounding_is_less_likely_than_promised(width: int, norm: float) -> None:
    """Of 2^28 outputs: both the noise and what is cut off from C1 tip one over with a probability below 2^-41."""
    scheme = choose_scheme(width, norm)
    deviation = math.sqrt((ERROR_VARIANCE + 1) * norm**2 + ERROR_VARIANCE * (DEGREE * 4 / 3 + 1))
    cut = math.sqrt(DEGREE * (2 / 3) / 12) * 2.0**-scheme.response_bits
    for error in (deviation * 2.0**-scheme.log_q, cut):
        assert math.sqrt(2 / math.pi) * error * 2.0**width * 2**28 <= 2.0**-41
    assert scheme.limbs == 1 or Scheme(scheme.limbs - 1, width).log_q < width + 69 + math.log2(deviation)


def test_a_product_that_no_modulus_carries_is_refused() -> None:
    with pytest.raises(RangeError, match="modulus"):
        choose_scheme(64, 2.0**90)


def test_secrets_and_errors_have_their_distributions() -> None:
    stream = Stream()
    errors = np.concatenate([stream.errors(DEGREE) for _ in range(20)]).astype(np.float64)
    assert abs(errors.mean()) < 0.05
    assert errors.var() == pytest.approx(ERROR_VARIANCE, rel=0.03)
    assert np.abs(errors).max() <= 21
    ternary = np.concatenate([stream.ternary() for _ in range(20)])
    counts = [int((ternary == value).sum()) for value in (-1, 0, 1)]
    assert all(abs(count - ternary.size / 3) < 5 * math.sqrt(ternary.size * 2 / 9) for count in counts)
    assert sum(counts) == ternary.size
    uniform = stream.residues((65537, 114689), 20000).reshape(2, -1)
    assert uniform[0].max() < 65537
    assert uniform[1].max() < 114689
    assert uniform[1].mean() == pytest.approx(114689 / 2, rel=0.02)


# Encryption --------------------------------------------------------------------------------------------------


def test_a_ternary_number_takes_every_byte_but_one() -> None:
    """Each of -1, 0 and 1 from 85 bytes, and 255 from none: else -1 would be likelier by 1 in 256."""
    out = np.empty(255, np.int8)
    assert _native.lattice_sample_ternary(np.arange(256, dtype=np.uint8)[::-1].copy(), out)
    assert [int(np.count_nonzero(out == value)) for value in (-1, 0, 1)] == [85, 85, 85]
    assert not _native.lattice_sample_ternary(np.full(300, 255, np.uint8), out)


@pytest.mark.parametrize(("limbs", "width"), [(4, 32), (5, 40), (6, 64), (7, 56)])
def test_a_scaled_word_is_rounded_exactly(limbs: int, width: int) -> None:
    scheme = Scheme(limbs, width)
    words = random_words(200, width)
    words[:4] = [0, 1, 2**width - 1, 2 ** (width - 1)]
    q = math.prod(scheme.primes)
    expected = [((q * int(word) + 2 ** (width - 1)) >> width) % q for word in words]
    assert lift(scale_words(scheme, words, width), scheme.primes) == expected


@every_isa
@pytest.mark.parametrize("count", [1, 7, 8, 200])
def test_numbers_are_scaled_rounded_and_split_alike_on_every_instruction_set(count: int, isa: str) -> None:
    plain, primes = basis(SLOT_PRIMES), basis(PRIMES[:6])
    residues, words = random_residues(SLOT_PRIMES, count), random_words(count)
    fractions = random_words(3 * count)
    fractions[:3] = 2**64 - 1

    def all_of(isa: str) -> list[npt.NDArray[np.generic]]:
        odd, power = np.empty(6 * count, np.uint32), np.empty(6 * count, np.uint32)
        shares, joined, upper = np.empty(3 * count, np.uint32), np.empty(count, np.uint64), np.empty(count, np.uint8)
        _native.lattice_scale_odd(primes, plain, residues, odd, isa=isa)
        _native.lattice_scale_power(primes, words, 64, power, isa=isa)
        _native.lattice_round_odd(plain, fractions, shares, isa=isa)
        _native.lattice_split(plain, residues, joined, upper, isa=isa)
        return [odd, power, shares, joined, upper]

    t, numbers = math.prod(SLOT_PRIMES), fractions.reshape(-1, 3)
    found = all_of(isa)
    assert all(np.array_equal(x, y) for x, y in zip(found, all_of("portable"), strict=True))
    values = [sum(int(word) << 64 * k for k, word in enumerate(number)) for number in numbers]
    assert lift(found[2].astype(np.uint32), SLOT_PRIMES) == [((t * v + 2**191) >> 192) % t for v in values]


def test_a_scaled_number_modulo_primes_is_rounded_exactly() -> None:
    plain, primes = math.prod(SLOT_PRIMES), PRIMES
    residues = random_residues(SLOT_PRIMES, 300)
    residues.reshape(3, -1)[:, 0] = 0
    residues.reshape(3, -1)[:, 1] = [prime - 1 for prime in SLOT_PRIMES]
    out = np.empty(len(primes) * 300, np.uint32)
    _native.lattice_scale_odd(basis(primes), basis(SLOT_PRIMES), residues, out)
    q = math.prod(primes)
    assert lift(out, primes) == [(q * m + plain // 2) // plain % q for m in lift(residues, SLOT_PRIMES)]


def test_a_fresh_encryption_is_the_scaled_message_and_a_small_error() -> None:
    key, seed, scheme = SecretKey(), new_seed(), choose_scheme(64, 2.0**30)
    words = random_words(DEGREE)
    data = b"".join(key.encrypt_words(scheme, words, 64, seed, index).tobytes() for index in range(2))
    secret = secret_of(key)
    assert set(secret) == {-1, 0, 1}
    message = lift(scale_words(scheme, words, 64), scheme.primes)
    for ciphertext in read_uploads([scheme, scheme], seed, data):
        errors = noise(ciphertext, secret, scheme, message)
        assert max(map(abs, errors)) <= 21
        assert np.var(np.array(errors, np.float64)) == pytest.approx(ERROR_VARIANCE, rel=0.1)


@pytest.mark.parametrize("width", [32, 56, 64])
def test_products_are_shared_exactly_and_their_noise_is_as_derived(width: int) -> None:
    bits, inputs, live = 32, 3, 16
    scheme = choose_scheme(width, 2.0 ** (bits - 1) * math.sqrt(inputs * live))
    (key, public), seed = key_pair(), new_seed()
    words = [random_words(DEGREE) for _ in range(inputs)]
    data = b"".join(key.encrypt_words(scheme, word, width, seed, index).tobytes() for index, word in enumerate(words))
    right = RNG.choice([-(2**31), 2**31 - 1], (1, inputs, live)).astype(np.int64)
    left = np.stack(read_uploads([scheme] * inputs, seed, data))[None]
    ciphertext = multiply_short(scheme, by_rows(left), right)[0, 0]
    assert np.array_equal(ciphertext, multiply_short(scheme, by_rows(left), right, isa="portable")[0, 0])

    exact = [0] * DEGREE
    for word, polynomial in zip(words, right[0], strict=True):
        padded = [int(v) for v in polynomial] + [0] * (DEGREE - live)
        exact = [a + b for a, b in zip(exact, negacyclic([int(v) for v in word], padded), strict=True)]
    q = math.prod(scheme.primes)
    scaled = [((q * (value % 2**width) + 2 ** (width - 1)) >> width) % q for value in exact]
    measured = np.array(noise(ciphertext, secret_of(key), scheme, scaled), np.float64)
    promised = math.sqrt(ERROR_VARIANCE + 0.25) * 2.0 ** (bits - 1) * math.sqrt(inputs * live)
    assert 0.5 * promised < math.sqrt(float(np.mean(measured**2))) <= promised * 1.05

    positions = np.array(sorted(RNG.choice(DEGREE, 500, replace=False)), np.uint32)
    response, kept = respond(scheme, ciphertext, public, positions, Stream())
    shares = round_words(kept, width) + round_words(key.phase(scheme, response, positions), width)
    assert [int(v) % 2**width for v in shares] == [exact[p] % 2**width for p in positions]


def test_roundings_go_wrong_as_often_as_derived() -> None:
    """With a gap of a few bits, where failures can be counted: the probability is E|e|·T/q."""
    width, scheme = 16, Scheme(1, 16)
    key, public = key_pair()
    everywhere, wrong, errors = np.arange(DEGREE, dtype=np.uint32), 0, []
    for _ in range(4):
        words, seed = random_words(DEGREE, width), new_seed()
        (upload,) = read_uploads([scheme], seed, key.encrypt_words(scheme, words, width, seed, 0).tobytes())
        one = np.zeros((1, 1, 2), np.int64)
        one[0, 0, 0] = 1
        ciphertext = multiply_short(scheme, by_rows(upload[None, None]), one)[0, 0]
        response, kept = respond(scheme, ciphertext, public, everywhere, Stream())
        phases = key.phase(scheme, response, everywhere)
        shares = round_words(kept, width) + round_words(phases, width)
        wrong += int(np.count_nonzero((shares - words) << np.uint64(64 - width)))
        total = (kept.reshape(-1, 3)[:, 2] + phases.reshape(-1, 3)[:, 2]).view(np.uint64)  # in units of 2^-64
        errors.append((total - (words << np.uint64(64 - width))).view(np.int64) * 2.0 ** (width - 64))
    expected = float(np.abs(np.concatenate(errors)).mean()) * 4 * DEGREE
    assert expected > 300
    assert abs(wrong - expected) < 6 * math.sqrt(expected)


@pytest.mark.parametrize("bits", [24, 40, 64])
def test_slots_multiply_exactly(bits: int) -> None:
    (modulus, *_) = choose_plan(2, ((0, 1),), bits, bits).moduli
    (key, public), seed = key_pair(), new_seed()
    left, right = (
        [random_residues(modulus.primes) for _ in range(2)],
        [random_residues(modulus.primes) for _ in range(2)],
    )
    scheme = modulus.scheme
    data = b"".join(key.encrypt(scheme, modulus.scale(x), seed, index).tobytes() for index, x in enumerate(left))
    uploads = read_uploads([scheme, scheme], seed, data)
    ciphertext = modulus.multiply(uploads, [modulus.transform(y) for y in right])
    everywhere = np.arange(DEGREE, dtype=np.uint32)
    response, kept = respond(scheme, ciphertext, public, everywhere, Stream())
    slots = modulus.round(kept) + modulus.round(key.phase(scheme, response, everywhere))
    for i, prime in enumerate(modulus.primes):
        part = slice(i * DEGREE, (i + 1) * DEGREE)
        expected = np.sum([x[part].astype(object) * y[part] for x, y in zip(left, right, strict=True)], axis=0)
        assert np.array_equal(slots[i] % prime, (expected % prime).astype(np.uint32))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_number_modulo_many_primes_is_split_exactly(count: int) -> None:
    primes = (2424833, 2654209, 2768897, 2572289, 2752513)[:count]
    product = math.prod(primes)
    numbers = [0, 1, product // 2 - 1, product // 2, product // 2 + 1, product - 1]
    numbers += [int.from_bytes(RNG.bytes(20), "little") % product for _ in range(100)]
    residues = np.array([[number % prime for number in numbers] for prime in primes], np.uint32).reshape(-1)
    words, upper = split(primes, residues)
    assert [int(v) for v in words] == [number % 2**64 for number in numbers]
    assert [bool(v) for v in upper] == [2 * number >= product for number in numbers]


def keys_of(key: SecretKey, packing: Packing) -> PackingKeys:
    seed = new_seed()
    return PackingKeys(seed, b"".join(packing_keys(key, packing, seed)), packing)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "levels", "limbs"),
    [(2, 1, 5), (3, 2, 6), (1, 3, 5), (5, 3, 7), (8, 3, 5), (9, 4, 6), (17, 5, 5), (3, 6, 6), (5, 7, 5), (8, 7, 6)],
)
@every_isa
def test_packing_interleaves_and_its_noise_is_within_the_bound(count: int, levels: int, limbs: int, isa: str) -> None:
    """From as many primes as are kept, or from more."""
    scheme, kept = Scheme(limbs, 32), Scheme(5, 32)
    key, seed = SecretKey(), new_seed()
    words = [random_words(DEGREE, 32) for _ in range(count)]
    data = b"".join(key.encrypt_words(scheme, word, 32, seed, index).tobytes() for index, word in enumerate(words))
    one = np.zeros((1, 1, 2), np.int64)
    one[0, 0, 0] = 1
    uploads = read_uploads([scheme] * count, seed, data)
    divided = [multiply_short(scheme, by_rows(x[None, None]), one, 2**levels, isa)[0, 0] for x in uploads]
    packed = keys_of(key, Packing.MERGES).pack(scheme, kept, np.stack(divided), levels, isa)
    expected = np.zeros(DEGREE, np.uint64)
    for place, word in enumerate(words):
        expected[place :: 2**levels] = word[:: 2**levels]
    message = lift(scale_words(kept, expected, 32), kept.primes)
    rest = np.array(noise(packed.reshape(2, 5, DEGREE), secret_of(key), kept, message), np.float64)
    assert np.mean(rest**2) <= packing_noise(5, levels) + 2 * ERROR_VARIANCE
    assert np.mean(rest**2) > packing_noise(5, levels) / 100


def test_a_transformed_polynomial_is_turned_by_moving_its_elements() -> None:
    key = SecretKey()
    places, straight, turned = (np.empty(size, np.uint32) for size in (DEGREE, DEGREE, DEGREE))
    for step in (1, 129, 1 + DEGREE, 2 * DEGREE - 1, 3):
        _native.lattice_turned_places(step, places)
        _native.lattice_transform_small(basis(PRIMES[:1]), key.turned(1), straight, "")
        _native.lattice_transform_small(basis(PRIMES[:1]), key.turned(step), turned, "")
        assert np.array_equal(straight[places], turned)


def random_weights(*shape: int) -> npt.NDArray[np.int64]:
    return RNG.integers(-(2**10), 2**10 + 1, shape)


@dataclass(frozen=True)
class Turned:
    """Encryptions that are turned, multiplied by integers (outputs, inputs, live) and packed: what goes wrong in it."""

    y: npt.NDArray[np.int64]
    levels: int
    turns: int
    limbs: int
    more: int

    def noise(self, isa: str) -> npt.NDArray[np.float64]:
        """Of all coefficients; checks that it is the same by plain code."""
        width, (outputs, inputs, _) = 8, self.y.shape
        scheme, wider = Scheme(self.limbs, width), Scheme(self.limbs + self.more, width)
        key, seed = SecretKey(), new_seed()
        words = [random_words(DEGREE, width) for _ in range(inputs)]
        data = b"".join(
            key.encrypt_words(scheme, word, width, seed, index).tobytes() for index, word in enumerate(words)
        )
        keys, uploads = keys_of(key, Packing.TURNS), read_uploads([scheme] * inputs, seed, data)

        def all_of(isa: str) -> list[Residues]:
            left = keys.turn(scheme, wider, [uploads], self.levels, self.turns, isa=isa)
            sums = multiply_turned(wider, left, self.y, self.levels, plain_limbs=self.limbs, isa=isa)
            packed = keys.pack(wider, scheme, sums[0].copy(), self.levels - self.turns, isa)
            return [left[..., : 2 * DEGREE], sums, packed]  # a row behind is not used

        with pytest.raises(ShapeError, match="no keys"):
            keys.turn(scheme, wider, [uploads], self.levels, self.turns + 4)
        found = all_of(isa)
        assert all(np.array_equal(one, other) for one, other in zip(found, all_of("portable"), strict=True))
        with pytest.raises(ShapeError):
            multiply_turned(wider, found[0], self.y[..., : 2**self.levels // 2], self.levels, plain_limbs=self.limbs)
        expected = np.zeros(DEGREE, np.uint64)
        for o in range(outputs):
            product = np.zeros(2 * DEGREE, np.uint64)
            for word, factor in zip(words, self.y[o].view(np.uint64), strict=True):
                for place, number in enumerate(factor):
                    product[place : place + DEGREE] += word * number
            expected[o :: 2**self.levels] = (product[:DEGREE] - product[DEGREE:])[:: 2**self.levels]
        message = lift(scale_words(scheme, expected % np.uint64(2**width), width), scheme.primes)
        return np.array(noise(found[2].reshape(2, self.limbs, DEGREE), secret_of(key), scheme, message), np.float64)

    def bound(self) -> float:
        """Of its variance."""
        norm = math.sqrt(np.square(self.y).sum(axis=(1, 2)).max())
        larger = math.prod(PRIMES[self.limbs : self.limbs + self.more])
        turning = turning_noise(self.limbs + self.more, self.levels, norm) / larger**2
        return (ERROR_VARIANCE + 1) * norm**2 + turning + packing_noise(self.limbs, self.levels)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outputs", "inputs", "levels", "turns", "limbs", "more"),
    [(16, 1, 4, 1, 5, 0), (3, 2, 5, 2, 5, 1), (32, 1, 5, 2, 4, 1), (37, 2, 6, 3, 5, 1), (70, 1, 7, 4, 6, 0)],
)
@every_isa
def test_turning_uploads_spares_merges_and_its_noise_is_within_the_bound(
    outputs: int, inputs: int, levels: int, turns: int, limbs: int, more: int, isa: str
) -> None:
    """As packing the products themselves would; also where a prime more makes room for the noise of turning."""
    product = Turned(random_weights(outputs, inputs, 2**levels), levels, turns, limbs, more)
    variance = np.mean(product.noise(isa) ** 2)
    assert product.bound() / 100 < variance <= product.bound()


@pytest.mark.slow
def test_weights_of_alternating_signs_have_all_the_noise_that_turning_may_have() -> None:
    """X^(m·d)·y_m is the same for all m but for its sign: the worst there is, and twice as bad as unrelated weights."""
    levels, turns, live = 4, 1, 64
    distance = 2 ** (levels - turns)
    y = np.zeros((2**levels, 1, live), np.int64)
    y[:distance, :, distance:] = random_weights(distance, 1, live - distance)
    unrelated = Turned(random_weights(*y.shape), levels, turns, 5, 0)
    y[distance:, :, :-distance] = -y[:distance, :, distance:]
    alternating = Turned(y, levels, turns, 5, 0)
    assert np.mean(unrelated.noise("") ** 2) < 0.65 * unrelated.bound()
    worst = np.mean(alternating.noise("") ** 2)
    assert 0.65 * alternating.bound() < worst < 1.3 * alternating.bound()


def test_packing_needs_fewer_primes_than_products_but_never_too_few() -> None:
    for width, levels, norm in itertools.product((32, 48, 56, 64), (1, 6, 7), (1.0, 2.0**20, 2.0**28)):
        scheme = choose_scheme(width, norm, packing_noise(len(PRIMES), levels))
        kept = packed_scheme(scheme, norm, levels)
        noise = math.sqrt(
            (ERROR_VARIANCE + 1) * (norm * 2 ** (kept.log_q - scheme.log_q)) ** 2 + packing_noise(kept.limbs, levels)
        )
        assert kept.limbs <= scheme.limbs
        assert math.log2(noise) + width + FAILURE_BITS <= kept.log_q + 1
    assert packed_scheme(Scheme(6, 56), 2.0**28, 6).limbs == 5


def test_a_response_is_uniform_whatever_was_uploaded_unless_the_client_chose_the_key() -> None:
    """Twice the same ciphertext, of a message or of nothing at all: the answers have nothing in common."""
    scheme, (key, public), seed = choose_scheme(64, 2.0**31), key_pair(), new_seed()
    positions = np.arange(64, dtype=np.uint32)
    data = key.encrypt_words(scheme, random_words(DEGREE), 64, seed, 0).tobytes()
    (upload,) = read_uploads([scheme], seed, data)
    for ciphertext in (upload, np.zeros_like(upload)):
        (first, own), (second, other) = (
            respond(scheme, ciphertext.copy(), public, positions, Stream()) for _ in range(2)
        )
        assert not np.array_equal(own, other)
        for sent in (first, second, first ^ second):
            assert chi_squared(sent) < LIMIT
        shares = [
            round_words(kept, 64) + round_words(key.phase(scheme, sent, positions), 64)
            for sent, kept in ((first, own), (second, other))
        ]
        assert np.array_equal(shares[0], shares[1])
    chosen = PublicKey(*np.zeros((2, len(PRIMES) * DEGREE), np.uint32))  # pk1 = 0: what a common seed prevents
    sent, _ = respond(scheme, np.zeros_like(upload), chosen, positions, Stream())
    assert chi_squared(sent) > LIMIT


LIMIT = 255 + 6 * math.sqrt(2 * 255)


def chi_squared(data: npt.NDArray[np.uint8]) -> float:
    counts = np.bincount(data, minlength=256)
    return float(((counts - data.size / 256) ** 2 / (data.size / 256)).sum())


def test_neither_party_alone_chooses_the_public_polynomial() -> None:
    seeds = {common_seed(client, server) for client in (b"a" * 16, b"b" * 16) for server in (b"a" * 16, b"b" * 16)}
    assert len(seeds) == 4


# What must not pass ------------------------------------------------------------------------------------------


def test_keys_and_ciphertexts_of_a_wrong_size_or_range_are_refused() -> None:
    key, seed, scheme = SecretKey(), new_seed(), Scheme(5, 32)
    sent = make_public_key(key, seed)
    with pytest.raises(WrongSize):
        PublicKey.decode(sent[:-1], seed)
    with pytest.raises(PeerError, match="residue"):
        PublicKey.decode(b"\xff" * len(sent), seed)
    data = key.encrypt_words(scheme, random_words(DEGREE), 32, seed, 0).tobytes()
    assert len(read_uploads([scheme], seed, data)) == 1
    with pytest.raises(WrongSize):
        read_uploads([scheme], seed, data + b"\0")
    for place in (0, scheme.upload_bytes - 8):
        broken = bytearray(data)
        broken[place : place + 8] = b"\xff" * 8
        with pytest.raises(PeerError, match="residue"):
            read_uploads([scheme], seed, bytes(broken))


def test_a_response_of_a_wrong_size_is_refused() -> None:
    scheme, key, positions = choose_scheme(64, 2.0**31), SecretKey(), np.arange(100, dtype=np.uint32)
    garbage = np.frombuffer(RNG.bytes(scheme.response_bytes), np.uint8)
    for wrong in (garbage[:-1], np.append(garbage, np.uint8(0))):
        with pytest.raises(WrongSize):
            key.phase(scheme, wrong, positions)


def test_shapes_that_do_not_fit_are_refused() -> None:
    scheme = Scheme(4, 32)
    left = np.zeros((1, 2, 2, 4, DEGREE), np.uint32)
    for shape in ((1, 3, 16), (1, 2, 15), (1, 2, 1)):
        with pytest.raises(ShapeError):
            multiply_short(scheme, by_rows(left), np.zeros(shape, np.int64))
    with pytest.raises(ShapeError):
        PrimeModulus(SLOT_PRIMES, 1).multiply([], [])
    with pytest.raises(ShapeError):
        choose_plan(1, ((0, 1),), 32, 32)
