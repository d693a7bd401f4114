"""The proof that a client's public key is small: honest keys pass, and no other does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from comet_mpc.engine.ring import Ring
from comet_mpc.engine.seeds import new_seed
from comet_mpc.errors import PeerError, WrongSize
from comet_mpc.models.planning import plan_shape
from comet_mpc.models.transformer import SHAPES
from comet_mpc.offline.pair.matrices import matrix_products
from comet_mpc.offline.pair.units import units
from comet_mpc.offline.rlwe import key_proof
from comet_mpc.offline.rlwe.key_proof import PROOF_BYTES, prove, verify
from comet_mpc.offline.rlwe.public_key import PublicKey, make_public_key, respond
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    ERROR_VARIANCE,
    HIDING_BITS,
    PRIMES,
    Residues,
    SecretKey,
    Small,
    Stream,
    choose_scheme,
    pack,
    public_polynomial,
)
from comet_mpc.offline.sources import find_source

KEY_BYTES = PublicKey.SIZE - PROOF_BYTES


def constant(value: int) -> Residues:
    """A polynomial that is this number, transformed."""
    return np.repeat(np.array([value % prime for prime in PRIMES], np.uint32), DEGREE)


def unit_ternary(ones: int) -> Small:
    return np.concatenate([np.ones(ones, np.int8), np.zeros(DEGREE - ones, np.int8)])


def test_an_honest_key_passes_and_a_changed_byte_anywhere_does_not() -> None:
    key, seed = SecretKey(), new_seed()
    data = make_public_key(key, seed)
    assert len(data) == PublicKey.SIZE
    PublicKey.decode(data, seed)
    for place in (0, KEY_BYTES - 5, KEY_BYTES, KEY_BYTES + 40, len(data) - 100_000):
        broken = bytearray(data)
        broken[place] ^= 1
        with pytest.raises(PeerError):
            PublicKey.decode(broken, seed)
    with pytest.raises(PeerError, match="does not hold"):
        PublicKey.decode(data, new_seed())  # a proof belongs to its connection
    with pytest.raises(WrongSize):
        verify(constant(1), constant(1), data[:100], seed)


def test_a_proof_of_one_key_does_not_serve_another() -> None:
    seed = new_seed()
    first, second = (make_public_key(SecretKey(), seed) for _ in range(2))
    with pytest.raises(PeerError, match="does not hold"):
        PublicKey.decode(first[:KEY_BYTES] + second[KEY_BYTES:], seed)


@pytest.mark.parametrize(("secret", "error"), [(2**24, 0), (0, 2**27), (2**21, 2**25)])
def test_a_key_of_numbers_that_are_too_large_cannot_be_proved(
    secret: int, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The honest prover's own code, without its own check: the answers leave their ranges, and the server sees it."""
    seed, pk1 = new_seed(), public_polynomial(new_seed(), 0, PRIMES)
    s, e = (unit_ternary(5).astype(np.int64) * size for size in (secret, error))
    pk0 = key_proof._combine(pk1, s, e)
    monkeypatch.setattr(key_proof, "_hides", lambda *_: True)
    monkeypatch.setattr(key_proof, "_pack", clipped)
    proof = prove(pk0, pk1, s, e, seed, Stream())  # type: ignore[arg-type]
    monkeypatch.undo()
    with pytest.raises(PeerError):
        verify(pk0, pk1, proof, seed)


def clipped(z: NDArray[np.int64], ring: Ring) -> bytes:
    half = 1 << (ring.width - 1)
    return ring.pack((np.clip(z, 1 - half, half - 1) + half).astype(np.uint64)).tobytes()


def test_a_key_that_is_short_itself_is_refused_though_it_can_be_proved() -> None:
    """With s = 0 the server's share would not depend on C1 any more, and a client could read r from its roundings."""
    seed, pk1 = new_seed(), public_polynomial(new_seed(), 0, PRIMES)
    for size in (0, 1, 21):
        s, e = np.zeros(DEGREE, np.int8), unit_ternary(3) * np.int8(size)
        pk0 = key_proof._combine(pk1, s.astype(np.int64), e.astype(np.int64))
        with pytest.raises(PeerError, match="short"):
            verify(pk0, pk1, prove(pk0, pk1, s, e, seed, Stream()), seed)
    halved = np.concatenate(
        [row * pow(2, -1, p) % p for row, p in zip(constant(1).reshape(-1, DEGREE), PRIMES, strict=True)]
    )
    assert key_proof._is_short(halved.astype(np.uint32))  # 2·pk0 = 1
    assert not key_proof._is_short(constant(2**30))
    assert key_proof._is_short(constant(-(2**26)))


def test_answers_that_would_tell_something_are_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks at the end of their range, and a secret of ones: an answer beyond it would tell a sign. All is redone."""
    pk1, seed, drawn = public_polynomial(new_seed(), 0, PRIMES), new_seed(), []
    s, e, uniform = np.ones(DEGREE, np.int8), np.zeros(DEGREE, np.int8), key_proof._uniform

    def edge_first(stream: Stream, ring: Ring) -> NDArray[np.int64]:
        drawn.append(ring)
        return (
            np.full(DEGREE, 2 ** (ring.width - 1) - 1) if len(drawn) <= 2 * key_proof._TIMES else uniform(stream, ring)
        )

    monkeypatch.setattr(key_proof, "_uniform", edge_first)
    pk0 = key_proof._combine(pk1, s.astype(np.int64), e.astype(np.int64))
    verify(pk0, pk1, prove(pk0, pk1, s, e, seed, Stream()), seed)
    assert len(drawn) >= 4 * key_proof._TIMES
    largest = 2**19 - 2
    assert key_proof._hides(np.array([-largest, largest]), key_proof._SECRET, 1)
    for beyond in (-largest - 1, largest + 1):
        assert not key_proof._hides(np.array([beyond]), key_proof._SECRET, 1)


def test_masks_fill_their_range_evenly() -> None:
    ring, half = key_proof._SECRET, 1 << (key_proof._SECRET.width - 1)
    numbers = np.concatenate([key_proof._uniform(Stream(), ring) for _ in range(16)])
    assert numbers.min() > -half
    assert numbers.max() < half
    counts = np.histogram(numbers, 64, (-half, half))[0]
    assert ((counts - numbers.size / 64) ** 2 / (numbers.size / 64)).sum() < 64 + 8 * np.sqrt(128)


def test_two_answers_to_one_commitment_give_small_numbers() -> None:
    """2/(X^i - X^j) has no coefficient but 0 and ±1: all of them for X^16 = -1, as in the proof."""
    degree = DEGREE // key_proof._STEP
    for i in range(2 * degree):
        for j in range(i):
            difference = np.zeros(degree, int)
            for exponent, sign in ((i, 1), (j, -1)):
                difference[exponent % degree] += sign if exponent < degree else -sign
            inverse = inverse_of(difference) * 2
            assert np.abs(inverse - np.round(inverse)).max() < 1e-9
            assert set(np.round(inverse).astype(int)) <= {-1, 0, 1}


def inverse_of(polynomial: NDArray[np.int64]) -> NDArray[np.float64]:
    """Modulo X^n + 1, by the matrix of its products."""
    n = polynomial.size
    columns = [np.concatenate([-polynomial[n - k :], polynomial[: n - k]]) for k in range(n)]
    return np.linalg.solve(np.stack(columns, axis=1).astype(float), np.eye(n)[0])


def test_a_large_key_would_write_r_into_the_servers_share_and_is_refused() -> None:
    """pk0 = q/4 puts r/2 mod 1 into every coefficient that the server keeps: an answer that shows it shows r."""
    scheme = choose_scheme(32, 2.0**24)
    everywhere, seed = np.arange(DEGREE, dtype=np.uint32), new_seed()
    pk0, pk1 = constant(math.prod(scheme.primes) // 4), public_polynomial(seed, 0, PRIMES)
    stream, copy = Stream(seed), Stream(seed)
    ciphertext = np.zeros(2 * scheme.limbs * DEGREE, np.uint32)
    _, kept = respond(scheme, ciphertext, PublicKey(pk0, pk1), everywhere, stream)
    odd = np.round(kept.reshape(-1, 3)[:, 2] / 2.0**63).astype(int) % 2
    assert np.array_equal(odd, np.abs(copy.ternary()))  # the attack: which coefficients of r are zero
    honest = make_public_key(SecretKey(), seed)
    with pytest.raises(PeerError, match="does not hold"):
        PublicKey.decode(pack(pk0, PRIMES).tobytes() + honest[KEY_BYTES:], seed)


def test_a_key_that_passes_tips_next_to_no_rounding() -> None:
    """Whatever small numbers a key is made of: ν = r·e'' + 2·e0 + e1·s'' is within 7 deviations, and moves what the cut
    leaves of fewer than one coefficient in ten responses."""
    powers = DEGREE // key_proof._STEP
    length = 1 / math.sin(math.pi / (2 * powers)) * math.sqrt(DEGREE)  # of 2/(X^d - X^d') times numbers up to 1
    e_length, s_length = (length * 2**ring.width for ring in (key_proof._ERROR, key_proof._SECRET))
    deviation = math.sqrt(2 / 3 * e_length**2 + 4 * ERROR_VARIANCE * (s_length**2 + 1))
    window = 2 * 7 * deviation
    assert DEGREE * window < 0.1 * 2.0**HIDING_BITS
    source = find_source("pair")
    program = plan_shape(SHAPES["bert-base"], 128, 0, 1, "quadratic", source).correlations
    schemes = [section.answer_scheme for p in matrix_products(program, 1) for section in p.tiling.sections()]
    assert all(scheme.cut for scheme in schemes)
    schemes += [job.scheme for unit in units(program) for job in unit.jobs]
    assert len(schemes) > 100
    near = [DEGREE * window * 2.0 ** (s.plain_bits - s.cut - s.log_q) for s in schemes]  # coefficients of a response
    assert max(near) < 0.1
    assert np.mean(near) < 0.02
