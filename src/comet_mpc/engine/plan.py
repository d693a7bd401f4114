"""A plan: what a program will send, in how many rounds, and which correlated randomness it needs. No data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from comet_mpc.engine.correlations import Correlation, any_kind, program_digest
from comet_mpc.engine.ops import Request, Step
from comet_mpc.engine.ops.operation import FUSED, Abilities, Drawn
from comet_mpc.engine.session import USUAL_WAYS, DrawingSession, Session, Ways
from comet_mpc.engine.share import Words
from comet_mpc.net.channel import FRAME_HEADER


@dataclass(frozen=True)
class PlannedRequest:
    """What one operation sends in a round: the part of the program it is for, its tensor, and its payload in bytes.

    ring, into: of the tensor before and after, in bits, such as `55` or `33 odd`
    """

    part: str
    operation: str
    shape: tuple[int, ...]
    ring: str
    into: str
    from_client: int
    from_server: int


@dataclass(frozen=True)
class PlannedRound:
    """One round: the part of the program it belongs to and the bytes on the wire, frame headers included."""

    part: str
    from_client: int
    from_server: int
    requests: tuple[PlannedRequest, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Everything a program will use, in order."""

    correlations: tuple[Correlation, ...]
    parts: tuple[str, ...]
    """The part of the program that each correlation belongs to."""
    schedule: tuple[PlannedRound, ...]
    ways: Ways = USUAL_WAYS
    """Those it was planned with: a session that runs the program takes them too."""
    forks: tuple[str, ...] = ()
    """Where it could have gone another way."""
    terms: str = ""
    """What the parties must agree on besides, in words, because it draws no randomness."""

    @property
    def rounds(self) -> int:
        return len(self.schedule)

    def sent(self, party: int) -> int:
        """Bytes that a party sends online."""
        return sum((entry.from_client, entry.from_server)[party] for entry in self.schedule)

    @property
    def online_bytes(self) -> int:
        """Both parties together."""
        return sum(entry.from_client + entry.from_server for entry in self.schedule)

    @cached_property
    def correction_bytes(self) -> int:
        """Bytes of correlated randomness that cannot be compressed to a seed: what the server gets, and what both get
        counts twice."""
        return sum(correlation.correction_bytes + correlation.common_bytes for correlation in self.correlations)

    @cached_property
    def digest(self) -> str:
        """Names the program: its correlations and its terms."""
        digest = program_digest(self.correlations)
        return hashlib.sha256(f"{digest} {self.terms}".encode()).hexdigest() if self.terms else digest


_FIELDS = ("correlations", "parts", "schedule", "ways", "forks", "terms")
"""A plan as it is written, its correlations by their kinds."""


def encode_plan(plan: Plan) -> bytes:
    return msgspec.msgpack.encode([getattr(plan, name) for name in _FIELDS])


def decode_plan(data: bytes) -> Plan:
    """Strict, as `decode_correlations`: raises msgspec.MsgspecError. A hundred times as fast as planning."""
    return Plan(*_decoder(any_kind()).decode(data))


@lru_cache(maxsize=1)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    texts = tuple[str, ...]
    return msgspec.msgpack.Decoder(tuple[tuple[kind, ...], texts, tuple[PlannedRound, ...], Ways, texts, str])


class PlanSession(DrawingSession):
    """Runs a program on shapes."""

    def __init__(self, *, abilities: Abilities = FUSED, ways: Ways = USUAL_WAYS) -> None:
        super().__init__(abilities=abilities, ways=ways)
        self.correlations: list[Correlation] = []
        self.extents: list[tuple[int, ...]] = []
        """The shape of what each is for."""
        self.parts: list[str] = []
        self.schedule: list[PlannedRound] = []

    def holds(self, party: int) -> bool:
        return False

    def _trivial(self, owner: int, shape: tuple[int, ...], words: Words | None) -> Words | None:
        return None

    def _draw(self, correlation: Correlation) -> Drawn:
        self.correlations.append(correlation)
        self.extents.append(self._extent)
        self.parts.append(self.here)
        return Drawn(len(self.correlations) - 1)

    def _carry_out(self, requests: Sequence[Request[Any]], drawn: Sequence[Drawn | None]) -> list[Any]:
        sizes = [request.wire_bytes() for request in requests]
        client, server = (sum(size[party] for size in sizes) for party in (0, 1))
        if client or server:
            client, server = (size + FRAME_HEADER if size else 0 for size in (client, server))
            self.schedule.append(PlannedRound(self.here, client, server, self._described(requests)))
        return [request.planned(entry) for request, entry in zip(requests, drawn, strict=True)]

    def _described(self, requests: Sequence[Request[Any]]) -> tuple[PlannedRequest, ...]:
        """Those that send something."""
        pairs = zip(requests, self._parts_of_round, strict=True)
        return tuple(
            PlannedRequest(
                part, type(each).__name__, each.share.shape, str(each.share.ring), str(each.target), *each.wire_bytes()
            )
            for each, part in pairs
            if any(each.wire_bytes())
        )

    def _compute(self, step: Step, drawn: Drawn | None) -> Words | None:
        return None

    def plan(self, drawn: int = 0, rounds: int = 0) -> Plan:
        """What was planned, after so many correlations and rounds."""
        parts, schedule = tuple(self.parts[drawn:]), tuple(self.schedule[rounds:])
        return Plan(tuple(self.correlations[drawn:]), parts, schedule, self._ways, tuple(self.forks))


def plan_program(
    program: Callable[[Session], object],
    *,
    abilities: Abilities = FUSED,
    ways: Ways = USUAL_WAYS,
) -> Plan:
    """Plans a program: `plan_program(lambda session: activation(session, x, rule))`."""
    session = PlanSession(abilities=abilities, ways=ways)
    program(session)
    return session.plan()


@dataclass(frozen=True)
class Series:
    """Programs that one session runs one after another, with one bundle: each may use what earlier ones have kept.

    A later program may start when its input is known, long after the first, or never.
    """

    whole: Plan
    """What is prepared: the correlations of all of them, in order."""
    programs: tuple[Plan, ...]
    """What each of them draws and sends. A correlation names masks by their index in the whole."""


def plan_series(
    programs: Sequence[Callable[[Session], object]],
    *,
    abilities: Abilities = FUSED,
    ways: Ways = USUAL_WAYS,
) -> Series:
    """Plans programs that share a session (`Session.keep`, `Session.kept`)."""
    session = PlanSession(abilities=abilities, ways=ways)
    found: list[Plan] = []
    for program in programs:
        drawn, rounds = len(session.correlations), len(session.schedule)
        program(session)
        session.end_program()
        found.append(session.plan(drawn, rounds))
    ends = " ".join(str(len(plan.correlations)) for plan in found)
    return Series(replace(session.plan(), terms=f"series {ends}"), tuple(found))
