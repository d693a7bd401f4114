"""Every error Comet raises on purpose.

    CometError
    ├── ShapeError            shapes, dtypes or widths that do not fit together     (also a ValueError)
    ├── ScaleError            fraction bits that do not fit together                (also a ValueError)
    ├── RangeError            a value or bound outside what the ring can carry      (also a ValueError)
    ├── RuleError             an approximation that cannot be built as asked        (also a ValueError)
    ├── LeakError             a protocol that is known to leak was asked for where privacy is promised
    ├── ConfigurationError    a mistake in this party's own set-up (files, ports, options)
    │   ├── CheckpointError       a checkpoint that is foreign, incomplete, damaged or not certified
    │   └── TaskDataError         a data set that is missing, empty or malformed
    ├── NotFinite             training met a number that is not finite, and stopped
    ├── RandomnessError       correlated randomness that must not or cannot be used
    │   ├── RandomnessExhausted   the program asks for more than was prepared
    │   ├── ForeignRandomness     prepared for another program, model or peer
    │   └── RandomnessSpent       already consumed: a mask is used once, also across crashes
    └── PeerError             the other side is at fault, or gone
        ├── PeerClosed
        ├── PeerTimeout
        ├── WrongSize             a frame that is longer or shorter than the program says
        ├── WrongVersion
        ├── ProtocolMismatch      both are Comet, but they do not run the same thing
        ├── NotAuthenticated
        └── ServerBusy            all workers are occupied

Messages name what was got and what was expected, and what to do. They never contain a share, a mask,
a weight or a text.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "CometError",
    "ConfigurationError",
    "ForeignRandomness",
    "LeakError",
    "NotAuthenticated",
    "NotFinite",
    "PeerClosed",
    "PeerError",
    "PeerTimeout",
    "ProtocolMismatch",
    "RandomnessError",
    "RandomnessExhausted",
    "RandomnessSpent",
    "RangeError",
    "RuleError",
    "ScaleError",
    "ServerBusy",
    "ShapeError",
    "TaskDataError",
    "WrongSize",
    "WrongVersion",
]


class CometError(Exception):
    """Base of all errors of this package."""


class ShapeError(CometError, ValueError):
    """Shapes, dtypes or ring widths do not fit together."""


class ScaleError(CometError, ValueError):
    """Fraction bits do not fit together."""


class RangeError(CometError, ValueError):
    """A value, or a certified bound of one, is outside what the ring can carry."""


class RuleError(CometError, ValueError):
    """An approximation rule cannot be built as asked."""


class LeakError(CometError):
    """A protocol that is known to leak was asked for where privacy is promised."""


class ConfigurationError(CometError):
    """This party's own set-up is wrong: a file, a port, an option."""


class CheckpointError(ConfigurationError):
    """A checkpoint is not what it should be: foreign, incomplete, damaged, or not certified."""


class TaskDataError(ConfigurationError):
    """A data set is missing, empty or malformed; names the row and the reason."""


class NotFinite(CometError):
    """Training met a number that is not finite. The last good checkpoint is kept."""


class RandomnessError(CometError):
    """Correlated randomness that must not or cannot be used."""


class RandomnessExhausted(RandomnessError):
    """The program asks for more correlated randomness than was prepared for it."""


class ForeignRandomness(RandomnessError):
    """The correlated randomness belongs to another program, model or peer."""


class RandomnessSpent(RandomnessError):
    """The correlated randomness was consumed before; a mask is used once."""


class PeerError(CometError):
    """The other side is at fault, or gone."""


class PeerClosed(PeerError):
    """The other side closed the connection."""


class PeerTimeout(PeerError):
    """The other side made no progress for too long."""


class _GotExpected(PeerError):
    """Says what came and what should have come."""

    what = "value"

    def __init__(self, *, got: object, expected: object) -> None:
        super().__init__(f"{self.what}: got {got}, expected {expected}")
        self.got = got
        self.expected = expected


class WrongSize(_GotExpected):
    """A frame is longer or shorter than the program says."""

    what = "message size in bytes"


class WrongVersion(_GotExpected):
    """The other side speaks another version of the wire protocol."""

    what = "wire version"


class ProtocolMismatch(PeerError):
    """Both sides are Comet, but they do not run the same thing."""

    def __init__(self, field: str, *, got: object, expected: object) -> None:
        super().__init__(f"the two sides disagree on {field}: the peer has {got}, this side has {expected}")
        self.field = field
        self.got = got
        self.expected = expected


class NotAuthenticated(PeerError):
    """The other side could not prove who it is, or may not do what it asks."""


class ServerBusy(PeerError):
    """All workers of the server are occupied; try again later."""
