"""How tokens are picked: as an independent implementation would, word for word, and reproducibly with a seed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_mpc.errors import ConfigurationError
from comet_mpc.models.writing.sampling import Sampler, Sampling, penalised, probabilities

LOGITS = st.lists(st.integers(-4000, 4000), min_size=2, max_size=40, unique=True)
"""In units of 2^-8, as a server reveals them; no two alike, because orders of equals differ between libraries."""
CHOICES = st.builds(
    Sampling,
    temperature=st.floats(0.2, 5.0),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.05, 1.0),
    repetition_penalty=st.floats(0.5, 3.0),
)


def written_out(logits: list[float], text: list[int], sampling: Sampling) -> list[float]:
    """The same with loops and lists: penalty, temperature, top_k, top_p."""
    scores = list(logits)
    for token in set(text):
        factor = sampling.repetition_penalty
        scores[token] = scores[token] * factor if scores[token] < 0 else scores[token] / factor
    scores = [score / sampling.temperature for score in scores]
    ranked = sorted(range(len(scores)), key=lambda token: -scores[token])
    ranked = ranked[: sampling.top_k] if sampling.top_k else ranked
    weights = {token: math.exp(scores[token] - scores[ranked[0]]) for token in ranked}
    total, kept, have = sum(weights.values()), [], 0.0
    for token in ranked:
        if have >= sampling.top_p:
            break
        kept.append(token)
        have += weights[token] / total
    rest = sum(weights[token] for token in kept)
    return [weights[token] / rest if token in kept else 0.0 for token in range(len(scores))]


@given(LOGITS, st.data(), CHOICES)
def test_chances_are_those_of_the_rules_written_out(units: list[int], data: Any, sampling: Sampling) -> None:
    logits = [unit / 256 for unit in units]
    text = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=10))
    found = probabilities(penalised(np.array(logits), text, sampling.repetition_penalty), sampling)
    expected = written_out(logits, text, sampling)
    boundary = math.isclose(sampling.top_p, min(sampling.top_p, 1.0)) and sampling.top_p < 1.0
    if boundary and np.count_nonzero(found) != np.count_nonzero(expected):  # a sum that is equal but for rounding
        exact = written_out(logits, text, Sampling(temperature=sampling.temperature, top_k=sampling.top_k))
        assert any(math.isclose(sum(sorted(exact)[-n:]), sampling.top_p, abs_tol=1e-9) for n in range(1, 41))
        return
    assert np.allclose(found, expected, atol=1e-12)


@pytest.mark.train
@pytest.mark.parametrize("sampling", [
    Sampling(temperature=0.7),
    Sampling(temperature=1.5, top_k=5),
    Sampling(temperature=0.9, top_p=0.6),
    Sampling(temperature=1.1, top_k=12, top_p=0.85, repetition_penalty=1.3),
])  # fmt: skip
def test_chances_are_those_of_transformers(sampling: Sampling) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra [train]")
    processors = pytest.importorskip("transformers.generation.logits_process", reason="needs the extra [train]")
    rng = np.random.default_rng(3)
    for _ in range(20):
        logits = rng.normal(scale=3.0, size=50)
        text = rng.integers(0, 50, size=12).tolist()
        scores = torch.tensor(logits[None])
        steps = [
            processors.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty),
            processors.TemperatureLogitsWarper(sampling.temperature),
        ]
        steps += [processors.TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
        steps += [processors.TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1.0 else []
        for step in steps:
            scores = step(torch.tensor([text]), scores)
        expected = torch.softmax(scores, dim=-1)[0].numpy()
        found = probabilities(penalised(logits, text, sampling.repetition_penalty), sampling)
        assert np.allclose(found, expected, atol=1e-12)


def test_greedy_is_the_likeliest() -> None:
    logits = np.array([0.5, 2.0, -1.0, 1.9])
    assert Sampler(Sampling()).pick(logits, []) == 1
    assert Sampler(Sampling(temperature=1.0, top_k=1)).pick(logits, []) == 1
    assert Sampler(Sampling(repetition_penalty=1.2)).pick(logits, [1]) == 3


def test_a_token_that_is_out_is_never_picked_and_the_others_are_as_often_as_they_should_be() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    sampler = Sampler(Sampling(temperature=1.0, top_p=0.75, seed=1))
    counts = np.bincount([sampler.pick(logits, []) for _ in range(4000)], minlength=4)
    assert counts[2:].sum() == 0
    assert abs(counts[0] / 4000 - 0.625) < 5 * math.sqrt(0.625 * 0.375 / 4000)


def test_a_seed_gives_the_same_again_and_no_seed_does_not() -> None:
    logits = np.zeros(1 << 16)

    def some(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.0, seed=seed))
        return [sampler.pick(logits, []) for _ in range(8)]

    assert some(7) == some(7)
    assert len(set(some(7))) > 4
    assert some(7) != some(8)
    assert some(None) != some(None)


@pytest.mark.parametrize("wrong", [
    {"temperature": -0.1}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5},
    {"repetition_penalty": 0.0}, {"repetition_penalty": math.inf}, {"seed": -1}, {"seed": 1 << 64},
])  # fmt: skip
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=name):
        Sampling(**wrong)
