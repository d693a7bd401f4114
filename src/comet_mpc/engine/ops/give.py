"""Giving: the server learns x - a, for a mask a that the client alone knows."""

from __future__ import annotations

from dataclasses import dataclass

from comet_mpc.engine.correlations import ClientMask, Correlation
from comet_mpc.engine.ops.operation import (
    Drawn,
    Leg,
    Message,
    Request,
    check_even,
    expect,
    index_of,
    reconstructed,
    rounded,
)
from comet_mpc.engine.share import CLIENT, Words
from comet_mpc.engine.tensors import Given


@dataclass(frozen=True, eq=False)
class Give(Request[Given]):
    """Opens a share to the server only, so that its weights can be applied. One message, client to server."""

    def check(self, part: str) -> None:
        check_even(self.share, part)

    def demand(self) -> tuple[Correlation, ...]:
        return (ClientMask(self.share.shape, self.share.width),)

    def messages(self) -> tuple[Message, Message]:
        return ((self.share.ring, self.share.count),), ()

    def _given(self, mask: int, public: Words | None) -> Given:
        share = self.share
        return Given(share.shape, share.fraction, share.bound, share.width, mask, public)

    def planned(self, drawn: Drawn | None) -> Given:
        return self._given(index_of(drawn), None)

    def in_the_clear(self) -> Given:
        return self._given(-1, rounded(self.share))

    def leg(self, party: int, drawn: Drawn | None) -> Leg[Given]:
        share, index = self.share, index_of(drawn)
        if party == CLIENT:
            (mask,) = expect(drawn, 1)
            return share.ring.pack(share.flat() - mask), lambda data: self._given(index, None)
        return None, lambda data: self._given(index, reconstructed(share, share.flat(), data))
