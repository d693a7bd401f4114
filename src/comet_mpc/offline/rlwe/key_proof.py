"""A proof that a public key is small: pk0 = e - pk1·s mod q with short e and s, told without telling either.

Why. The server hides a response by 2·(r·pk0 + e0, r·pk1 + e1) (`public_key.respond`), and keeps the first part. The
client alone makes pk0. A large one, such as q/4, would write r into the server's share, coefficient by coefficient, and
the answer of a query would tell it. With pk0 as proved here the server's share depends on r through C1 alone:
docs/explanation/security.md has the argument.

How (Fiat-Shamir with aborts: Lyubashevsky 2009; challenges that are monomials: Benhamouda et al. 2014). 28 times, with
y_s uniform within ±(2^19 - 1), y_e within ±(2^23 - 1), and all d, one of the 32 multiples of N/16 below 2N each, from
one hash of everything:

    w = y_e - pk1·y_s,   z_s = y_s + X^d·s,   z_e = y_e + X^d·e;   checked: w = z_e - pk1·z_s - X^d·pk0.

If a z lies so near the end of its range that this tells something, all is done again; in one of three cases none does.
So z is uniform in a range that does not depend on s and e: the proof tells nothing about them, with SHA-256 as a random
oracle. Whoever can answer two exponents of one w has (X^d - X^d')·pk0 = Δz_e - pk1·Δz_s. With Y = X^(N/16), Y^16 = -1,
f = 2/(X^d - X^d') is a polynomial in Y with no coefficient but 0 and ±1, of which there are 16, and at every root of
X^N + 1 it is at most 1/sin(π/32) < 10.3 in size. So with s'' = f·Δz_s and e'' = f·Δz_e

    2·pk0 = e'' - pk1·s'',   |s''| < 2^24, |e''| < 2^28,   ‖s''‖ < 10.3·2^20·√N, ‖e''‖ < 10.3·2^24·√N.

Without such e'' and s'' a try passes with probability 32^-28 = 2^-140. A key with s'' = 0 is refused as well: its
2·pk0 would be short. (All 2N exponents would need ten times only, and show numbers that are 2^9 times larger: products
that are cut, `Scheme.cut`, would take a prime more.)
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from comet_mpc import _native
from comet_mpc.engine.ring import Ring
from comet_mpc.errors import PeerError, WrongSize
from comet_mpc.offline.rlwe.scheme import DEGREE, PRIMES, Residues, Small, Stream, basis

_TIMES = 28
_STEP = DEGREE // 16
"""Exponents are multiples of it."""
_SECRET, _ERROR = Ring(20), Ring(24)
"""What z_s and z_e are packed as."""
_LARGEST_ERROR = 21
_DIGEST = hashlib.sha256().digest_size
_EXPONENT_BITS = (2 * DEGREE // _STEP - 1).bit_length()
_SHORT = 28
_PRIMES = np.array(PRIMES)[:, None]

PROOF_BYTES = _DIGEST + _TIMES * (_SECRET.wire_bytes(DEGREE) + _ERROR.wire_bytes(DEGREE))

_Numbers = NDArray[np.int64]


def prove(pk0: Residues, pk1: Residues, secret: Small, errors: Small, bound: bytes, stream: Stream) -> bytes:
    """That pk0 = errors - pk1·secret. bound: what else the proof belongs to, such as the seed of pk1."""
    while True:
        masks = [(_uniform(stream, _SECRET), _uniform(stream, _ERROR)) for _ in range(_TIMES)]
        digest = _digest(bound, pk0, [_combine(pk1, y_s, y_e) for y_s, y_e in masks])
        answers = [
            (y_s + _turned(secret, d), y_e + _turned(errors, d))
            for (y_s, y_e), d in zip(masks, _exponents(digest), strict=True)
        ]
        if all(_hides(z_s, _SECRET, 1) and _hides(z_e, _ERROR, _LARGEST_ERROR) for z_s, z_e in answers):
            return b"".join([digest, *(_pack(z_s, _SECRET) + _pack(z_e, _ERROR) for z_s, z_e in answers)])


def verify(pk0: Residues, pk1: Residues, proof: bytes | memoryview, bound: bytes) -> None:
    """Refuses a key that is not proved to be small."""
    if len(proof) != PROOF_BYTES:
        raise WrongSize(got=len(proof), expected=PROOF_BYTES)
    digest, rest = bytes(proof[:_DIGEST]), memoryview(proof)[_DIGEST:]
    first, size = _SECRET.wire_bytes(DEGREE), len(rest) // _TIMES
    commitments = []
    for place, d in enumerate(_exponents(digest)):
        part = rest[place * size : (place + 1) * size]
        z_s, z_e = _unpack(part[:first], _SECRET), _unpack(part[first:], _ERROR)
        if not (_hides(z_s, _SECRET, 1) and _hides(z_e, _ERROR, _LARGEST_ERROR)):
            raise PeerError("the proof of the peer's public key has a number that is too large")
        commitments.append(_minus_turned(_combine(pk1, z_s, z_e), pk0, d))
    if _digest(bound, pk0, commitments) != digest:
        raise PeerError("the proof of the peer's public key does not hold")
    if _is_short(pk0):
        raise PeerError("the peer's public key is short, so it hides nothing")


def _half(ring: Ring) -> int:
    return 1 << (ring.width - 1)


def _uniform(stream: Stream, ring: Ring) -> _Numbers:
    """8,192 numbers within ±(2^(width-1) - 1), by rejection of 0: the words are uniform below 2^width."""
    half = _half(ring)
    while True:
        words = stream.words(DEGREE + 64) & np.uint64(2 * half - 1)
        found = words[words != 0][:DEGREE].astype(np.int64)
        if found.size == DEGREE:
            return np.asarray(found - half, np.int64)


def _hides(z: _Numbers, ring: Ring, largest: int) -> bool:
    return int(np.abs(z).max()) <= _half(ring) - 1 - largest


def _pack(z: _Numbers, ring: Ring) -> bytes:
    return ring.pack((z + _half(ring)).astype(np.uint64)).tobytes()


def _unpack(data: memoryview, ring: Ring) -> _Numbers:
    return ring.unpack(data, DEGREE).astype(np.int64) - _half(ring)


def _turned(small: Small, d: int) -> _Numbers:
    """X^d times a polynomial."""
    both = np.concatenate([small, -small]).astype(np.int64)
    return np.roll(both, d)[:DEGREE]


def _residues(z: _Numbers) -> Residues:
    return np.asarray(np.mod(z, _PRIMES), np.uint32).reshape(-1)


def _montgomery(z: _Numbers) -> Residues:
    out = np.empty(len(PRIMES) * DEGREE, np.uint32)
    _native.lattice_forward(basis(PRIMES), _residues(z), out, "")
    _native.lattice_to_montgomery(basis(PRIMES), out, out)
    return out


def _combine(pk1: Residues, z_s: _Numbers, z_e: _Numbers) -> Residues:
    """z_e - pk1·z_s, transformed."""
    out, none = np.empty(len(PRIMES) * DEGREE, np.uint32), np.zeros(DEGREE, np.int8)
    _native.lattice_encrypt(basis(PRIMES), _residues(z_e), none, pk1, _montgomery(z_s), out, "")
    return out


def _minus_turned(w: Residues, pk0: Residues, d: int) -> Residues:
    """w - X^d·pk0, both transformed."""
    one = np.zeros(DEGREE, np.int8)
    one[0] = 1
    turned = _combine(pk0, _turned(one, d), np.zeros(DEGREE, np.int64))  # -X^d·pk0
    primes = np.repeat(np.array(PRIMES, np.uint64), DEGREE)
    return ((w.astype(np.uint64) + turned) % primes).astype(np.uint32)


def _digest(bound: bytes, pk0: Residues, commitments: list[Residues]) -> bytes:
    hasher = hashlib.sha256(b"comet key proof" + len(bound).to_bytes(4, "little") + bound)
    for part in (pk0, *commitments):
        hasher.update(part.tobytes())
    return hasher.digest()


def _exponents(digest: bytes) -> list[int]:
    number = int.from_bytes(digest, "little")
    return [_STEP * (number >> (_EXPONENT_BITS * i) & (2**_EXPONENT_BITS - 1)) for i in range(_TIMES)]


def _is_short(pk0: Residues) -> bool:
    """Whether every coefficient of 2·pk0 mod q lies within ±2^28."""
    ordered = np.empty_like(pk0)
    _native.lattice_backward(basis(PRIMES), pk0, ordered, "")
    doubled = np.mod(2 * ordered.reshape(-1, DEGREE).astype(np.int64), _PRIMES)
    first, second = PRIMES[:2]  # a number within ±2^28 is known by its residues modulo two primes
    value = doubled[0] + first * ((doubled[1] - doubled[0]) * pow(first, -1, second) % second)
    value = np.where(value > first * second // 2, value - first * second, value)
    return int(np.abs(value).max()) < 2**_SHORT and np.array_equal(np.mod(value, _PRIMES), doubled)
