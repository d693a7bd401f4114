"""Truncation: a share of x / 2^d, off by less than one unit, unbiased; one masked bit each way, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from comet_mpc.engine.correlations import BitProducts, Correlation
from comet_mpc.engine.ops.operation import BIT, Drawn, Leg, Message, Request, expect, mask_bits, rounded
from comet_mpc.engine.ring import Conversion, Ring
from comet_mpc.engine.share import CLIENT, WORD, Share, Words
from comet_mpc.errors import RangeError

Made_co = TypeVar("Made_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Shifted(Request[Made_co]):
    """A share divided by 2^shift, into the ring of `width` bits, or `modulus`."""

    cuts = True

    shift: int
    width: int = WORD
    modulus: int = 0

    @property
    def conversion(self) -> Conversion:
        return Conversion(self.share.ring, self.shift, Ring(self.width, self.modulus))

    def check(self, part: str) -> None:
        share = self.share
        if not 0 <= self.shift <= share.width - 2:
            raise RangeError(f"{part}: cannot truncate by {self.shift} bits in a ring of {share.width}")
        largest = share.bound + share.error
        if not Ring(self.width, self.modulus).holds(largest * 2.0 ** (share.fraction - self.shift)):
            raise RangeError(f"{part}: the truncated value does not fit into a ring of {self.width} bits")
        if not share.ring.holds(largest * 2.0**share.fraction + (2.0**self.shift if share.modulus else 0.0)):
            raise RangeError(
                f"{part}: a value up to {share.bound:g} with {share.fraction} fraction bits may reach "
                f"2^{share.width - 2}, where a truncation in a ring of {share.width} bits is no longer exact"
            )

    @property
    def fraction(self) -> int:
        """Fraction bits of the result."""
        return self.share.fraction - self.shift

    @property
    def bound(self) -> float:
        """Of the result: it grows by the unit in the last place by which it may be off, and by the share's error."""
        share = self.share
        unit = 2.0 ** (self.shift - share.fraction) * (1.125 if share.modulus else 1.0) if self.shift else 0.0
        return share.bound + unit + share.error

    @property
    def error(self) -> float:
        """What stays of the share's error: nothing, if it is at most a unit of the result. The bound has it then."""
        return self.share.error if self.share.error * 2.0**self.fraction > 1.0 else 0.0


@dataclass(frozen=True, eq=False)
class Truncate(Shifted[Share]):
    """z -> z / 2^shift in the ring of `width` bits, or `modulus`. Needs |z| below a quarter of its own ring, which the
    share's bound proves.

    From Z_2^w into Z_2^(w - shift) or less it is free: the wrap-around that has to be taken back is a multiple of
    2^(w-shift), which is zero there, so each party shifts its own share and nothing is sent.
    """

    @property
    def free(self) -> bool:
        return not self.share.modulus and not self.modulus and self.width <= self.share.width - self.shift

    def demand(self) -> tuple[Correlation, ...]:
        if self.free:
            return ()
        ring = self.conversion.product_ring
        return (BitProducts(self.share.count, ring.width, ring.modulus),)

    def messages(self) -> tuple[Message, Message]:
        bits: Message = () if self.free else ((BIT, self.share.count),)
        return bits, bits

    def _truncated(self, words: Words | None) -> Share:
        shape = self.share.shape
        values = None if words is None else words.reshape(shape)
        return Share(shape, self.fraction, self.bound, self.width, values, self.modulus, self.error)

    def planned(self, drawn: Drawn | None) -> Share:
        return self._truncated(None)

    def in_the_clear(self) -> Share:
        return self._truncated(rounded(self.share, self.shift, self.conversion.target))

    def leg(self, party: int, drawn: Drawn | None) -> Leg[Share]:
        share, leader = self.share, party == CLIENT
        if self.free:
            words = self._shifted(leader)
            return None, lambda data: self._truncated(words)
        drawn_bits, product = expect(drawn, 2)
        bits = drawn_bits.view(np.uint8)
        mine = self.conversion.mask(share.flat(), bits, leader)

        def finish(data: memoryview) -> Share:
            theirs = np.frombuffer(data, np.uint8)
            return self._truncated(self.conversion.finish(share.flat(), bits, mine, theirs, product, leader))

        return mine, finish

    def _shifted(self, leader: bool) -> Words:
        """Each party's own share of z - 1, shifted; with the one given back it is as unbiased as any truncation."""
        share, one = self.share, np.uint64(1 if leader else 0)
        return (((share.flat() - one) & mask_bits(share.width)) >> np.uint64(self.shift)) + one
