"""One entry of a table, chosen by one party from the other's tables: 1-of-M transfers for look-ups.

log2 M random transfers give the receiver one of M pads (native/transfer_tables.hpp has the formulas; Naor and Pinkas
1999, "Oblivious transfer and polynomial evaluation"). For a table indexed by a shared x = x_0 + x_1 mod M the owner of
x_0 gives rows rotated by it and less its share of the result, and the owner of x_1 looks up.

Cost: log2(M)·128/fold bits a table from the one who looks up, M·width bits from the one who gives. 1 + ⌈tables / chunk⌉
rounds. Reveals nothing to the giver; to the other the chosen entries and no more. Assumptions: as in
`oblivious_transfer`, the hash being taken on sums of several unknown messages at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from comet_mpc import _native
from comet_mpc.channel import Channel
from comet_mpc.errors import ShapeError
from comet_mpc.oblivious_transfer import Transfers, extension_bytes, packed_bytes
from comet_mpc.share import WORD, Words

__all__ = ["CHUNK_ENTRIES", "MOST_ENTRIES", "give_tables", "look_up"]

Bytes = npt.NDArray[np.uint8]

MOST_ENTRIES = 256
CHUNK_ENTRIES = 1 << 19
"""Entries sent in one round: bounds memory and messages."""


class _Question(NamedTuple):
    """What one chunk was asked with, until its answer comes."""

    start: int
    stop: int
    first: int
    known: Words
    choices: Bytes
    chosen: Bytes


def _index_bits(entries: int, width: int) -> int:
    if not 2 <= entries <= MOST_ENTRIES or entries & (entries - 1):
        raise ShapeError(f"entries of a table: got {entries}, expected a power of two, 2 to {MOST_ENTRIES}")
    if not 1 <= width <= WORD:
        raise ShapeError(f"width: got {width}, expected 1..{WORD}")
    return entries.bit_length() - 1


def _chunks(count: int, entries: int) -> list[tuple[int, int]]:
    step = CHUNK_ENTRIES // entries
    return [(start, min(count, start + step)) for start in range(0, count, step)]


def look_up(channel: Channel, transfers: Transfers, choices: Bytes, entries: int, width: int) -> Words:
    """The entries at `choices`, one for each of the peer's tables of `entries` words of `width` bits."""
    index_bits = _index_bits(entries, width)
    if choices.dtype != np.uint8 or choices.ndim != 1 or (choices.size and int(choices.max()) >= entries):
        raise ShapeError(f"choices: expected a vector of bytes below {entries}")
    out = np.empty(choices.size, np.uint64)
    receiver = transfers.receiver
    waiting: _Question | None = None
    for chunk in [*_chunks(choices.size, entries), None]:
        outgoing: list[Bytes] = []
        asked = None
        if chunk is not None:
            start, stop = chunk
            first = receiver.used
            message, random, known = receiver.extend((stop - start) * index_bits, halves=2)
            spelled = choices[start:stop, None] >> np.arange(index_bits, dtype=np.uint8) & np.uint8(1)
            chosen = np.packbits(spelled.reshape(-1), bitorder="little")
            outgoing, asked = [message, chosen ^ random], _Question(start, stop, first, known, random, chosen)
        expected = packed_bytes((waiting.stop - waiting.start) * entries, width) if waiting else 0
        answer = channel.exchange(outgoing, expected)
        if waiting:
            _native.tables_receiver(
                receiver.hash_key,
                waiting.first,
                index_bits,
                waiting.known,
                waiting.choices,
                waiting.chosen,
                np.frombuffer(answer, np.uint8),
                out[waiting.start : waiting.stop],
                width,
                "",
            )
        waiting = asked
    return out


def give_tables(channel: Channel, transfers: Transfers, tables: Words, width: int) -> None:
    """The other side of `look_up`: tables of shape (count, entries), of which bits above `width` do not matter."""
    if tables.dtype != np.uint64 or tables.ndim != 2:
        raise ShapeError(f"tables: got {tables.dtype} of shape {tables.shape}, expected words (count, entries)")
    count, entries = tables.shape
    index_bits = _index_bits(entries, width)
    sender = transfers.sender
    answer: Bytes = np.empty(0, np.uint8)
    for start, stop in [*_chunks(count, entries), (count, count)]:
        size = (stop - start) * index_bits
        question = extension_bytes(size, sender.fold)
        received = channel.exchange([answer], question + packed_bytes(size, 1))
        if not size:
            return
        first = sender.used
        zeros, ones = sender.extend(received[:question], size, halves=2)
        flips = np.frombuffer(received[question:], np.uint8)
        answer = np.empty(packed_bytes((stop - start) * entries, width), np.uint8)
        rows = np.ascontiguousarray(tables[start:stop]).reshape(-1)
        _native.tables_sender(sender.hash_key, first, index_bits, zeros, ones, flips, rows, answer, width, "")
