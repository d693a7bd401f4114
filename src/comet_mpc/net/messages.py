"""Errors that travel: from a white list, by name, and raised again as what they are on the other side."""

from __future__ import annotations

from typing import Literal, NoReturn, get_args

import msgspec

from comet_mpc import errors
from comet_mpc.errors import CometError, ProtocolMismatch

__all__ = ["Message", "Mismatch", "Refusal", "clean", "raise_refusal", "refusal"]

_TEXT_LIMIT = 400

ErrorName = Literal[
    "ConfigurationError",
    "ForeignRandomness",
    "NotAuthenticated",
    "PeerClosed",
    "PeerError",
    "PeerTimeout",
    "RandomnessDamaged",
    "RandomnessError",
    "RandomnessSpent",
    "ServerBusy",
    "ShapeError",
]


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Messages may hold secrets, so none of them shows its fields."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class Refusal(Message, frozen=True):
    """An error from the white list, by name."""

    error: ErrorName
    text: str


class Mismatch(Message, frozen=True):
    """The two sides do not run the same thing."""

    field: str
    got: str
    expected: str


def clean(text: str) -> str:
    """A text from elsewhere, cut and without anything that could forge lines in a log."""
    return "".join(char if char.isprintable() else "?" for char in text[:_TEXT_LIMIT])


def refusal(error: CometError) -> Refusal | Mismatch:
    """An error as a message; one that is not on the list goes as its nearest ancestor that is."""
    if isinstance(error, ProtocolMismatch):
        return Mismatch(clean(error.field), clean(str(error.got)), clean(str(error.expected)))
    names: tuple[ErrorName, ...] = get_args(ErrorName)
    for ancestor in type(error).__mro__:
        for name in names:
            if ancestor.__name__ == name:
                return Refusal(name, clean(str(error)))
    return Refusal("PeerError", "the other side could not do what was asked")


def raise_refusal(message: Refusal | Mismatch, who: str, *, turned: bool = False) -> NoReturn:
    """Raises what was refused. turned: the message was written from the other side's view."""
    if isinstance(message, Mismatch):
        got, expected = (message.expected, message.got) if turned else (message.got, message.expected)
        raise ProtocolMismatch(clean(message.field), got=clean(got), expected=clean(expected))
    kind: type[CometError] = getattr(errors, message.error)
    raise kind(f"{who} refused: {clean(message.text)}")
