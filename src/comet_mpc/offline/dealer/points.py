"""How a dealer prepares point functions: roots and masks in the parties' seeds, corrections for both."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from comet_mpc.engine.correlations import PointFunctions
from comet_mpc.engine.ops.operation import mask_bits
from comet_mpc.engine.ops.truncate_open import truncated_mask
from comet_mpc.engine.seeds import Streams
from comet_mpc.engine.share import Words
from comet_mpc.engine.tables import make_corrections
from comet_mpc.offline.bundle import read_elements, read_exactly
from comet_mpc.offline.dealer.preparer import DealerPreparer, DealerView, PartyView, stream_of


class DealtPoints(DealerPreparer[PointFunctions]):
    """Stream 0 of either seed has a party's part of the masks, stream 1 its root. Corrections follow from both."""

    def common(self, view: DealerView, index: int, entry: PointFunctions) -> Iterator[memoryview]:
        start, client, server = 0, _root(view.client, index), _root(view.server, index)
        for rows in entry.chunks():
            a = _masks(view.client, index, rows, start) + _masks(view.server, index, rows, start)
            corrections, last = make_corrections(entry.shape, (index, start), client, server, *_hidden(entry, a))
            yield corrections.view(np.uint8).data
            yield entry.ring.pack(last).data
            start += rows

    def words(self, view: PartyView, index: int, entry: PointFunctions) -> tuple[Words, ...]:
        """The masks, the root, the corrections of all levels and the last ones."""
        assert view.stored is not None
        ring, levels, leaf = entry.ring, entry.shape.levels, entry.shape.leaf_words
        corrections, last = [], []
        for rows in entry.chunks():
            corrections.append(np.frombuffer(read_exactly(view.stored, 16 * rows * levels), np.uint64))
            last.append(read_elements(view.stored, ring, rows * leaf))
        masks, root = _masks(view.streams, index, entry.count), _root(view.streams, index)
        return masks, root, np.concatenate(corrections), np.concatenate(last)


def _masks(streams: Streams, index: int, rows: int, start: int = 0) -> Words:
    return streams.words(stream_of(index, 0), rows, start)


def _root(streams: Streams, index: int) -> Words:
    return np.ascontiguousarray(streams.words(stream_of(index, 1), 2))


def _hidden(entry: PointFunctions, a: Words) -> tuple[Words, Words]:
    """Places and payloads, from the masks."""
    a = a & mask_bits(entry.width)
    scaled = (a * np.uint64(entry.factor)) & mask_bits(entry.width)
    places = (scaled >> np.uint64(entry.cut)) & mask_bits(entry.index_bits)
    one = np.ones_like(a)
    if not entry.shift:
        return places, np.stack([one, entry.ring.reduced(a)], axis=1)
    u, top = truncated_mask(a, entry.width, entry.shift)
    return places, np.stack([one, u, top << np.uint64(entry.width - 1 - entry.shift)], axis=1)
