"""Embeddings in the shape of OpenAI's API, so that programs made for that can ask a gateway instead.

POST /v1/embeddings  `Asked` to `Listed`: https://platform.openai.com/docs/api-reference/embeddings
GET  /v1/models      the one model there is

Where it differs: texts are strings, not token ids, since the tokens depend on the model; `dimensions` is refused unless
it is the model's own; and `usage` counts this model's tokens.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from comet_mpc.errors import ConfigurationError
from comet_mpc.service.prediction import Embedding

_MOST_TEXTS = 2048  # as many as OpenAI takes

OneText = Annotated[str, Field(min_length=1, max_length=100_000)]
Texts = Annotated[list[OneText], Field(min_length=1, max_length=_MOST_TEXTS)]
TokenIds = list[int] | list[list[int]]


@dataclass
class Asked:
    """A request for embeddings. `user` is accepted and ignored."""

    input: OneText | Texts | TokenIds
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1)] = None
    user: str | None = None

    def texts(self) -> list[str]:
        if isinstance(self.input, str):
            return [self.input]
        if not self.input:
            raise ConfigurationError("input is empty: send at least one text")
        strings = [one for one in self.input if isinstance(one, str)]
        if len(strings) != len(self.input):
            raise ConfigurationError(
                "send texts as strings, not as token ids: a private model has its own tokenizer "
                "(in LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False))"
            )
        return strings

    def check_dimensions(self, size: int) -> None:
        """size: of the model's embeddings"""
        if self.dimensions not in (None, size):
            raise ConfigurationError(f"this model's embeddings have {size} dimensions: leave `dimensions` out")


@dataclass(kw_only=True)
class Vector:
    """One embedding: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


@dataclass
class Usage:
    """Tokens of all texts together."""

    prompt_tokens: int
    total_tokens: int


@dataclass(kw_only=True)
class Listed:
    """One vector per text, in order."""

    object: Literal["list"] = "list"
    data: list[Vector]
    model: str
    usage: Usage


@dataclass(kw_only=True)
class OneModel:
    """A model by its fingerprint."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "server"


@dataclass(kw_only=True)
class Models:
    """All that this gateway asks: one."""

    object: Literal["list"] = "list"
    data: list[OneModel]


def listed(asked: Asked, found: Sequence[Embedding], model: str) -> Listed:
    """The answer to a request. model: the name that is told to the caller"""
    tokens = sum(one.tokens_used for one in found)
    vectors = [Vector(index=i, embedding=_encoded(one, asked.encoding_format)) for i, one in enumerate(found)]
    return Listed(data=vectors, model=model, usage=Usage(tokens, tokens))


def _encoded(found: Embedding, encoding: Literal["float", "base64"]) -> list[float] | str:
    if encoding == "float":
        return list(found.vector)
    return base64.b64encode(np.asarray(found.vector, dtype="<f4").tobytes()).decode("ascii")
