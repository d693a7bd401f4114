"""The package that a client downloads of a model: which family it is of, and what unpacks it.

A package is a safetensors file whose metadata has one entry, by which the family is known. Encoders have a `card`
(`models.public`); a model that writes registers a name of its own.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from comet_mpc.engine.costs import Network
from comet_mpc.errors import CheckpointError, ConfigurationError
from comet_mpc.models.public import PublicModel, package_parts
from comet_mpc.models.tokenizers.texts import TextTokenizer

if TYPE_CHECKING:
    from comet_mpc.models.writing.model import WritingModel

Model: TypeAlias = "PublicModel | WritingModel"

_CARD = "card"


def answering(model: Model) -> PublicModel:
    """A model that answers texts. Raises if this one writes."""
    if not isinstance(model, PublicModel):
        raise ConfigurationError(
            "this model supports generate() (comet generate): it writes, and gives no answers about texts"
        )
    return model


def writing(model: Model) -> WritingModel:
    """A model that writes. Raises if this one answers."""
    if isinstance(model, PublicModel):
        raise ConfigurationError("this model does not write: ask it with classify(), embed() or tag() (comet query)")
    return model


class Unpack(Protocol):
    """As `PublicModel.unpack`."""

    def __call__(self, package: bytes, *, network: Network, tokenizer: TextTokenizer | None) -> WritingModel: ...


_WRITERS: dict[str, Unpack] = {}
_LOADED_LATER = {"decoder": "comet_mpc.models.writing.decoder"}
"""Families of which a module registers itself, once a client meets a model of them."""


def register_writer(name: str, unpack: Unpack) -> None:
    """name: the entry of the metadata"""
    if name == _CARD or name in _WRITERS:
        raise ValueError(f"a family of models called {name!r} is there already")
    _WRITERS[name] = unpack


def unpack(package: bytes, *, network: Network, tokenizer: TextTokenizer | None) -> Model:
    """What a client is given, checked as strictly as anything that comes from a peer."""
    family = _family(package)
    if family == _CARD:
        return PublicModel.unpack(package, network=network, tokenizer=tokenizer)
    if family in _LOADED_LATER:
        import_module(_LOADED_LATER[family])
    if family not in _WRITERS:
        raise CheckpointError("the model is of a family that this version does not know: install a newer one")
    return _WRITERS[family](package, network=network, tokenizer=tokenizer)


def parts(package: bytes) -> dict[str, str]:
    """SHA-256 of every part of a package, by what people call it."""
    if _family(package) == _CARD:
        return package_parts(package)
    return {"model": hashlib.sha256(package).hexdigest()}


def _family(package: bytes) -> str:
    try:
        size = int.from_bytes(package[:8], "little")
        names = [*msgspec.json.decode(package[8 : 8 + size])["__metadata__"]]
    except Exception as error:
        raise CheckpointError(f"the model's public package is damaged: {type(error).__name__}") from error
    if len(names) != 1:
        raise CheckpointError("the model's public package is damaged: it does not say of which family it is")
    return str(names[0])
