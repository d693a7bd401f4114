"""The kinds of randomness that can be prepared, and by whom: one line a kind.

A new kind is its description (a `Correlation`), its preparers and their tests, and a line below. A kind of another
package is registered by the same call where that package is imported, in every process that plans, prepares or deals
it. What is not registered is refused: by whoever reads a program (`engine.correlations`), and by each source.
"""

from __future__ import annotations

from typing import Any

from comet_mpc.engine.correlations import (
    BitProducts,
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    PartyBits,
    SquareSums,
    TableTransfers,
    WeightProduct,
    WeightScale,
    register_kind,
)
from comet_mpc.offline.dealer.preparer import PREPARERS, DealerPreparer
from comet_mpc.offline.dealer.preparers import (
    DealtBits,
    DealtMasks,
    DealtMatrixProducts,
    DealtMonomials,
    DealtSquareSums,
    DealtWeightProducts,
    DealtWeightScales,
)
from comet_mpc.offline.dealer.table_transfers import DealtTables


def register(kind: type[Correlation], *, dealer: DealerPreparer[Any]) -> None:
    """Makes a kind known to readers of programs and to the sources."""
    register_kind(kind)
    PREPARERS[kind] = dealer


register(Mask, dealer=DealtMasks())
register(PartyBits, dealer=DealtMasks())
register(ClientMask, dealer=DealtMasks())
register(BitProducts, dealer=DealtBits())
register(Monomials, dealer=DealtMonomials())
register(SquareSums, dealer=DealtSquareSums())
register(MatrixProduct, dealer=DealtMatrixProducts())
register(WeightProduct, dealer=DealtWeightProducts())
register(WeightScale, dealer=DealtWeightScales())
register(TableTransfers, dealer=DealtTables())
