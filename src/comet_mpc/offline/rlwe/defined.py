"""Ciphertexts that define their messages: uniform masks for the price of what a seed cannot say of them.

A mask needs no chosen value. It only has to be uniform to the server and known to the client. So c1 *and* a word u for
every coefficient come from a public seed. The client computes w = e - c1·s and

    a = round(w·T/q) mod T,   rest = w - round(q·a/T),   message = u - a mod T,   c0 = round(q·u/T) + rest mod q,

and sends nothing but the rest, log2(q/T) bits a coefficient. Then c0 + c1·s is q·message/T and a small error: e and two
roundings, each of at most ½. What the server sees are c1, u and a rest that depends on w alone. Under RLWE (c1, w) is
uniform; then the rest is independent of a, but for a share of 2T/q of all w at the ends of their intervals, and a, and
with it the message, is uniform given all that the server sees. Nothing else is assumed.
"""

from __future__ import annotations

import numpy as np

from comet_mpc import _native
from comet_mpc.engine.seeds import expand
from comet_mpc.engine.share import Words
from comet_mpc.errors import WrongSize
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    Bytes,
    Residues,
    Scheme,
    SecretKey,
    basis,
    public_polynomial,
    round_words,
    scale_words,
)

BESIDE = 1 << 32
"""Streams of a public seed from here on are not those of a c1."""


def define_words(secret: SecretKey, scheme: Scheme, width: int, seed: bytes, index: int) -> tuple[Words, Bytes]:
    """8,192 uniform words mod 2^width that ciphertext `index` defines, and what is sent of it.

    An index is used once with a seed.
    """
    w, fractions = secret.blind(scheme, seed, index)
    nearest = round_words(fractions, width)
    words = (public_words(seed, index) - nearest) & np.uint64(2**width - 1)
    return words, pack_rest(scheme, w, scale_words(scheme, nearest, width))


def public_words(seed: bytes, index: int) -> Words:
    """u of a ciphertext: 8,192 words from the public seed, beside its c1."""
    return expand(seed, BESIDE + index, DEGREE)


def pack_rest(scheme: Scheme, w: Residues, nearest: Residues) -> Bytes:
    """w - nearest, which is at most q/2T in size."""
    out = np.empty(scheme.rest_bytes, np.uint8)
    _native.lattice_pack_rest(basis(scheme.primes), w, nearest, scheme.rest_bits, out)
    return out


def unpack_rest(scheme: Scheme, data: Bytes, known: Residues) -> Residues:
    """c0 = known + rest, transformed. Every string of the right length stands for one."""
    if data.size != scheme.rest_bytes:
        raise WrongSize(got=data.size, expected=scheme.rest_bytes)
    c0 = np.empty(scheme.limbs * DEGREE, np.uint32)
    _native.lattice_unpack_rest(basis(scheme.primes), data, known, scheme.rest_bits, c0, "")
    return c0


def read_defined(scheme: Scheme, width: int, count: int, seed: bytes, data: bytes | memoryview) -> list[Residues]:
    """Ciphertexts (2, limbs, 8192) that define words mod 2^width, from a public seed and their rests."""
    expected = count * scheme.rest_bytes
    if len(data) != expected:
        raise WrongSize(got=len(data), expected=expected)
    rests = np.frombuffer(data, np.uint8).reshape(count, -1)
    uploads = []
    for index, rest in enumerate(rests):
        c0 = unpack_rest(scheme, rest, scale_words(scheme, public_words(seed, index), width))
        both = np.concatenate([c0, public_polynomial(seed, index, scheme.primes)])
        uploads.append(both.reshape(2, scheme.limbs, DEGREE))
    return uploads
