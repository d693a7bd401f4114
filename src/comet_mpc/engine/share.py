"""Fixed point numbers in a ring, Z_2^w or Z_T (`ring`), and additive shares of them.

A real number v with f fraction bits is the ring element round(v·2^f). A secret z is held as z = z_client + z_server
in the ring. A `Share` is one party's part (or, in a plaintext twin, the whole), and it carries what must fit before
two of them meet: shape, fraction bits, ring and a certified bound.

Everything here is local: no operation of this module communicates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.kernels import Words as Words  # this and WORD are passed on
from comet_mpc.engine.ring import WORD as WORD
from comet_mpc.engine.ring import Ring
from comet_mpc.errors import RangeError, ScaleError, ShapeError

Reals: TypeAlias = npt.NDArray[np.float64]

CLIENT = 0
SERVER = 1
BOTH = 2


def word_bytes(width: int) -> int:
    """Bytes of one element of Z_2^width where it is stored: whole bytes."""
    return (width + 7) // 8


def as_ring(ring: int | Ring) -> Ring:
    """A ring, or Z_2^w by its width."""
    return ring if isinstance(ring, Ring) else Ring(ring)


def ring_width(fraction: float, bound: float) -> int:
    """The narrowest ring, of 8 bits at least, in which values up to `bound` with so many fraction bits stay exact."""
    largest = bound * 2.0**fraction
    if not largest < 2.0 ** (WORD - 2):
        raise RangeError(f"values up to {bound:g} with {fraction} fraction bits do not fit into a ring of {WORD} bits")
    return 2 + max(6, math.frexp(largest)[1])  # largest < 2^(width - 2)


def encode(values: npt.ArrayLike, fraction: float, width: int | Ring = WORD) -> Words:
    """round(v·2^fraction) in a ring; |v|·2^fraction must stay below a quarter of it, where truncation is exact."""
    ring = as_ring(width)
    array = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise RangeError("a value to be encoded is not finite")
    scaled = np.rint(array * 2.0**fraction)
    if scaled.size and not ring.holds(float(np.max(np.abs(scaled)))):
        raise RangeError(
            "a value to be encoded is outside the fixed-point range: |v| must be below "
            f"2^{ring.width - 2 - fraction:g} with {fraction:g} fraction bits in a ring of {ring.width} bits"
        )
    return ring.reduced(scaled.astype(np.int64).view(np.uint64))


def decode(values: Words, fraction: float, width: int | Ring = WORD) -> Reals:
    """The real numbers behind ring elements: the integers nearest to zero over 2^fraction."""
    return np.asarray(as_ring(width).signed(values).astype(np.float64) * 2.0**-fraction)


@dataclass(frozen=True, eq=False)
class Share:
    """One party's share of a secret tensor.

    fraction  fraction bits: words stand for value·2^fraction. A whole number, unless `Session.cut_to` made the share
    bound   |value| <= bound for every input whatsoever; the program's author answers for it, sums and
            products of bounds are kept here, and the plaintext twin checks it on every value it sees.
    values  this party's words, or None in a plan, where only the shape is known. Never printed.
    error   by how much the parties' value may be off the twin's, beside the bound. Encrypted products have it, sums and
            multiples keep it, and only a truncation that makes it small may follow (`ops.operation.Registry.check`).
    """

    shape: tuple[int, ...]
    fraction: float
    bound: float
    width: int = WORD
    values: Words | None = field(default=None, repr=False)
    modulus: int = 0
    """Of an odd ring; 0 for Z_2^width."""
    error: float = 0.0

    def __post_init__(self) -> None:
        if self.values is not None and self.values.shape != self.shape:
            raise ShapeError(f"a share of shape {self.shape} was given values of shape {self.values.shape}")
        if not 2 <= self.width <= WORD:
            raise ShapeError(f"a ring of {self.width} bits: the width must be 2 to {WORD}")
        if not (math.isfinite(self.bound) and self.bound >= 0):
            raise RangeError(f"a bound must be finite and not negative, got {self.bound}")

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def ring(self) -> Ring:
        return Ring(self.width, self.modulus)

    def flat(self) -> Words:
        """The words as a contiguous vector."""
        if self.values is None:
            raise ShapeError("a planned share has no values")
        return np.ascontiguousarray(self.values).reshape(-1)

    def with_values(self, values: Words | None) -> Share:
        return replace(self, values=values)

    def bounded(self, bound: float) -> Share:
        """The same share with a bound the caller has proved (for example by Cauchy-Schwarz)."""
        return replace(self, bound=bound)

    def narrow(self, width: int) -> Share:
        """The same value in a smaller ring: both parties drop high bits, nothing is sent."""
        if self.modulus:
            raise ShapeError("an odd ring has no smaller one within it: truncate into another ring")
        if width > self.width:
            raise ShapeError(f"cannot widen a share from {self.width} to {width} bits without a truncation")
        return replace(self, width=width)

    def _combine(self, other: Share, operation: Callable[[Ring, Words, Words], Words], bound: float) -> Share:
        if self.fraction != other.fraction:
            raise ScaleError(f"fraction bits differ: {self.fraction} and {other.fraction}; lift one of them first")
        if (self.values is None) != (other.values is None):
            raise ShapeError("a planned share and a real one were mixed")
        try:
            shape = np.broadcast_shapes(self.shape, other.shape)
        except ValueError as error:
            raise ShapeError(f"shapes do not fit: {self.shape} and {other.shape}") from error
        ring = self._ring_with(other)
        values = None if self.values is None or other.values is None else operation(ring, self.values, other.values)
        return Share(shape, self.fraction, bound, ring.width, values, ring.modulus, self.error + other.error)

    def _ring_with(self, other: Share) -> Ring:
        """The ring of what is made of two shares: the narrower one, or the odd one that both are in."""
        if self.modulus != other.modulus:
            raise ScaleError("shares in different rings: truncate one of them into the other's first")
        return self.ring if self.width <= other.width else other.ring

    def __add__(self, other: Share) -> Share:
        return self._combine(other, Ring.add, self.bound + other.bound)

    def __sub__(self, other: Share) -> Share:
        return self._combine(other, Ring.subtract, self.bound + other.bound)

    def __neg__(self) -> Share:
        return self.times(-1)

    def times(self, integer: int) -> Share:
        """The product with a public integer."""
        values = None if self.values is None else self.ring.times(self.values, integer)
        return replace(self, bound=self.bound * abs(integer), values=values, error=self.error * abs(integer))

    def lift(self, fraction: float) -> Share:
        """The same value with more fraction bits: exact, a local product with a power of two.

        Z_2^w grows along with it: what is known mod 2^w is known mod 2^(w+k) once it is multiplied by 2^k.
        """
        if fraction < self.fraction:
            raise ScaleError(f"cannot lift from {self.fraction} to {fraction} fraction bits: that is a truncation")
        shift = int(fraction - self.fraction)
        if self.fraction + shift != fraction:
            raise ScaleError(f"cannot lift from {self.fraction:g} to {fraction:g} fraction bits: not by whole bits")
        values = None if self.values is None else self.ring.times(self.values, 1 << shift)
        width = self.width if self.modulus else min(WORD, self.width + shift)
        return replace(self, fraction=fraction, width=width, values=values)

    def times_power(self, exponent: float) -> Share:
        """The product with 2^exponent: the same words, read with other fraction bits."""
        factor = 2.0**exponent
        return replace(self, fraction=self.fraction - exponent, bound=self.bound * factor, error=self.error * factor)

    def _view(self, shape: tuple[int, ...], operation: Callable[[Words], Words]) -> Share:
        return replace(self, shape=shape, values=None if self.values is None else operation(self.values))

    def _blank(self) -> npt.NDArray[np.bool_]:
        return np.broadcast_to(np.False_, self.shape)

    def reshape(self, *shape: int) -> Share:
        if math.prod(shape) != self.count:
            raise ShapeError(f"cannot reshape {self.shape} to {shape}")
        return self._view(shape, lambda values: values.reshape(shape))

    def transpose(self, *axes: int) -> Share:
        return self._view(self._blank().transpose(axes).shape, lambda values: values.transpose(axes))

    def __getitem__(self, key: Any) -> Share:
        return self._view(self._blank()[key].shape, lambda values: values[key])

    def sum(self, axis: int = -1, *, keep: bool = False) -> Share:
        """Sum along an axis."""
        size = self.shape[axis]
        shape = list(self.shape)
        if keep:
            shape[axis] = 1
        else:
            del shape[axis]
        summed = self._view(tuple(shape), lambda values: self.ring.sum(values, axis, keep=keep))
        return replace(summed, bound=self.bound * size, error=self.error * size)


def concatenate(shares: Sequence[Share], axis: int) -> Share:
    """Shares of equal scale, one after the other along an axis."""
    first = shares[0]
    if any((share.fraction, share.modulus) != (first.fraction, first.modulus) for share in shares):
        raise ScaleError("shares of unequal fraction bits, or in different rings, cannot be concatenated")
    blanks = [np.broadcast_to(np.False_, share.shape) for share in shares]
    try:
        shape = np.concatenate(blanks, axis=axis).shape
    except ValueError as error:
        raise ShapeError(f"shapes do not fit: {[share.shape for share in shares]}") from error
    arrays = [share.values for share in shares if share.values is not None]
    if len(arrays) not in (0, len(shares)):
        raise ShapeError("planned shares and real ones were mixed")
    values = np.concatenate(arrays, axis=axis) if arrays else None
    bound, off = max(share.bound for share in shares), max(share.error for share in shares)
    return Share(shape, first.fraction, bound, min(share.width for share in shares), values, first.modulus, off)
