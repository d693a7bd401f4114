"""Revealing: a party learns x itself."""

from __future__ import annotations

from dataclasses import dataclass

from comet_mpc.engine.ops.operation import Drawn, Leg, Message, Request, reconstructed, rounded
from comet_mpc.engine.share import BOTH, CLIENT, SERVER, Words


@dataclass(frozen=True, eq=False)
class Reveal(Request[Words | None]):
    """Gives a party (or both) the value itself: the result of the computation, or what a protocol says it leaks."""

    to: int = CLIENT

    def messages(self) -> tuple[Message, Message]:
        full: Message = ((self.share.ring, self.share.count),)
        return (full if self.to in (SERVER, BOTH) else ()), (full if self.to in (CLIENT, BOTH) else ())

    def planned(self, drawn: Drawn | None) -> Words | None:
        return None

    def in_the_clear(self) -> Words | None:
        return rounded(self.share)

    def leg(self, party: int, drawn: Drawn | None) -> Leg[Words | None]:
        share = self.share
        shown = share.ring.pack(share.flat()) if self.to in (1 - party, BOTH) else None
        learns = self.to in (party, BOTH)
        return shown, lambda data: reconstructed(share, share.flat(), data) if learns else None
