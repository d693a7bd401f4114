"""Errors that are sent to the other side: those of a white list, by name, and raised there again by their type."""

from __future__ import annotations

from typing import Annotated, NoReturn

import msgspec

from comet_mpc import errors
from comet_mpc.errors import CometError, PeerError, ProtocolMismatch

_TEXT_LIMIT = 400

_KINDS: tuple[type[CometError], ...] = (
    errors.ConfigurationError,
    errors.ForeignRandomness,
    errors.NotAuthenticated,
    errors.PeerClosed,
    errors.PeerError,
    errors.PeerTimeout,
    errors.QuotaExceeded,
    errors.RandomnessDamaged,
    errors.RandomnessError,
    errors.RandomnessSpent,
    errors.ServerBusy,
    errors.ShapeError,
)
"""The white list: each is built from one text. What the other side is told of the other kinds: `refusal`."""
_BY_NAME = {kind.__name__: kind for kind in _KINDS}
ErrorName = Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(_BY_NAME)})\Z")]


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
    """An error as a message; one that is not on the list is sent as its nearest ancestor on the list."""
    if isinstance(error, ProtocolMismatch):
        return Mismatch(clean(error.field), clean(str(error.got)), clean(str(error.expected)))
    for kind in type(error).__mro__:
        if kind in _KINDS:
            return Refusal(kind.__name__, clean(str(error)))
    return Refusal(PeerError.__name__, "the other side could not do what was asked")


def raise_refusal(message: Refusal | Mismatch, who: str, *, turned: bool = False) -> NoReturn:
    """Raises what was refused. turned: the message was written from the other side's view."""
    if isinstance(message, Mismatch):
        got, expected = (message.expected, message.got) if turned else (message.got, message.expected)
        raise ProtocolMismatch(clean(message.field), got=clean(got), expected=clean(expected))
    raise _BY_NAME[message.error](f"{who} refused: {clean(message.text)}")
