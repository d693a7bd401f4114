"""The rings that shares live in: Z_2^w, and Z_T for an odd T.

Z_2^w is what the processor computes in, and a truncation into a narrower ring is free. Z_T serves element-wise work
where two parties prepare their randomness alone: T is a product of primes that are 1 mod 2^14, so that a product in the
slots of a homomorphic ciphertext is the product of the ring (`offline.rlwe.slots`). A word of Z_2^w may have any bits
above w. A word of Z_T is a residue, 0 … T-1.

Shares are taken from one ring into another by `engine.ops.conversion`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from comet_mpc import _native
from comet_mpc.engine import kernels
from comet_mpc.engine.kernels import Bytes, Words
from comet_mpc.errors import PeerError, RangeError, ShapeError

WORD = 64
"""Widest ring: Z_2^64. Narrower rings live in the low bits of the same words."""

MOST_BITS = 63
"""Of an odd modulus, so that sums of residues fit into a word."""

ODD_MODULI = {
    math.prod(primes): primes
    for primes in (
        (65537, 114689),
        (114689, 1196033),
        (1179649, 1785857),
        (31948801, 35045377),
        (560578561, 560824321),
        (65537, 10534913, 13238273),
    )
}
"""The odd rings, of 33, 37, 41, 50, 59 and 63 bits, with their primes. A bit less saves two bits of preparation and two
online for every element of a product. The ciphertext's modulus has 5 primes up to 37 bits, 6 up to 50, then 7. A few
rings let small tensors share ciphertexts: variances of LayerNorm take 41, what attention divides 59."""

LARGEST_ODD = 0.249 * max(ODD_MODULI)
"""Integers below this have an odd ring."""

LATTICE_PRIMES = (1073692673, 1073643521, 1073479681, 1073430529, 1073299457, 1073233921, 1073184769)
"""Those of the ciphertexts' modulus (`offline.rlwe.scheme`): no plaintext modulus may share one."""

_SLOT_STEP = 1 << 14


@dataclass(frozen=True)
class Ring:
    """Z_2^width, or Z_modulus for an odd modulus of so many bits."""

    width: int
    modulus: int = 0

    def __post_init__(self) -> None:
        if self.modulus:
            odd = self.modulus % 2 == 1 and self.modulus >= 3
            if not odd or self.modulus.bit_length() != self.width or self.width > MOST_BITS:
                raise ShapeError(f"no ring: {self.width} bits and the modulus {self.modulus}")
        elif not 1 <= self.width <= WORD:
            raise ShapeError(f"a ring of {self.width} bits: the width must be 1 to {WORD}")

    def __str__(self) -> str:
        return f"{self.width} odd" if self.modulus else f"{self.width}"

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self.modulus or 1 << self.width

    def holds(self, largest: float) -> bool:
        """Whether integers of this size can be converted into any other ring."""
        return largest < 2.0 ** (self.width - 2) if not self.modulus else 4 * (largest + 1) < 0.999 * self.modulus

    def room(self, largest: float) -> float:
        """Bits by which integers of this size can grow, and still be converted into any other ring."""
        limit = 2.0 ** (self.width - 2) if not self.modulus else 0.999 * self.modulus / 4 - 1
        return math.log2(limit / largest)

    # Elements ----------------------------------------------------------------------------------------------

    def reduced(self, words: Words) -> Words:
        """Integers mod 2^64 as elements: their low bits, or the residue of the number that each stands for, signed."""
        if not self.modulus:
            return words
        return np.mod(words.view(np.int64), np.int64(self.modulus)).view(np.uint64)

    def signed(self, words: Words) -> npt.NDArray[np.int64]:
        """The integers nearest to zero."""
        if not self.modulus:
            left = np.uint64(WORD - self.width)
            return (words << left).view(np.int64) >> np.int64(left)
        return np.where(words > np.uint64(self.modulus // 2), words - np.uint64(self.modulus), words).view(np.int64)

    def add(self, left: Words, right: Words) -> Words:
        total = left + right
        if self.modulus:
            t = np.uint64(self.modulus)
            total = np.where(total >= t, total - t, total)
        return total

    def subtract(self, left: Words, right: Words) -> Words:
        return left - right if not self.modulus else self.add(left, np.uint64(self.modulus) - right)

    def times(self, words: Words, integer: int) -> Words:
        factor = np.uint64(integer % (self.modulus or 1 << WORD))
        return words * factor if not self.modulus else self.multiply(words, np.broadcast_to(factor, words.shape))

    def multiply(self, left: Words, right: Words) -> Words:
        """Element by element, with broadcasting."""
        if not self.modulus:
            return left * right
        shape = np.broadcast_shapes(left.shape, right.shape)
        a, b = (np.ascontiguousarray(np.broadcast_to(x, shape)).reshape(-1) for x in (left, right))
        out = np.empty(a.size, np.uint64)
        _native.odd_multiply(self.modulus, a, b, out)
        return out.reshape(shape)

    def sum(self, words: Words, axis: int, *, keep: bool = False) -> Words:
        """Along an axis."""
        if not self.modulus:
            return np.asarray(words.sum(axis=axis, keepdims=keep, dtype=np.uint64))
        low = (words & np.uint64(2**31 - 1)).sum(axis=axis, keepdims=keep, dtype=np.uint64)
        high = (words >> np.uint64(31)).sum(axis=axis, keepdims=keep, dtype=np.uint64) % np.uint64(self.modulus)
        return self.add(self.times(high, 2**31), low % np.uint64(self.modulus))

    # On the wire, and from seeds -----------------------------------------------------------------------------

    def wire_bytes(self, count: int) -> int:
        """Of so many elements, packed bit by bit."""
        return (count * self.width + 7) // 8

    def pack(self, words: Words) -> Bytes:
        """Bits above the ring's width mean nothing and are not sent."""
        if self.width % 8 == 0:
            return kernels.pack_words(words, self.width // 8)
        out = np.empty(self.wire_bytes(words.size), np.uint8)
        _native.pack_bits(np.ascontiguousarray(words).reshape(-1), out, self.width)
        return out

    def unpack(self, data: bytes | memoryview | Bytes, count: int) -> Words:
        """Refuses what is no element."""
        if self.width % 8 == 0 and not self.modulus:
            return kernels.unpack_words(data, self.width // 8, count)
        if len(data) != self.wire_bytes(count):
            raise ShapeError(f"{count} elements of {self.width} bits are not {len(data)} bytes")
        out = np.empty(count, np.uint64)
        if not _native.unpack_bits(np.frombuffer(data, np.uint8), out, self.width, self.modulus):
            limit = f"below the modulus of {self.width} bits" if self.modulus else f"one of {self.width} bits"
            raise PeerError(f"a number that was received is not {limit}")
        return out

    @property
    def seed_words(self) -> int:
        """Words of a stream that an element takes (`from_seed`)."""
        return 2 if self.modulus else 1

    def from_seed(self, words: Words) -> Words:
        """Elements from uniform words: uniform in Z_2^w, within T/2^128 of it in Z_T."""
        if not self.modulus:
            return words
        out = np.empty(words.size // 2, np.uint64)
        _native.odd_uniform(self.modulus, np.ascontiguousarray(words), out)
        return out


def is_prime(n: int) -> bool:
    """Miller-Rabin, exact below 3·10^9 with these bases."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(
        any(pow(base, odd << i, n) == n - 1 for i in range(twos)) or pow(base, odd, n) == 1 for base in (2, 3, 5, 7)
    )


@lru_cache(maxsize=4096)
def slot_prime(least: int) -> int:
    """The first prime from here on that is 1 mod 2^14 and none of the ciphertexts'; 0 if there is none below 2^30."""
    candidate = (max(least, 2) + _SLOT_STEP - 2) // _SLOT_STEP * _SLOT_STEP + 1
    while candidate < 1 << 30:
        if candidate not in LATTICE_PRIMES and is_prime(candidate):
            return candidate
        candidate += _SLOT_STEP
    return 0


def odd_ring(largest: float) -> Ring:
    """The smallest of the odd rings that holds integers up to `largest`."""
    for modulus in ODD_MODULI:
        ring = Ring(modulus.bit_length(), modulus)
        if ring.holds(largest):
            return ring
    raise RangeError(f"no odd ring holds integers up to 2^{math.log2(largest):.1f}")


def slot_primes(modulus: int) -> tuple[int, ...]:
    """The primes of an odd ring's modulus. Refuses one that has no slots."""
    if modulus not in ODD_MODULI:
        raise ShapeError(f"the modulus {modulus} is none of the odd rings that ciphertexts have slots for")
    return ODD_MODULI[modulus]
