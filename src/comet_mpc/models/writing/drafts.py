"""Drafts: a client guesses the tokens that may follow, and one run of the program verifies several of them.

In a run of k positions a client sends its last token and k - 1 guesses. The answer has logits for each position, so a
guess that is right makes the next position's answer count as well. What is picked is what would be picked one token at
a time, greedy or not: a guess is kept if it equals the token that the sampler picks there (`verified`).

The server sees how many positions of each run were kept, and so how well the text can be guessed, but not the guesses.
One that cheats chooses what is picked, and so asks what the drafter knows (tests/attacks/test_writing_attacks.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from comet_mpc.engine.share import Reals
from comet_mpc.errors import ConfigurationError

_LONGEST = 3
"""Tokens at the end of the text that are looked for earlier in it."""
_LEAST_LIKELY = 0.125
"""Of guesses by other texts: all of a run together."""


class Drafter(Protocol):
    """Makes guesses, as a small public model of one's own could. They decide when tokens come, not which."""

    def draft(self, text: Sequence[int], most: int) -> Sequence[int]:
        """Up to `most` tokens that may come next."""


class RepeatedWords:
    """Guesses what followed the same tokens when they last were in the text: names, phrases, code. Where that reaches
    the end of the text, it begins again."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}
        """Where the text went on after these tokens, the last time."""
        self._text: list[int] = []

    def draft(self, text: Sequence[int], most: int) -> Sequence[int]:
        if list(text[: len(self._text)]) != self._text:
            self._forget()
        for token in text[len(self._text) :]:
            for size in range(1, min(_LONGEST, len(self._text)) + 1):
                self._after[tuple(self._text[-size:])] = len(self._text)
            self._text.append(token)
        for size in range(min(_LONGEST, len(self._text)), 0, -1):
            place = self._after.get(tuple(self._text[-size:]))
            if place is not None:
                found = self._text[place : place + most]
                while len(found) < most:  # a text that repeats itself goes on doing so
                    found += found[: most - len(found)]
                return found
        return ()


class KnownTexts:
    """Guesses what follows the same tokens most often in other texts: public ones of the same kind, or what the model
    has written before. It looks at the last tokens of the text only, so guesses tell nothing of what is further back.

    It stops where all guesses of a run together are less likely than 1 in 8: what is wrong takes positions.
    """

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for text in texts:
            for place in range(1, len(text)):
                for size in range(1, min(_LONGEST, place) + 1):
                    counts[tuple(text[place - size : place])][text[place]] += 1
        self._next = {before: _likeliest(found) for before, found in counts.items()}

    def draft(self, text: Sequence[int], most: int) -> Sequence[int]:
        end, found, likely = list(text[-_LONGEST:]), list[int](), 1.0
        while len(found) < most:
            known = (self._next.get(tuple(end[-size:])) for size in range(len(end), 0, -1))
            guess, share = next((each for each in known if each is not None), (-1, 0.0))
            likely *= share
            if likely < _LEAST_LIKELY:
                break
            found.append(guess)
            end = [*end, guess][-_LONGEST:]
        return found


def _likeliest(found: Counter[int]) -> tuple[int, float]:
    """The token that came most often, and how likely it is to come again."""
    ((token, times),) = found.most_common(1)
    return token, times / (found.total() + 1)


def verified(
    drafts: Sequence[int],
    rows: Sequence[Reals],
    text: Sequence[int],
    pick: Callable[[Reals, Sequence[int]], int],
) -> list[int]:
    """The tokens that one run gives: the drafts that are right, and one more that the model says.

    rows  logits after the text, and after each of the drafts
    pick  the next token, from logits and the text so far
    """
    found: list[int] = []
    for place, logits in enumerate(rows):
        found.append(pick(logits, [*text, *found]))
        if place == len(drafts) or found[-1] != drafts[place]:
            break
    return found


def tokens_a_run(positions: int, accepted: float) -> float:
    """Expected tokens of a run of so many positions, if each draft after a right one is right so often."""
    return sum(accepted**place for place in range(positions))


def accepted_from_which_it_pays(single: float, several: float, positions: int) -> float | None:
    """How often drafts must be right for runs of several positions to cost less a token; None if they never do.

    single, several: what a run of one position and of `positions` costs, in seconds or bytes
    """
    if positions < 2:
        raise ConfigurationError(f"a run with drafts has two positions or more, not {positions}")
    low, high = 0.0, 1.0
    if several >= single * positions:
        return None
    if several <= single:
        return 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if several > single * tokens_a_run(positions, middle) else (low, middle)
    return high
