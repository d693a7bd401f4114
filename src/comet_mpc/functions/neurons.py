"""What is computed of every neuron, between two matrices: a function behind one protocol, `Neurons`.

    SmuNeurons   smu(x), the root by a public rule
    Square       x². With W₁, b₁, W₂ and b₂ it is any quadratic, another one for every neuron, none of them public:

                     c₀ + c₁·h + c₂·h² = c₂·(h + δ)² + (c₀ - c₂·δ²)      δ = c₁/(2·c₂)

    Quartics     (x² + γ)², γ a private number of every neuron. It is any quartic, but for what is linear in h, and a
                 matrix between the same rows stands for all of that:

                     c₀ + … + c₄·h⁴ = c₄·(v² + γ')² + a·v + …      v = h + δ, δ = c₃/(4·c₄)

The arguments of all neurons are in [-1, 1], up to rounding: their bounds are in the server's weights (`models.fold`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from comet_mpc.engine import Session
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import Share
from comet_mpc.errors import RangeError, RuleError
from comet_mpc.functions.activation import smu
from comet_mpc.functions.constants import Constants
from comet_mpc.functions.rule import FRACTION_X, Reals, Rule, Smu

X = variables("x")[0]

_ACTIVE = 14
"""Fraction bits of smu(x), at least."""
_SQUARED = 15
"""Fraction bits of x where x² is wanted: more than 14, since slopes are steeper than smu's where the bound is far."""
_SQUARE = 17
"""Fraction bits of x²: of a neuron that stays far below its bound only a few are used."""
_BENT = 14
"""Fraction bits of x where it is squared twice: near 0, where neurons are, x² feels little of its rounding."""
_MIDDLE = 14
"""Fraction bits of x² + γ where that is squared."""
_QUARTIC = 17
"""Fraction bits of the square."""
LARGEST_MIDDLE = 1.0
"""|γ| of a quartic."""


class Neurons(ABC):
    """A function of every neuron."""

    constants: ClassVar[int] = 0
    """Private numbers of a neuron: with some, a matrix adds what is linear in the rows that it comes from."""

    @property
    @abstractmethod
    def argument(self) -> int:
        """Fraction bits that matter of the argument."""

    @property
    @abstractmethod
    def fraction(self) -> int:
        """Fraction bits of the result."""

    @property
    @abstractmethod
    def least_rings(self) -> tuple[int, int]:
        """Of the rows that arguments are products of, in bits, so that arguments are cut for free: into a ring of
        Z_2^w, and into an odd one."""

    @abstractmethod
    def __call__(self, x: Reals, constants: Reals | None = None, *, exact: bool = False) -> Reals:
        """In real arithmetic, by public rules or exactly."""

    @abstractmethod
    def on_shares(self, session: Session, x: Share, constants: Constants | None = None, *, width: int | Ring) -> Share:
        """With `fraction` bits, in a ring."""


@dataclass(frozen=True)
class SmuNeurons(Neurons):
    """smu by a rule."""

    form: Smu
    rule: Rule

    @property
    def fraction(self) -> int:
        return max(_ACTIVE, self.rule.precision)

    @property
    def argument(self) -> int:
        return max(self.fraction, FRACTION_X)

    @property
    def least_rings(self) -> tuple[int, int]:
        return 53, 54

    def __call__(self, x: Reals, constants: Reals | None = None, *, exact: bool = False) -> Reals:
        return self.form(x, None if exact else self.rule)

    def on_shares(self, session: Session, x: Share, constants: Constants | None = None, *, width: int | Ring) -> Share:
        return smu(session, x, self.form, self.rule, fraction=self.fraction, width=width)


@dataclass(frozen=True)
class Square(Neurons):
    """x²."""

    rounding: ClassVar[float] = 2.0**-13
    """By how much x² may be off: twice a unit of x, and a unit of x²."""

    @property
    def fraction(self) -> int:
        return _SQUARE

    @property
    def argument(self) -> int:
        return _SQUARED + 1

    @property
    def least_rings(self) -> tuple[int, int]:
        """An odd ring is reached by a multiple of T/2^w: from 56 bits one gives between 15 and 15.3 fraction bits."""
        return 54, 56

    def __call__(self, x: Reals, constants: Reals | None = None, *, exact: bool = False) -> Reals:
        return np.asarray(np.square(x))

    def on_shares(self, session: Session, x: Share, constants: Constants | None = None, *, width: int | Ring) -> Share:
        """Opens x. Rounds: 2. Reveals nothing."""
        with session.part("activation"):
            largest = x.bound**2 * 4.0**_SQUARED
            ring = session.ring(0, largest)
            opened = session.open(session.cut_to(x, _SQUARED, ring, _SQUARED + ring.room(largest) / 2 - 2.0**-4))
            square = session.evaluate(X**2, {"x": opened}, bound=x.bound**2)
            return session.truncate_to(square, self.fraction, width)


@dataclass(frozen=True)
class Quartics(Neurons):
    """(x² + γ)², γ every neuron's own."""

    constants: ClassVar[int] = 1
    rounding: ClassVar[float] = 2.0**-10
    """By how much it may be off: 4 times what x² + γ is off by, a unit of its own and two of x."""

    @property
    def fraction(self) -> int:
        return _QUARTIC

    @property
    def argument(self) -> int:
        return _BENT + 1

    @property
    def least_rings(self) -> tuple[int, int]:
        return 54, 55

    def __call__(self, x: Reals, constants: Reals | None = None, *, exact: bool = False) -> Reals:
        if constants is None:
            raise RuleError("quartics need their constants")
        return np.asarray(np.square(np.square(x) + constants))

    def on_shares(self, session: Session, x: Share, constants: Constants | None = None, *, width: int | Ring) -> Share:
        """Opens x and x² + γ. Rounds: 3 or 4. Reveals nothing."""
        if constants is None or constants.bound > LARGEST_MIDDLE:
            raise RangeError(f"{session.here}: quartics need constants of at most {LARGEST_MIDDLE:g}")
        with session.part("activation"):
            largest = (x.bound**2 + constants.bound) * 4.0**_BENT
            ring = session.ring(0, largest)
            opened = session.open(session.cut_to(x, _BENT, ring, _BENT + ring.room(largest) / 2 - 2.0**-4))
            square = session.evaluate(X**2, {"x": opened}, bound=x.bound**2)
            middle = constants.added_to(session, square)
            top = (x.bound**2 + constants.bound + 2.0**-12) ** 2
            again = session.reopen(middle, _MIDDLE, session.ring(2 * _MIDDLE, top))
            return session.truncate_to(session.evaluate(X**2, {"x": again}, bound=top), self.fraction, width)
