"""What a program demands of a source: which kinds of randomness, and correlations in its order, each once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.kernels import Words
from comet_mpc.errors import ForeignRandomness, RandomnessExhausted


@dataclass(frozen=True)
class Abilities:
    """A source states them, a program is planned for them, and all who run it have the same.

    fused  masks of openings that truncate on the way in Z_2^w, so that both share a round
    odd    masks and their monomials modulo odd numbers, in which element-wise work is cheaper for two parties alone
    """

    fused: bool = True
    odd: bool = False


FUSED = Abilities()


@dataclass(frozen=True, eq=False)
class Drawn:
    """What was drawn for an operation: the index of its correlation in the program, and this party's words.

    arrays  none in a plan
    more    the indices of further correlations, if it takes several; `arrays` holds the words of all
    """

    index: int
    arrays: tuple[Words, ...] = field(default=(), repr=False)
    more: tuple[int, ...] = ()


Draw = Callable[[Correlation], Drawn]
"""Draws the next correlation of a program."""


class InOrder:
    """The correlations that were prepared, handed out in the program's order and each once: for every source."""

    def __init__(self, correlations: Sequence[Correlation]) -> None:
        self.correlations = tuple(correlations)
        self._next = 0

    @property
    def remaining(self) -> int:
        """Correlations not drawn yet."""
        return len(self.correlations) - self._next

    def take(self, correlation: Correlation) -> int:
        """The index of the next one, which must be the one that the program asks for."""
        index = self._next
        if index >= len(self.correlations):
            raise RandomnessExhausted(
                f"the program asks for more than the {index} correlations that were prepared for it"
            )
        if (prepared := self.correlations[index]) != correlation:
            raise ForeignRandomness(
                f"correlation {index} was prepared for another program: it is {type(prepared).__name__}, "
                f"and this program asks for {type(correlation).__name__}, or for other dimensions"
            )
        self._next += 1
        return index
