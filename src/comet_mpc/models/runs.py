"""Which texts go together: a run of the program takes texts of one bucket, and as many as a power of two."""

from __future__ import annotations

from collections.abc import Sequence

from comet_mpc.errors import ConfigurationError
from comet_mpc.models.served import PublicModel

Text = str | tuple[str, str]
"""One, or a pair."""


def runs_of(model: PublicModel, texts: Sequence[Text], largest: int) -> list[tuple[int, list[int]]]:
    """The runs of the program that answer the texts: the bucket of each, and the places of its texts.

    largest: most texts in one run
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ConfigurationError(f"a list of texts is needed, not {type(texts).__name__}")
    if not texts:
        raise ConfigurationError("there is no text to classify")
    buckets: dict[int, list[int]] = {}
    for place, text in enumerate(texts):
        buckets.setdefault(model.bucket_of(text, number=place + 1), []).append(place)
    runs = []
    for bucket, places in buckets.items():
        while places:
            size = 1 << (min(len(places), largest).bit_length() - 1)
            runs.append((bucket, places[:size]))
            places = places[size:]
    return runs
