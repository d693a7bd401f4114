"""Private answers for the rows of a pandas DataFrame. Pandas is not imported: a frame brings all that is used of it."""

from __future__ import annotations

from typing import Any, Protocol, Self, TypeVar

from comet_mpc.errors import ConfigurationError, did_you_mean
from comet_mpc.models.tokenizers.texts import Text
from comet_mpc.models.writing.packages import answering
from comet_mpc.service.client import Client


class Frame(Protocol):
    """What is used of a DataFrame."""

    @property
    def columns(self) -> Any: ...

    def __getitem__(self, column: str, /) -> Any: ...

    def assign(self, **columns: Any) -> Self: ...


F = TypeVar("F", bound=Frame)


def classify_frame(client: Client, frame: F, column: str = "text", second: str | None = None) -> F:
    """The frame with the columns label, probability and truncated; for a regression with score and truncated.

    second: the column of the other text, for a model that compares two. Rows and index stay as they are.
    """
    names = (column,) if second is None else (column, second)
    for name in names:
        if name not in frame.columns:
            known = [str(one) for one in frame.columns]
            raise ConfigurationError(
                f"the frame has no column {name!r}. Its columns: {', '.join(known)}{did_you_mean(name, known)}"
            )
    columns = [list(frame[name]) for name in names]
    for name, values in zip(names, columns, strict=True):
        wrong = next((i for i, value in enumerate(values) if not isinstance(value, str)), None)
        if wrong is not None:
            found = type(values[wrong]).__name__
            raise ConfigurationError(f"column {name!r}, row {wrong}: expected a text, found {found}")
    texts: list[Text] = list(zip(*columns, strict=True)) if second is not None else columns[0]
    answers = client.classify(texts) if texts else []
    made: dict[str, list[Any]] = {"truncated": [one.truncated for one in answers]}
    if len(answering(client.connect()).config.encoder.labels) == 1:
        return frame.assign(score=[one.score for one in answers], **made)
    label, probability = [one.label for one in answers], [one.probability for one in answers]
    return frame.assign(label=label, probability=probability, **made)
