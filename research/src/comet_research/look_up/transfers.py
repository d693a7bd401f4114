"""1-of-M transfers of random words, prepared by the two parties alone: what a look-up uses.

log2 M random transfers give the giver a word at each of M places and the reader the word at one uniform place
(native/ot/tables.hpp has the formulas; Naor and Pinkas 1999, "Oblivious transfer and polynomial evaluation").

Cost: log2(M)·(128/fold - 1) bits a table from the reader, nothing from the giver; a round a chunk. Reveals nothing: the
giver does not learn the place, the reader no other word. Assumptions: as in `offline.ot.extension`, the hash being
taken on sums of several unknown messages at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from comet_mpc import _native
from comet_mpc.engine.share import Words
from comet_mpc.errors import ShapeError
from comet_mpc.net.channel import FRAME_HEADER, Channel, Traffic
from comet_mpc.offline.ot.extension import Transfers, extension_bytes
from comet_research.look_up.tables import MOST_ENTRIES

CHUNK_ENTRIES = 1 << 19
"""Entries prepared in one round: bounds memory and messages."""


def _index_bits(entries: int) -> int:
    if not 2 <= entries <= MOST_ENTRIES or entries & (entries - 1):
        raise ShapeError(f"entries of a table: got {entries}, expected a power of two, 2 to {MOST_ENTRIES}")
    return entries.bit_length() - 1


def _chunks(count: int, entries: int) -> list[tuple[int, int]]:
    if count < 0:
        raise ShapeError(f"a number of tables cannot be negative, got {count}")
    step = CHUNK_ENTRIES // entries
    return [(start, min(count, start + step)) for start in range(0, count, step)]


def read_words(channel: Channel, transfers: Transfers, count: int, entries: int) -> tuple[Words, Words]:
    """The reader's side: a uniform place for each of `count` tables, and the word there."""
    index_bits = _index_bits(entries)
    receiver = transfers.receiver
    places, words = np.empty(count, np.uint64), np.empty(count, np.uint64)
    weights = np.uint64(1) << np.arange(index_bits, dtype=np.uint64)
    for start, stop in _chunks(count, entries):
        size, first = (stop - start) * index_bits, receiver.used
        message, choices, known = receiver.extend(size, halves=2)
        channel.exchange([message], 0)
        _native.tables_receiver(receiver.hash_key, first, index_bits, known, choices, words[start:stop], "")
        spelled = np.unpackbits(choices, count=size, bitorder="little").reshape(-1, index_bits)
        places[start:stop] = spelled @ weights
    return places, words


def give_words(channel: Channel, transfers: Transfers, count: int, entries: int) -> Iterator[Words]:
    """The giver's side: a word for every place of every table, (tables, entries) at a time."""
    index_bits = _index_bits(entries)
    sender = transfers.sender
    for start, stop in _chunks(count, entries):
        size, first = (stop - start) * index_bits, sender.used
        message = channel.exchange([], extension_bytes(size, sender.fold))
        zeros, ones = sender.extend(message, size, halves=2)
        words = np.empty((stop - start) * entries, np.uint64)
        _native.tables_sender(sender.hash_key, first, index_bits, zeros, ones, words, "")
        yield words.reshape(-1, entries)


def table_traffic(count: int, entries: int) -> Traffic:
    """What `give_words` receives and waits for."""
    sizes = [(stop - start) * _index_bits(entries) for start, stop in _chunks(count, entries)]
    return Traffic(0, sum(extension_bytes(size) + FRAME_HEADER for size in sizes), len(sizes))
