"""Errors between the parties: which name the other side is told, and that none is forgotten."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import msgspec
import pytest

from comet_mpc import errors
from comet_mpc.errors import (
    CometError,
    ModelChanged,
    ProtocolMismatch,
    ServerBusy,
    WritingStopped,
    WrongSize,
    WrongVersion,
)
from comet_mpc.net.messages import Mismatch, Refusal, raise_refusal, refusal

TOLD_AS = {
    "CheckpointError": "ConfigurationError",
    "StateInUse": "ConfigurationError",
    "CometError": "PeerError",
    "ConfigurationError": "ConfigurationError",
    "ContextFull": "ConfigurationError",
    "ForeignRandomness": "ForeignRandomness",
    "ImpossibleAnswer": "PeerError",
    "NobodyConnected": "PeerTimeout",
    "NodeLost": "PeerError",
    "NotAuthenticated": "NotAuthenticated",
    "NotFinite": "PeerError",
    "PeerClosed": "PeerClosed",
    "PeerError": "PeerError",
    "PeerGaveUp": "PeerClosed",
    "PeerTimeout": "PeerTimeout",
    "QuotaExceeded": "QuotaExceeded",
    "RandomnessDamaged": "RandomnessDamaged",
    "RandomnessError": "RandomnessError",
    "RandomnessExhausted": "RandomnessError",
    "RandomnessSpent": "RandomnessSpent",
    "RangeError": "PeerError",
    "RuleError": "PeerError",
    "ScaleError": "PeerError",
    "ServerBusy": "ServerBusy",
    "ShapeError": "ShapeError",
    "TaskDataError": "ConfigurationError",
    "UnsafeTokenizer": "PeerError",
    "WrongSize": "PeerError",
    "WritingStopped": "PeerError",
    "WrongVersion": "PeerError",
}
MISMATCH = ProtocolMismatch("program", got="a", expected="b")
CHANGED = ModelChanged("server:7001", got="a", expected="b", changed=["tokenizer"])
STOPPED = WritingStopped.after("Once upon", [1, 2], "it was stopped")


def every_error() -> Iterator[CometError]:
    """One of each kind, except for mismatches, which have a message of their own."""
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind in (WrongSize, WrongVersion):
            yield kind(got=1, expected=2)
        elif not issubclass(kind, ProtocolMismatch):
            yield kind("why")


def test_every_kind_of_error_has_a_name_for_the_other_side() -> None:
    """A new kind fails here until somebody has decided what the other side is told."""
    told = {type(error).__name__: refusal(error) for error in every_error()}
    assert {name: message.error for name, message in told.items() if isinstance(message, Refusal)} == TOLD_AS
    assert refusal(MISMATCH) == Mismatch("program", "a", "b")
    assert refusal(CHANGED) == Mismatch("model", "a", "b")


def test_a_refusal_is_raised_again_by_its_type() -> None:
    data = msgspec.json.encode(refusal(ServerBusy("all 4 workers are busy")))
    with pytest.raises(ServerBusy, match="the server refused: all 4 workers are busy"):
        raise_refusal(msgspec.json.decode(data, type=Refusal), "the server")


@pytest.mark.parametrize("name", ["CometError", "SystemExit", "PeerErrorX", "xPeerError", "PeerError\n", ""])
def test_a_name_that_is_not_on_the_list_is_refused(name: str) -> None:
    data = msgspec.json.encode({"type": "Refusal", "error": name, "text": "why"})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data, type=Refusal)


@pytest.mark.parametrize("error", [*every_error(), MISMATCH, CHANGED, STOPPED], ids=lambda error: type(error).__name__)
def test_every_error_can_be_sent_between_processes(error: CometError) -> None:
    error.add_note("where it came from")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
