"""What a client gets for a text: the answer, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from comet_mpc.errors import PeerError, ShapeError
from comet_mpc.models.served import PublicModel

__all__ = ["Cost", "Prediction", "checked", "prediction"]

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run of the program cost, for all its texts together."""

    texts: int
    """Texts that share this cost."""
    bucket: int
    """Tokens that each is padded to."""
    setup_bytes: int
    setup_seconds: float
    """Downloads of this client so far; 0 bytes if the cache had everything."""
    offline_bytes: int
    offline_seconds: float
    """Randomness: from the dealer to both parties, or between the two. It may have been prepared long before."""
    online_bytes: int
    online_seconds: float
    rounds: int
    source: str
    """Who prepared the randomness: a dealer, or the two parties (pair)."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer for one text. A model with a single label is a regression: it has a score."""

    label: str
    probability: float
    """Of the label; of no meaning for a regression."""
    logits: tuple[float, ...]
    probabilities: dict[str, float]
    truncated: bool
    """The text was longer than the model takes, and was cut."""
    cost: Cost
    tokens: int = 0
    """Of the text, before it was cut."""
    tokens_used: int = 0
    score: float | None = None
    """Of a regression."""


def checked(logits: Reals | None, batch: int, model: PublicModel) -> Reals:
    """What the server's last message makes of the logits must be possible at all."""
    if logits is None or logits.shape != (batch, len(model.config.encoder.labels)):
        raise ShapeError("the program did not give this client its logits")
    largest = model.logit_bound + 1.5 * 2.0**-model.answer_bits  # what the last digit may be off by
    if not np.all(np.isfinite(logits)) or float(np.max(np.abs(logits))) > largest:
        raise PeerError("the server's answer is outside the model's range: there is no result")
    return logits


def prediction(
    logits: Reals, labels: tuple[str, ...], truncated: bool, cost: Cost, tokens: int = 0, used: int = 0
) -> Prediction:
    weights = np.exp(logits - np.max(logits))
    shares = weights / weights.sum()
    best = int(np.argmax(shares))
    return Prediction(
        label=labels[best],
        probability=float(shares[best]),
        logits=tuple(map(float, logits)),
        probabilities=dict(zip(labels, map(float, shares), strict=True)),
        truncated=truncated,
        cost=cost,
        tokens=tokens,
        tokens_used=used,
        score=float(logits[0]) if len(labels) == 1 else None,
    )
