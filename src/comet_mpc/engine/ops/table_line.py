"""A line of a public table at a secret place: A[i] + B[i]·t, i being the cell that t is in. One round."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from comet_mpc.engine.correlations import Correlation, PointFunctions
from comet_mpc.engine.ops.operation import (
    Drawn,
    Leg,
    Message,
    check_even,
    mask_bits,
    reconstructed,
    rounded,
)
from comet_mpc.engine.ops.truncate import Shifted
from comet_mpc.engine.ops.truncate_open import opened_shifted
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import CLIENT, SERVER, Share, Words
from comet_mpc.engine.tables import LineTable, PointKeys
from comet_mpc.errors import ShapeError


@dataclass(frozen=True, eq=False)
class TableLine(Shifted[tuple[Share, ...]]):
    """A share of every column of a table at the cell of z, of its lines at t = z/2^shift.

    Both parties learn z - a for a fresh uniform mask a in z's ring, as in any opening, and nothing else is sent. With
    z = C + a, C public, the cell of factor·z is that of factor·C plus that of factor·a (and less than one cell more, of
    which the public remainder of factor·C takes care: `LineTable`). A point function has the second as its place, and
    as its payload (1, a): with e_j for its cells, 1 at the place, and the first as a rotation of the public table,

        Σ_j e_j·A[c+j] + (C·e_j + a·e_j)·B[c+j] = A[i] + B[i]·z.

    With a shift z is truncated on the way, as in `TruncateOpen`: the payload is (1, u, 2^step·top). With a table whose
    lines take z as an integer (`LineTable.unwrapped`) they may be in any ring, an odd one too.
    Bytes: those of an opening. Local work: 2^index_bits cells a row and party. Reveals nothing.
    """

    table: LineTable = field(kw_only=True)

    @property
    def own_ring(self) -> Ring:
        """In which the value is opened. Lines of integers need no bits above the table's cells."""
        table = self.table
        return Ring(table.cut + table.index_bits) if table.unwrapped else self.share.ring

    def check(self, part: str) -> None:
        check_even(self.share, part)
        self.check_error(part)
        share, table = self.share, self.table
        if (self.shift, self.width, self.modulus) != (table.shift, table.width, table.modulus):
            raise ShapeError(f"{part}: a table for another truncation or another ring")
        if share.width < table.cut + table.index_bits:
            raise ShapeError(f"{part}: a ring of {share.width} bits has no bits {table.cut} to the table's top")
        if self.shift:
            super().check(part)
        elif share.width < self.width and not table.unwrapped:
            raise ShapeError(f"{part}: lines in a ring of {self.width} bits need a value in one as wide")

    def demand(self) -> tuple[Correlation, ...]:
        return (self._described,)

    @property
    def _described(self) -> PointFunctions:
        table, width = self.table, self.own_ring.width
        cells = table.index_bits, table.factor, table.cut
        return PointFunctions(self.share.count, *cells, width, self.bits, self.width, self.modulus)

    def messages(self) -> tuple[Message, Message]:
        message: Message = ((self.own_ring, self.share.count),)
        return message, message

    def _made(self, words: Words | None) -> tuple[Share, ...]:
        shape, table = self.share.shape, self.table
        return tuple(
            Share(
                shape,
                table.fraction,
                bound,
                table.width,
                None if words is None else words[:, q].reshape(shape),
                table.modulus,
            )
            for q, bound in enumerate(table.bounds)
        )

    def planned(self, drawn: Drawn | None) -> tuple[Share, ...]:
        return self._made(None)

    def in_the_clear(self) -> tuple[Share, ...]:
        exact, truncated = (rounded(self.share, shift).reshape(-1) for shift in (0, self.shift))
        return self._made(self.table.at(exact, truncated))

    def leg(self, party: int, drawn: Drawn | None) -> Leg[tuple[Share, ...]]:
        if drawn is None or len(drawn.arrays) not in (4, 5):  # some rows of a window have their numbers (`windows`)
            raise ShapeError("a row of a table is read with a key for it")
        mask, root, corrections, last, *numbers = drawn.arrays
        keys = PointKeys(self._described.shape, drawn.index, root, corrections, last, *numbers)
        share = replace(self.share, width=self.own_ring.width)
        own = share.flat() - mask
        if party == CLIENT:
            own += self._offset
        return share.ring.pack(own), lambda data: self._finish(party, keys, reconstructed(share, own, data).reshape(-1))

    @property
    def _offset(self) -> np.uint64:
        """What the client adds so that nothing negative is truncated."""
        return np.uint64(2 ** (self.share.width - 2) - 1 if self.shift else 0)

    def _finish(self, party: int, keys: PointKeys, c: Words) -> tuple[Share, ...]:
        width, table = self.own_ring.width, self.table
        starts = table.places((c - self._offset) & mask_bits(width), width)
        values, factors = c, np.zeros_like(c)
        if self.shift:
            values, sign = opened_shifted(c, width, self.bits)
            factors = np.uint64(0) - sign
        elif table.unwrapped:
            values = c & mask_bits(width)
        flat = table.words.reshape(-1)
        return self._made(keys.lines(party == SERVER, flat, starts, values, factors, table.columns))
