"""A private classifier for scikit-learn (extra `[scikit]`).

    from comet_mpc.scikit import PrivateClassifier

    model = PrivateClassifier("server.example:7001", keys="keys").fit()
    print(model.predict(["a warm and funny film"]), model.predict_proba(["dull"]))

It goes into a `Pipeline` behind steps that make texts of rows, and works with scikit-learn's scorers. The server's
model is trained already: `fit` trains nothing, it connects and learns the names of the classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from comet_mpc.errors import ConfigurationError, needs_extra
from comet_mpc.models.writing.packages import answering
from comet_mpc.service.client import Client
from comet_mpc.service.prediction import Prediction

with needs_extra("scikit"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted


class PrivateClassifier(ClassifierMixin, BaseEstimator):
    """A server's classifier. The arguments are those of `Client` by the same names.

    classes_      labels, sorted: the columns of `predict_proba`
    predictions_  the answers of the last call, with what they cost
    """

    def __init__(
        self,
        address: str,
        *,
        keys: Path | str = "keys",
        cache: Path | str | None = None,
        source: str | None = None,
        model: str = "",
        bucket: int | None = None,
    ) -> None:
        self.address = address
        self.keys = keys
        self.cache = cache
        self.source = source
        self.model = model
        self.bucket = bucket

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Connects. X is ignored; labels in y that the model does not know are an error."""
        with self._client() as client:
            labels = answering(client.connect()).config.encoder.labels
        if len(labels) < 2:
            raise ConfigurationError("this server's model does not tell classes apart")
        unknown = sorted(set(map(str, y if y is not None else ())) - set(labels))
        if unknown:
            known = ", ".join(labels)
            raise ConfigurationError(f"the model has no label {', '.join(unknown[:5])}. Its labels: {known}")
        self.classes_ = np.array(sorted(labels))
        return self

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities, (texts, classes). X: texts, as a list, an array, a column or a frame of one column"""
        check_is_fitted(self, "classes_")
        texts = _texts(X)
        self.predictions_ = self._ask(texts) if texts else []
        rows = [[one.probabilities[label] for label in self.classes_] for one in self.predictions_]
        return np.array(rows, dtype=np.float64).reshape(len(texts), len(self.classes_))

    def predict(self, X: Any) -> npt.NDArray[np.str_]:
        """The likeliest label of every text."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def _ask(self, texts: list[str]) -> list[Prediction]:
        with self._client() as client:
            return client.classify(texts)

    def _client(self) -> Client:
        return Client(
            self.address, keys=self.keys, cache=self.cache, source=self.source, model=self.model, bucket=self.bucket
        )


def _texts(X: Any) -> list[str]:
    if isinstance(X, str):
        raise ConfigurationError("expected a list of texts, found one text: put it into a list")
    rows = X.to_numpy() if hasattr(X, "to_numpy") else X
    texts: Iterable[Any] = np.asarray(rows).ravel() if getattr(rows, "ndim", 1) == 2 and rows.shape[1] == 1 else rows
    found = list(texts)
    wrong = next((i for i, text in enumerate(found) if not isinstance(text, str)), None)
    if wrong is not None:
        raise ConfigurationError(f"row {wrong} is {type(found[wrong]).__name__}, expected a text")
    return [str(text) for text in found]
