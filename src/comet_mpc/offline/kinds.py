"""The kinds of randomness that can be prepared, and by whom: one line a kind.

A new kind is its description (a `Correlation`), its preparers and their tests, and a line below. A kind of another
package is registered by the same call where that package is imported, in every process that plans, prepares or deals
it. What is not registered is refused: by whoever reads a program (`engine.correlations`), and by each source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from comet_mpc.offline.dealer import preparer as dealer_preparers
from comet_mpc.offline.dealer.points import DealtPoints
from comet_mpc.offline.dealer.preparer import DealerPreparer
from comet_mpc.offline.dealer.preparers import (
    DealtBits,
    DealtMasks,
    DealtMatrixProducts,
    DealtMonomials,
    DealtSquareSums,
    DealtWeightProducts,
    DealtWeightScales,
)
from comet_mpc.offline.pair import stages as pair_preparers
from comet_mpc.offline.pair.bits import PairBits
from comet_mpc.offline.pair.matrices import PairMatrices
from comet_mpc.offline.pair.points import PairPoints, PairRenewals
from comet_mpc.offline.pair.slot_stages import PairMonomials, PairSquareSums, PairWeightScales
from comet_mpc.offline.pair.stages import PairPreparer
from comet_mpc.offline.pair.units import PairOddProducts


def register(kind: type[Correlation], *, pair: Sequence[PairPreparer], dealer: DealerPreparer[Any]) -> None:
    """Makes a kind known to readers of programs and to the sources.

    pair: several where it can be prepared in more than one way; none for what two parties need not, or cannot, prepare
    """
    register_kind(kind)
    dealer_preparers.PREPARERS[kind] = dealer
    new = [preparer for preparer in pair if preparer not in pair_preparers.PREPARERS]
    pair_preparers.PREPARERS[:] = sorted([*pair_preparers.PREPARERS, *new], key=lambda preparer: preparer.order)


_MATRICES, _ODD, _MASKS = PairMatrices(), PairOddProducts(), DealtMasks()

register(Mask, pair=[], dealer=_MASKS)
register(PartyBits, pair=[], dealer=_MASKS)
register(ClientMask, pair=[], dealer=_MASKS)
register(BitProducts, pair=[PairBits()], dealer=DealtBits())
register(Monomials, pair=[_ODD, PairMonomials()], dealer=DealtMonomials())
register(SquareSums, pair=[_ODD, PairSquareSums()], dealer=DealtSquareSums())
register(MatrixProduct, pair=[_MATRICES], dealer=DealtMatrixProducts())
register(WeightProduct, pair=[_MATRICES], dealer=DealtWeightProducts())
register(WeightScale, pair=[_MATRICES, PairWeightScales()], dealer=DealtWeightScales())
register(PointFunctions, pair=[PairRenewals(), PairPoints()], dealer=DealtPoints())
