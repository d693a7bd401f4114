"""What a client gets for a text: an answer of the model's kind, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from comet_mpc.engine.share import Reals
from comet_mpc.errors import ImpossibleAnswer, ShapeError
from comet_mpc.models.public import PublicModel
from comet_mpc.models.queries import Input, Query, text_only


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run of the program cost, for all its texts together."""

    texts: int
    """Texts that share this cost."""
    bucket: int
    """Tokens that each text is padded to."""
    setup_bytes: int
    setup_seconds: float
    """What this client has downloaded so far; 0 bytes if everything was cached."""
    offline_bytes: int
    offline_seconds: float
    """Preparing the randomness, by a dealer or between the two parties. It may have happened long before."""
    online_bytes: int
    online_seconds: float
    rounds: int
    source: str
    """Who prepared the randomness: a dealer, or the two parties (pair)."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What all answers have in common."""

    truncated: bool
    """Whether the text was longer than the model accepts, and was cut."""
    cost: Cost
    tokens: int = 0
    """Tokens of the text before it was cut."""
    tokens_used: int = 0
    """Tokens that the model saw."""


@dataclass(frozen=True, kw_only=True)
class Prediction(Answer):
    """A label for a text. A model with a single label is a regression, and gives a score."""

    label: str
    probability: float
    """Probability of the label; meaningless for a regression."""
    logits: tuple[float, ...]
    probabilities: dict[str, float]
    score: float | None = None
    """The value of a regression."""


@dataclass(frozen=True, kw_only=True)
class Embedding(Answer):
    """A vector for a text, of length 1 if the model normalises its embeddings."""

    vector: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Tag:
    """A label for a part of a text."""

    text: str
    label: str
    probability: float
    start: int
    end: int
    """The part is text[start:end]."""


@dataclass(frozen=True, kw_only=True)
class Tagging(Answer):
    """A label for every word of a text: the label of its first token."""

    words: tuple[Tag, ...]
    logits: tuple[tuple[float, ...], ...]
    """One row per token, including the special tokens at the ends."""

    @property
    def entities(self) -> tuple[Tag, ...]:
        """Words joined into entities: B-X and the I-X that follow are one X. Words labelled O are left out."""
        groups: list[list[Tag]] = []
        before = "O"
        for word in self.words:
            if groups and word.label.startswith("I-") and before != "O" and _kind(before) == _kind(word.label):
                groups[-1].append(word)
            elif word.label != "O":
                groups.append([word])
            before = word.label
        return tuple(map(_joined, groups))


def _joined(words: list[Tag]) -> Tag:
    text = words[0].text
    for before, after in pairwise(words):
        text += " " * (after.start - before.end) + after.text
    chance = min(word.probability for word in words)
    return Tag(text=text, label=_kind(words[0].label), probability=chance, start=words[0].start, end=words[-1].end)


def _kind(label: str) -> str:
    return label.rpartition("-")[2]


def answers(
    found: Reals | None, query: Query, texts: Sequence[Input], model: PublicModel, cost: Cost
) -> Sequence[Answer]:
    """What the server's last message makes of the answers, which must be possible at all."""
    if found is None or found.shape != model.answer_shape(query.batch, query.bucket):
        raise ShapeError("the program did not give this client its answers")
    largest = model.logit_bound + 1.5 * 2.0**-model.answer_bits  # what the last digit may be off by
    if not np.all(np.isfinite(found)) or float(np.max(np.abs(found))) > largest:
        raise ImpossibleAnswer("the server's answer is outside the model's range: there is no result")
    used = query.mask.sum(axis=1).astype(int).tolist()
    made: list[Answer] = []
    for i, text in enumerate(texts):
        common: dict[str, Any] = {
            "truncated": query.truncated[i], "cost": cost, "tokens": query.tokens[i], "tokens_used": used[i],
        }  # fmt: skip
        match model.config.head.kind:
            case "label":
                made.append(prediction(found[i], model.config.encoder.labels, **common))
            case "tokens":
                shown, labels = text_only(text), model.config.encoder.labels
                made.append(_tagging(found[i, : used[i]], query.words[i], shown, labels, common))
            case "embedding":
                length = float(np.linalg.norm(found[i])) if model.config.head.unit else 1.0
                made.append(Embedding(vector=tuple(map(float, found[i] / max(length, 1e-9))), **common))
    return made


def _shares(logits: Reals) -> Reals:
    weights = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def prediction(logits: Reals, labels: tuple[str, ...], **common: Any) -> Prediction:
    """common: what all answers have."""
    shares = _shares(logits)
    best = int(np.argmax(shares))
    return Prediction(
        label=labels[best],
        probability=float(shares[best]),
        logits=tuple(map(float, logits)),
        probabilities=dict(zip(labels, map(float, shares), strict=True)),
        score=float(logits[0]) if len(labels) == 1 else None,
        **common,
    )


def _tagging(
    logits: Reals,
    words: tuple[tuple[int, int, int], ...],
    text: str | tuple[str, str],
    labels: tuple[str, ...],
    common: dict[str, Any],
) -> Tagging:
    whole = text if isinstance(text, str) else text[0]
    shares = _shares(logits)
    tags = []
    for token, start, end in words:
        best = int(np.argmax(shares[token]))
        chance = float(shares[token, best])
        tags.append(Tag(text=whole[start:end], label=labels[best], probability=chance, start=start, end=end))
    return Tagging(words=tuple(tags), logits=tuple(tuple(map(float, row)) for row in logits), **common)
