"""The kind of randomness that a look-up uses."""

from __future__ import annotations

from collections.abc import Sequence

from comet_mpc.engine.correlations import AnyMask, Correlation, Facts, Size
from comet_mpc.engine.ring import WORD, Ring
from comet_mpc.engine.share import SERVER
from comet_mpc.errors import ShapeError
from comet_research.look_up.tables import MOST_ENTRIES

_TABLE_ENTRY = 6e-9  # seconds for an entry of a table that is given: expand, add, pack, send


class TableTransfers(Correlation, frozen=True):
    """1-of-M transfers of random words, for look-ups in tables of `entries` entries and columns of `sizes` bytes.

    For each of `count` tables and each column the client knows a word at every index, the server the word at one
    uniform index and no other, less a word of the client's that becomes its share of what is looked up.
    """

    count: Size
    entries: Size
    sizes: tuple[Size, ...]

    @property
    def facts(self) -> Facts:
        entries = self.count * self.entries
        return Facts(
            entries,
            entries * len(self.sizes) * _TABLE_ENTRY,
            tuple((self.count, Ring(8 * size)) for size in self.sizes),
            party_words=entries * sum(self.sizes) // 2,
        )

    def layout(self, party: int) -> list[tuple[int, int]]:
        if party == SERVER:
            return [(self.count, 8), *super().layout(party)]
        return [*super().layout(party), *((self.count * self.entries * size, 0) for size in self.sizes)]

    def check(self, masks: Sequence[AnyMask]) -> None:
        if not 2 <= self.entries <= MOST_ENTRIES or self.entries & (self.entries - 1):
            raise ShapeError(f"a table has {self.entries} entries: it must be a power of two, 2 to {MOST_ENTRIES}")
        if not 1 <= sum(self.sizes) <= WORD // 8:
            raise ShapeError(f"a table's columns have {sum(self.sizes)} bytes in all: it must be 1 to {WORD // 8}")
