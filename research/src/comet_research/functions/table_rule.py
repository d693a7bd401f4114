"""1/sqrt(t) from public tables: what they hold, and what error they guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from comet_mpc.engine import Session, Truncate
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.share import Share, concatenate, ring_width
from comet_mpc.errors import RangeError, RuleError
from comet_mpc.functions.rule import InverseRule, Wanted
from comet_research.look_up import Column, Table, look_up

T, Y, P, Z, H, D = variables("t y p z h d")


@dataclass(frozen=True)
class TableRule(InverseRule):
    """1/sqrt(t) for t in [low, high] from tables, as SIRNN and Iron do it: t = m·2^k with m in [1, 2).

    digits  t's top bit, digit by digit: of every digit's sum a carry, whether it is zero, and where its top bit is
    powers  from the top bit's place: what to multiply t with to have m; and 2^(-k/2)
    guesses w ≈ 1/sqrt(m) from m's leading bits, then one Newton step w·(3/2 - m·w²/2)

    The error is relative and the same for every interval that the tables hold. All numbers are public.
    """

    low: float
    high: float
    gain: float = 1.0
    """Always 1: a caller that wants another constant multiplies with it."""

    digit_bits = 4  # larger digits take fewer rounds and more bytes
    guess_bits = 7  # of the place in the table of guesses
    cells = 2**guess_bits - 3  # in [1, 2); a place is off by less than one, which takes three more
    fraction_m = 16
    fraction_w = 9
    fraction_y = 16

    @staticmethod
    def make(wanted: Wanted) -> TableRule:
        if wanted.steps not in (None, 1):
            raise RuleError(f"the rule of tables takes one step, not {wanted.steps}")
        return TableRule(wanted.low, wanted.high)

    def __post_init__(self) -> None:
        if self.bits > 32:
            raise RuleError(f"the interval [{self.low:g}, {self.high:g}] is too wide for tables of 32 places")

    @property
    def fraction_t(self) -> int:
        return 14 - math.floor(math.log2(self.low))

    @property
    def bits(self) -> int:
        """Of t, as a whole number with its fraction bits."""
        return math.floor(math.log2(self.high * 2.0**self.fraction_t + 2.0)) + 1

    @property
    def top(self) -> float:
        """The largest t that the tables hold, the interval's high end or above; a truncation adds less than a unit."""
        return (2.0**self.bits - 2.0) * 2.0**-self.fraction_t

    @property
    def digits(self) -> int:
        return math.ceil(self.bits / self.digit_bits)

    @property
    def width(self) -> int:
        """A ring for m times the number of cells."""
        return _whole_bytes(max(ring_width(self.bits - 1, 2.0 * self.cells), self.digit_bits * self.digits))

    def digit_table(self, place: int) -> Table:
        """Of a digit's sum with the carry from below: (carry, not zero, place of the top bit in all of t)."""
        sums = [(value >> self.digit_bits, value % 2**self.digit_bits) for value in range(2 ** (self.digit_bits + 1))]
        tops = [self.digit_bits * place + digit.bit_length() - 1 if digit else 0 for _, digit in sums]
        carries = Column(tuple(carry for carry, _ in sums), 8)
        return Table((carries, Column(tuple(int(digit > 0) for _, digit in sums), 8), Column(tuple(tops), 8)))

    @property
    def _exponents(self) -> list[int]:
        """k for every place of the top bit; below the interval that of its low end."""
        lowest = math.floor(math.log2(self.low * 2.0**self.fraction_t))
        return [min(max(top, lowest), self.bits - 1) - self.fraction_t for top in range(32)]

    @property
    def fraction_s(self) -> int:
        """Of 2^(-k/2), the smallest of which has 15 bits."""
        return 15 + math.ceil(max(self._exponents) / 2)

    @cached_property
    def power_tables(self) -> tuple[Table, Table]:
        powers = tuple(2 ** max(0, self.bits - 1 - top) for top in range(32))
        scales = tuple(round(2.0 ** (self.fraction_s - k / 2)) for k in self._exponents)
        width = _whole_bytes(ring_width(self.fraction_s, max(scales) * 2.0**-self.fraction_s))
        return Table((Column(powers, self.width),)), Table((Column(scales, width, self.fraction_s),))

    def _ends(self, place: int) -> tuple[float, float]:
        """Which m a place of the table of guesses stands for."""
        middle = place + self.cells - 1
        return max(1.0, (middle - 1) / self.cells), max(1.0, min(2.0, (middle + 1) / self.cells))

    @cached_property
    def guess_table(self) -> Table:
        ends = [self._ends(place) for place in range(2**self.guess_bits)]
        values = [2.0 / (math.sqrt(low) + math.sqrt(min(2.0, high))) for low, high in ends]
        return Table((Column(tuple(round(w * 2**self.fraction_w) for w in values), 16, self.fraction_w),))

    @cached_property
    def error(self) -> float:
        """max |y·sqrt(t) - 1| in real arithmetic: w·sqrt(m) = r becomes r·(3 - r²)/2, at most 1."""
        ratios = [
            value * 2.0**-self.fraction_w * math.sqrt(m)
            for place, value in enumerate(self.guess_table.columns[0].values)
            for m in self._ends(place)
            if place <= self.cells + 2
        ]
        return max(1.0 - r * (3.0 - r * r) / 2.0 for r in ratios)

    @cached_property
    def rounding(self) -> float:
        """What fixed point adds at most: a unit of t and of m, which y halves; one of y, half a one of 2^(-k/2)."""
        smallest = min(self.power_tables[1].columns[0].values)
        halved = 0.5 * 2.0**-self.fraction_t / self.low + 0.5 * 2.0**-self.fraction_m
        return 1.01 * (halved + math.sqrt(2.0) * 2.0**-self.fraction_y + 0.5 / smallest)

    @property
    def overshoot(self) -> float:
        return 1.0 + self.error + self.rounding

    def added(self, top: float) -> float:
        return top + 2.0

    def inverse_of(self, session: Session, t: Share) -> Share:
        """Digits of t, m, m's leading bits, a Newton step. Rounds: 2 a digit of t, log2 of their number, and 9.

        Besides look-ups opens t, its power, m, w, y and the scale. Reveals nothing.
        """
        if t.bound > self.top:
            raise RangeError(f"{session.here}: t may reach {t.bound:g}, but the rule's tables end at {self.top:g}")
        t = session.truncate_to(t.lift(max(t.fraction, self.fraction_t)), self.fraction_t, self.width)
        power, scale = look_up(session, _top_bit(session, t, self).narrow(5), *self.power_tables)
        opened = dict(zip("tp", session.open(t.times_power(self.fraction_t), power), strict=True))
        whole = session.evaluate(T * P, opened, bound=2.0**self.bits)
        m = whole.times_power(1 - self.bits)
        place = session.truncate(m.times(self.cells), self.bits - 1, self.width - self.bits + 1)
        (w,) = look_up(session, session.add_constant(place, 1.0 - self.cells).narrow(self.guess_bits), self.guess_table)
        fraction = self.fraction_m + 3 * self.fraction_w + 1
        m, w = _brought(session, ring_width(fraction, 1.1), (m, self.fraction_m), (w, self.fraction_w))
        opened = dict(zip("ty", session.open(m, w), strict=True))
        y = session.evaluate(1.5 * Y - 0.5 * T * Y**3, opened, fraction=fraction, bound=1.01)
        bound = 1.02 * scale.bound
        width = ring_width(self.fraction_y + self.fraction_s, bound)
        y, scale = _brought(session, width, (y, self.fraction_y), (scale, self.fraction_s))
        return session.evaluate(Y * P, dict(zip("yp", session.open(y, scale), strict=True)), bound=bound)


def _whole_bytes(width: int) -> int:
    """A table's entries are whole bytes."""
    return 8 * -(-width // 8)


def _top_bit(session: Session, t: Share, rule: TableRule) -> Share:
    """The place of the highest bit of t that is set: of the highest digit that is not zero."""
    carry: Share | None = None
    filled, places = [], []
    for place in range(rule.digits):
        digit = t.digit_sum(place, rule.digit_bits)
        if carry is not None:
            digit = (digit + carry.narrow(digit.width)).bounded(digit.bound)
        carry, full, top = look_up(session, digit, rule.digit_table(place))
        filled.append(full.reshape(1, *t.shape))
        places.append(top.reshape(1, *t.shape))
    z, d = concatenate(filled, 0), concatenate(places, 0)
    while z.shape[0] > 1:  # of two neighbours the higher one counts, unless it is zero
        pairs = z.shape[0] // 2 * 2
        low, high = (slice(start, pairs, 2) for start in (0, 1))
        opened = dict(zip("hzd", session.open(z[high], z[low], (d[high] - d[low]).bounded(32.0)), strict=True))
        either = session.evaluate(H + Z - H * Z, opened, bound=1.0)
        further = session.evaluate(H * D, opened, bound=32.0)
        z = concatenate([either, z[pairs:]], 0)
        d = concatenate([(d[low] + further).bounded(32.0), d[pairs:]], 0)
    return d[0]


def _brought(session: Session, width: int, *wanted: tuple[Share, int]) -> tuple[Share, ...]:
    """Shares with so many fraction bits in a ring of `width`. One round."""
    lifted = [(share.lift(max(share.fraction, fraction)), fraction) for share, fraction in wanted]
    results = session.communicate(*(Truncate(share, share.fraction - bits, width) for share, bits in lifted))
    return tuple(result for result in results if isinstance(result, Share))
