"""1-of-M transfers of random words, prepared by the two parties alone: what a look-up uses.

log2 M random transfers give the giver a word at each of M places and the reader the word at one uniform place
(native/ot/tables.hpp has the formulas; Naor and Pinkas 1999, "Oblivious transfer and polynomial evaluation").

Cost: log2(M)·(128/fold - 1) bits a table from the reader, nothing from the giver; a message a chunk. Reveals nothing:
the giver does not learn the place, the reader no other word. Assumptions: as in `offline.ot.extension`, the hash being
taken on sums of several unknown messages at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from comet_mpc import _native
from comet_mpc.engine.kernels import Bytes
from comet_mpc.engine.share import Words
from comet_mpc.errors import ShapeError
from comet_mpc.offline.ot.extension import Transfers, extension_bytes
from comet_mpc.offline.streaming import Request, Sizes, Steps
from comet_research.look_up.tables import MOST_ENTRIES

CHUNK_ENTRIES = 1 << 19
"""Entries prepared with one message: bounds memory and messages."""


def _index_bits(entries: int) -> int:
    if not 2 <= entries <= MOST_ENTRIES or entries & (entries - 1):
        raise ShapeError(f"entries of a table: got {entries}, expected a power of two, 2 to {MOST_ENTRIES}")
    return entries.bit_length() - 1


def _chunks(count: int, entries: int) -> list[tuple[int, int]]:
    if count < 0:
        raise ShapeError(f"a number of tables cannot be negative, got {count}")
    step = CHUNK_ENTRIES // entries
    return [(start, min(count, start + step)) for start in range(0, count, step)]


def table_sizes(reader: int, count: int, entries: int) -> list[Sizes]:
    """Of the requests of `read_words` and `give_words`."""
    index_bits = _index_bits(entries)
    sizes = [(stop - start) * index_bits for start, stop in _chunks(count, entries)]
    return [Sizes(reader, extension_bytes(size), 0) for size in sizes]


class _Tables(Request):
    """Some tables. The reader's question says all that there is to say."""

    def __init__(
        self, transfers: Transfers, sizes: Sizes, count: int, index_bits: int, taken: Callable[[Words], None]
    ) -> None:
        """taken: is given the giver's words, (tables, entries)"""
        self._transfers, self._sizes, self._count, self._index_bits = transfers, sizes, count, index_bits
        self._taken = taken
        self.places, self.words = np.empty(0, np.uint64), np.empty(0, np.uint64)

    @property
    def sizes(self) -> Sizes:
        return self._sizes

    def ask(self) -> list[Bytes]:
        receiver, index_bits, size = self._transfers.receiver, self._index_bits, self._count * self._index_bits
        first = receiver.used
        message, choices, known = receiver.extend(size, halves=2)
        self.words = np.empty(self._count, np.uint64)
        _native.tables_receiver(receiver.hash_key, first, index_bits, known, choices, self.words, "")
        spelled = np.unpackbits(choices, count=size, bitorder="little").reshape(-1, index_bits)
        self.places = spelled @ (np.uint64(1) << np.arange(index_bits, dtype=np.uint64))
        return [message]

    def answer(self, question: memoryview) -> list[Bytes]:
        sender, index_bits = self._transfers.sender, self._index_bits
        first = sender.used
        zeros, ones = sender.extend(question, self._count * index_bits, halves=2)
        words = np.empty(self._count << index_bits, np.uint64)
        _native.tables_sender(sender.hash_key, first, index_bits, zeros, ones, words, "")
        self._taken(words.reshape(self._count, -1))
        return []


def _requests(
    transfers: Transfers, reader: int, count: int, entries: int, taken: Callable[[int, Words], None]
) -> list[_Tables]:
    index_bits, sizes = _index_bits(entries), table_sizes(reader, count, entries)
    return [
        _Tables(transfers, size, stop - start, index_bits, partial(taken, start))
        for (start, stop), size in zip(_chunks(count, entries), sizes, strict=True)
    ]


def read_words(transfers: Transfers, count: int, entries: int) -> Steps[tuple[Words, Words]]:
    """The reader's side: a uniform place for each of `count` tables, and the word there."""
    requests = _requests(transfers, transfers.party, count, entries, lambda *_: None)
    yield requests
    none = np.empty(0, np.uint64)
    places, words = [one.places for one in requests], [one.words for one in requests]
    return np.concatenate([none, *places]), np.concatenate([none, *words])


def give_words(transfers: Transfers, count: int, entries: int, taken: Callable[[int, Words], None]) -> Steps[None]:
    """The giver's side. taken: is given the first of some tables, and a word at every place of them."""
    yield _requests(transfers, 1 - transfers.party, count, entries, taken)
