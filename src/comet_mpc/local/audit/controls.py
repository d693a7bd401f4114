"""What is broken on purpose, so that a test of privacy has something that it must catch."""

from __future__ import annotations

from typing import Literal

import numpy as np

from comet_mpc.engine import correlations as kinds
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.ops.operation import Drawn
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import Words
from comet_mpc.offline.bundle import OpenBundle
from comet_mpc.offline.dealer.bundles import Dealing

Control = Literal["", "same seed", "old mask", "no mask"]
"""What is broken on purpose: nothing; both parties have one seed; a mask hides two messages; the dealer's products are
not masked, nor is a bit of a truncation into an odd ring."""


class OldMasks:
    """Randomness that gives what it gave before, if the same is asked for again."""

    def __init__(self, inner: OpenBundle) -> None:
        self._inner, self._given = inner, dict[Correlation, tuple[Words, ...]]()
        self.party, self.abilities, self.bundle = inner.party, inner.abilities, inner.bundle

    def draw(self, correlation: Correlation) -> Drawn:
        drawn = self._inner.draw(correlation)
        if not correlation.facts.references:  # products of masks would no longer fit them
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

    def _hidden(self, value: Words, ring: Ring, stream: int, offset: int) -> Words:
        return value
