"""Every error that Comet raises on purpose. `except CometError` catches them all.

    CometError
    ├── ShapeError            shapes, types or ring widths do not fit together      (also a ValueError)
    ├── ScaleError            numbers of fraction bits do not fit together          (also a ValueError)
    ├── RangeError            a value or a bound is too large for the ring          (also a ValueError)
    ├── RuleError             an approximation cannot be built as requested         (also a ValueError)
    ├── ConfigurationError    your own set-up is wrong: a file, an address, an option, an argument
    │   ├── StateInUse            another server works with this state directory
    │   ├── CheckpointError       a checkpoint is incomplete, damaged, not certified, or not a Comet checkpoint
    │   ├── TaskDataError         a data set is missing, empty or malformed
    │   └── ContextFull           a text would be longer than the model takes: its prompt, or what is to be written
    ├── UnsafeTokenizer       a tokenizer has a part whose work or output does not follow from the length of a text
    ├── NotFinite             training reached a number that is not finite, and stopped
    ├── RandomnessError       prepared randomness cannot be used, or must not be
    │   ├── RandomnessExhausted   the program needs more than was prepared for it
    │   ├── ForeignRandomness     it was prepared for another program, model or peer
    │   ├── RandomnessDamaged     what was stored has changed since, or cannot be read: it is dropped
    │   └── RandomnessSpent       it was used before: a mask is used once, even across crashes
    └── PeerError             the other side failed, misbehaved or is unreachable
        ├── PeerClosed            it closed the connection
        │   └── PeerGaveUp            it ended a run because its own randomness was damaged: take another bundle
        ├── NodeLost              another machine answers for the server now: this client must be set up with that one
        ├── PeerTimeout           it made no progress for too long
        │   └── NobodyConnected       nobody connected while a listener waited
        ├── WrongSize             it sent a message that is longer or shorter than the program expects
        ├── WrongVersion          it speaks another version of the wire protocol
        ├── ProtocolMismatch      it runs another model, program or source of randomness
        │   └── ModelChanged          it has another model under a name that this client knows: accept it, or do not ask
        ├── NotAuthenticated      it could not prove who it is, or is not allowed to do what it asks
        ├── ImpossibleAnswer      its last message makes an answer that this model cannot give
        ├── WritingStopped        it stopped in the middle of a text: what was written is kept
        ├── QuotaExceeded         this client has had its queries of the day: the message says when to come back
        └── ServerBusy            all workers of the server are in use: try again later

A message says what was found, what was expected and what to do. It never contains a share, a mask, a weight or a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

__all__ = [
    "CheckpointError",
    "CometError",
    "ConfigurationError",
    "ContextFull",
    "ForeignRandomness",
    "ImpossibleAnswer",
    "ModelChanged",
    "NobodyConnected",
    "NodeLost",
    "NotAuthenticated",
    "NotFinite",
    "PeerClosed",
    "PeerError",
    "PeerGaveUp",
    "PeerTimeout",
    "ProtocolMismatch",
    "QuotaExceeded",
    "RandomnessDamaged",
    "RandomnessError",
    "RandomnessExhausted",
    "RandomnessSpent",
    "RangeError",
    "RuleError",
    "ScaleError",
    "ServerBusy",
    "ShapeError",
    "StateInUse",
    "TaskDataError",
    "UnsafeTokenizer",
    "WritingStopped",
    "WrongSize",
    "WrongVersion",
]


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """For the end of a message about an unknown name: ". Did you mean 'text'?", or nothing if none is near."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(given.lower(), by_lower, n=1, cutoff=0.6)
    return f". Did you mean {by_lower[near[0]]!r}?" if near else ""


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Around imports of packages that belong to an extra: says how to install it if one of them is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("comet_mpc"):
            raise
        raise ConfigurationError(
            f"this needs {error.name}, which is not installed: pip install 'comet-mpc[{extra}]'"
        ) from error


class CometError(Exception):
    """The base class of every error in this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: every error can be sent between processes, whatever its constructor takes."""
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[CometError], args: tuple[Any, ...], fields: dict[str, Any]) -> CometError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class ShapeError(CometError, ValueError):
    """Shapes, types or ring widths do not fit together."""


class ScaleError(CometError, ValueError):
    """Numbers of fraction bits do not fit together."""


class RangeError(CometError, ValueError):
    """A value, or its certified bound, is too large for the ring."""


class RuleError(CometError, ValueError):
    """An approximation cannot be built as requested."""


class ConfigurationError(CometError):
    """Your own set-up is wrong: a file, an address, an option or an argument."""


class StateInUse(ConfigurationError):
    """Another server works with this state directory. A state directory is one server's."""


class CheckpointError(ConfigurationError):
    """A checkpoint is incomplete, damaged, not certified, or not a Comet checkpoint."""


class TaskDataError(ConfigurationError):
    """A data set is missing, empty or malformed. The message names the row and the reason."""


class ContextFull(ConfigurationError):
    """A text would be longer than the model takes: its prompt, or what is to be written after it."""


class UnsafeTokenizer(CometError):
    """A tokenizer has a part whose work or output does not follow from the length of a text: it could sort texts by
    what they say, or take for ever. The message names the part."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the tokenizer is refused: {reason.removeprefix('the tokenizer is refused: ')}")


class NotFinite(CometError):
    """Training reached a number that is not finite, and stopped. The last good checkpoint is kept."""


class RandomnessError(CometError):
    """Prepared randomness cannot be used, or must not be."""


class RandomnessExhausted(RandomnessError):
    """The program needs more randomness than was prepared for it."""


class ForeignRandomness(RandomnessError):
    """The randomness was prepared for another program, model or peer."""


class RandomnessDamaged(RandomnessError):
    """What was stored has changed since, or cannot be read any more. It is dropped; another bundle will do."""


class RandomnessSpent(RandomnessError):
    """The randomness was used before. A mask is used once, even across crashes."""


class PeerError(CometError):
    """The other side failed, misbehaved or is unreachable."""


class PeerClosed(PeerError):
    """The other side closed the connection."""


class PeerGaveUp(PeerClosed):
    """The other side ended a run, before any result, because its own randomness was damaged. Take another bundle."""


class NodeLost(PeerError):
    """Another machine answers for the server than the one that this client was set up with, which is gone.

    What was prepared with that one is of no use here. A `Client` sets itself up anew, and asks again.
    """


class PeerTimeout(PeerError):
    """The other side made no progress for too long."""


class NobodyConnected(PeerTimeout):
    """Nobody connected while a listener waited."""


class _GotExpected(PeerError):
    """Says what was received and what was expected."""

    what = "value"

    def __init__(self, *, got: object, expected: object) -> None:
        super().__init__(f"{self.what}: got {got}, expected {expected}")
        self.got = got
        self.expected = expected


class WrongSize(_GotExpected):
    """The other side sent a message that is longer or shorter than the program expects."""

    what = "message size in bytes"


class WrongVersion(_GotExpected):
    """The other side speaks another version of the wire protocol."""

    what = "wire version"


class ProtocolMismatch(PeerError):
    """The other side runs another model, program or source of randomness."""

    def __init__(self, field: str, *, got: object, expected: object) -> None:
        super().__init__(f"the two sides disagree on {field}: the peer has {got}, this side has {expected}")
        self.field = field
        self.got = got
        self.expected = expected


class ModelChanged(ProtocolMismatch):
    """Under a name that this client knows, the server has another model now. Nothing was asked of it.

    got, expected: the two fingerprints. changed: what of the model is another
    """

    def __init__(self, name: str, *, got: str, expected: str, changed: Sequence[str]) -> None:
        super().__init__("model", got=got, expected=expected)
        self.changed = tuple(changed)
        self.args = (
            f"{name} has another model now than this client has met there before: its {', '.join(changed)} changed. "
            f"Nothing was asked. Met before: {expected}. If the operator confirms the new fingerprint, accept it with "
            f"--accept-model {got}, or Client(accept_model=…)",
        )


class WritingStopped(PeerError):
    """The server stopped in the middle of a text. What was written is kept: with the prompt before it, it can be the
    prompt of another call, which takes randomness of its own.

    text: what was written so far. tokens: the prompt's and those
    """

    text: str = ""
    tokens: tuple[int, ...] = ()

    @classmethod
    def after(cls, text: str, tokens: Sequence[int], reason: str) -> WritingStopped:
        stopped = cls(
            f"the text ended after {len(tokens)} tokens, the prompt's included, because of the server: {reason}. What "
            "was written is kept: ask again with the prompt and what came after it"
        )
        stopped.text, stopped.tokens = text, tuple(tokens)
        return stopped


class NotAuthenticated(PeerError):
    """The other side could not prove who it is, or is not allowed to do what it asks."""


class ImpossibleAnswer(PeerError):
    """The server's last message makes an answer that this model cannot give. There is no result.

    A server that cheats may want to know that: whoever catches this goes on as after any other answer.
    """


class QuotaExceeded(PeerError):
    """This client has had its queries of the day. The message says when it may ask again."""


class ServerBusy(PeerError):
    """All workers of the server are in use. Try again later."""
