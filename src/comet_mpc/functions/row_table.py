"""Row functions from one opening: gain/sqrt(t) and 1/t by lines of a public table.

A variance, a norm or a denominator is one number for a whole row. Steps of a polynomial take a round each (`row_rule`).
Where the randomness has point functions, a public table is read instead at the cell that t is in (`ops.table_line`):
one opening of t, then a line A + B·t of that cell with just the fraction bits that the next product wants. Cells are
equally wide, so a table is as large as its interval is wide. Beyond a ratio of 2^11 or so, two tables do it with far
fewer cells: a coarse one for most of the interval, and a fine one for its low end. The coarse one also says which of
them counts; the product of that bit with the fine one's line takes one more opening, or more monomials.

A table is made for the interval of a rule of rows, and keeps what such a rule is made for (`Allowed`): the error on the
interval, and what y·sqrt(t) may be above 1 from 0 to the top; below the interval y stays at the first cell's value. All
of it is computed from the table's own integers, cell by cell. So a program that is certified with the rule may take the
table. Rules with counted steps, which somebody wanted to be more exact, have no table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Opened, Session
from comet_mpc.engine.ops import TableLine
from comet_mpc.engine.ops.conversion import LEAST_SHIFT, MOST_OFF, free_shift_by, whole
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import WORD, Share
from comet_mpc.engine.tables import PHASES, LineTable
from comet_mpc.functions.row_rule import ROW_ERROR
from comet_mpc.functions.rule import InverseRule, Reals

Flags = npt.NDArray[np.bool_]

Y, S, F = variables("y s f")

WAY = "rows from tables"
"""A fork of every program with row functions: lines of a table, or steps of a polynomial."""
WAY_OF_TWO = "rows of two tables put together in the product"
_MOST_CELLS = 14
"""Of one table, as a power of two."""
_CELLS_AT_ONCE = 1 << 23
"""Of all rows of a tensor: up to here one table is taken, and not two with a selection and a round more."""
_CELLS_IN_WINDOWS = 1 << 24
"""The same where a program is run window by window: few of the rows are read at once."""
_FEWEST_CELLS = 4
PADDING_ROOM = 3.0
"""What t may reach where rows of padding are moved out of the way, over the interval's top: the ring needs the room."""
_FACTORS = range(1, 16)
_BITS_OF_T = (9, 11, 13)  # of t, beyond those of the interval's low end
_POINTS = np.array([0.0, 0.5, 1.0])  # of a cell, where a line is levelled


class Curve(NamedTuple):
    """gain·t^-power for t in [low, high], and how far a line may be off, relative to it."""

    low: float
    high: float
    gain: float
    power: float
    above: float
    """From 0 to the top: y may be so much too large."""
    error: float
    """Over the interval, in either direction, or up to where it need not be exact any more."""
    exact: float = math.inf

    def __call__(self, t: Reals) -> Reals:
        return np.asarray(self.gain * t**-self.power)

    def relative(self, t: Reals, level: Reals, slope: Reals) -> Reals:
        return np.asarray((level + slope * t) * t**self.power / self.gain - 1.0)


class Allowed(NamedTuple):
    """How far y may be off, relative to gain/sqrt(t): what a program relies on, whichever way y is computed."""

    above: float
    error: float

    def curve(self, rule: InverseRule, power: float) -> Curve:
        times, gain = 2.0 * power, rule.gain if power == 0.5 else 1.0
        above, error = (1.0 + self.above) ** times - 1.0, 1.0 - (1.0 - self.error) ** times
        return Curve(rule.low, rule.high, gain, power, above, error, rule.exact_top)


ROW_ALLOWED = Allowed(ROW_ERROR, ROW_ERROR)
"""Of rules that are made with the usual error."""


class _Cells(NamedTuple):
    """How t is cut: z = t·2^fraction is an integer, and cell j begins at about j·unit."""

    bits: int
    """2^bits cells for values."""
    fraction: float
    factor: int
    cut: int
    padded: bool
    """Whether there are as many cells again for rows of padding, whose value is 0."""
    off: float = 0.0
    """Units by which z is off at most."""
    width: int = 0
    """Of the ring that t is truncated into for it, if it is."""

    @property
    def index_bits(self) -> int:
        return self.bits + self.padded

    @property
    def unit(self) -> float:
        return float(2.0 ** (self.cut - self.fraction) / self.factor)

    @property
    def padding(self) -> int:
        """What is added to z where a row is padding."""
        return -(-(1 << self.bits + self.cut) // self.factor)

    def intervals(self) -> tuple[Reals, Reals]:
        """Where the values of every phase and cell begin and end, (phases, cells). The last cell is that before 0."""
        cells = np.arange(2**self.bits, dtype=np.float64)
        cells[-1] = -1.0
        phases, off = np.arange(PHASES)[:, None] / PHASES, self.off * 2.0**-self.fraction
        begin, end = (cells + phases) * self.unit, (cells + phases + 1.0 + 1.0 / PHASES) * self.unit
        return np.maximum(0.0, begin - off), end + off


class Argument(NamedTuple):
    """t as it comes, in Z_2^width, where the opening truncates it for the lines (`ops.table_line`)."""

    fraction: int
    width: int
    """With more fraction bits it is wider by as many."""
    padded: bool = False

    def cells(self, top: float, bits: int, fraction_t: int) -> _Cells | None:
        """The narrowest cells with which `top` is below the last one, for t of more than that many fraction bits."""
        fraction = max(self.fraction, fraction_t + 1)
        width = min(WORD, self.width + fraction - self.fraction)
        least = top * 2.0**fraction * (1.0 + 2.0**-20) / (2**bits - 2)
        cuts = {factor: math.ceil(math.log2(least * factor)) for factor in _FACTORS}
        found = [
            _Cells(bits, fraction, factor, cut, self.padded)
            for factor, cut in cuts.items()
            if cut >= math.log2(PHASES) and cut + bits + self.padded <= width
        ]
        if self.padded:  # a row of padding is truncated like the others
            limit = 2.0 ** (width - 2 - fraction)
            found = [cells for cells in found if top + cells.padding * 2.0**-fraction < limit]
        return min(found, key=lambda cells: cells.unit, default=None)


class CutArgument(NamedTuple):
    """t as it comes in any ring, where it is truncated before, and sends nothing for that.

    Its scale is then one of a few, so that the interval fills the table's cells by more than a half.
    """

    fraction: float
    ring: Ring
    largest: float
    """|t| at most, in units."""
    padded: bool = False

    def cells(self, top: float, bits: int, fraction_t: int) -> _Cells | None:
        """Cells with which `top` is below the last one, as narrow as can be with about so many fraction bits."""
        cut = max(int(math.log2(PHASES)), math.ceil(math.log2(top * 2.0**fraction_t / (2**bits - 2))))
        limit = math.log2((2.0**cut * (2**bits - 2) - 2.0) / top) - 2.0**-20
        off = MOST_OFF if self.ring.modulus else 1.0
        found = [
            _Cells(bits, self.fraction - shift, 1, cut, self.padded, off, width)
            for shift, width in self._shifts()
            if self.fraction - shift <= limit and width >= cut + bits + self.padded
        ]
        return max(found, key=lambda cells: cells.fraction, default=None)

    def _shifts(self) -> Iterator[tuple[float, int]]:
        """By which it can be truncated into which rings."""
        if not self.ring.modulus:
            yield from ((float(shift), self.ring.width - shift) for shift in range(1, self.ring.width - 2))
            return
        for factor in _FACTORS[::2]:
            for width in range(3, self.ring.width):
                shift = free_shift_by(self.ring, factor, Ring(width))
                if shift >= LEAST_SHIFT and Ring(width).holds(1.02 * self.largest * 2.0**-shift):
                    yield shift, width


AnyArgument = Argument | CutArgument


@dataclass(frozen=True, eq=False)
class _Fit:
    """Lines for cells, in integers, and what is proved of them."""

    cells: _Cells
    levels: Reals
    slopes: Reals
    """(phases, cells), integers: y·2^fraction = level + slope·t·2^fraction_t."""
    fraction_t: float
    over: float
    """Largest (y - exact)/exact from 0 to the top."""
    error: float
    """Largest |y - exact|/exact on the interval."""
    bound: float
    """Largest |y|."""

    def keeps(self, curve: Curve) -> bool:
        return self.over <= curve.above and self.error <= curve.error


def _fitted(curve: Curve, cells: _Cells, fraction: int, fraction_t: float, start: float = 0.0) -> _Fit:
    """The best lines. start: cells that end there or below are not this table's, and get 0."""
    begin, end = cells.intervals()
    low, high = np.minimum(np.maximum(begin, curve.low), curve.high), np.clip(end, curve.low, curve.high)
    wide = high > low * (1.0 + 1e-9)
    high = np.where(wide, high, low * (1.0 + 1e-9))
    nodes = 0.5 * (low + high) + 0.5 * (high - low) * math.sqrt(0.5) * np.array([-1.0, 1.0])[:, None, None]
    left, right = curve(nodes)
    grain, unit = 2.0 ** (fraction_t - fraction), 2.0**-fraction
    slopes = np.where(wide, np.rint((right - left) / (nodes[1] - nodes[0]) / grain), 0.0)
    t = low + (high - low) * _POINTS[:, None, None]
    weight = t**curve.power / curve.gain
    levels = curve(low)
    # as little above the curve as is allowed, whatever the rounding of t does
    above = 0.97 * curve.above - _moved(cells, slopes * grain, fraction_t) * high**curve.power / curve.gain
    for _ in range(4):
        off = curve.relative(t, levels, slopes * grain)
        largest, least = off.max(axis=0), off.min(axis=0)
        rise = np.maximum(0.5 * (largest + least), largest - above)
        levels = levels - rise / weight[1]
    levels = np.floor(levels / unit)
    unused = end <= start * (1.0 + 1e-12) if start else np.zeros_like(wide)
    levels, slopes = (np.where(unused, 0.0, part) for part in (levels, slopes))
    return _certified(curve, cells, levels, slopes, fraction, fraction_t, unused)


def _certified(
    curve: Curve, cells: _Cells, levels: Reals, slopes: Reals, fraction: int, fraction_t: float, unused: Flags
) -> _Fit:
    """What the integers give. (p + q·t)·t^r has its extremes at the ends and where t = -p·r/(q·(r + 1)).

    t is truncated to less than a unit either way, and a half is more than float64 makes of any of these numbers.
    """
    begin, end = cells.intervals()
    top = np.minimum(end, curve.high)
    used = ~unused & (begin < curve.high)
    p, q = levels * 2.0**-fraction, slopes * 2.0 ** (fraction_t - fraction)
    moved = _moved(cells, q, fraction_t)
    with np.errstate(divide="ignore", invalid="ignore"):
        peak = np.where(q == 0.0, top, -p * curve.power / (q * (curve.power + 1.0)))

    def extremes(lowest: Reals) -> tuple[Reals, Reals]:
        points = np.stack([lowest, top, np.clip(np.nan_to_num(peak), lowest, top)])
        off = curve.relative(points, p, q)
        slack = moved * top**curve.power / curve.gain
        return off.max(axis=0) + slack, off.min(axis=0) - slack

    over, _ = extremes(np.minimum(np.maximum(begin, 1e-300), top))
    inside = used & (top > curve.low) & (begin < curve.exact)
    largest, least = extremes(np.minimum(np.maximum(begin, curve.low), top))
    errors = np.maximum(largest, -least)[inside]
    values = np.abs(np.stack([p + q * begin, p + q * top])) + moved + 2.0**-fraction
    return _Fit(
        cells,
        levels,
        slopes,
        fraction_t,
        float(over[used].max(initial=-1.0)),
        float(errors.max(initial=0.0)),
        float(values[:, used].max(initial=0.0)),
    )


def _moved(cells: _Cells, slopes: Reals, fraction_t: float) -> Reals:
    """By how much lines are off at most since t is rounded to its fraction bits."""
    return np.asarray(np.abs(slopes) * max(1.0, cells.off) * 2.0**-fraction_t * (1.0 + 1e-6))


def _best(curve: Curve, bits: int, fraction: int, own: AnyArgument, start: float = 0.0) -> _Fit | None:
    """With so many cells the lines of the t that serves best."""
    below = -math.floor(math.log2(max(curve.low, start)))
    found = []
    for fraction_t in (below + more for more in _BITS_OF_T):
        cells = own.cells(curve.high, bits, fraction_t)
        if cells is not None:
            found.append(_fitted(curve, cells, fraction, cells.fraction if cells.width else fraction_t, start))
    kept = [fit for fit in found if fit.keeps(curve)]
    return min(kept, key=lambda fit: fit.error, default=None)


def _cells_needed(curve: Curve, low: float) -> int:
    """About how many, as a power of two: a line on [x, x+w] is off by r(r+1)/16·(w/x)² of t^-r."""
    allowed = max(min(curve.error, 0.5 * (curve.above + curve.error)), 1e-12)
    width = math.sqrt(16.0 * allowed / (curve.power * (curve.power + 1.0))) * low
    return max(_FEWEST_CELLS, math.floor(math.log2(curve.high * (1.0 + 1.0 / PHASES) / width)))


def _smallest(curve: Curve, fraction: int, own: AnyArgument, most: int, start: float = 0.0) -> _Fit | None:
    """With the fewest cells that keep the curve."""
    first = _cells_needed(curve, max(curve.low, start))
    for bits in range(first, most + 1):
        if (fit := _best(curve, bits, fraction, own, start)) is not None:
            return fit
    return None


class Factor(NamedTuple):
    """y as a polynomial in what was opened, for the product that it enters."""

    polynomial: Polynomial
    opened: dict[str, Opened]


@dataclass(frozen=True, eq=False)
class RowTable:
    """One table, or a coarse and a fine one, for t of so many fraction bits."""

    curve: Curve
    fits: tuple[_Fit, ...]
    fraction: int
    ring: Ring
    """Of y."""

    @property
    def overshoot(self) -> float:
        """y/exact is at most this, from 0 to the top."""
        return 1.0 + max(fit.over for fit in self.fits)

    @property
    def error(self) -> float:
        """Of y on the interval, relative, rounding included."""
        return max(fit.error for fit in self.fits)

    @property
    def bound(self) -> float:
        return max(fit.bound for fit in self.fits)

    def read(self, session: Session, t: Share, keep: Share | None = None, hurried: bool = False) -> Factor:
        """y with `fraction` bits in a ring, opened. Rounds: 2, or with two tables 3 or 2. Reveals nothing.

        With two tables y = coarse + chosen·fine. To put that together and open it takes a round more than to open the
        three; a product with the three takes five monomials of every element instead of one.
        """
        lines = session.communicate(*(self._request(session, which, t, keep) for which in range(len(self.fits))))
        if len(lines) == 1:
            return Factor(Y, {"y": session.open(lines[0][0].bounded(self.bound))})
        (coarse, chosen), (fine, *_) = lines
        chosen = chosen.times_power(self.fraction)
        if session.goes(WAY_OF_TWO, usually=hurried and session.fused):
            return Factor(Y + S * F, dict(zip("ysf", session.open(coarse, chosen, fine), strict=True)))
        opened = dict(zip("sf", session.open(chosen, fine), strict=True))
        product = session.evaluate(S * F, opened, bound=self.fits[1].bound)
        return Factor(Y, {"y": session.open((coarse + product).bounded(self.bound))})

    def _request(self, session: Session, which: int, t: Share, keep: Share | None) -> TableLine:
        cells, table = self.fits[which].cells, self.table(which)
        cut = session.truncate(t, t.fraction - cells.fraction, cells.width) if cells.width else t.lift(cells.fraction)
        if keep is not None and cells.padded:
            away = session.add_constant(-keep, 1.0).times(cells.padding).times_power(-cut.fraction)
            cut = (cut + away.narrow(cut.width)).bounded(cut.bound + cells.padding * 2.0**-cut.fraction)
        return TableLine(cut, table.shift, table.width, table.modulus, table=table)

    def table(self, which: int) -> LineTable:
        return _table(self, which)


@lru_cache(maxsize=64)
def _table(table: RowTable, which: int) -> LineTable:
    fit, two = table.fits[which], len(table.fits) == 2
    cells = fit.cells
    columns = np.zeros((2, PHASES, 2 if two and which == 0 else 1, 2**cells.index_bits), np.int64)
    where = np.arange(2**cells.bits)
    where[-1] = 2**cells.index_bits - 1  # the cell before 0
    for part, numbers in enumerate((fit.levels, fit.slopes)):
        columns[part][:, 0, where] = numbers.astype(np.int64)
    bounds = [fit.bound if which == 0 else table.ring.size / 2.0 ** (1 + table.fraction)]
    if two and which == 0:
        columns[0][:, 1, where] = fit.levels == 0.0
        bounds.append(2.0**-table.fraction)
    if cells.width:
        described = cells.index_bits, cells.cut, table.fraction, table.ring, tuple(bounds)
        return LineTable.unwrapping(*described, columns[0], columns[1])
    words = np.stack([columns[0], columns[1]], axis=2).view(np.uint64)
    shift = int(cells.fraction - fit.fraction_t)
    return LineTable(
        cells.index_bits, cells.factor, cells.cut, shift, table.fraction, table.ring.width, tuple(bounds),
        np.concatenate([words, words], axis=-1),
    )  # fmt: skip


@lru_cache(maxsize=128)
def row_table(curve: Curve, own: AnyArgument, fraction: int, ring: Ring, most: int = _MOST_CELLS) -> RowTable | None:
    """A table that keeps the curve, y having `fraction` bits in a ring; None if no lines of 2^14 cells do.

    own: t; most: cells of one table, as a power of two, if two can do it with fewer
    """
    one = _smallest(curve, fraction, own, most)
    if one is not None:
        return RowTable(curve, (one,), fraction, ring)
    found = list(_pairs(curve, fraction, own))
    if found:
        return RowTable(curve, min(found, key=_size), fraction, ring)
    one = _smallest(curve, fraction, own, _MOST_CELLS)
    return None if one is None else RowTable(curve, (one,), fraction, ring)


def _size(fits: tuple[_Fit, ...]) -> int:
    return sum(1 << fit.cells.bits for fit in fits)


def _pairs(curve: Curve, fraction: int, own: AnyArgument) -> Iterator[tuple[_Fit, _Fit]]:
    """Coarse and fine tables for several places where one ends and the other begins.

    A row of padding is moved in the coarse one alone: there it does not choose the fine one.
    """
    middle = math.log2(curve.high / curve.low) / 2.0
    for power in {math.floor(middle), math.ceil(middle)}:
        split = curve.high * 2.0**-power
        if split > 2.0 * curve.low:
            coarse = _smallest(curve, fraction, own, _MOST_CELLS, start=split)
            fine = _smallest(curve._replace(high=split), fraction, own._replace(padded=False), _MOST_CELLS)
            if coarse is not None and fine is not None:
                yield coarse, fine


def may_read(session: Session, rule: InverseRule) -> bool:
    """Whether a table may stand for a rule here."""
    return session.points and rule.of_rows


def open_row(
    session: Session,
    t: Share,
    rule: InverseRule,
    *,
    fraction: int,
    ring: Ring,
    allowed: Allowed,
    power: float = 0.5,
    keep: Share | None = None,
    count: int | None = None,
    hurried: bool = False,
) -> Factor | None:
    """gain·t^-power for t in the rule's interval by a table, with `fraction` bits in a ring; None to take the rule.

    power  1/2, or 1 for 1/t (gain 1)
    keep   1 for a row, 0 for one of padding, whose result is 0
    count  of rows that the table's size is chosen for, if they are more than those of t (`engine.windows`)
    hurried  whether a round is dearer than monomials: where a program is run for few rows, again and again
    Rounds: 2, or up to 3 if the interval is wide. Opens t and lines. Reveals nothing.
    """
    own = _argument(session, t, rule, ring, keep is not None)
    if own is None:
        return None
    cells = _CELLS_IN_WINDOWS / count if count else _CELLS_AT_ONCE / t.count
    most = math.floor(math.log2(cells)) if keep is None else _MOST_CELLS
    table = row_table(allowed.curve(rule, power), own, fraction, ring, min(most, _MOST_CELLS))
    if table is None or not (rule.only_tables or session.goes(WAY, usually=True)):
        return None
    rule.check_argument(session, t.bound)
    return table.read(session, t, keep, hurried)


def _argument(session: Session, t: Share, rule: InverseRule, ring: Ring, padded: bool) -> AnyArgument | None:
    """None where a table cannot be read."""
    if not may_read(session, rule):
        return None
    if not session.fused:
        return CutArgument(t.fraction, t.ring, t.bound * 2.0**t.fraction, padded)
    if ring.modulus or t.modulus or not whole(t.fraction):
        return None
    return Argument(int(t.fraction), t.width, padded)
