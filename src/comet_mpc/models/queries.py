"""Which texts go together: a run of the program takes texts of one bucket, and as many as a power of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from comet_mpc.errors import ConfigurationError
from comet_mpc.models.served import PublicModel
from comet_mpc.models.tokenizing import Text, Tokens


@dataclass(frozen=True, eq=False)
class TextRun:
    """A run of the program: its texts, which are encoded already, and their places among all texts."""

    bucket: int
    places: list[int]
    tokens: list[Tokens]

    def __repr__(self) -> str:
        return f"TextRun({len(self.places)} texts of {self.bucket} tokens)"


def text_runs(model: PublicModel, texts: Sequence[Text], largest: int, bucket: int | None = None) -> list[TextRun]:
    """The runs of the program that answer the texts. All texts are encoded when this returns.

    largest: most texts in one run
    bucket: for all texts, whatever they say; longer ones are cut. None: for each the smallest that it fits into
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ConfigurationError(f"a list of texts is needed, not {type(texts).__name__}")
    if not texts:
        raise ConfigurationError("there is no text to classify")
    encoded = model.tokens(texts, bucket)
    buckets: dict[int, list[int]] = {}
    for place, one in enumerate(encoded):
        buckets.setdefault(bucket or model.fitting(one.length), []).append(place)
    runs = []
    for size, places in buckets.items():
        while places:
            count = 1 << (min(len(places), largest).bit_length() - 1)
            runs.append(TextRun(size, places[:count], [encoded[place] for place in places[:count]]))
            places = places[count:]
    return runs
