"""Truncation and opening in one round and, in Z_2^w, without bits, at the price of more correlated randomness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from comet_mpc.engine.correlations import Correlation, Mask, PartyBits
from comet_mpc.engine.ops.conversion import Conversion, Cut, whole
from comet_mpc.engine.ops.open import Open
from comet_mpc.engine.ops.operation import (
    BIT,
    Abilities,
    Drawn,
    Leg,
    Message,
    Packed,
    Request,
    check_even,
    expect,
    mask_bits,
    reconstructed,
    rounded,
)
from comet_mpc.engine.ops.truncate import Shifted, Truncate
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import CLIENT, SERVER, WORD, Words
from comet_mpc.engine.tensors import Opened
from comet_mpc.errors import RangeError, ShapeError

_KEPT = 3
"""Of the bits that an opening in Z_2^w truncates by, those that it opens."""


@dataclass(frozen=True, eq=False)
class TruncateOpen(Shifted[Opened]):
    """z -> z / 2^shift, opened. One round; where the source of randomness cannot do it, two.

    Into an odd ring: each party sends its part of the truncated value under a mask, and the bit of a truncation with
    it; that the bits' product is still missing is a matter of the mask (`ops.evaluate`).

    In Z_2^w each party first cuts its own share for free, as in `Truncate`, by all bits but `_KEPT` of those that go:
    what is sent is as much narrower. Rounded twice, the result is still one of the two next to z / 2^shift.
    """

    @property
    def ring(self) -> Ring:
        """That of what is sent."""
        return self.target if self.modulus else Ring(self.share.width - self.first)

    @property
    def first(self) -> int:
        """Bits that are cut for free before anything is sent. Values up to a quarter of the ring stay so, but for one
        unit below, which an opening takes too."""
        return 0 if self.modulus else max(0, self.bits - _KEPT)

    def cut(self, party: int) -> Words:
        """What is left of that party's share, which it holds, to be opened."""
        share = self.share
        if not self.first:
            return share.flat()
        before = Cut(share.ring, self.first, self.ring, self._off_bound * 2.0**share.fraction)
        return before.free_part(share.flat(), party == CLIENT)

    @cached_property
    def conversion(self) -> Conversion:
        """Into an odd ring."""
        return Conversion(self.share.ring, self.shift, self.target)

    def check(self, part: str) -> None:
        if self.shift == 0 and not self.modulus:
            raise RangeError(f"{part}: a TruncateOpen by no bits is an Open: ask for that")
        super().check(part)
        self.check_error(part)
        if not self.modulus:
            check_even(self.share, part)
            if not whole(self.shift):
                raise ShapeError(f"{part}: a TruncateOpen in Z_2^w is by whole bits, not {self.shift:g}")

    def split(self, abilities: Abilities) -> tuple[Request[Any], Callable[[Any], Request[Opened]]] | None:
        if abilities.fused or self.modulus:
            return None
        return Truncate(self.share, self.shift, self.width), Open

    def demand(self) -> tuple[Correlation, ...]:
        shape, width, modulus = self.share.shape, self.width, self.modulus
        if not modulus:
            return (Mask(shape, self.ring.width, self.bits - self.first, width),)
        bits = (PartyBits(shape, width, 0, width, modulus, owner=party) for party in (CLIENT, SERVER))
        return (Mask(shape, width, 0, width, modulus), *bits)

    def messages(self) -> tuple[Message, Message]:
        words = (self.ring, self.share.count)
        message: Message = (words, (BIT, self.share.count)) if self.modulus else (words,)
        return message, message

    def _opened(self, drawn: Drawn | None, public: Words | None) -> Opened:
        shape, index = self.share.shape, -1 if drawn is None else drawn.index
        found = Opened(shape, self.fraction, self.bound, self.width, index, public, self.modulus)
        if self.modulus:
            return replace(found, wrap=self.conversion.wrap, bits=() if drawn is None else drawn.more)
        return replace(found, step=self.share.width - 1 - self.bits)

    def planned(self, drawn: Drawn | None) -> Opened:
        found = self._opened(drawn, None)
        return found.with_mask(None) if self.modulus else found

    def in_the_clear(self) -> Opened:
        return self._opened(None, rounded(self.share, self.shift, self.ring))

    def leg(self, party: int, drawn: Drawn | None) -> Leg[Opened]:
        if self.modulus:
            return self._odd_leg(party == CLIENT, drawn)
        (mask,) = expect(drawn, 1)
        own, ring = self.cut(party) - mask, self.ring
        if party == CLIENT:
            own += np.uint64(2 ** (ring.width - 2) - 1)
        return ring.pack(own), lambda data: self._finish(drawn, reconstructed(self.share, own, data, ring))

    def _finish(self, drawn: Drawn | None, c: Words) -> Opened:
        """c = z' - r is public, z' = z + 2^(w-2) - 1; z' = c* + r* - 2^(w-1)·(c_top xor r_top), * the low w-1 bits.

        As in an ordinary truncation, (c* >> d) + (r* >> d) + 1 is off by less than a unit, and unbiased.
        """
        public, sign = opened_shifted(c, self.ring.width, self.bits - self.first)
        return replace(self._opened(drawn, public), factors=(sign,))

    def _odd_leg(self, leader: bool, drawn: Drawn | None) -> Leg[Opened]:
        share, ring = self.share, self.ring
        mask, bits = expect(drawn, 2)
        own = ring.subtract(self.conversion.part(share.flat(), leader), mask)
        packed = np.packbits(bits.astype(np.uint8), bitorder="little")
        mine = self.conversion.mask(share.flat(), packed, leader)

        def finish(data: memoryview) -> Opened:
            size = ring.wire_bytes(share.count)
            public = ring.add(own, ring.unpack(data[:size], share.count)).reshape(share.shape)
            theirs = np.frombuffer(data[size:], np.uint8)
            factors = self._odd_factors(mine, theirs) if leader else self._odd_factors(theirs, mine)
            return replace(self._opened(drawn, public).with_mask(mask), factors=factors)

        return np.concatenate([ring.pack(own), mine]), finish

    def _odd_factors(self, client: Packed, server: Packed) -> tuple[Words, ...]:
        """What is missing is wrap·n_0·n_1, n_i being the bit that came as v_i = n_i xor b_i: its factors are public.

        n_0·n_1 = v_0·v_1 + v_1·s_0·b_0 + v_0·s_1·b_1 + s_0·s_1·b_0·b_1 with s_i = 1 - 2·v_i.
        """
        share, ring = self.share, self.ring
        v0, v1 = (
            np.unpackbits(packed, count=share.count, bitorder="little").astype(np.uint64).reshape(share.shape)
            for packed in (client, server)
        )
        s0, s1 = (np.where(v == 0, np.uint64(1), np.uint64(ring.modulus - 1)) for v in (v0, v1))
        return v0 * v1, v1 * s0, v0 * s1, ring.multiply(s0, s1)


def opened_shifted(c: Words, width: int, shift: int) -> tuple[Words, Words]:
    """The public part of what is truncated on the way, and the sign with which 2^step times the mask's top bit is
    subtracted: from c, opened in Z_2^width."""
    top = (c >> np.uint64(width - 1)) & np.uint64(1)
    low = c & mask_bits(width - 1)
    offset = 1 - 2 ** (width - 2 - shift)
    step = np.uint64(2 ** (width - 1 - shift))
    public = (low >> np.uint64(shift)) + np.uint64(offset % 2**WORD) - top * step
    return public, np.uint64(1) - np.uint64(2) * top


def truncated_mask(a: Words, width: int, shift: int) -> tuple[Words, Words]:
    """u and the top bit of a mask that truncates."""
    low = a & mask_bits(width - 1)
    return low >> np.uint64(shift), (a >> np.uint64(width - 1)) & np.uint64(1)
