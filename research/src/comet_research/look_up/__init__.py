"""Look-ups in public tables at a secret index, as other systems do them: an operation and a kind of randomness.

Both are registered here, by the same two calls that any other package would use. Import this package before you plan,
prepare or run a program with look-ups, also in a dealer's process.
"""

from __future__ import annotations

from comet_mpc.engine.ops import OPERATIONS
from comet_mpc.offline.kinds import register
from comet_research.look_up.dealer import DealtTables
from comet_research.look_up.kind import TableTransfers
from comet_research.look_up.operation import Choose, Fetch, look_up
from comet_research.look_up.pair import PairTables
from comet_research.look_up.tables import Column, Table

OPERATIONS.register(Choose, Fetch)
register(TableTransfers, pair=[PairTables()], dealer=DealtTables())

__all__ = ["Choose", "Column", "Fetch", "Table", "TableTransfers", "look_up"]
