"""Does what a party receives tell it anything? Statistics of messages together with what their receiver holds.

The hypothesis: given all that its receiver holds, a message is uniform modulo M, whatever the other party's secret is.
Every statistic is judged by its *surprise*: if the hypothesis holds, a surprise of s or more has a probability below
10^-s. Bounds, not estimates, make it so: a sum of n signs (or of n uniform numbers over their deviation) exceeds
z·sqrt(n) with a probability below exp(-z²/2), and a chi-square of k degrees exceeds r·k with one below
(r·e^(1-r))^(k/2); many questions at once cost their number.

    means   mean of every word, and its difference between two secrets of the other party's, for each of the receiver's
    joint   cells of a message's high and low bits, alone, against what its receiver holds, and of their sums
    pairs   every bit of a message against every bit of what its receiver holds
    guess   a classifier, trained on one half of the runs, guesses the other party's secret in the other half
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from comet_mpc.engine.share import Words

Reals = npt.NDArray[np.float64]

FALSE_ALARM = 1e-6
"""Probability that an audit of a perfect protocol finds something."""
_JUDGEMENTS = 512
"""Statistics of one audit, at most: each gets its part of the false alarms."""
LIMIT = math.log10(_JUDGEMENTS / FALSE_ALARM)
"""The surprise from which on something is wrong."""
STATISTICS = ("means", "joint", "pairs", "guess")

_CELLS = 16
_FEWEST = 8
"""In a cell, so that its square is what it should be."""
_BITS = 8
"""Lowest and highest bits of a word that are compared one by one."""
_SAMPLES = 1 << 15
_FEATURES = 32
"""Of the classifier: those that told most in training."""


@dataclass(frozen=True, eq=False)
class Message:
    """Part of what a party receives in one run: words mod `modulus`, and other words that it holds, one for each."""

    kind: str
    receiver: int
    words: Words
    modulus: int
    held: dict[str, Words] = field(default_factory=dict, repr=False)
    size: int = 0
    """Bytes on the wire."""


@dataclass(frozen=True, eq=False)
class Pile:
    """One message of all runs: words (runs, elements).

    secret  ±1 by run: which input the other party had, which the receiver must not learn
    own     ±1 by run: which input the receiver had itself
    """

    words: Words
    modulus: int
    held: dict[str, Words]
    secret: Reals
    own: Reals

    def combined(self) -> Iterator[Words]:
        """The words, and their sums, differences and exclusive ors with all that is held."""
        yield self.words
        for other in self.held.values():
            if self.modulus & (self.modulus - 1):
                yield (self.words + other) % np.uint64(self.modulus)
                yield (self.words + np.uint64(self.modulus) - other) % np.uint64(self.modulus)
            else:
                low = np.uint64(self.modulus - 1)
                yield (self.words + other) & low
                yield (self.words - other) & low
                if self.modulus > 2:
                    yield self.words ^ other


def pile_up(runs: Sequence[Message], secret: Sequence[int], own: Sequence[int], *, blocks: int = 1) -> Pile:
    """The same message of every run. blocks: a run with many words may count as so many runs with fewer."""
    first = runs[0]
    low = first.modulus

    def stack(arrays: list[Words]) -> Words:
        words = np.stack([np.asarray(array, np.uint64).reshape(-1) for array in arrays])
        words = words % np.uint64(low) if low < 2**64 else words
        return words.reshape(len(runs) * blocks, -1)

    names = set(first.held).intersection(*(run.held for run in runs))
    held = {name: stack([run.held[name] for run in runs]) for name in sorted(names)}
    labels = (np.repeat(2.0 * np.asarray(each) - 1.0, blocks) for each in (secret, own))
    return Pile(stack([run.words for run in runs]), low, held, *labels)


def judge(pile: Pile) -> dict[str, float]:
    """The surprise of every statistic."""
    combined = list(pile.combined())
    found = _means(pile, combined), _joint(pile, combined), _pairs(pile), _guess(pile, combined)
    return dict(zip(STATISTICS, found, strict=True))


def surprise_of_sum(z: float, questions: int, *, sides: int = 2) -> float:
    """Of the largest of so many sums of signs, in deviations."""
    return max(0.0, z * z / 2 / math.log(10) - math.log10(sides * questions))


def surprise_of_squares(square: float, freedom: int, questions: int) -> float:
    ratio = square / freedom
    if ratio <= 1.0:
        return 0.0
    return max(0.0, freedom / 2 * (ratio - 1 - math.log(ratio)) / math.log(10) - math.log10(questions))


def _centred(words: Words, modulus: int) -> Reals:
    """Uniform numbers of mean 0 and deviation 1: words as integers around zero, so that small ones stay exact."""
    if modulus & (modulus - 1):
        signed = words.astype(np.int64)
        signed[signed > modulus // 2] -= modulus
        shift = 0.0
    else:
        unused = np.uint64(65 - modulus.bit_length())
        signed = (words << unused).view(np.int64) >> unused.astype(np.int64)
        shift = 0.5
    return (signed.astype(np.float64) + shift) * math.sqrt(12 / (modulus**2 - 1))


def _signs(words: Words) -> Reals:
    return 1.0 - 2.0 * (words & np.uint64(1)).astype(np.float64)


def _numbers(combined: Sequence[Words], modulus: int) -> Iterator[Reals]:
    for words in combined:
        yield _centred(words, modulus)
        if modulus > 2:
            yield _signs(words)


def _means(pile: Pile, combined: Sequence[Words]) -> float:
    runs, elements = pile.words.shape
    largest, questions = 0.0, 0
    for numbers in _numbers(combined, pile.modulus):
        for sign in (np.ones(runs), pile.secret, pile.own, pile.secret * pile.own):
            sums = sign @ numbers
            whole = abs(float(sums.sum())) / math.sqrt(elements)
            largest = max(largest, float(np.abs(sums).max()), whole)
            questions += elements + 1
    return surprise_of_sum(largest / math.sqrt(runs), questions)


def _cells(words: Words, modulus: int) -> list[npt.NDArray[np.int64]]:
    """Which cell a word is in, by its highest and by its lowest bits."""
    flat = words.reshape(-1)
    if modulus <= _CELLS:
        return [flat.astype(np.int64)]
    width = modulus.bit_length() - 1
    power = modulus == 1 << width
    high = flat >> np.uint64(width - 4) if power else flat * np.uint64(_CELLS) // np.uint64(modulus)
    return [high.astype(np.int64), (flat & np.uint64(_CELLS - 1)).astype(np.int64)]


def _joint(pile: Pile, combined: Sequence[Words]) -> float:
    modulus, cells = pile.modulus, min(_CELLS, pile.modulus)
    squares: list[tuple[float, int]] = []
    for words in combined:
        for found in _cells(words, modulus):
            counts = np.bincount(found, minlength=cells)
            if found.size >= _FEWEST * cells:
                expected = found.size / cells
                squares.append((float(((counts - expected) ** 2).sum() / expected), cells - 1))
    for other in pile.held.values():
        for mine, own in zip(_cells(pile.words, modulus), _cells(other, modulus), strict=True):
            table = np.bincount(own * cells + mine, minlength=cells * cells).reshape(cells, cells)
            rows = table[table.sum(axis=1) >= _FEWEST * cells].astype(np.float64)
            if len(rows):
                wanted = rows.sum(axis=1, keepdims=True) / cells
                squares.append((float(((rows - wanted) ** 2 / wanted).sum()), len(rows) * (cells - 1)))
    return max((surprise_of_squares(square, freedom, len(squares)) for square, freedom in squares), default=0.0)


def _chosen_bits(modulus: int) -> list[int]:
    width = (modulus - 1).bit_length()
    return sorted({*range(min(_BITS, width)), *range(max(0, width - _BITS), width)})


def _bits(words: Words, modulus: int) -> npt.NDArray[np.float32]:
    """Signs (bits, samples)."""
    flat = words.reshape(-1)[:_SAMPLES]
    bits = _chosen_bits(modulus)
    return np.stack([1 - 2 * ((flat >> np.uint64(bit)) & np.uint64(1)).astype(np.float32) for bit in bits])


def mean_sign(bit: int, modulus: int) -> float:
    """Of one bit of a number that is uniform below the modulus: zero only where that is a power of two."""
    ones = (modulus >> bit + 1 << bit) + max(0, modulus % (2 << bit) - (1 << bit))
    return 1 - 2 * ones / modulus


def _pairs(pile: Pile) -> float:
    expected = np.array([mean_sign(bit, pile.modulus) for bit in _chosen_bits(pile.modulus)], np.float32)
    mine = _bits(pile.words, pile.modulus) - expected[:, None]
    largest, questions = 0.0, 0
    for other in pile.held.values():
        sums = mine @ _bits(other, pile.modulus).T
        largest = max(largest, float(np.abs(sums).max()))
        questions += sums.size
    return surprise_of_sum(largest / math.sqrt(mine.shape[1]), max(1, questions))


def _guess(pile: Pile, combined: Sequence[Words]) -> float:
    """The features that differ most between the secrets in the first half of the runs vote in the second half."""
    numbers = list(_numbers(combined, pile.modulus))
    features = np.concatenate([*numbers, *(each.mean(axis=1, keepdims=True) for each in numbers)], axis=1)
    half = len(features) // 8 * 4  # secrets are balanced in every four runs
    one, other = (features[:half][pile.secret[:half] == sign] for sign in (1.0, -1.0))
    if len(one) < 2 or len(other) < 2:
        return 0.0
    middle = (one.mean(axis=0) + other.mean(axis=0)) / 2
    spread = np.maximum(np.sqrt((one.var(axis=0) + other.var(axis=0)) / 2), 1e-12 * np.abs(middle) + 1e-100)
    weight = np.clip((one.mean(axis=0) - other.mean(axis=0)) / spread, -1e3, 1e3)
    best = np.argsort(np.abs(weight))[-_FEATURES:]
    scores = ((features[half:, best] - middle[best]) / spread[best]) @ weight[best]
    right = float((np.where(scores >= 0, 1.0, -1.0) * pile.secret[half:]).sum())
    return surprise_of_sum(max(0.0, right) / math.sqrt(len(scores)), 1, sides=1)
