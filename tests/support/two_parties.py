"""What tests add to `comet_mpc.testing`: errors as values, opened bundles, and values behind shares."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from comet_mpc.engine.session import USUAL_WAYS, Ways
from comet_mpc.engine.share import Reals, Share, Words, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import CometError
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import DealtRandomness
from comet_mpc.testing import WEIGHT_KEY as KEY
from comet_mpc.testing import Program, TwoPartyRun, Weights, able, as_parties, both, deal, masked, run_two_parties

__all__ = [
    "KEY",
    "Program",
    "TwoPartyRun",
    "Weights",
    "able",
    "as_parties",
    "both",
    "deal",
    "equal",
    "masked",
    "opened",
    "outcome",
    "run_two_parties",
    "together",
    "twin_value",
]


def outcome(action: Callable[[], object]) -> object:
    """What the action returns, or the error it raises."""
    try:
        return action()
    except CometError as error:
        return error


def opened(bundle: Bundle, weights: Weights | None = None, *, fused: bool = True) -> DealtRandomness:
    """A dealt bundle, as a party draws from it."""
    return DealtRandomness(bundle, weights or {}, abilities=able(fused))


def together(run: TwoPartyRun[Share]) -> Reals:
    """The value behind the two parties' shares."""
    return run.value


def twin_value(
    program: Program[Share], weights: Weights | None = None, *, fused: bool = True, ways: Ways = USUAL_WAYS
) -> Reals:
    """The same program's plaintext twin."""
    share = program(TwinSession(abilities=able(fused), ways=ways), weights or {})
    assert share.values is not None
    return decode(share.values, share.fraction, share.ring)


def equal(x: Words, y: Words, width: int) -> bool:
    """Whether the words are the same modulo 2^width."""
    shift = np.uint64(64 - width)
    return np.array_equal(x << shift, y << shift)
