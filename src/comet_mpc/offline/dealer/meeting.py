"""Two parties on their way to one bundle, and the ids of all bundles that were dealt or given up."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from comet_mpc.errors import CometError, PeerClosed, ProtocolMismatch, RandomnessSpent
from comet_mpc.offline.dealer.bundles import Dealing
from comet_mpc.offline.dealer.fetch import PARTY_ROLES, PartyRole


class Meeting:
    """Guarded by `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.digests: dict[PartyRole, str] = {}
        self.failures: dict[PartyRole, CometError] = {}
        self.dealing: Dealing | None = None
        """Once the server has all of its part."""
        self.confirmed = False
        self.dealt = 0
        """Bytes of corrections that the server has been sent so far."""

    def join(self, role: PartyRole, digest: str) -> None:
        with self.changed:
            if role in self.digests:
                raise RandomnessSpent(f"a {role} has asked for this bundle already; agree on another id")
            self.digests[role] = digest
            if len(set(self.digests.values())) > 1:
                client, server = (self.digests[name] for name in PARTY_ROLES)
                what = "the program of the bundle"
                self.failures["client"] = ProtocolMismatch(what, got=server, expected=client)
                self.failures["server"] = ProtocolMismatch(what, got=client, expected=server)
            self.changed.notify_all()

    def advance(self, *, dealing: Dealing | None = None, confirmed: bool = False) -> None:
        with self.changed:
            self.dealing = self.dealing or dealing
            self.confirmed = self.confirmed or confirmed
            self.changed.notify_all()

    def fail(self, role: PartyRole, error: CometError) -> None:
        with self.changed:
            self.failures.setdefault(role, error)
            self.changed.notify_all()

    def check(self, role: PartyRole) -> None:
        with self.changed:
            if role in self.failures:
                raise self.failures[role]


class Meetings:
    """All that are under way, by the id of their bundle. An id is spent as soon as somebody names it.

    remembered: spent ids, the oldest forgotten first. That is harmless: seeds are fresh for every bundle, never derived
    from its id, so an id that comes back after a million others gets masks that nobody has seen. What the memory is for
    is that no party ends up with another's half of a pair.
    """

    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._lock = threading.Lock()
        self._under_way: dict[str, Meeting] = {}
        self._spent: set[bytes] = set()
        self._order: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def __contains__(self, bundle_id: str) -> bool:
        return bundle_id in self._under_way

    @contextlib.contextmanager
    def joined(self, role: PartyRole, bundle_id: str, digest: str) -> Iterator[Meeting]:
        """Joins or starts the meeting of a bundle. If one party fails, the other hears of it."""
        with self._lock:
            meeting = self._under_way.get(bundle_id)
            if meeting is None:
                self._spend(bundle_id)
                meeting = self._under_way[bundle_id] = Meeting()
            meeting.join(role, digest)
        other: PartyRole = "client" if role == "server" else "server"
        try:
            yield meeting
        except BaseException:
            meeting.fail(other, PeerClosed(f"the {role} did not go through with it; agree on another id"))
            raise
        finally:
            with self._lock:
                self._under_way.pop(bundle_id, None)

    def end(self, error: CometError) -> None:
        """All of them fail."""
        with self._lock:
            meetings = list(self._under_way.values())
        for meeting in meetings:
            for role in PARTY_ROLES:
                meeting.fail(role, error)

    def _spend(self, bundle_id: str) -> None:
        name = bytes.fromhex(bundle_id)
        if name in self._spent:
            raise RandomnessSpent("this bundle was dealt or given up before; agree on another id")
        self._spent.add(name)
        self._order.append(name)
        if len(self._order) > self._remembered:
            self._spent.discard(self._order.popleft())
