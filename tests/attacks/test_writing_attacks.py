"""A server that cheats while a text is written: it chooses the client's tokens, and watches how the text goes on.

It can always make a text wrong. What it sees of the client are the sizes of its runs, how many positions of them count,
and when the text ends. Without drafts these do not depend on the prompt, whatever the server does. With drafts they
do: docs/explanation/security.md says what that is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from comet_mpc.engine.share import Reals
from comet_mpc.models.tokenizers.spelling import Writing
from comet_mpc.models.writing.drafts import RepeatedWords
from comet_mpc.models.writing.sampling import Sampler, Sampling
from comet_mpc.net.channel import Traffic
from comet_mpc.service.writing import client as writing
from support.toy_writer import ToyWriter

MODEL = ToyWriter(18)
PROMPTS = MODEL.prompt("abcdefgh"), MODEL.prompt("abcdefhg")
"""As long as each other. In the first one h follows g."""
G, H, A = PROMPTS[0][-2], PROMPTS[0][-1], PROMPTS[0][0]


class _Cheated:
    """A conversation whose server says what is picked: `said` after each position, in turn."""

    def __init__(self, positions: int, said: Sequence[int]) -> None:
        self._positions, self._said = positions, said
        self.seen: list[tuple[int, int]] = []
        self.used = 0

    @property
    def room(self) -> int:
        return self._positions - self.used

    def run(self, ids: Sequence[int], kept: int) -> tuple[Reals, Traffic]:
        """Logits after each position that is told: as many tokens are picked as were kept of the runs before."""
        self.seen.append((len(ids), kept))
        self.used += len(ids)
        picked = sum(count for _, count in self.seen[2:]) + (len(self.seen) > 1)
        rows = self._said[picked : picked + (len(ids) if kept else 1)]
        return np.eye(MODEL.vocabulary)[list(rows)] * 100.0, Traffic()

    def end(self) -> None:
        """The server sees that as well."""


def seen_by_the_server(
    monkeypatch: pytest.MonkeyPatch, prompt: list[int], said: Sequence[int], drafts: int
) -> list[tuple[int, int]]:
    """(positions, how many of the run before count) of every run of one text."""
    made: list[_Cheated] = []

    def begun(link: object, positions: int) -> tuple[_Cheated, object]:
        made.append(_Cheated(positions, [*said, *[A] * 64]))
        return made[0], _Bundle()

    class _Bundle:
        seconds, bundle = 0.0, type("_", (), {"spent": 0})

    link: Any = type("_", (), {"pause": lambda self: None})()
    monkeypatch.setattr(writing, "_begun", begun)
    text = writing._Text(MODEL, [*prompt], len(said), Sampler(Sampling()), Writing(MODEL.tokenizer.spelling))
    found = [token.id for token in writing._written(link, text, drafts, RepeatedWords())]
    assert found == list(said)
    return made[0].seen


@pytest.mark.parametrize("said", [[G, H, A, A, G, G], [A] * 6, [270 - 1] * 6])
def test_without_drafts_a_server_that_picks_the_tokens_sees_the_same_for_every_prompt(
    monkeypatch: pytest.MonkeyPatch, said: list[int]
) -> None:
    first, second = (seen_by_the_server(monkeypatch, prompt, said, 0) for prompt in PROMPTS)
    assert first == second == [(8, 0), (1, 8), *[(1, 1)] * 4]


def test_with_drafts_it_asks_what_follows_a_token_in_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the client pick g, and says h after it: the guess of the client whose prompt has gh is right."""
    first, second = (seen_by_the_server(monkeypatch, prompt, [G, H, A, A, A, A], 1) for prompt in PROMPTS)
    assert first[1] == (2, 8)
    assert first[2][1] == 2
    assert first != second


def test_with_drafts_it_asks_whether_a_token_is_in_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    known, unknown = MODEL.prompt("abcdefgh"), MODEL.prompt("abcdefah")
    first, second = (seen_by_the_server(monkeypatch, prompt, [G, A, A, A], 1) for prompt in (known, unknown))
    assert (first[1], second[1]) == ((2, 8), (1, 8))
