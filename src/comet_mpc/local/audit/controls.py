"""What is broken on purpose, so that a test of privacy has something that it must catch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from comet_mpc.engine import Session, Weight
from comet_mpc.engine import correlations as kinds
from comet_mpc.engine.correlations import AnyMask, Correlation
from comet_mpc.engine.ops.operation import Drawn
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import SERVER, Words
from comet_mpc.functions.flooding import Flooding, flooded_guess_not_private
from comet_mpc.offline.bundle import OpenBundle
from comet_mpc.offline.dealer.bundles import Dealing

Control = Literal["", "same seed", "old mask", "no mask", "flooded"]
"""What is broken on purpose: nothing; both parties have one seed; a mask hides two messages; the dealer's products are
not masked, nor is a bit of a truncation into an odd ring; the paper's flooded shares are sent."""


def flooded(session: Session, weights: Mapping[str, Weight], secrets: tuple[int, int]) -> object:
    """The paper's first guess of the server's value, 1 or 3."""
    x = session.private(SERVER, (32,), 16, 8.0, np.full(32, (1.0, 3.0)[secrets[SERVER]]))
    return flooded_guess_not_private(session, x, Flooding())


class OldMasks:
    """Randomness that gives what it gave before, if the same is asked for again."""

    def __init__(self, inner: OpenBundle) -> None:
        self._inner, self._given = inner, dict[Correlation, tuple[Words, ...]]()
        self.party, self.abilities, self.bundle = inner.party, inner.abilities, inner.bundle

    def draw(self, correlation: Correlation) -> Drawn:
        drawn = self._inner.draw(correlation)
        if isinstance(correlation, AnyMask | kinds.BitProducts | kinds.TableTransfers | kinds.PointFunctions):
            return Drawn(drawn.index, self._given.setdefault(correlation, drawn.arrays))
        return drawn


class BareBits(OldMasks):
    """Randomness whose bits of one party, which hide those of a truncation into an odd ring, are all zero."""

    def draw(self, correlation: Correlation) -> Drawn:
        drawn = self._inner.draw(correlation)
        if isinstance(correlation, kinds.PartyBits):
            return Drawn(drawn.index, tuple(np.zeros_like(words) for words in drawn.arrays))
        return drawn


class Unmasked(Dealing):
    """A dealer that sends products of masks as they are."""

    def _hidden(self, value: Words, ring: Ring, stream: int, place: int) -> Words:
        return value
