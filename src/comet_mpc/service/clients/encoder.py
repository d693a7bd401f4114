"""Private sentence embeddings with the manners of sentence-transformers.

    with PrivateEncoder("localhost:7001", keys="keys") as encoder:
        vectors = encoder.encode(["a contract about a house", "a lease"])    # numpy, (2, hidden)
        print(encoder.similarity(vectors, vectors))

A program that calls `SentenceTransformer.encode` on texts can call this instead. Texts never leave this machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from comet_mpc.errors import ConfigurationError
from comet_mpc.models.packages import answering
from comet_mpc.progress import bar
from comet_mpc.service.client import Client, ClientOptions
from comet_mpc.service.prediction import Embedding

Vectors = npt.NDArray[np.float32]


class PrivateEncoder:
    """A server's embedding model. The arguments are those of `Client`; one at a time may call it."""

    def __init__(self, address: str, **options: Unpack[ClientOptions]) -> None:
        self.client = Client(address, **options)

    def __enter__(self) -> Self:
        self.client.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.client.close()

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        show_progress_bar: bool = False,
        normalize_embeddings: bool = False,
        convert_to_numpy: bool = True,
    ) -> Vectors:
        """One row per sentence, float32; for a single string one vector.

        normalize_embeddings: scales every vector to length 1, whether or not the model does
        """
        if not convert_to_numpy:
            raise ConfigurationError("encode gives numpy arrays: leave convert_to_numpy as it is")
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        found = self._embed(texts, show_progress_bar) if texts else []
        vectors = np.array([one.vector for one in found], dtype=np.float32).reshape(len(texts), self.dimension)
        if normalize_embeddings:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors[0] if isinstance(sentences, str) else vectors

    def _embed(self, texts: list[str], shown: bool) -> list[Embedding]:
        with contextlib.ExitStack() as drawn:
            told: Callable[[int, Any], None] | None = None
            if shown:
                tick, done = drawn.enter_context(bar("embedding texts")), set[int]()

                def told(index: int, _: Any) -> None:
                    done.add(index)
                    tick(len(done), len(texts))

            return self.client.embed(texts, told=told)

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return answering(self.client.connect()).config.encoder.hidden

    def get_sentence_embedding_dimension(self) -> int:
        """`dimension`, by the name that sentence-transformers has for it."""
        return self.dimension

    @staticmethod
    def similarity(first: npt.ArrayLike, second: npt.ArrayLike) -> Vectors:
        """Cosines of all pairs of rows, (rows of first, rows of second)."""
        left, right = (np.atleast_2d(np.asarray(rows, dtype=np.float32)) for rows in (first, second))
        left, right = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12) for rows in (left, right))
        return np.asarray(left @ right.T)
