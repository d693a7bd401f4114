"""Opening: both parties learn x - a, for a fresh uniform mask a."""

from __future__ import annotations

from dataclasses import dataclass

from comet_mpc.engine.correlations import Correlation, Mask
from comet_mpc.engine.ops.operation import Drawn, Leg, Message, Request, expect, index_of, reconstructed, rounded
from comet_mpc.engine.share import Words
from comet_mpc.engine.tensors import Opened


@dataclass(frozen=True, eq=False)
class Open(Request[Opened]):
    """Opens a share under a fresh uniform mask. 8 bytes an element and party in a 64-bit ring, fewer in a narrower."""

    def demand(self) -> tuple[Correlation, ...]:
        share = self.share
        return (Mask(share.shape, share.width, 0, share.width, share.modulus),)

    def messages(self) -> tuple[Message, Message]:
        message: Message = ((self.share.ring, self.share.count),)
        return message, message

    def _opened(self, mask: int, public: Words | None) -> Opened:
        share = self.share
        return Opened(share.shape, share.fraction, share.bound, share.width, mask, public, share.modulus)

    def planned(self, drawn: Drawn | None) -> Opened:
        return self._opened(index_of(drawn), None).with_mask(None)

    def in_the_clear(self) -> Opened:
        return self._opened(-1, rounded(self.share))

    def leg(self, party: int, drawn: Drawn | None) -> Leg[Opened]:
        (mask,), index, share = expect(drawn, 1), index_of(drawn), self.share
        own = share.ring.subtract(share.flat(), mask)
        return share.ring.pack(own), lambda data: self._opened(index, reconstructed(share, own, data)).with_mask(mask)
