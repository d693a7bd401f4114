"""The client picks the next token by itself, from logits that nobody else sees.

In this order, as is usual: a repetition penalty, the temperature, the `top_k` likeliest, and of them the fewest that
have `top_p` of the probability. A number for each token that is picked, and for nothing else: so with a seed the same
logits give the same text, whether tokens come one at a time or several (`drafts`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from comet_mpc.engine.seeds import Streams, derive_seed
from comet_mpc.engine.share import Reals
from comet_mpc.errors import ConfigurationError

_LARGEST_SEED = 1 << 64
_DIGITS = 53
"""Bits of a number in [0, 1)."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is picked. The defaults are greedy: always the likeliest.

    temperature         0: the likeliest token. 1: as the model says; lower is safer, higher more surprising
    top_k               only so many of the likeliest; 0: all
    top_p               only the fewest of the likeliest that have so much of the probability together
    repetition_penalty  logits of tokens that are in the text already are divided by it (or multiplied, if negative)
    seed                the same again for the same seed; None: randomness of the operating system
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise ConfigurationError(f"temperature must be 0 (greedy) to 100, not {self.temperature}")
        if self.top_k < 0:
            raise ConfigurationError(f"top_k must be 0 (all) or more, not {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigurationError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if not 0.01 <= self.repetition_penalty <= 100.0:
            raise ConfigurationError(f"repetition_penalty must be 0.01 to 100, not {self.repetition_penalty}")
        if self.seed is not None and not 0 <= self.seed < _LARGEST_SEED:
            raise ConfigurationError("a seed is a whole number from 0 to 2^64 - 1")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1


class Sampler:
    """Picks the tokens of one text, one after another."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._streams = None if sampling.seed is None else Streams(derive_seed(b"", "sampling", str(sampling.seed)))
        self._picked = 0

    def pick(self, logits: Reals, text: Sequence[int]) -> int:
        """The next token. logits: of every token. text: the tokens so far, the prompt's included"""
        scores = penalised(logits, text, self._sampling.repetition_penalty)
        if self._sampling.greedy:
            return int(np.argmax(scores))
        chances = probabilities(scores, self._sampling)
        steps = np.cumsum(chances)
        place = int(np.searchsorted(steps, self._uniform() * steps[-1], side="right"))
        return min(place, int(np.flatnonzero(chances)[-1]))

    def _uniform(self) -> float:
        """A number in [0, 1)."""
        if self._streams is None:
            return secrets.randbits(_DIGITS) * 2.0**-_DIGITS
        (word,) = self._streams.words(0, 1, self._picked)
        self._picked += 1
        return (int(word) >> (64 - _DIGITS)) * 2.0**-_DIGITS


def penalised(logits: Reals, text: Sequence[int], penalty: float) -> Reals:
    """Logits of tokens in the text are brought down: divided by the penalty, or multiplied if they are negative."""
    if penalty == 1.0 or not len(text):
        return logits
    scores = np.array(logits, np.float64)
    seen = np.unique(np.asarray(text, np.int64))
    scores[seen] = np.where(scores[seen] < 0.0, scores[seen] * penalty, scores[seen] / penalty)
    return scores


def probabilities(scores: Reals, sampling: Sampling) -> Reals:
    """The chance of every token; a token that is out has none. The temperature must not be 0."""
    scaled = np.asarray(scores, np.float64) / sampling.temperature
    if 0 < sampling.top_k < scaled.size:
        least = np.partition(scaled, -sampling.top_k)[-sampling.top_k]
        scaled = np.where(scaled < least, -math.inf, scaled)
    chances = np.exp(scaled - np.max(scaled))
    chances /= chances.sum()
    if sampling.top_p < 1.0:
        order = np.argsort(-chances, kind="stable")
        before = np.cumsum(chances[order]) - chances[order]
        chances[order[before >= sampling.top_p]] = 0.0  # the likeliest has nothing before it, and stays
        chances /= chances.sum()
    return np.asarray(chances)
