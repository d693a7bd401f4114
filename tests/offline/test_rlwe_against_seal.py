"""Microsoft SEAL multiplies the same polynomials under its own BFV: an implementation that shares nothing with ours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from comet_mpc.engine.seeds import new_seed
from comet_mpc.offline.rlwe.public_key import PublicKey, make_public_key, respond
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    SecretKey,
    Stream,
    by_rows,
    choose_scheme,
    multiply_short,
    read_uploads,
    round_words,
)
from comet_mpc.offline.rlwe.slots import choose_plan

seal = pytest.importorskip("seal", reason="seal-python is not installed: pip install -e '.[dev]'")

RNG = np.random.default_rng(19)
Integers = npt.NDArray[np.int64]


class Seal:
    """BFV with N = 8192, SEAL's own 218-bit modulus and keys, and any plaintext modulus."""

    def __init__(self, modulus: int) -> None:
        parameters = seal.EncryptionParameters(seal.scheme_type.bfv)
        parameters.set_poly_modulus_degree(DEGREE)
        parameters.set_coeff_modulus(seal.CoeffModulus.BFVDefault(DEGREE))
        parameters.set_plain_modulus(modulus)
        self.modulus = modulus
        self.context = seal.SEALContext(parameters)
        keys = seal.KeyGenerator(self.context)
        self.encryptor = seal.Encryptor(self.context, keys.create_public_key())
        self.evaluator = seal.Evaluator(self.context)
        self.decryptor = seal.Decryptor(self.context, keys.secret_key())

    def multiply(self, left: Any, right: Any) -> Any:
        """decrypt(encrypt(left)·right)."""
        product = self.evaluator.multiply_plain(self.encryptor.encrypt(left), right)
        assert self.decryptor.invariant_noise_budget(product) > 0
        return self.decryptor.decrypt(product)

    def polynomial(self, values: Integers) -> Any:
        terms = [f"{int(value) % self.modulus:X}x^{power}" for power, value in enumerate(values) if value]
        return seal.Plaintext(" + ".join(reversed(terms)).replace("x^0", ""))

    @staticmethod
    def coefficients(plain: Any) -> Integers:
        out = np.zeros(DEGREE, np.int64)
        for term in plain.to_string().split(" + "):
            value, _, power = term.partition("x^")
            out[int(power or 0)] = int(value, 16)
        return out


@pytest.mark.parametrize(("width", "bits", "live"), [(32, 24, 64), (40, 24, 1024), (48, 8, DEGREE)])
def test_seal_gives_the_same_product_of_polynomials(width: int, bits: int, live: int) -> None:
    words = RNG.integers(0, 2**width, DEGREE, dtype=np.uint64)
    factor = RNG.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), live)
    scheme = choose_scheme(width, 2.0 ** (bits - 1) * math.sqrt(live))
    key, seed = SecretKey(), new_seed()
    public = PublicKey.decode(make_public_key(key, seed), seed)
    (upload,) = read_uploads([scheme], seed, key.encrypt_words(scheme, words, width, seed, 0).tobytes())
    product = multiply_short(scheme, by_rows(upload[None, None]), factor[None, None])[0, 0]
    everywhere = np.arange(DEGREE, dtype=np.uint32)
    sent, kept = respond(scheme, product, public, everywhere, Stream())
    ours = (round_words(kept, width) + round_words(key.phase(scheme, sent, everywhere), width)) % np.uint64(2**width)

    other = Seal(2**width)
    theirs = other.multiply(other.polynomial(words.astype(np.int64)), other.polynomial(factor))
    np.testing.assert_array_equal(ours.astype(np.int64), other.coefficients(theirs))


def test_seal_gives_the_same_products_of_slots() -> None:
    (modulus, *_) = choose_plan(1, ((0,),), 32, 32).moduli
    key, seed, scheme = SecretKey(), new_seed(), modulus.scheme
    public = PublicKey.decode(make_public_key(key, seed), seed)
    left, right = (
        np.concatenate([RNG.integers(0, prime, DEGREE, dtype=np.uint32) for prime in modulus.primes]) for _ in range(2)
    )
    uploads = read_uploads([scheme], seed, key.encrypt(scheme, modulus.scale(left), seed, 0).tobytes())
    product = modulus.multiply(uploads, [modulus.transform(right)])
    everywhere = np.arange(DEGREE, dtype=np.uint32)
    sent, kept = respond(scheme, product, public, everywhere, Stream())
    ours = modulus.round(kept) + modulus.round(key.phase(scheme, sent, everywhere))
    for place, prime in enumerate(modulus.primes):
        part = slice(place * DEGREE, (place + 1) * DEGREE)
        other = Seal(prime)
        encoder = seal.BatchEncoder(other.context)
        centred = [x[part].astype(np.int64) - prime * (x[part] > prime // 2) for x in (left, right)]
        plain = [encoder.encode(x) for x in centred]
        theirs = np.asarray(encoder.decode(other.multiply(*plain))) % prime
        np.testing.assert_array_equal(ours[place].astype(np.int64) % prime, theirs)
