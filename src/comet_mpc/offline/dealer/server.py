"""The dealer as a service of its own: authenticates both parties, brings them together, deals each bundle once.

The dealer never sees an input, an opened value or a weight, but it knows every mask. Whoever runs it must not be
either party: with the client's messages it could compute the weights, with the server's the text. A dealer run by
the server's operator gives no privacy.

Every failure voids the bundle and spends its id. The conversation with a party is described in `fetching.py`.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

import msgspec

from comet_mpc.engine.correlations import program_digest
from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.errors import (
    CometError,
    ForeignRandomness,
    NotAuthenticated,
    PeerClosed,
    PeerError,
    PeerTimeout,
    ProtocolMismatch,
    RandomnessError,
    RandomnessSpent,
)
from comet_mpc.net.channel import Channel, greet
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.messages import refusal
from comet_mpc.net.sockets import listen
from comet_mpc.offline.dealer.admission import ProgramLimits, admit_program
from comet_mpc.offline.dealer.fetch import (
    CORRECTIONS,
    FRAME_BYTES,
    MESSAGE,
    MESSAGE_LIMIT,
    PARTY_ROLES,
    Ask,
    Done,
    FromDealer,
    PartyRole,
    Proceed,
    Received,
    Seed,
    Wait,
    decode_from_party,
)
from comet_mpc.offline.store import check_bundle_id, check_digest

__all__ = ["Dealer", "DealerLimits", "run_dealer"]

_log = logging.getLogger(__name__)

_SPARE_WORKERS = 8  # for connections that have not said yet what they want
_PARTING_SECONDS = 0.5


@dataclass(frozen=True)
class DealerLimits:
    """What one dealer does for all its parties, and how long it waits for any of them."""

    bundles: int = 16
    """Dealt or awaited at a time."""
    program: ProgramLimits = field(default_factory=ProgramLimits)
    remembered: int = 1_000_000
    """Spent ids."""
    ask_seconds: float = 30.0
    partner_seconds: float = 60.0
    stall_seconds: float = 60.0
    deal_seconds: float = 3600.0
    heartbeat_seconds: float = 5.0


def _frames(chunks: Iterable[memoryview]) -> Iterator[bytearray]:
    """Chunks of any size as frames of one size; an empty one says that there is nothing to send yet."""
    frame = bytearray()
    for chunk in chunks:
        for start in range(0, len(chunk), FRAME_BYTES):
            frame += chunk[start : start + FRAME_BYTES]
            if len(frame) >= FRAME_BYTES:
                yield frame[:FRAME_BYTES]
                del frame[:FRAME_BYTES]
        yield bytearray()
    if frame:
        yield frame


class _Meeting:
    """Two parties on their way to one bundle. Guarded by `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.digests: dict[PartyRole, str] = {}
        self.failures: dict[PartyRole, CometError] = {}
        self.client_seed: bytes | None = None
        self.confirmed = False

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

    def advance(self, *, client_seed: bytes | None = None, confirmed: bool = False) -> None:
        with self.changed:
            self.client_seed = self.client_seed or client_seed
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


class Dealer:
    """Listens from the moment it is made; `serve_forever` serves until `close`.

    A fixed number of threads accept and serve, so a connection that stalls, even in its TLS handshake, costs the
    others one thread of many. A role may not take more than half of them: the other half is for its partners.
    """

    def __init__(self, host: str, port: int, identity: TlsIdentity, limits: DealerLimits | None = None) -> None:
        self.limits = limits or DealerLimits()
        self._listener = listen(host, port, identity.server_context(require_client=True), backlog=128)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._channels: set[Channel] = set()
        self._meetings: dict[str, _Meeting] = {}
        self._slots = {role: threading.BoundedSemaphore(self.limits.bundles) for role in PARTY_ROLES}
        # Spent ids, the oldest forgotten first. That is harmless: seeds are fresh for every bundle, never derived
        # from its id, so an id that comes back after a million others gets masks that nobody has seen. What the
        # memory is for is that no party ends up with another's half of a pair.
        self._spent: set[bytes] = set()
        self._order: deque[bytes] = deque()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which it listens."""
        return self._listener.address

    def serve_forever(self) -> None:
        """Serves until `close` is called, in another thread or by a signal handler through `stop`."""
        count = 2 * self.limits.bundles + _SPARE_WORKERS
        workers = [threading.Thread(target=self._work, name=f"dealer-{i}", daemon=True) for i in range(count)]
        try:
            for worker in workers:
                worker.start()
            self._stopping.wait()
        finally:
            self.close()
            for worker in workers:
                worker.join(10.0)

    def stop(self) -> None:
        """Asks `serve_forever` to return; safe in a signal handler."""
        self._stopping.set()

    def close(self) -> None:
        """Stops listening and ends all conversations; bundles that are not done are void."""
        self._stopping.set()
        self._listener.close()
        with self._lock:
            channels, meetings = list(self._channels), list(self._meetings.values())
        for meeting in meetings:
            for role in PARTY_ROLES:
                meeting.fail(role, PeerClosed("the dealer is shutting down"))
        for channel in channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Connections ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                channel = self._listener.accept(channel_timeout=self.limits.stall_seconds, handshake_timeout=5.0)
            except PeerError as error:
                if not self._stopping.is_set():
                    _log.info("a connection failed before it was one: %s", error)
                    self._stopping.wait(0.02)  # out of file descriptors, accepting fails at once
                continue
            with channel:
                self._attend(channel)

    def _attend(self, channel: Channel) -> None:
        """Serves one connection; whatever happens in it ends here."""
        with self._lock:
            self._channels.add(channel)
        peer = f"{channel.peer_role} {channel.peer_name!r}"
        try:
            if not self._stopping.is_set():
                self._converse(channel)
        except CometError as error:
            _log.info("%s was not served: %s: %s", peer, type(error).__name__, error)
            self._refuse(channel, error)
        except Exception:
            _log.exception("an error in the dealer while serving %s", peer)
            self._refuse(channel, RandomnessError("the dealer failed; nothing was dealt"))
        finally:
            with self._lock:
                self._channels.discard(channel)

    def _refuse(self, channel: Channel, error: CometError) -> None:
        with contextlib.suppress(PeerError), _deadline(channel, 2 * _PARTING_SECONDS):
            channel.timeout = _PARTING_SECONDS
            _say(channel, refusal(error))
            # Closing now could discard the refusal along with what the party has sent and we have not read.
            channel.receive(MESSAGE_LIMIT)

    def _converse(self, channel: Channel) -> None:
        with _deadline(channel, self.limits.ask_seconds):
            claimed = greet(channel, {"role": "dealer"}).get("role")
            ask = decode_from_party(channel.receive(MESSAGE_LIMIT), Ask)
        role = _authenticated(channel, claimed)
        check_bundle_id(ask.bundle_id)
        check_digest(ask.digest)
        if len(ask.key) != (SEED_BYTES if role == "server" else 0):
            raise PeerError(f"the server, and only the server, gives a weight key of {SEED_BYTES} bytes")
        if not 0 <= ask.program_bytes <= (self.limits.program.program_bytes if role == "server" else 0):
            raise ForeignRandomness(
                f"a program of {ask.program_bytes} bytes: this dealer takes {self.limits.program.program_bytes} of the "
                f"server, and none of the client"
            )
        with self._slot(role), self._meeting(role, ask) as meeting:
            if role == "server":
                self._serve_server(channel, ask, meeting)
            else:
                self._serve_client(channel, meeting)
        _log.info("dealt %s… to %s %r", ask.bundle_id[:8], role, channel.peer_name)

    @contextlib.contextmanager
    def _slot(self, role: PartyRole) -> Iterator[None]:
        if not self._slots[role].acquire(blocking=False):
            raise PeerError(f"the dealer is busy with {self.limits.bundles} bundles; try again with another id")
        try:
            yield
        finally:
            self._slots[role].release()

    @contextlib.contextmanager
    def _meeting(self, role: PartyRole, ask: Ask) -> Iterator[_Meeting]:
        """Joins or starts the meeting of a bundle. If one party fails, the other hears of it."""
        with self._lock:
            meeting = self._meetings.get(ask.bundle_id)
            if meeting is None:
                self._spend(ask.bundle_id)
                meeting = self._meetings[ask.bundle_id] = _Meeting()
            meeting.join(role, ask.digest)
        other: PartyRole = "client" if role == "server" else "server"
        try:
            yield meeting
        except BaseException:
            meeting.fail(other, PeerClosed(f"the {role} did not go through with it; agree on another id"))
            raise
        finally:
            with self._lock:
                self._meetings.pop(ask.bundle_id, None)

    def _spend(self, bundle_id: str) -> None:
        name = bytes.fromhex(bundle_id)
        if name in self._spent:
            raise RandomnessSpent("this bundle was dealt or given up before; agree on another id")
        self._spent.add(name)
        self._order.append(name)
        if len(self._order) > self.limits.remembered:
            self._spent.discard(self._order.popleft())

    # One bundle ----------------------------------------------------------------------------------------

    def _serve_server(self, channel: Channel, ask: Ask, meeting: _Meeting) -> None:
        with _deadline(channel, self.limits.ask_seconds):
            meeting.check("server")
            _say(channel, Proceed())
            dealing = admit_program(channel.receive(ask.program_bytes), ask.key, self.limits.program)
        digest = program_digest(dealing.correlations)
        if digest != ask.digest:
            raise ProtocolMismatch("the digest of the program", got=digest, expected=ask.digest)
        self._await_partner(channel, "server", meeting)
        with _deadline(channel, self.limits.deal_seconds):
            _say(channel, Seed(dealing.server_seed, dealing.correction_bytes))
            for frame in _frames(dealing.corrections()):
                meeting.check("server")
                if channel.closed:
                    raise PeerTimeout(f"a bundle must be dealt within {self.limits.deal_seconds:g} s")
                if frame:
                    channel.send(CORRECTIONS, frame)
            decode_from_party(channel.receive(MESSAGE_LIMIT), Received)
        meeting.advance(client_seed=dealing.client_seed)
        self._await(channel, "server", meeting, lambda: meeting.confirmed, 2 * self.limits.stall_seconds)
        _say(channel, Done())

    def _serve_client(self, channel: Channel, meeting: _Meeting) -> None:
        self._await_partner(channel, "client", meeting)
        limit = self.limits.ask_seconds + self.limits.deal_seconds
        self._await(channel, "client", meeting, lambda: meeting.client_seed is not None, limit)
        assert meeting.client_seed is not None
        with _deadline(channel, self.limits.stall_seconds):
            _say(channel, Seed(meeting.client_seed, 0))
            decode_from_party(channel.receive(MESSAGE_LIMIT), Received)
        meeting.advance(confirmed=True)
        _say(channel, Done())

    def _await_partner(self, channel: Channel, role: PartyRole, meeting: _Meeting) -> None:
        self._await(channel, role, meeting, lambda: len(meeting.digests) == 2, self.limits.partner_seconds)

    def _await(
        self, channel: Channel, role: PartyRole, meeting: _Meeting, ready: Callable[[], bool], seconds: float
    ) -> None:
        """Waits for the other party, with a sign of life to this one now and then, which also shows if it left."""
        until = time.monotonic() + seconds
        while True:
            with meeting.changed:
                rest = min(self.limits.heartbeat_seconds, until - time.monotonic())
                meeting.changed.wait_for(lambda: ready() or role in meeting.failures, max(0.0, rest))
                meeting.check(role)
                if ready():
                    return
            if time.monotonic() >= until:
                raise PeerTimeout(f"the other party did not do its part within {seconds:g} s; nothing was dealt")
            _say(channel, Wait())


def _authenticated(channel: Channel, claimed: object) -> PartyRole:
    """The role in the certificate, which must be a party's and the one that is claimed."""
    for role in PARTY_ROLES:
        if channel.peer_role == role == claimed:
            return role
    raise NotAuthenticated(
        f"a certificate of role {channel.peer_role!r} does not entitle to act as {str(claimed)[:20]!r}"
    )


def _say(channel: Channel, message: FromDealer) -> None:
    channel.send(MESSAGE, msgspec.json.encode(message))


@contextlib.contextmanager
def _deadline(channel: Channel, seconds: float) -> Iterator[None]:
    """Closes the channel if the block takes longer: its own timeout does not stop a peer that drips bytes."""
    timer = threading.Timer(seconds, channel.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def run_dealer(
    host: str,
    port: int,
    identity: TlsIdentity,
    limits: DealerLimits | None = None,
    *,
    started: Callable[[tuple[str, int]], None] | None = None,
) -> None:
    """Runs a dealer in the main thread until SIGINT or SIGTERM. `started` is told where it listens."""
    with Dealer(host, port, identity, limits) as dealer:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: dealer.stop())
        _log.info("dealing at %s:%d", *dealer.address)
        if started is not None:
            started(dealer.address)
        dealer.serve_forever()
