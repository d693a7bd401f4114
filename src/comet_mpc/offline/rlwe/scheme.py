"""RLWE encryption whose messages are multiplied by plaintexts: the typed front of the lattice arithmetic in C++.

A ciphertext of m mod T under the ternary secret s is (c0, c1) with c0 + c1·s = round(q·m/T) + e mod q, polynomials
modulo X^8192 + 1. The modulus T is 2^w (words as coefficients) or a product of primes (numbers in 8,192 slots).
Every product with a plaintext y turns m into m·y mod T, and e into e·y.

Parameters. N = 8192, q a product of at most 7 primes of 30 bits, so log2 q <= 210. Secrets uniform in {-1, 0, 1},
errors centred binomial of standard deviation 3.24. For 128 bits of classical security at N = 8192 and a ternary secret
Bossuat et al. (ePrint 2024/463) allow log2 q <= 214, the older table of HomomorphicEncryption.org (2018) 218.

The product is shared, not decrypted. Of the product's ciphertext the server keeps C0 and sends C1:

    C0 + C1·s = (q/T)·m + e mod q,   server: round(C0·T/q),   client: round(C1·s·T/q),   together m mod T,

unless C0·T/q is so near the middle between two integers that e tips it over. C0 is uniform to everybody but the server,
so that happens with probability E|e|·T/q. For an *exact* product q is chosen such that this, and the same for the
rounding of C1 to `response_bits`, is below 2^-68 together for every coefficient: less than once in 2^40 queries of 2^28
coefficients. Where q is larger than that takes, low bits of uploads are not sent (`shortened`): they count to e.

*Products that are cut.* Where the product is truncated by `cut` = d bits later, it need not be exact. It is off by at
most half a unit of what is left, 2^(d-1), of which 1 is for the shares' roundings, 2^(d-3) for the rounding of C1 to
`response_bits`, and the rest for e·T/q and for the low bits of uploads that are not sent (`dropped`). Each of
the two is a sum of independent terms (centred binomials, uniform roundings) whose tails are below those of a normal
variable of the same deviation σ. So it exceeds 10·σ with a probability below 2·exp(-50) < 2^-71, and 10·σ is what there
is room for (`Scheme.room`): less than one coefficient in 2^40 queries of 2^28 is further off, and then by a little.

What a response tells the client: nothing, whatever it has uploaded.
- Before C0 and C1 are used, both get twice a fresh encryption of zero under the public key (`public_key`). Under RLWE
  C1 is then uniform and independent of all that the server has computed.
- Nothing that depends on C0 is ever sent, so nothing of its noise needs to be hidden, however many outputs there are.
  What becomes of C0 after the cut must not depend on the encryption of zero either: q·2^cut/T is at least 2^53.85
  (`HIDING_BITS`), which docs/explanation/security.md derives.
- A client that uploads something else than encryptions gives the server another share, an additive error of its
  own making. It reaches nobody but through the result of the query, like any error that it could make online.

The noise e has the variance (21/2 + 1)·‖y‖² + 4·(N·(2/3)·(21/2)·2 + 21/2), with ‖y‖ the length of all coefficients that
enter an output: errors are independent with variance 21/2 and q·m/T is rounded by at most ½, or twice that in a
ciphertext that defines its message (`defined`); then what the encryption of zero brings, 2·(r·e_pk + e1·s + e0).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from comet_mpc import _native
from comet_mpc.engine.ring import LATTICE_PRIMES
from comet_mpc.engine.seeds import expand, new_seed
from comet_mpc.engine.share import Words
from comet_mpc.errors import PeerError, RangeError, ShapeError, WrongSize

Residues: TypeAlias = NDArray[np.uint32]
Bytes: TypeAlias = NDArray[np.uint8]
Small: TypeAlias = NDArray[np.int8]
Fractions: TypeAlias = NDArray[np.uint64]
"""Numbers in [0, 1) of 192 bits: three words each, the lowest first."""

DEGREE = 8192
PRIMES = LATTICE_PRIMES
_LOG_Q = [math.log2(math.prod(PRIMES[:limbs])) for limbs in range(len(PRIMES) + 1)]
MAX_LOG_Q = 214
"""For 128 bits of security at this degree and a ternary secret (ePrint 2024/463)."""

ERROR_VARIANCE = 21 / 2
FAILURE_BITS = 69
"""The two ways in which an output can be wrong have a probability below 2^-69 each, in the mean."""
SPREAD = 10.0
"""Deviations that an error of a product that is cut exceeds with a probability below 2·exp(-50) < 2^-71."""
LEAST_CUT = 4
"""Bits. A product that is cut by fewer is exact."""
HIDING_BITS = 53.85
"""log2(q·2^cut/T) at least. Then fewer than one response in ten has a coefficient where the randomness that hides it
could tip the cut, under the worst public key that a client can prove (`key_proof`, docs/explanation/security.md)."""
_LEAST_REST = 26
"""log2(q/T) at least, so that uploads are rarely drawn again (`defined`)."""
_MEAN = math.sqrt(2 / math.pi)
"""Of the size of a normal variable of deviation 1."""
_ROUNDED = math.sqrt(DEGREE * (2 / 3) / 12)
"""Deviation of what the rounding of C1 makes of C1·s: the client multiplies it by s, N terms of ±1 or 0."""

LANES = 8
"""Elements of a row, as native/rlwe/transform.hpp has it."""
_SLACK = 512
"""Words more than needed, for those that rejection sampling throws away: of 8,192 about 2, of bytes 32."""


@lru_cache(maxsize=64)
def basis(primes: tuple[int, ...]) -> _native.Basis:
    """Tables for arithmetic modulo these primes."""
    return _native.Basis(list(primes))


@dataclass(frozen=True)
class Scheme:
    """How one kind of product is encrypted and answered."""

    limbs: int
    plain_bits: float
    cut: int = 0
    """Bits that products are truncated by later: they may be off by 2^(cut-1). 0: they are exact."""
    dropped: int = 0
    """Lowest bits of a rest (`defined`) that are not sent."""

    @property
    def primes(self) -> tuple[int, ...]:
        return PRIMES[: self.limbs]

    @property
    def log_q(self) -> float:
        return _LOG_Q[self.limbs]

    @property
    def response_bits(self) -> int:
        """Bits that are sent of a coefficient of C1."""
        if self.cut:
            return math.ceil(self.plain_bits - self.cut + 3 + math.log2(SPREAD * _ROUNDED))
        return math.ceil(self.plain_bits + FAILURE_BITS + math.log2(_MEAN * _ROUNDED))

    @property
    def room(self) -> float:
        """The largest deviation that the noise e of a product may have."""
        step = float(2.0 ** (self.log_q - self.plain_bits))
        if self.cut:
            return step * (0.375 * 2.0**self.cut - 1.0) / SPREAD
        by_rounding = _MEAN * _ROUNDED * float(2.0 ** (self.plain_bits - self.response_bits))
        return step * (float(2.0 ** (1 - FAILURE_BITS)) - by_rounding) / _MEAN

    def shortened(self, noise: float, scale: float, room: float | None = None) -> Scheme:
        """The same without the low bits of rests for whose loss there is room. They are as if they were random.

        noise: the variance of e without that; scale: by how much the product makes what is lost longer; room: for the
        deviation of both, if it is not this scheme's
        """
        spare = 12 * ((self.room if room is None else room) ** 2 - noise) / scale**2  # the variance is 4^dropped/12
        return replace(self, dropped=min(math.floor(math.log2(max(spare, 1.0)) / 2), self.rest_bits - 2))

    @property
    def hides(self) -> bool:
        """Whether the modulus is so large that what the cut leaves of C0 does not depend on how it was hidden."""
        gap = self.log_q - self.plain_bits
        return not self.cut or (gap + self.cut >= HIDING_BITS and gap >= _LEAST_REST)

    @property
    def upload_bytes(self) -> int:
        """Of one ciphertext whose c1 both sides expand from a seed."""
        return self.limbs * DEGREE * 30 // 8

    @property
    def rest_bits(self) -> int:
        """Bits that are sent of a coefficient of c0 if its multiple of q/T comes from a seed: log2(q/T), and a hair."""
        return math.ceil(self.log_q - self.plain_bits + 2.0**-16)

    @property
    def largest_rest(self) -> int:
        """Up to this size a rest comes with every message exactly once (`defined`): floor(q/2T) - 1, or a hair less."""
        exact = float(self.plain_bits).is_integer()
        steps: int = 2 ** int(self.plain_bits) if exact else math.ceil(2.0**self.plain_bits * (1.0 + 2.0**-40))
        return math.prod(self.primes) // (2 * steps) - 1

    @property
    def rest_bytes(self) -> int:
        """Of one ciphertext that defines its message (`defined`)."""
        return (self.rest_bits - self.dropped) * DEGREE // 8

    @property
    def response_bytes(self) -> int:
        """Of one response, however many of its coefficients are wanted."""
        return self.response_bits * DEGREE // 8


def noise_variance(norm: float, variance: float = 0.0) -> float:
    """Of e in a product with plaintexts of length `norm`, hidden by an encryption of zero. variance: on top"""
    fresh = 4 * ERROR_VARIANCE * (DEGREE * (2 / 3) * 2 + 1)
    return (ERROR_VARIANCE + 1.0) * norm**2 + variance + fresh


def choose_scheme(plain_bits: float, norm: float, variance: float = 0.0, cut: int = 0) -> Scheme:
    """The smallest q for messages mod T <= 2^plain_bits and plaintexts of length `norm` (all that enter one output).

    variance: of noise that comes on top; cut: bits that products are truncated by later
    """
    noise = math.sqrt(noise_variance(norm, variance))
    for limbs in range(1, len(PRIMES) + 1):
        scheme = Scheme(limbs, plain_bits, cut)
        if scheme.hides and noise <= scheme.room:
            return scheme
    raise RangeError(
        f"numbers of {plain_bits:.0f} bits times plaintexts of length 2^{math.log2(max(norm, 1)):.0f} need a larger "
        f"modulus than {len(PRIMES)} primes have, {30 * len(PRIMES)} bits"
    )


class Stream:
    """Fresh secret words: every call reads another stream of one seed from the operating system."""

    def __init__(self, seed: bytes | None = None) -> None:
        """seed: only tests pass one."""
        self._seed = new_seed() if seed is None else seed
        self.streams = itertools.count()  # its `next` is atomic, so threads may share it

    def words(self, count: int) -> Words:
        return expand(self._seed, next(self.streams), count)

    def errors(self, count: int) -> Small:
        out = np.empty(count, np.int8)
        _native.lattice_sample_errors(self.words(count), out)
        return out

    def ternary(self) -> Small:
        out = np.empty(DEGREE, np.int8)
        _sampled(_native.lattice_sample_ternary(self.words((DEGREE + _SLACK) // 8).view(np.uint8), out))
        return out

    def residues(self, primes: tuple[int, ...], count: int) -> Residues:
        """Uniform residues, [prime][count]."""
        worst = max(2 ** p.bit_length() / p for p in primes)
        available = math.ceil((count + _SLACK) * worst * 1.1)
        out = np.empty(len(primes) * count, np.uint32)
        words = self.words((len(primes) * available + 1) // 2).view(np.uint32)[: len(primes) * available]
        _sampled(_native.lattice_sample_uniform(basis(primes), words, out))
        return out


def _sampled(enough: bool) -> None:
    if not enough:  # less likely than 2^-200: the words were not random
        raise RangeError("rejection sampling ran out of words")


def public_polynomial(seed: bytes, index: int, primes: tuple[int, ...]) -> Residues:
    """c1 of ciphertext `index`: transformed, uniform, expanded by both sides from a public seed."""
    out = np.empty(len(primes) * DEGREE, np.uint32)
    words = expand(seed, index, len(primes) * (DEGREE + _SLACK) // 2).view(np.uint32)
    _sampled(_native.lattice_sample_uniform(basis(primes), words, out))
    return out


class SecretKey:
    """The client's key. Encrypts, and decrypts what was made of its own encryptions. Never printed, never sent."""

    def __init__(self, stream: Stream | None = None) -> None:
        self.stream = Stream() if stream is None else stream
        self._secret = np.empty(len(PRIMES) * DEGREE, np.uint32)
        self._ternary = self.stream.ternary()
        _native.lattice_transform_small(basis(PRIMES), self._ternary, self._secret, "")

    def turned(self, step: int) -> Small:
        """s(X^step), for keys that undo that."""
        places = np.arange(DEGREE) * step % (2 * DEGREE)
        out = np.empty(DEGREE, np.int8)
        out[places % DEGREE] = np.where(places < DEGREE, self._ternary, -self._ternary)
        return out

    def zero(self, seed: bytes, index: int, primes: tuple[int, ...]) -> tuple[Residues, Small]:
        """c0 of an encryption of zero, and its errors. An index is used once with a seed."""
        errors = self.stream.errors(DEGREE)
        return self._encrypt(np.zeros(len(primes) * DEGREE, np.uint32), errors, seed, index, primes), errors

    def _encrypt(self, scaled: Residues, errors: Small, seed: bytes, index: int, primes: tuple[int, ...]) -> Residues:
        c0 = np.empty(len(primes) * DEGREE, np.uint32)
        c1 = public_polynomial(seed, index, primes)
        secret = self._secret.reshape(-1, DEGREE)[[PRIMES.index(prime) for prime in primes]].reshape(-1)
        _native.lattice_encrypt(basis(primes), scaled, errors, c1, secret, c0, "")
        return c0

    def encrypt(self, scheme: Scheme, scaled: Residues, seed: bytes, index: int) -> Bytes:
        """A scaled polynomial [prime][8192]: c0, packed. An index is used once with a seed."""
        c0 = self._encrypt(scaled, self.stream.errors(DEGREE), seed, index, scheme.primes)
        return pack(c0, scheme.primes)

    def encrypt_words(self, scheme: Scheme, words: Words, width: int, seed: bytes, index: int) -> Bytes:
        """8,192 words mod 2^width as coefficients: c0, packed. An index is used once with a seed."""
        return self.encrypt(scheme, scale_words(scheme, words, width), seed, index)

    def blind(self, scheme: Scheme, seed: bytes, index: int) -> tuple[Residues, Fractions]:
        """w = e - c1·s, [prime][8192] in order, and w/q. An index is used once with a seed."""
        w, fractions = np.empty(scheme.limbs * DEGREE, np.uint32), np.empty(3 * DEGREE, np.uint64)
        c1, secret = public_polynomial(seed, index, scheme.primes), self._secret[: scheme.limbs * DEGREE]
        _native.lattice_blind(basis(scheme.primes), self.stream.errors(DEGREE), c1, secret, w, fractions, "")
        return w, fractions

    def phase(self, scheme: Scheme, data: Bytes, positions: Residues) -> Fractions:
        """C1·s of a response at these coefficients, as fractions of q."""
        if data.size != scheme.response_bytes:
            raise WrongSize(got=data.size, expected=scheme.response_bytes)
        primes = PRIMES[: (scheme.response_bits + 16) // 29 + 1]
        out = np.empty(3 * positions.size, np.uint64)
        secret = self._secret[: len(primes) * DEGREE]
        _native.lattice_phase(basis(primes), data, secret, positions, scheme.response_bits, out, "")
        return out


def round_words(fractions: Fractions, width: int) -> Words:
    """A party's share mod 2^width of every coefficient: the nearest multiple of q/2^width."""
    out = np.empty(fractions.size // 3, np.uint64)
    _native.lattice_round_power(fractions, width, out)
    return out


def pack(residues: Residues, primes: tuple[int, ...]) -> Bytes:
    out = np.empty(_native.lattice_packed_residues(basis(primes), residues.size // len(primes)), np.uint8)
    _native.lattice_pack_residues(basis(primes), residues, out)
    return out


def unpack(data: Bytes, primes: tuple[int, ...]) -> Residues:
    """Residues from a packed c0. Refuses what is not reduced."""
    out = np.empty(len(primes) * DEGREE, np.uint32)
    if data.size != (size := _native.lattice_packed_residues(basis(primes), DEGREE)):
        raise WrongSize(got=data.size, expected=size)
    if not _native.lattice_unpack_residues(basis(primes), data, out):
        raise PeerError("a ciphertext of the peer's has a residue that is not below its prime")
    return out


def read_uploads(schemes: Sequence[Scheme], seed: bytes, data: bytes | memoryview) -> list[Residues]:
    """Ciphertexts (2, limbs, 8192), one of each scheme, from a public seed and packed c0s."""
    expected = sum(scheme.upload_bytes for scheme in schemes)
    if len(data) != expected:
        raise WrongSize(got=len(data), expected=expected)
    packed, start = np.frombuffer(data, np.uint8), 0
    uploads = []
    for index, scheme in enumerate(schemes):
        c0 = unpack(packed[start : (start := start + scheme.upload_bytes)], scheme.primes)
        both = np.concatenate([c0, public_polynomial(seed, index, scheme.primes)])
        uploads.append(both.reshape(2, scheme.limbs, DEGREE))
    return uploads


def by_rows(ciphertexts: Residues) -> Residues:
    """Ciphertexts (…, i, 2, limbs, 8192) as (…, limbs, 1024, i, 2, 8): what meets in one sum lies close together."""
    apart = ciphertexts.reshape(*ciphertexts.shape[:-1], DEGREE // LANES, LANES)
    return np.ascontiguousarray(np.moveaxis(apart, (-5, -4), (-3, -2)))


def multiply_short(
    scheme: Scheme, left: Residues, right: NDArray[np.int64], divisor: int = 1, isa: str = ""
) -> Residues:
    """Σ_i left[r, i]·right[o, i]/divisor mod q: ciphertexts (r, i, …) `by_rows` times polynomials (o, i, live).

    `live`, their length, is a power of two; the shorter, the cheaper. The result is (o, r, 2, limbs, 8192).
    """
    row_blocks, inputs = left.shape[0], left.shape[3]
    outputs, same, live = right.shape
    if same != inputs or live & (live - 1) or not 2 <= live <= DEGREE:
        raise ShapeError(f"cannot multiply ciphertexts {left.shape} by polynomials {right.shape}")
    out = np.empty((outputs, row_blocks, 2, scheme.limbs, DEGREE), np.uint32)
    _native.lattice_multiply_short(
        basis(scheme.primes),
        left.reshape(-1),
        np.ascontiguousarray(right).reshape(-1),
        row_blocks,
        inputs,
        outputs,
        live,
        divisor,
        out.reshape(-1),
        isa,
    )
    return out


def scale_words(scheme: Scheme, words: Words, width: int) -> Residues:
    """round(q·m/2^width), [prime][count]."""
    out = np.empty(scheme.limbs * words.size, np.uint32)
    _native.lattice_scale_power(basis(scheme.primes), words, width, out)
    return out
