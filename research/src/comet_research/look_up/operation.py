"""Look-ups in public tables at a secret index: two requests.

Choose(x, table)     the server asks for a table's entries at x, x being shared: x_s under a uniform mask
Fetch(x, chosen)     the client gives all entries under pads, of which the server knows the one that it asked for
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.ops.operation import Drawn, Leg, Made, Message, Request, check_even, expect, rounded
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import CLIENT, Share, Words
from comet_mpc.errors import ShapeError
from comet_research.look_up import tables
from comet_research.look_up.kind import TableTransfers
from comet_research.look_up.tables import Table


@dataclass(frozen=True, eq=False)
class Chosen:
    """What was asked for. drawn: this party's words of the transfers; start: where they begin in the client's view."""

    share: Share
    table: Table
    drawn: tuple[Words, ...] = field(default=(), repr=False)
    start: Words | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Choose(Request[Chosen]):
    """First half of a look-up: the server asks for the entries at x, a whole number in a ring of log2(entries) bits."""

    table: Table

    def check(self, part: str) -> None:
        check_even(self.share, part)

    def demand(self) -> tuple[Correlation, ...]:
        return (TableTransfers(self.share.count, self.table.entries, self.table.sizes),)

    def messages(self) -> tuple[Message, Message]:
        return (), ((self.share.ring, self.share.count),)

    def planned(self, drawn: Drawn | None) -> Chosen:
        return Chosen(self.share, self.table)

    def in_the_clear(self) -> Chosen:
        return Chosen(self.share, self.table)

    def leg(self, party: int, drawn: Drawn | None) -> Leg[Chosen]:
        share, table, columns = self.share, self.table, len(self.table.columns)
        if party == CLIENT:
            arrays = expect(drawn, 2 * columns)
            return None, lambda data: Chosen(share, table, arrays, self._start(data))
        arrays = expect(drawn, 1 + columns)
        return share.ring.pack(arrays[0] - share.flat()), lambda data: Chosen(share, table, arrays)

    def _start(self, data: memoryview) -> Words:
        """The entry that lies under a row's first pad: x_c - (c - x_s), c the pad that the server knows."""
        return self.share.flat() - self.share.ring.unpack(data, self.share.count)


@dataclass(frozen=True, eq=False)
class Fetch(Request[tuple[Share, ...]]):
    """Second half: the client gives every entry of every table, hidden. Bytes: count · entries · size of an entry."""

    chosen: Chosen

    def messages(self) -> tuple[Message, Message]:
        table = self.chosen.table
        return tuple((Ring(8 * size), self.share.count * table.entries) for size in table.sizes), ()

    def _found(self, columns: Sequence[Words | None]) -> tuple[Share, ...]:
        """A share of every column."""
        shape = self.share.shape
        return tuple(
            Share(shape, column.fraction, column.bound, column.width, None if words is None else words.reshape(shape))
            for column, words in zip(self.chosen.table.columns, columns, strict=True)
        )

    def planned(self, drawn: Drawn | None) -> tuple[Share, ...]:
        return self._found([None] * len(self.chosen.table.columns))

    def in_the_clear(self) -> tuple[Share, ...]:
        table = self.chosen.table
        index = rounded(self.share) & np.uint64(table.entries - 1)
        return self._found([column[index] for column in table.words])

    def leg(self, party: int, drawn: Drawn | None) -> Leg[tuple[Share, ...]]:
        """Column by column. The server's share is entry + word of the client's, the client's is minus that word."""
        chosen, table = self.chosen, self.chosen.table
        if party == CLIENT:
            own, pads = chosen.drawn[: len(table.columns)], chosen.drawn[len(table.columns) :]
            assert chosen.start is not None
            hidden = [
                tables.hide(words, chosen.start, pad.view(np.uint8), size)
                for words, pad, size in zip(table.words, pads, table.sizes, strict=True)
            ]
            result = self._found([np.uint64(0) - words for words in own])
            return np.concatenate(hidden), lambda data: result
        index, *known = chosen.drawn

        def finish(data: memoryview) -> tuple[Share, ...]:
            found, at = [], 0
            for size, pad in zip(table.sizes, known, strict=True):
                length = index.size * table.entries * size
                found.append(tables.pick(np.frombuffer(data[at : at + length], np.uint8), index, size) - pad)
                at += length
            return self._found(found)

        return None, finish


class Communicating(Protocol):
    """A session, as far as a look-up needs one."""

    @property
    def here(self) -> str: ...

    def communicate(self, *requests: Request[Made]) -> tuple[Made, ...]: ...


def look_up(session: Communicating, index: Share, *choices: Table) -> tuple[Share, ...]:
    """A share of every column of public tables at a secret index. Two rounds."""
    if index.fraction or any(2**index.width != table.entries for table in choices):
        raise ShapeError(
            f"{session.here}: an index of {index.width} bits, {index.fraction} of them fraction bits, does not fit "
            f"a table of {choices[0].entries} entries"
        )
    chosen = session.communicate(*(Choose(index, table) for table in choices))
    fetched = session.communicate(*(Fetch(each.share, each) for each in chosen))
    return tuple(share for columns in fetched for share in columns)
