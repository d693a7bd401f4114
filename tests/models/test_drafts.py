"""Drafts change when tokens come, and never which: greedy or sampled, right or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_mpc.engine.share import Reals
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.writing.drafts import (
    Drafter,
    KnownTexts,
    RepeatedWords,
    accepted_from_which_it_pays,
    tokens_a_run,
    verified,
)
from comet_mpc.models.writing.sampling import Sampler, Sampling

VOCABULARY = 6


class Writer:
    """A model whose logits are a fixed function of the last tokens, so that it repeats itself."""

    def __init__(self, seed: int) -> None:
        self._table = np.random.default_rng(seed).normal(scale=2.0, size=(VOCABULARY, VOCABULARY, VOCABULARY))

    def logits(self, text: Sequence[int]) -> Reals:
        return np.asarray(self._table[text[-2], text[-1]])


class Wrong:
    """Always guesses the same."""

    def draft(self, text: Sequence[int], most: int) -> Sequence[int]:
        return [0] * most


def written(
    writer: Writer, sampling: Sampling, count: int, drafter: Drafter | None, positions: int
) -> tuple[list[int], int]:
    """The tokens, and in how many runs."""
    text, runs, sampler = [1, 2], 0, Sampler(sampling)
    while len(text) < count:
        drafts = list(drafter.draft(text, positions - 1)) if drafter is not None else []
        rows = [writer.logits([*text, *drafts[:place]]) for place in range(len(drafts) + 1)]
        text += verified(drafts, rows, text, sampler.pick)
        runs += 1
    return text[:count], runs


@given(st.integers(0, 50), st.integers(2, 6), st.sampled_from([0.0, 0.5, 2.0]))
def test_a_text_is_the_same_with_drafts_and_without(seed: int, positions: int, temperature: float) -> None:
    writer, sampling = Writer(seed), Sampling(temperature=temperature, seed=seed)
    alone, runs = written(writer, sampling, 40, None, 1)
    assert runs == 38
    for drafter in (RepeatedWords(), Wrong()):
        found, fewer = written(writer, sampling, 40, drafter, positions)
        assert found == alone
        assert fewer <= runs


def test_a_text_that_repeats_itself_takes_fewer_runs() -> None:
    _, runs = written(Writer(0), Sampling(), 60, RepeatedWords(), 4)
    assert runs < 30


def test_what_followed_the_same_words_is_guessed() -> None:
    drafter = RepeatedWords()
    assert list(drafter.draft([5, 1, 2, 3, 4, 9, 1, 2, 3], 2)) == [4, 9]
    assert list(drafter.draft([5, 1, 2, 3, 4, 9, 1, 2, 3, 4, 7, 2, 3], 3)) == [4, 7, 2]  # what came last counts
    assert list(drafter.draft([8, 9], 3)) == []  # another text: nothing is left of the first
    assert list(drafter.draft([8, 9, 8], 5)) == [9, 8, 9, 8, 9]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 5))
def test_guesses_are_those_of_a_search_through_the_text(text: list[int], most: int) -> None:
    def searched() -> list[int]:
        for size in (3, 2, 1):
            for start in range(len(text) - size - 1, -1, -1):
                if len(text) > size and text[start : start + size] == text[-size:]:
                    return [*islice(cycle(text[start + size :]), most)]
        return []

    assert list(RepeatedWords().draft(text, most)) == searched()


def test_drafts_pay_from_a_share_of_right_ones_on() -> None:
    share = accepted_from_which_it_pays(1.0, 1.5, 4)
    assert share is not None
    assert tokens_a_run(4, share) == pytest.approx(1.5, abs=1e-4)
    assert accepted_from_which_it_pays(1.0, 1.0, 4) == 0.0
    assert accepted_from_which_it_pays(1.0, 4.0, 4) is None
    with pytest.raises(ConfigurationError, match="two positions"):
        accepted_from_which_it_pays(1.0, 1.0, 1)


def test_other_texts_are_guessed_by_what_follows_most_often() -> None:
    drafter = KnownTexts([[1, 2, 3, 4], [1, 2, 3, 5], [7, 2, 3, 5], [9, 3, 4, 1]])
    assert drafter.draft([1, 2, 3], 1) == [4]  # the longest tokens that are known decide
    assert drafter.draft([8, 2, 3], 2) == [5]  # after 5 nothing is known
    assert drafter.draft([6, 6, 2], 3) == [3, 5]
    assert drafter.draft([6], 4) == []
    assert drafter.draft([2, 2, 2, 2, 1, 2, 3], 1) == drafter.draft([9, 9, 9, 9, 1, 2, 3], 1)  # nothing further back


def test_guesses_end_where_all_of_them_are_unlikely_to_hold() -> None:
    """What is wrong takes positions of the conversation that are prepared for the text."""
    sure, unsure = [[1, 2, 3, 4, 5]] * 9, [[1, other] for other in range(10, 30)]
    assert KnownTexts(sure).draft([1], 4) == [2, 3, 4, 5]
    assert KnownTexts([*sure, *unsure]).draft([1], 4) == [2, 3, 4, 5]  # 9 in 29: often enough
    assert KnownTexts([[1, 2, 3], *unsure]).draft([1], 4) == []
