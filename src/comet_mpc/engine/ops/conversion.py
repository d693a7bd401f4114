"""From one ring into another, divided by 2^d on the way: how shares are converted, and what error is left.

z = z_0 + z_1 in Z_M with |z| < M/4 becomes z·s in Z_N. Party 0 adds o, near M/4, so that the sum of the shares is below
M/2, or M more if it wrapped; it wrapped unless both are below M/2. With n_i for "below", and K = M·s,

    z·s = z'_0·s + z'_1·s - (1 - n_0·n_1)·K - o·s      in any ring that holds it, up to rounding.

So each party sends n_i under a random bit, and both have shares of the product of these bits. Two classes choose a
scale s near 2^-d, and the ring in which the product is shared:

`Conversion`  K is an integer and the product is shared in Z_N. If M is 2^w, or 1 mod 2^d, s is 2^-d. Else K =
              round(M/2^d) and s = K/M, which differs from 2^-d by |z|/2M < 1/8 of a unit in the result. An opening that
              truncates on the way needs it: its masks are multiplied with the bits (`ops.truncate_open`).
`Cut`         K = j·N/P is a rational number and the product is shared in Z_P: what wraps there is a multiple of P·K =
              j·N, which is zero in Z_N. So P only has to be large enough for s = j·N/(P·M) to be near 2^-d: within
              1/9 of a unit for the largest |z|. P takes about N·2^d/M, often a third of the bits of N. If P is 1
              there is no product, no bit and no message: what wraps in Z_M is a multiple of M·s = j·N. Between two
              powers of two s is exactly 2^-d.

One party rounds down, the other up. So a conversion is off by less than 9/8 units, and its mean by less than 1/8 and
2^-(d+1).
d is a real number where the scale before or after is no power of two (`free_shift`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from comet_mpc import _native
from comet_mpc.engine import kernels
from comet_mpc.engine.kernels import Bytes, Words
from comet_mpc.engine.ring import WORD, Ring

MOST_OFF = 1.125
"""Units by which a conversion is off at most, unless its scale is exactly a power of two: then less than 1."""

LARGEST_SCALED = 2.0**44
"""Results of a conversion whose shift is no whole number are below this, so that 2^shift is exact enough."""
LEAST_SHIFT, LEAST_WIDTH = 2.0, 32
"""A shift that is no whole number is not less, and its ring not narrower."""

_SCALE_OFF = 1.0 / 9.0  # units, for the largest value: with all that is rounded besides, less than 1/8
_LARGEST_P = 1 << 40  # with 64 bits after the point, multiples of N/P are then right to 2^-24 of a unit
_FACTORS = np.arange(1.0, 2.0**16)  # that are tried for j, the smallest first
_FLOAT_ERROR = 2.0**-50  # relative, of 2^d for a real d
_SCALE_BITS = 40


def whole(shift: float) -> bool:
    return shift == int(shift)


def free_shift(source: Ring, fraction: float, least: float, target: Ring) -> float:
    """d > 0 so that a value with so many fraction bits keeps at least `least`, and no more than a bit more, in a
    conversion that sends nothing: 2^-d = j·N/M. Rounded to 2^-40, so that sums of such scales are exact."""
    return free_shift_by(source, max(1, math.ceil(2.0 ** (least - fraction) * source.size / target.size)), target)


def free_shift_by(source: Ring, factor: int, target: Ring) -> float:
    """d with 2^-d = factor·N/M."""
    shift = math.log2(source.size / (factor * target.size))
    return float(round(shift * 2**_SCALE_BITS) / 2**_SCALE_BITS)


@dataclass(frozen=True)
class Conversion:
    """From one ring into another, divided by 2^shift, the product of the bits in the target's ring."""

    source: Ring
    shift: float
    target: Ring

    @cached_property
    def _numbers(self) -> _native.Numbers:
        """What native/ring/odd.hpp wants to know."""
        size, target = self.source.size, self.target
        d = int(self.shift) if whole(self.shift) else -1
        exact = d == 0 or (d > 0 and (not self.source.modulus or size % (1 << d) == 1))
        if exact:
            wrap = (size if not self.source.modulus or d == 0 else size - 1) >> d
            constant = size // 4 >> d
            offset, scale = (constant << d) - (2 if self.source.modulus and d else 1), (1 << 128 - d) % (1 << 128)
        else:
            wrap = round(size / 2.0**self.shift) if d < 0 else round(size / (1 << d))
            constant = self._constant(wrap)
            offset, scale = (2 * constant * size + wrap) // (2 * wrap), (wrap << 128) // size
        into = target.modulus or 1 << WORD
        return (
            self.source.modulus,
            self.source.width,
            offset,
            (size + 1) // 2,
            scale >> 64,
            scale % (1 << 64),
            target.modulus,
            wrap % into,
            (1 - wrap - constant) % into,
        )

    def _constant(self, wrap: int) -> int:
        """Near K/4, so that o = constant/s is nearly whole: by few bits, rounding it would be felt in the result.

        o is then less than M/4 by 2^-13 of M at most, for which `Truncate.check` leaves room.
        """
        size, tried = self.source.size, 1 if whole(self.shift) else max(1, min(64, wrap >> 13))
        near = range(wrap // 4, wrap // 4 - tried, -1)
        return min(near, key=lambda constant: abs((constant * size + wrap // 2) % wrap - wrap // 2))

    @property
    def wrap(self) -> int:
        """What the product of the two bits is worth."""
        return self._numbers[7]

    def mask(self, words: Words, bits: Bytes, leader: bool) -> Bytes:
        """Packed n_i xor b_i, the one message. With uniform b_i it reveals nothing."""
        out = np.empty((words.size + 7) // 8, np.uint8)
        _native.convert_mask(self._numbers, leader, words, bits, out)
        return out

    def part(self, words: Words, leader: bool) -> Words:
        """A party's part of the converted value, from which `wrap` times the product of the parties' bits is
        missing."""
        none, zeros = np.zeros((words.size + 7) // 8, np.uint8), np.zeros(words.size, np.uint64)
        return self.finish(words, none, none, none, zeros, leader)

    def finish(self, words: Words, bits: Bytes, mine: Bytes, theirs: Bytes, product: Words, leader: bool) -> Words:
        """A share of the converted value; `product` is a share of b_0·b_1 in the target's ring."""
        out = np.empty(words.size, np.uint64)
        _native.convert_finish(self._numbers, leader, words, bits, mine, theirs, product, out)
        return out


@lru_cache(maxsize=1024)  # a plan asks for the same few ratios again and again
def _nearest_ratio(step: float, most: float, units: float) -> tuple[int, int] | None:
    """The smallest (P, j), P odd and below `most`, with P near enough to j·step for a value of so many units."""
    ideal = _FACTORS * step
    ideal = ideal[ideal < most]
    odd = 2.0 * np.rint((ideal - 1.0) / 2.0) + 1.0  # the nearest
    near = np.flatnonzero(units * (np.abs(ideal / odd - 1.0) + _FLOAT_ERROR) <= _SCALE_OFF)
    return (int(odd[near[0]]), int(_FACTORS[near[0]])) if near.size else None


@dataclass(frozen=True)
class Cut:
    """From one ring into another, divided by 2^shift, with a product of bits that is as small as can be.

    largest: |z| at most, in units of the source
    """

    source: Ring
    shift: float
    target: Ring
    largest: float

    @property
    def even(self) -> bool:
        """Whether both rings are powers of two, and so is the scale."""
        return not self.source.modulus and not self.target.modulus and whole(self.shift)

    @cached_property
    def _ratio(self) -> tuple[int, int]:
        """(P, j), the smallest; (0, 0) if no small P will do, or if the value must stay exactly what it is."""
        found = self._exact_ratio() or self._near_ratio() if self.shift >= 0 else None  # a request refuses others
        return found or (0, 0)

    def _exact_ratio(self) -> tuple[int, int] | None:
        """Where s is exactly 2^-shift."""
        if not whole(self.shift) or not (self.even or self.shift):
            return None
        ratio = Fraction(self.source.size, self.target.size << int(self.shift))
        p, j = ratio.denominator, ratio.numerator
        power_of_two = p & (p - 1) == 0
        return (p, j) if self.even or (power_of_two and j == 1) else None

    def _near_ratio(self) -> tuple[int, int] | None:
        """Where it is near enough, P odd."""
        if not self.shift:
            return None
        step = 2.0**self.shift * self.target.size / self.source.size
        return _nearest_ratio(step, min(_LARGEST_P, self.target.size / 2), self.largest * 2.0**-self.shift)

    @property
    def free(self) -> bool:
        """Whether each party converts its own share and nothing is sent."""
        return self._ratio[0] == 1

    @property
    def product_ring(self) -> Ring:
        """Where the product of the two bits is shared, if it is not free."""
        p = self._ratio[0]
        if not p:
            return self.target
        return Ring(p.bit_length(), p) if p % 2 else Ring(p.bit_length() - 1)

    @cached_property
    def _conversion(self) -> Conversion:
        return Conversion(self.source, self.shift, self.target)

    @cached_property
    def _numbers(self) -> _native.CutNumbers:
        """What native/ring/cut.hpp wants to know."""
        (p, j), size, into = self._ratio, self.source.size, self.target.size
        offset = 0 if self.free else size // 4
        scale = ((j * into << 128) // (p * size)) % (1 << 128)
        step = (into << 64) // p
        constant = 0 if self.free else ((-j * into * (size + offset) << 64) // (p * size)) % (into << 64)
        low = 1 << 64
        return (
            self.source.modulus,
            self.source.width,
            offset,
            (size + 1) // 2,
            scale // low,
            scale % low,
            self.target.modulus,
            p,
            j,
            step // low % low,
            step % low,
            constant // low,
            constant % low,
        )

    def free_part(self, words: Words, leader: bool) -> Words:
        """A party's share of the converted value, where nothing is sent."""
        if self.even:
            # each party's own share of z - 1, shifted; with the one given back it is as unbiased as any truncation
            one, low = np.uint64(1 if leader else 0), np.uint64(2**self.source.width - 1)
            return (((words - one) & low) >> np.uint64(self.shift)) + one
        out = np.empty(words.size, np.uint64)
        _native.cut_free(self._numbers, leader, words, out)
        return out

    def mask(self, words: Words, bits: Bytes, leader: bool) -> Bytes:
        """Packed n_i xor b_i, the one message. With uniform b_i it reveals nothing."""
        if self.even:
            return kernels.truncate_mask(words, bits, self.source.width, leader)
        if not self._ratio[0]:
            return self._conversion.mask(words, bits, leader)
        out, where = np.empty((words.size + 7) // 8, np.uint8), self._numbers
        _native.convert_mask((*where[:4], 0, 0, 0, 0, 0), leader, words, bits, out)
        return out

    def finish(self, words: Words, bits: Bytes, mine: Bytes, theirs: Bytes, product: Words, leader: bool) -> Words:
        """A share of the converted value; `product` is a share of b_0·b_1 in `product_ring`."""
        if self.even:
            width, shift = self.source.width, int(self.shift)
            return kernels.truncate_finish(words, bits, mine, theirs, product, width, shift, leader)
        if not self._ratio[0]:
            return self._conversion.finish(words, bits, mine, theirs, product, leader)
        out = np.empty(words.size, np.uint64)
        _native.cut_finish(self._numbers, leader, words, bits, mine, theirs, product, out)
        return out
