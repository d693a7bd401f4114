"""The lattice arithmetic is exact, its parameters are within the security table, and its noise is as derived."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt
import pytest

from comet_mpc import _native
from comet_mpc.engine import kernels
from comet_mpc.engine.seeds import new_seed
from comet_mpc.errors import PeerError, RangeError, ShapeError, WrongSize
from comet_mpc.offline.rlwe.packing import PackingKeys, packing_keys, packing_noise
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    ERROR_VARIANCE,
    MAX_LOG_Q,
    NOISE_LIMIT,
    OUTPUTS_PER_QUERY,
    PRIMES,
    PublicKey,
    Residues,
    Scheme,
    SecretKey,
    Stream,
    basis,
    by_rows,
    choose_scheme,
    multiply_short,
    read_uploads,
    respond,
    scale_words,
)
from comet_mpc.offline.rlwe.slots import PrimeModulus, choose_plan, split
from support.big_polynomials import lift, negacyclic, noise, secret_of

RNG = np.random.default_rng(7)
every_isa = pytest.mark.parametrize("isa", kernels.isa_names())
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
        digest(key.encrypt_words(Scheme(6, 64, 90), words, 64, bytes(range(16)), 3))
        == "b0d0c6fc4e00a54775cd09f5cb7d9135"
    )


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
    assert math.log2(math.prod(PRIMES)) <= MAX_LOG_Q == 218
    assert all(prime < 2**30 and prime % (2 * DEGREE) == 1 for prime in PRIMES)


@pytest.mark.parametrize("width", [32, 40, 48, 56, 64])
@pytest.mark.parametrize("norm", [1.0, 2.0**31 * 55, 2.0**36])
def test_the_flood_hides_the_noise_and_leaves_the_message(width: int, norm: float) -> None:
    scheme = choose_scheme(width, norm)
    deviation = math.sqrt(ERROR_VARIANCE + 0.25) * norm
    distance = 0.5 * math.sqrt(4.562 * OUTPUTS_PER_QUERY) * deviation / 2.0**scheme.flood_bits
    assert distance <= 2.0**-40
    assert 1.5 * 2.0**scheme.flood_bits <= 2.0**scheme.log_q / 2.0**width / 8 * (1 + 1e-9)


def test_a_product_that_no_modulus_carries_is_refused() -> None:
    with pytest.raises(RangeError, match="modulus"):
        choose_scheme(64, 2.0**90)


def test_the_floods_distance_is_what_the_derivation_says() -> None:
    """Exactly, for floods of a few bits: the distance between the flood and the shifted flood of n outputs."""
    for bits in (6, 8, 10):
        one = np.full(2**bits, 2.0**-bits)
        density = np.convolve(np.convolve(one, one), one)
        roots = np.sqrt(np.concatenate([[0.0], density, [0.0]]))
        fisher = 4 * float(np.sum(np.diff(roots) ** 2)) * 4**bits
        assert fisher == pytest.approx(4.562, rel=0.05)
        for shift in (1, 3, 7):
            moved = np.abs(np.concatenate([density, np.zeros(shift)]) - np.concatenate([np.zeros(shift), density]))
            assert moved.sum() / 2 <= 0.5 * math.sqrt(4.6) * shift / 2**bits


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


@pytest.mark.parametrize(("limbs", "width"), [(4, 32), (5, 40), (6, 64), (7, 56)])
def test_a_scaled_word_is_rounded_exactly(limbs: int, width: int) -> None:
    scheme = Scheme(limbs, width, 60)
    words = random_words(200, width)
    words[:4] = [0, 1, 2**width - 1, 2 ** (width - 1)]
    q = math.prod(scheme.primes)
    expected = [((q * int(word) + 2 ** (width - 1)) >> width) % q for word in words]
    assert lift(scale_words(scheme, words, width), scheme.primes) == expected


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
    data = seed + b"".join(key.encrypt_words(scheme, words, 64, seed, index).tobytes() for index in range(2))
    secret = secret_of(key)
    assert set(secret) == {-1, 0, 1}
    message = lift(scale_words(scheme, words, 64), scheme.primes)
    for ciphertext in read_uploads([scheme, scheme], data):
        errors = noise(ciphertext, secret, scheme, message)
        assert max(map(abs, errors)) <= 21
        assert np.var(np.array(errors, np.float64)) == pytest.approx(ERROR_VARIANCE, rel=0.1)


@pytest.mark.parametrize("width", [32, 56, 64])
def test_products_decrypt_exactly_and_their_noise_is_below_what_the_flood_hides(width: int) -> None:
    bits, inputs, live = 32, 3, 16
    scheme = choose_scheme(width, 2.0 ** (bits - 1) * math.sqrt(inputs * live))
    key, seed = SecretKey(), new_seed()
    public, _ = key.public_key()
    words = [random_words(DEGREE) for _ in range(inputs)]
    data = seed + b"".join(
        key.encrypt_words(scheme, word, width, seed, index).tobytes() for index, word in enumerate(words)
    )
    right = RNG.choice([-(2**31), 2**31 - 1], (1, inputs, live)).astype(np.int64)
    left = np.stack(read_uploads([scheme] * inputs, data))[None]
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
    masks = random_words(500, width)
    response = respond(scheme, ciphertext, public, scale_words(scheme, masks, width), positions, Stream())
    decrypted, steps = key.decrypt_words(scheme, response, positions, width)
    expected = [(exact[p] + int(m)) % 2**width for p, m in zip(positions, masks, strict=True)]
    assert [int(v) for v in decrypted] == expected
    assert 0.01 < steps < NOISE_LIMIT / 2


@pytest.mark.parametrize("bits", [24, 40, 64])
def test_slots_multiply_exactly(bits: int) -> None:
    (modulus, *_) = choose_plan(2, ((0, 1),), bits, bits).moduli
    key, seed = SecretKey(), new_seed()
    public, _ = key.public_key()
    left, right = (
        [random_residues(modulus.primes) for _ in range(2)],
        [random_residues(modulus.primes) for _ in range(2)],
    )
    scheme = modulus.scheme
    data = seed + b"".join(key.encrypt(scheme, modulus.scale(x), seed, index).tobytes() for index, x in enumerate(left))
    uploads = read_uploads([scheme, scheme], data)
    ciphertext = modulus.multiply(uploads, [modulus.transform(y) for y in right])
    mask = random_residues(modulus.primes)
    everywhere = np.arange(DEGREE, dtype=np.uint32)
    response = respond(scheme, ciphertext, public, modulus.scale(mask), everywhere, Stream())
    slots, steps = modulus.round(key.phase(scheme, response, everywhere))
    for i, prime in enumerate(modulus.primes):
        part = slice(i * DEGREE, (i + 1) * DEGREE)
        expected = sum(x[part].astype(object) * y[part] for x, y in zip(left, right, strict=True)) + mask[part]
        assert np.array_equal(slots[part], (expected % prime).astype(np.uint32))
    assert steps < NOISE_LIMIT / 2


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


@pytest.mark.parametrize(("count", "levels"), [(2, 1), (3, 2), (1, 3), (5, 3), (8, 3), (9, 4), (17, 5), (3, 6)])
@every_isa
def test_packing_interleaves_and_its_noise_is_within_the_bound(count: int, levels: int, isa: str) -> None:
    scheme = Scheme(5, 32, 80)
    key, seed = SecretKey(), new_seed()
    words = [random_words(DEGREE, 32) for _ in range(count)]
    data = seed + b"".join(
        key.encrypt_words(scheme, word, 32, seed, index).tobytes() for index, word in enumerate(words)
    )
    one = np.zeros((1, 1, 2), np.int64)
    one[0, 0, 0] = 1
    uploads = read_uploads([scheme] * count, data)
    divided = [multiply_short(scheme, by_rows(x[None, None]), one, 2**levels, isa)[0, 0] for x in uploads]
    packed = PackingKeys(b"".join(packing_keys(key))).pack(scheme, np.stack(divided), levels, isa)
    expected = np.zeros(DEGREE, np.uint64)
    for place, word in enumerate(words):
        expected[place :: 2**levels] = word[:: 2**levels]
    message = lift(scale_words(scheme, expected, 32), scheme.primes)
    rest = np.array(noise(packed.reshape(2, 5, DEGREE), secret_of(key), scheme, message), np.float64)
    assert np.mean(rest**2) <= packing_noise(5, levels) + 2 * ERROR_VARIANCE
    assert np.mean(rest**2) > packing_noise(5, levels) / 100


def test_responses_are_re_randomised_in_both_components() -> None:
    """The same ciphertext, answered twice: c1 has nothing in common, and looks uniform."""
    scheme, key, seed = choose_scheme(64, 2.0**31), SecretKey(), new_seed()
    _, sent = key.public_key()
    positions = np.arange(64, dtype=np.uint32)
    masks = scale_words(scheme, np.zeros(64, np.uint64), 64)
    data = seed + key.encrypt_words(scheme, random_words(DEGREE), 64, seed, 0).tobytes()
    (upload,) = read_uploads([scheme], data)
    first, second = (
        respond(scheme, upload.copy(), PublicKey.decode(sent), masks, positions, Stream()) for _ in range(2)
    )
    start = (64 * scheme.bits0 + 7) // 8
    assert not np.array_equal(first[:start], second[:start])
    for c1 in (first[start:], second[start:], first[start:] ^ second[start:]):
        counts = np.bincount(c1, minlength=256)
        statistic = float(((counts - c1.size / 256) ** 2 / (c1.size / 256)).sum())
        assert statistic < 255 + 6 * math.sqrt(2 * 255)
    words = [key.decrypt_words(scheme, response, positions, 64)[0] for response in (first, second)]
    assert np.array_equal(words[0], words[1])


# What must not pass ------------------------------------------------------------------------------------------


def test_keys_and_ciphertexts_of_a_wrong_size_or_range_are_refused() -> None:
    key, seed, scheme = SecretKey(), new_seed(), Scheme(5, 32, 80)
    _, sent = key.public_key()
    with pytest.raises(WrongSize):
        PublicKey.decode(sent[:-1])
    with pytest.raises(PeerError, match="residue"):
        PublicKey.decode(sent[:16] + b"\xff" * (len(sent) - 16))
    data = seed + key.encrypt_words(scheme, random_words(DEGREE), 32, seed, 0).tobytes()
    assert len(read_uploads([scheme], data)) == 1
    with pytest.raises(WrongSize):
        read_uploads([scheme], data + b"\0")
    for place in (16, 16 + scheme.upload_bytes - 8):
        broken = bytearray(data)
        broken[place : place + 8] = b"\xff" * 8
        with pytest.raises(PeerError, match="residue"):
            read_uploads([scheme], bytes(broken))


def test_a_response_that_is_noise_is_refused() -> None:
    scheme, key, positions = choose_scheme(64, 2.0**31), SecretKey(), np.arange(100, dtype=np.uint32)
    garbage = np.frombuffer(RNG.bytes(scheme.response_bytes(100)), np.uint8)
    with pytest.raises(PeerError, match="noise bound"):
        key.decrypt_words(scheme, garbage, positions, 64)
    with pytest.raises(WrongSize):
        key.decrypt_words(scheme, garbage[:-1], positions, 64)


def test_shapes_that_do_not_fit_are_refused() -> None:
    scheme = Scheme(4, 32, 60)
    left = np.zeros((1, 2, 2, 4, DEGREE), np.uint32)
    for shape in ((1, 3, 16), (1, 2, 15), (1, 2, 1)):
        with pytest.raises(ShapeError):
            multiply_short(scheme, by_rows(left), np.zeros(shape, np.int64))
    with pytest.raises(ShapeError):
        PrimeModulus(SLOT_PRIMES, 1).multiply([], [])
    with pytest.raises(ShapeError):
        choose_plan(1, ((0, 1),), 32, 32)
