"""Whose turn it is: requests wait for a slot in which they are worked on, and no client waits behind another's many.

A slot stands for a core. Runs of a program are short and somebody waits for the answer, so they go first; bundles
take longer and are prepared in fewer slots, so that one is left for runs. Among the clients that wait, the next slot
goes to the one that has the fewest slots now, then to the one that has used the least lately, then to the one that
has waited longest. A client that comes back after it was told that there is no slot has waited since it first asked.

A client that downloads the model wants to prepare next, and has work to do in between. While all cores are busy,
downloads begin one after the other, in as many lines as there are slots to prepare in; and none begins while enough
clients wait to prepare, for a few seconds at most. So whoever is first in a crowd is not held up by what the others do
to get in line.

A slot whose holder waits for its peer, and computes nothing, is lent to the next one as soon as a core is idle, or
after a while: stalling costs nobody anything. Where all cores are busy, nothing is lost by waiting, and a peer on this
machine may just not have had its share of them.

Nothing here does anything by itself: the front desk tells it what happens and when.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["run", "prepare", "download"]
KINDS: tuple[Kind, ...] = ("run", "prepare", "download")

_HALF_LIFE = 60.0
"""Seconds after which use of a slot counts half."""
_REMEMBERED = 10.0
"""Seconds for which a client that was refused keeps its rank."""
_SETTLED = 2.0
"""Seconds from the beginning of a download after which its client is not waited for any more."""
_HELD_BACK = 10.0
"""Seconds for which a download may wait because others wait to prepare."""
_STALLED = 15.0
"""Seconds after which a slot whose holder rests is lent although no core is idle."""

Ticket = tuple[int, int]
"""A connection, and a number that it has chosen."""


@dataclass(frozen=True)
class Slots:
    """How many requests are worked on at a time: `run`, `prepare`, and both together. Downloads do not count."""

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
    resting: float | None = None
    """Since when."""
    lent: bool = False


@dataclass
class _Use:
    seconds: float = 0.0
    at: float = 0.0

    def now(self, now: float) -> float:
        return float(self.seconds * 0.5 ** ((now - self.at) / _HALF_LIFE))


@dataclass
class Turns:
    slots: Slots
    _waiting: dict[Ticket, _Request] = field(default_factory=dict)
    _holding: dict[Ticket, _Request] = field(default_factory=dict)
    _used: dict[str, _Use] = field(default_factory=dict)
    _refused: dict[tuple[str, Kind], tuple[float, float]] = field(default_factory=dict)
    """Since when a client had waited, and when it was told that there is no slot."""
    _settling: dict[str, float] = field(default_factory=dict)
    """Clients that download, or make ready what they have, and until when they are waited for."""

    def ask(self, ticket: Ticket, client: str, kind: Kind, now: float) -> None:
        self._settling.pop(client, None)
        since, told = self._refused.pop((client, kind), (now, now))
        self._waiting[ticket] = _Request(ticket, client, kind, since if now - told < _REMEMBERED else now, now)

    def done(self, ticket: Ticket, now: float) -> None:
        """It needs no slot any more, whether it had one or not."""
        self._waiting.pop(ticket, None)
        request = self._holding.pop(ticket, None)
        if request is not None and request.begun is not None and request.kind != "download":
            use = self._used.setdefault(request.client, _Use())
            use.seconds, use.at = use.now(now) + now - request.begun, now

    def leave(self, connection: int, now: float) -> None:
        """All that a connection had or wanted."""
        for ticket in [ticket for ticket in (*self._waiting, *self._holding) if ticket[0] == connection]:
            self.done(ticket, now)

    def rest(self, ticket: Ticket, resting: bool, now: float) -> None:
        """Its holder waits for its peer, or computes again."""
        if ticket in self._holding:
            request = self._holding[ticket]
            request.resting, request.lent = (now if resting else None), False

    def grant(self, now: float, *, idle_core: bool = False) -> list[Ticket]:
        """Those that may begin now. idle_core: there is one, so that a download or a loan holds up nobody."""
        granted: list[Ticket] = []
        for holder in self._holding.values():
            if holder.resting is not None:
                holder.lent = holder.lent or idle_core or now - holder.resting >= _STALLED
        for kind in KINDS:
            while (request := self._next(kind, now)) is not None:
                granted.append(self._begin(request, now))
        if idle_core and (request := self._first("download", now)) is not None:
            granted.append(self._begin(request, now))
        self._used = {client: use for client, use in self._used.items() if use.now(now) > 1e-3}
        return granted

    def overdue(self, now: float, seconds: float) -> list[tuple[Ticket, Kind]]:
        """Those that have waited for so long, and do so no more. A download comes in any case, and before long."""
        waiting = (request for request in self._waiting.values() if request.kind != "download")
        late = [request for request in waiting if now - request.asked >= seconds]
        for request in late:
            del self._waiting[request.ticket]
            self._refused[request.client, request.kind] = request.since, now
        self._refused = {who: when for who, when in self._refused.items() if now - when[1] < _REMEMBERED}
        return [(request.ticket, request.kind) for request in late]

    def waiting(self, kind: Kind) -> int:
        return sum(request.kind == kind for request in self._waiting.values())

    def connections(self, kind: Kind) -> set[int]:
        """Those that have a slot of this kind, or wait for one."""
        requests = (*self._waiting.values(), *self._holding.values())
        return {request.ticket[0] for request in requests if request.kind == kind}

    def working(self, kind: Kind) -> int:
        """Slots in use, those apart that are lent."""
        return sum(request.kind == kind and not request.lent for request in self._holding.values())

    @property
    def idle_core_helps(self) -> bool:
        """Whether something could begin on a core that is idle."""
        resting = any(request.resting is not None and not request.lent for request in self._holding.values())
        return bool(self.waiting("download") or (resting and self._waiting))

    def _begin(self, request: _Request, now: float) -> Ticket:
        del self._waiting[request.ticket]
        request.begun = now
        self._holding[request.ticket] = request
        if request.kind == "download":
            self._settling[request.client] = now + _SETTLED
        return request.ticket

    def _next(self, kind: Kind, now: float) -> _Request | None:
        if not self._room(kind, now):
            return None
        held_back = kind == "download" and self.waiting("prepare") >= self.slots.prepare
        return self._first(kind, now, _HELD_BACK if held_back else 0.0)

    def _first(self, kind: Kind, now: float, held_back: float = 0.0) -> _Request | None:
        """Of those that have waited for so long."""
        held = Counter(request.client for request in self._holding.values() if request.kind == kind)
        waiting = (r for r in self._waiting.values() if r.kind == kind and now - r.asked >= held_back)
        fitting = (r for r in waiting if kind == "download" or held[r.client] < self.slots.per_client(kind))

        def rank(request: _Request) -> tuple[float, ...]:
            use = self._used.get(request.client, _Use())
            return held[request.client], use.now(now), request.since, request.asked

        return min(fitting, key=rank, default=None)

    def _room(self, kind: Kind, now: float) -> bool:
        if kind == "download":
            self._settling = {client: until for client, until in self._settling.items() if now < until}
            return len(self._settling) < self.slots.prepare
        together = self.working("run") + self.working("prepare")
        return self.working(kind) < self.slots.most(kind) and together < self.slots.together
