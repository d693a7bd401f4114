"""The kinds of randomness that can be prepared, and by whom: one line a kind.

A new kind is its description (a `Correlation`), its preparers and their tests, and a line below. A kind of another
package is registered by the same call where that package is imported, in every process that plans, prepares or deals
it. What is not registered is refused: by whoever reads a program (`engine.correlations`), and by each source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comet_mpc.engine.correlations import (
    BitProducts,
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    PartyBits,
    PointFunctions,
    SquareSums,
    WeightProduct,
    WeightScale,
    register_kind,
)
from comet_mpc.offline import registry

if TYPE_CHECKING:
    from comet_mpc.offline.dealer.preparer import DealerPreparer
    from comet_mpc.offline.pair.stages import PairPreparer


def register(kind: type[Correlation], *, pair: Sequence[PairPreparer | str], dealer: DealerPreparer[Any] | str) -> None:
    """Makes a kind known to readers of programs and to the sources.

    pair: several where it can be prepared in more than one way; none for what two parties need not, or cannot, prepare.
        A preparer may be named (`registry.load`): then it is loaded when something is prepared.
    """
    register_kind(kind)
    registry.DEALER[kind] = dealer
    for preparer in pair:
        registry.PAIR[preparer] = preparer


_MATRICES, _ODD, _MASKS = "pair.matrices.PairMatrices", "pair.units.PairOddProducts", "dealer.preparers.DealtMasks"

register(Mask, pair=[], dealer=_MASKS)
register(PartyBits, pair=[], dealer=_MASKS)
register(ClientMask, pair=[], dealer=_MASKS)
register(BitProducts, pair=["pair.bits.PairBits"], dealer="dealer.preparers.DealtBits")
register(Monomials, pair=[_ODD, "pair.slot_stages.PairMonomials"], dealer="dealer.preparers.DealtMonomials")
register(SquareSums, pair=[_ODD, "pair.slot_stages.PairSquareSums"], dealer="dealer.preparers.DealtSquareSums")
register(MatrixProduct, pair=[_MATRICES], dealer="dealer.preparers.DealtMatrixProducts")
register(WeightProduct, pair=[_MATRICES], dealer="dealer.preparers.DealtWeightProducts")
register(
    WeightScale, pair=[_MATRICES, "pair.slot_stages.PairWeightScales"], dealer="dealer.preparers.DealtWeightScales"
)
register(
    PointFunctions, pair=["pair.points.PairRenewals", "pair.points.PairPoints"], dealer="dealer.points.DealtPoints"
)
