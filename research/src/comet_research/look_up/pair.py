"""Transfers for look-ups, by oblivious transfer: log2 of a table's entries for each (`transfers`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from comet_mpc.engine import kernels
from comet_mpc.engine.seeds import expand
from comet_mpc.engine.share import SERVER, Words
from comet_mpc.offline.pair.stages import PairPreparer, Stage, Unprepared
from comet_mpc.offline.pair.workbench import Workbench
from comet_mpc.offline.streaming import Sizes, Steps
from comet_research.look_up.kind import TableTransfers
from comet_research.look_up.transfers import give_words, read_words, table_sizes


class PairTables(PairPreparer):
    order = 40

    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        return (_Tables(index, entry) for index, entry in unprepared.of(TableTransfers))


@dataclass(frozen=True)
class _Tables(Stage):
    """A word of 64 bits at every place is cut into columns. The client's own share is added to its pads."""

    part = "look-ups"

    index: int
    entry: TableTransfers

    @property
    def prepared(self) -> tuple[int, ...]:
        return (self.index,)

    @property
    def sizes(self) -> list[list[Sizes]]:
        return [table_sizes(SERVER, self.entry.count, self.entry.entries)]

    def run(self, bench: Workbench) -> Steps[None]:
        count, entries, sizes = self.entry.count, self.entry.entries, self.entry.sizes
        shifts = [np.uint64(8 * sum(sizes[:column])) for column in range(len(sizes))]
        if bench.party == SERVER:
            places, words = yield from read_words(bench.transfers, count, entries)
            bench.keep(self.index, (places, *(words >> shift for shift in shifts)))
            return
        own = expand(*bench.seed(self.index), len(sizes) * count).reshape(len(sizes), count)
        pads = [np.empty(count * entries * size, np.uint8) for size in sizes]

        def pack(start: int, words: Words) -> None:
            stop = start + len(words)
            for column, size in enumerate(sizes):
                shifted = (words >> shifts[column]) + own[column, start:stop, None]
                pads[column][start * entries * size : stop * entries * size] = kernels.pack_words(shifted, size)

        yield from give_words(bench.transfers, count, entries, pack)
        bench.keep(self.index, (*own, *pads))  # type: ignore[arg-type]
