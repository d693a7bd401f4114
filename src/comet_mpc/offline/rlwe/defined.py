"""Ciphertexts that define their messages: uniform masks for the price of what a seed cannot say of them.

A mask needs no chosen value. It only has to be uniform to the server and known to the client. So c1 *and* a word u for
every coefficient come from a public seed. The client computes w = e - c1·s and

    a = round(w·T/q) mod T,   rest = w - round(q·a/T),   message = u - a mod T,   c0 = round(q·u/T) + rest mod q,

and sends nothing but the rest, log2(q/T) bits a coefficient. Then c0 + c1·s is q·message/T and a small error: e and two
roundings, each of at most ½. What the server sees are c1, u and a rest that depends on w alone. Under RLWE (c1, w) is
uniform. A rest of at most R = floor(q/2T) - 1 in size comes with every a exactly once: w = round(q·a/T) + rest is then
less than half a step from q·a/T. The others, at the ends of their intervals, are uneven; if an upload has one, a share
of less than 4T/q of all w, it is thrown away and drawn again with another seed. So a, and with it the message, is
*exactly* uniform given all that the server sees. Nothing else is assumed.

Where a product needs no more (`Scheme.dropped`), the lowest k bits of the rest are not sent. The server puts the middle
of what they can be in their place. That adds an error that is uniform within ±2^(k-1), and as independent of a as the
rest is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

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

Made = TypeVar("Made")


class UnevenRest(Exception):
    """A rest that does not come with every message equally often. Nothing of this upload may be sent."""


def until_even(draw: Callable[[], Made]) -> Made:
    """What `draw` makes with a fresh seed, again until no rest of it is uneven."""
    while True:
        try:
            return draw()
        except UnevenRest:
            continue


def define_words(secret: SecretKey, scheme: Scheme, width: int, seed: bytes, index: int) -> tuple[Words, Bytes]:
    """8,192 uniform words mod 2^width that ciphertext `index` defines, and what is sent of it.

    An index is used once with a seed. Raises UnevenRest: then it must be drawn again, with another seed.
    """
    w, fractions = secret.blind(scheme, seed, index)
    nearest = round_words(fractions, width)
    words = (public_words(seed, index) - nearest) & np.uint64(2**width - 1)
    return words, pack_rest(scheme, w, scale_words(scheme, nearest, width))


def public_words(seed: bytes, index: int) -> Words:
    """u of a ciphertext: 8,192 words from the public seed, beside its c1."""
    return expand(seed, BESIDE + index, DEGREE)


def pack_rest(scheme: Scheme, w: Residues, nearest: Residues) -> Bytes:
    """w - nearest, which is at most q/2T in size, without the bits that are not sent. Raises UnevenRest."""
    out = np.empty(scheme.rest_bytes, np.uint8)
    largest = np.array([scheme.largest_rest >> places & (2**64 - 1) for places in (0, 64, 128)], np.uint64)
    if not _native.lattice_pack_rest(basis(scheme.primes), w, nearest, scheme.rest_bits, scheme.dropped, largest, out):
        raise UnevenRest
    return out


def unpack_rest(scheme: Scheme, data: Bytes, known: Residues) -> Residues:
    """c0 = known + rest, transformed. Every string of the right length stands for one."""
    if data.size != scheme.rest_bytes:
        raise WrongSize(got=data.size, expected=scheme.rest_bytes)
    c0 = np.empty(scheme.limbs * DEGREE, np.uint32)
    _native.lattice_unpack_rest(basis(scheme.primes), data, known, scheme.rest_bits, scheme.dropped, c0, "")
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
