"""Truncation: a share of x / 2^d, off by less than one unit, unbiased; one masked bit each way, or nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from comet_mpc.engine.correlations import BitProducts, Correlation
from comet_mpc.engine.ops.conversion import LARGEST_SCALED, LEAST_SHIFT, LEAST_WIDTH, MOST_OFF, Cut, whole
from comet_mpc.engine.ops.operation import BIT, Drawn, Leg, Message, Request, expect, rounded
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import CLIENT, WORD, Share, Words
from comet_mpc.errors import RangeError

Made_co = TypeVar("Made_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Shifted(Request[Made_co]):
    """A share divided by 2^shift, into the ring of `width` bits, or `modulus`."""

    cuts = True

    shift: float
    """A whole number, unless the share's scale is no power of two (`Session.cut_to`)."""
    width: int = WORD
    modulus: int = 0

    @property
    def target(self) -> Ring:
        return Ring(self.width, self.modulus)

    def check(self, part: str) -> None:
        share = self.share
        if not 0 <= self.shift <= share.width - 2:
            raise RangeError(f"{part}: cannot truncate by {self.shift:g} bits in a ring of {share.width}")
        large, narrow = self._off_bound * 2.0**self.fraction > LARGEST_SCALED, share.width < LEAST_WIDTH
        if not whole(self.shift) and (large or narrow or self.shift < LEAST_SHIFT):
            raise RangeError(
                f"{part}: cannot truncate by {self.shift:g} bits: by less than {LEAST_SHIFT:g}, in a ring below "
                f"{LEAST_WIDTH} bits, and values above 2^{math.log2(LARGEST_SCALED):g}, only by whole bits"
            )
        if not self.target.holds(self._off_bound * 2.0 ** (share.fraction - self.shift)):
            raise RangeError(f"{part}: the truncated value does not fit into a ring of {self.width} bits")
        if not share.ring.holds(self._largest):
            raise RangeError(
                f"{part}: a value up to {share.bound:g} with {share.fraction} fraction bits may reach "
                f"2^{share.width - 2}, where a truncation in a ring of {share.width} bits is no longer exact"
            )

    @property
    def _off_bound(self) -> float:
        """Of the share, as the parties have it: with its error."""
        return self.share.bound + self.share.error

    @property
    def _largest(self) -> float:
        """In units, with room for an offset that is not quite a quarter of the ring."""
        largest: float = self._off_bound * 2.0**self.share.fraction
        if whole(self.shift):
            return largest + (2.0 ** int(self.shift) if self.share.modulus else 0.0)
        return 1.02 * largest + float(2.0**self.shift)

    def check_error(self, part: str) -> None:
        """For what is opened: it must not be off by more than a unit."""
        if self.error:
            raise RangeError(
                f"{part}: a product that was asked for with fewer bits than the {self.fraction:g} that are left of it "
                "here would be off by more than a unit: ask for it with a higher precision"
            )

    @property
    def bits(self) -> int:
        """That it truncates by in Z_2^w."""
        return int(self.shift)

    @property
    def fraction(self) -> float:
        """Fraction bits of the result."""
        return self.share.fraction - self.shift

    @property
    def bound(self) -> float:
        """Of the result: it grows by the unit in the last place by which it may be off, and by the share's error."""
        if not self.shift:
            return self._off_bound
        exact = not (self.share.modulus or self.modulus) and whole(self.shift)
        unit: float = 2.0**-self.fraction
        return self.share.bound + unit * (1.0 if exact else MOST_OFF) + self.share.error

    @property
    def error(self) -> float:
        """What stays of the share's error: nothing, if it is at most a unit of the result. The bound has it then."""
        return self.share.error if self.share.error * 2.0**self.fraction > 1.0 else 0.0


@dataclass(frozen=True, eq=False)
class Truncate(Shifted[Share]):
    """z -> z / 2^shift in the ring of `width` bits, or `modulus`. Needs |z| below a quarter of its own ring, which the
    share's bound proves.

    From Z_2^w into Z_2^(w - shift) or less it is free: the wrap-around that has to be taken back is a multiple of
    2^(w-shift), which is zero there, so each party shifts its own share and nothing is sent. Into Z_T it is free if the
    share is scaled by a multiple of T/2^w.
    """

    @cached_property
    def cut(self) -> Cut:
        share = self.share
        return Cut(share.ring, self.shift, self.target, self._off_bound * 2.0**share.fraction)

    @property
    def free(self) -> bool:
        return self.cut.free

    def demand(self) -> tuple[Correlation, ...]:
        if self.free:
            return ()
        ring = self.cut.product_ring
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
        return self._truncated(rounded(self.share, self.shift, self.target))

    def leg(self, party: int, drawn: Drawn | None) -> Leg[Share]:
        share, leader = self.share, party == CLIENT
        if self.free:
            words = self.cut.free_part(share.flat(), leader)
            return None, lambda data: self._truncated(words)
        drawn_bits, product = expect(drawn, 2)
        bits = drawn_bits.view(np.uint8)
        mine = self.cut.mask(share.flat(), bits, leader)

        def finish(data: memoryview) -> Share:
            theirs = np.frombuffer(data, np.uint8)
            return self._truncated(self.cut.finish(share.flat(), bits, mine, theirs, product, leader))

        return mine, finish
