"""Whose turn it is: requests wait for a place in which they are worked on, and no client waits behind another's many.

A place stands for a core. Runs of a program are short and somebody waits for the answer, so they go first; bundles
take longer and are prepared in fewer places, so that one is left for runs. Among the clients that wait, the next place
goes to the one that has the fewest places now, then to the one that has used the least lately, then to the one that
has waited longest. A client that comes back after it was told that there is no place has waited since it first asked.

A place whose holder waits for its peer, and computes nothing, is lent to the next one: stalling costs nobody anything.

Nothing here does anything by itself: the front desk tells it what happens and when.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Kind", "Places", "Turns"]

Kind = Literal["run", "prepare"]
KINDS: tuple[Kind, Kind] = ("run", "prepare")

_HALF_LIFE = 60.0
"""Seconds after which use of a place counts half."""
_REMEMBERED = 10.0
"""Seconds for which a client that was refused keeps its rank."""

Ticket = tuple[int, int]
"""A connection, and a number that it has chosen."""


@dataclass(frozen=True)
class Places:
    """How many requests are worked on at a time: `run`, `prepare`, and both together."""

    run: int
    prepare: int
    together: int

    def most(self, kind: Kind) -> int:
        return self.run if kind == "run" else self.prepare

    def per_client(self, kind: Kind) -> int:
        """One client never gets all of several."""
        return max(1, self.most(kind) - 1)


@dataclass
class _Request:
    ticket: Ticket
    client: str
    kind: Kind
    since: float
    """When its client began to wait."""
    asked: float
    begun: float | None = None
    resting: bool = False


@dataclass
class _Use:
    seconds: float = 0.0
    at: float = 0.0

    def now(self, now: float) -> float:
        return float(self.seconds * 0.5 ** ((now - self.at) / _HALF_LIFE))


@dataclass
class Turns:
    places: Places
    _waiting: dict[Ticket, _Request] = field(default_factory=dict)
    _holding: dict[Ticket, _Request] = field(default_factory=dict)
    _used: dict[str, _Use] = field(default_factory=dict)
    _refused: dict[tuple[str, Kind], tuple[float, float]] = field(default_factory=dict)
    """Since when a client had waited, and when it was told that there is no place."""

    def ask(self, ticket: Ticket, client: str, kind: Kind, now: float) -> None:
        since, told = self._refused.pop((client, kind), (now, now))
        self._waiting[ticket] = _Request(ticket, client, kind, since if now - told < _REMEMBERED else now, now)

    def done(self, ticket: Ticket, now: float) -> None:
        """It needs no place any more, whether it had one or not."""
        self._waiting.pop(ticket, None)
        request = self._holding.pop(ticket, None)
        if request is not None and request.begun is not None:
            use = self._used.setdefault(request.client, _Use())
            use.seconds, use.at = use.now(now) + now - request.begun, now

    def leave(self, connection: int, now: float) -> None:
        """All that a connection had or wanted."""
        for ticket in [ticket for ticket in (*self._waiting, *self._holding) if ticket[0] == connection]:
            self.done(ticket, now)

    def rest(self, ticket: Ticket, resting: bool) -> None:
        """Its holder waits for its peer, or computes again."""
        if ticket in self._holding:
            self._holding[ticket].resting = resting

    def grant(self, now: float) -> list[Ticket]:
        """Those that may begin now."""
        granted = []
        for kind in KINDS:
            while (request := self._next(kind, now)) is not None:
                del self._waiting[request.ticket]
                request.begun = now
                self._holding[request.ticket] = request
                granted.append(request.ticket)
        self._used = {client: use for client, use in self._used.items() if use.now(now) > 1e-3}
        return granted

    def overdue(self, now: float, seconds: float) -> list[tuple[Ticket, Kind]]:
        """Those that have waited for so long, and do so no more."""
        late = [request for request in self._waiting.values() if now - request.asked >= seconds]
        for request in late:
            del self._waiting[request.ticket]
            self._refused[request.client, request.kind] = request.since, now
        self._refused = {who: when for who, when in self._refused.items() if now - when[1] < _REMEMBERED}
        return [(request.ticket, request.kind) for request in late]

    def waiting(self, kind: Kind) -> int:
        return sum(request.kind == kind for request in self._waiting.values())

    def connections(self, kind: Kind) -> set[int]:
        """Those that have a place of this kind, or wait for one."""
        requests = (*self._waiting.values(), *self._holding.values())
        return {request.ticket[0] for request in requests if request.kind == kind}

    def working(self, kind: Kind) -> int:
        """Places in use, those apart that are lent."""
        return sum(request.kind == kind and not request.resting for request in self._holding.values())

    def _next(self, kind: Kind, now: float) -> _Request | None:
        if self.working(kind) >= self.places.most(kind):
            return None
        if sum(map(self.working, KINDS)) >= self.places.together:
            return None
        held = Counter(request.client for request in self._holding.values() if request.kind == kind)
        fitting = [
            r for r in self._waiting.values() if r.kind == kind and held[r.client] < self.places.per_client(kind)
        ]

        def rank(request: _Request) -> tuple[float, ...]:
            use = self._used.get(request.client, _Use())
            return held[request.client], use.now(now), request.since, request.asked

        return min(fitting, key=rank, default=None)
