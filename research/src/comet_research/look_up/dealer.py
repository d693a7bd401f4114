"""How a dealer prepares transfers for look-ups: random tables for the client, one entry of each for the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.seeds import Streams
from comet_mpc.engine.share import SERVER, Words
from comet_mpc.offline.dealer.preparer import CHUNK, DealerPreparer, DealerView, PartyView, stream_of
from comet_research.look_up import tables
from comet_research.look_up.kind import TableTransfers


class DealtTables(DealerPreparer[TableTransfers]):
    def values(self, view: DealerView, index: int, entry: TableTransfers, array: int) -> Iterator[Words]:
        entries, sizes = entry.entries, entry.sizes
        step = max(8, CHUNK // entries)
        for start in range(0, entry.count, step):
            stop = min(entry.count, start + step)
            pads = _pads(view.client, index, array, sizes, start * entries, stop * entries)
            yield tables.pick(pads, _picked(view.server, index, stop - start, entries, start), sizes[array])

    def words(self, view: PartyView, index: int, entry: TableTransfers) -> tuple[Words, ...]:
        shares, sizes = view.shares(index, entry), entry.sizes
        if view.party == SERVER:
            return (_picked(view.streams, index, entry.count, entry.entries), *shares)
        stop = entry.count * entry.entries
        pads = [_pads(view.streams, index, column, sizes, 0, stop) for column in range(len(sizes))]
        return (*shares, *pads)  # type: ignore[arg-type]


def _pads(
    streams: Streams, index: int, column: int, sizes: Sequence[int], start: int, stop: int
) -> npt.NDArray[np.uint8]:
    """Entries start … stop-1 of a column of the client's random tables; start is a multiple of 8."""
    size = sizes[column]
    stream = stream_of(index, 1 + len(sizes) + column)
    words = streams.words(stream, -(-(stop - start) * size // 8), start * size // 8)
    return words.view(np.uint8)[: (stop - start) * size]


def _picked(streams: Streams, index: int, count: int, entries: int, offset: int = 0) -> Words:
    """Which entry of each of the client's random tables the server knows."""
    return streams.words(stream_of(index, 0), count, offset) & np.uint64(entries - 1)
