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

from comet_mpc.errors import ConfigurationError, did_you_mean
from comet_mpc.models.writing.packages import answering
from comet_mpc.progress import bar
from comet_mpc.service.client import Client, ClientOptions
from comet_mpc.service.prediction import Embedding

Vectors = npt.NDArray[np.float32]

_IGNORED = ("batch_size", "device", "pool", "chunk_size")
"""Arguments of sentence-transformers that say how, not what."""
_ONLY: dict[str, object] = {
    "prompt_name": None,
    "output_value": "sentence_embedding",
    "precision": "float32",
    "convert_to_numpy": True,
    "convert_to_tensor": False,
}
"""Arguments of which one value is known here."""


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
        prompt: str | None = None,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **others: object,
    ) -> Vectors:
        """One row per sentence, float32; for a single string one vector.

        prompt                stands before every sentence, such as "query: "
        normalize_embeddings  scales every vector to length 1, whether or not the model does
        truncate_dim          keeps so many numbers of each vector
        others                arguments of sentence-transformers. Those that change no result here (`batch_size`,
                              `device`) are ignored; one that asks for something else than numpy arrays is refused
        """
        for name, value in others.items():
            _check_other(name, value)
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        found = self._embed([(prompt or "") + text for text in texts], bool(show_progress_bar)) if texts else []
        vectors = np.array([one.vector for one in found], dtype=np.float32).reshape(len(texts), self.dimension)
        vectors = np.ascontiguousarray(vectors[:, :truncate_dim])
        if normalize_embeddings:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors[0] if isinstance(sentences, str) else vectors

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Vectors:
        """`encode`: a private model has no prompts of its own. Give one as `prompt`."""
        return self.encode(sentences, **options)

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Vectors:
        """`encode`, as above."""
        return self.encode(sentences, **options)

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

    def get_embedding_dimension(self) -> int:
        """`dimension`, by the name that sentence-transformers has for it."""
        return self.dimension

    def get_sentence_embedding_dimension(self) -> int:
        """The same, by its older name."""
        return self.dimension

    @staticmethod
    def similarity(first: npt.ArrayLike, second: npt.ArrayLike) -> Vectors:
        """Cosines of all pairs of rows, (rows of first, rows of second)."""
        left, right = (np.atleast_2d(np.asarray(rows, dtype=np.float32)) for rows in (first, second))
        left, right = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12) for rows in (left, right))
        return np.asarray(left @ right.T)


def _check_other(name: str, value: object) -> None:
    if name in _IGNORED:
        return
    if name not in _ONLY:
        known = [*_IGNORED, *_ONLY]
        raise ConfigurationError(f"encode has no argument {name!r}{did_you_mean(name, known)}")
    if value != _ONLY[name]:
        raise ConfigurationError(f"encode gives float32 numpy arrays, one vector a sentence: leave {name} out")
