"""The dealer as a service of its own: authenticates both parties, brings them together, deals each bundle once.

The dealer never sees an input, an opened value or a weight, but it knows every mask. Whoever runs it must not be
either party: with the client's messages it could compute the weights, with the server's the text. A dealer run by
the server's operator gives no privacy.

Every failure voids the bundle and spends its id. The conversation with a party is described in `fetch`.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

import msgspec

from comet_mpc import __version__
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
    ServerBusy,
)
from comet_mpc.net.channel import Channel, greet
from comet_mpc.net.expiry import expiry_gauges
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.live import LiveContext
from comet_mpc.net.messages import refusal
from comet_mpc.net.metrics import Counters, Gauge, refusal_reason
from comet_mpc.net.reception import Reception, ReceptionLimits, Visitor
from comet_mpc.net.sockets import TlsChannel, listen
from comet_mpc.offline.dealer.admission import ProgramLimits, Slots, admit_program
from comet_mpc.offline.dealer.bundles import Dealing
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
from comet_mpc.offline.dealer.meeting import Meeting, Meetings
from comet_mpc.offline.store import check_bundle_id, check_digest

_log = logging.getLogger(__name__)

_TICK = 0.1
_PARTING_SECONDS = 0.5
_SLOWEST_RATE = 1e5  # bytes a second of a client
_COUNTERS = {
    "bundles_dealt_total": "Bundles of which both parties have their parts.",
    "parts_dealt_total": "Parts of bundles that a party has confirmed.",
    "offline_bytes_total": "Bytes sent and received for them, frame headers included.",
    "offline_seconds_total": "Seconds spent on them, those of waiting for the other party too.",
}
_PHASES = {
    "handshake": "From the connection to the end of the TLS handshake.",
    "deal": "Dealing a party its part, waiting for the other party included.",
}
"""What the histograms time."""


@dataclass(frozen=True)
class DealerLimits:
    """What one dealer does for all its parties, and how long it waits for any of them."""

    bundles: int = 16
    """Dealt or awaited at a time. One certificate gets three quarters of them at most."""
    connections: int = 64
    """Of parties that have shown their certificate; a quarter of them may be of one client."""
    handshakes: ReceptionLimits = field(default_factory=ReceptionLimits)
    program: ProgramLimits = field(default_factory=ProgramLimits)
    remembered: int = 1_000_000
    """Spent ids."""
    ask_seconds: float = 30.0
    partner_seconds: float = 60.0
    stall_seconds: float = 60.0
    deal_seconds: float = 3600.0
    heartbeat_seconds: float = 1.0


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


class Dealer:
    """Listens from the moment it is made; `serve_forever` serves until `close`.

    One thread lets connections in, and waits for none of them; each that has shown its certificate has a thread of its
    own. Neither role can take the places of the other, and no certificate all places of its role.
    """

    def __init__(self, host: str, port: int, identity: TlsIdentity, limits: DealerLimits | None = None) -> None:
        self.limits = limits or DealerLimits()
        self.counters = Counters(_COUNTERS, phases=_PHASES)
        self._identity, self._started = identity, time.time()
        self.counters.beat()
        self._context = LiveContext(identity, require_client=True)
        self._certificates = self._context.version
        self._listener = listen(host, port, self._context.current, backlog=1024)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._channels: set[TlsChannel] = set()
        self._asked: set[Channel] = set()
        """Of them, those whose certificate was looked up; the others will be told if theirs is revoked."""
        self._threads: set[threading.Thread] = set()
        self._slots = Slots(self.limits.bundles)
        self._meetings = Meetings(self.limits.remembered)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port at which it listens."""
        return self._listener.address

    def serve_forever(self) -> None:
        """Serves until `close` is called, in another thread or by a signal handler through `stop`."""
        selector = selectors.DefaultSelector()
        reception = Reception(
            self._listener,
            lambda: self._context.current,
            selector,
            arrived=self._arrived,
            refused=self._lost,
            limits=self.limits.handshakes,
            channel_timeout=self.limits.stall_seconds,
        )
        try:
            while not self._stopping.is_set():
                self.counters.beat()
                for key, events in selector.select(_TICK):
                    try:
                        key.data(events)
                    except Exception:  # one connection's trouble is not the others'
                        _log.exception("an error while a connection came in")
                        self.counters.refused("other")
                reception.tick()
                self._context.look()
                self._close_revoked()
        finally:
            reception.close()
            selector.close()
            self.close()
            for thread in tuple(self._threads):
                thread.join(10.0)

    def stop(self) -> None:
        """Asks `serve_forever` to return; safe in a signal handler."""
        self._stopping.set()

    def close(self) -> None:
        """Stops listening and ends all conversations; bundles that are not done are void."""
        self._stopping.set()
        self._listener.close()
        with self._lock:
            channels = list(self._channels)
        self._meetings.end(PeerClosed("the dealer is shutting down"))
        for channel in channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Connections ---------------------------------------------------------------------------------------

    def _arrived(self, visitor: Visitor) -> None:
        channel = visitor.channel
        self.counters.observe("handshake", visitor.seconds)
        thread = threading.Thread(target=self._attend, args=(channel,), name="dealer", daemon=True)
        with self._lock:
            self._channels.add(channel)
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # no more threads: to be told again when there are fewer
            _log.error("no thread for a party", extra={"fields": _fields(channel)})
            self.counters.refused("out_of_processes")
            self._forget(channel, thread)
            channel.close()

    def _forget(self, channel: TlsChannel, thread: threading.Thread) -> None:
        with self._lock:
            self._channels.discard(channel)
            self._asked.discard(channel)
            self._threads.discard(thread)

    def _close_revoked(self) -> None:
        if self._certificates == self._context.version:
            return
        self._certificates = self._context.version
        with self._lock:
            revoked = [channel for channel in self._asked if channel.peer_serial in self._context.revoked]
        for channel in revoked:
            _log.warning("a certificate was revoked: its connection is closed", extra={"fields": _fields(channel)})
            channel.close()

    def _attend(self, channel: TlsChannel) -> None:
        """Serves one connection; whatever happens in it ends here."""
        try:
            with channel, self.counters.session():
                self._serve(channel)
        finally:
            self._forget(channel, threading.current_thread())

    def _serve(self, channel: Channel) -> None:
        try:
            if not self._stopping.is_set():
                self._check_crowd(channel)
                self._converse(channel)
        except CometError as error:
            if isinstance(error, PeerClosed) and not channel.traffic.received:  # it only looked whether we are here
                return
            self.counters.error(error)
            self.counters.refused(refusal_reason(error))
            fields = _fields(channel, error=type(error).__name__, reason=str(error))
            _log.warning("a party was not served to the end", extra={"fields": fields})
            self._refuse(channel, error)
        except Exception as error:
            self.counters.error(error)
            self.counters.refused("other")
            _log.exception("an error in the dealer", extra={"fields": _fields(channel)})
            self._refuse(channel, RandomnessError("the dealer failed; nothing was dealt"))

    def _check_crowd(self, channel: Channel) -> None:
        """A server may have as many connections as there may be, a client a quarter of them."""
        with self._lock:
            same = [other for other in self._channels if other.peer_name == channel.peer_name]
            total = len(self._channels)
        most = self.limits.connections if channel.peer_role == "server" else max(1, self.limits.connections // 4)
        if len(same) > most or total > self.limits.connections:
            raise ServerBusy("the dealer has as many connections as it can serve; try again with another id")

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
        self._context.check(channel.peer_serial)  # the list may have changed since the handshake began
        with self._lock:
            self._asked.add(channel)
        check_bundle_id(ask.bundle_id)
        check_digest(ask.digest)
        if len(ask.key) != (SEED_BYTES if role == "server" else 0):
            raise PeerError(f"the server, and only the server, gives a weight key of {SEED_BYTES} bytes")
        if not 0 <= ask.program_bytes <= (self.limits.program.program_bytes if role == "server" else 0):
            raise ForeignRandomness(
                f"a program of {ask.program_bytes} bytes: this dealer takes {self.limits.program.program_bytes} from "
                f"the server, and none from the client"
            )
        begun = time.monotonic()
        meeting_joined = self._meetings.joined(role, ask.bundle_id, ask.digest)
        with self._slots.taken(role, channel.peer_name), meeting_joined as meeting:
            if role == "server":
                self._serve_server(channel, ask, meeting)
            else:
                self._serve_client(channel, meeting)
        count, seconds = channel.traffic.sent + channel.traffic.received, time.monotonic() - begun
        self.counters.add(
            bundles_dealt_total=role == "server",
            parts_dealt_total=1,
            offline_bytes_total=count,
            offline_seconds_total=seconds,
        )
        self.counters.observe("deal", seconds)
        fields = _fields(channel, bundle=ask.bundle_id[:8], bytes=count, seconds=round(seconds, 6))
        _log.info("dealt", extra={"fields": fields})

    # One bundle ----------------------------------------------------------------------------------------

    def _serve_server(self, channel: Channel, ask: Ask, meeting: Meeting) -> None:
        with _deadline(channel, self.limits.ask_seconds):
            meeting.check("server")
            _say(channel, Proceed())
            dealing = admit_program(channel.receive(ask.program_bytes), ask.key, self.limits.program)
        digest = program_digest(dealing.correlations)
        if digest != ask.digest:
            raise ProtocolMismatch("the digest of the program", got=digest, expected=ask.digest)
        self._await_partner(channel, "server", meeting)
        self._context.check(channel.peer_serial)
        with _deadline(channel, self.limits.deal_seconds):
            _say(channel, Seed(dealing.server_seed, dealing.correction_bytes))
            for sent in self._stream(channel, "server", meeting, dealing.corrections()):
                meeting.dealt += sent
            decode_from_party(channel.receive(MESSAGE_LIMIT), Received)
        meeting.advance(dealing=dealing)
        self._await(channel, "server", meeting, lambda: meeting.confirmed, 2 * self._client_seconds(dealing))
        _say(channel, Done())

    def _serve_client(self, channel: Channel, meeting: Meeting) -> None:
        self._await_partner(channel, "client", meeting)
        limit = self.limits.ask_seconds + self.limits.deal_seconds
        self._await(channel, "client", meeting, lambda: meeting.dealing is not None, limit)
        dealing = meeting.dealing
        assert dealing is not None
        self._context.check(channel.peer_serial)
        with _deadline(channel, self._client_seconds(dealing)):
            _say(channel, Seed(dealing.client_seed, dealing.common_bytes))
            for _ in self._stream(channel, "client", meeting, dealing.common()):
                pass
            decode_from_party(channel.receive(MESSAGE_LIMIT), Received)
        meeting.advance(confirmed=True)
        meeting.check("client")  # the server may have been given up meanwhile: then nobody is to keep anything
        _say(channel, Done())

    def _client_seconds(self, dealing: Dealing) -> float:
        """In which a client must take its part."""
        return self.limits.stall_seconds + dealing.common_bytes / _SLOWEST_RATE

    def _stream(
        self, channel: Channel, role: PartyRole, meeting: Meeting, chunks: Iterable[memoryview]
    ) -> Iterator[int]:
        """Sends corrections, unless the other party has failed. Gives the bytes of every frame that was sent."""
        for frame in _frames(chunks):
            meeting.check(role)
            if channel.closed:
                raise PeerTimeout(f"a bundle must be dealt within {self.limits.deal_seconds:g} s")
            if frame:
                channel.send(CORRECTIONS, frame)
                yield len(frame)

    def _await_partner(self, channel: Channel, role: PartyRole, meeting: Meeting) -> None:
        self._await(channel, role, meeting, lambda: len(meeting.digests) == 2, self.limits.partner_seconds)

    def _await(
        self, channel: Channel, role: PartyRole, meeting: Meeting, ready: Callable[[], bool], seconds: float
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
            _say(channel, Wait(meeting.dealt, alone=len(meeting.digests) < 2))

    # For operators -------------------------------------------------------------------------------------

    def _lost(self, reason: str, error: PeerError) -> None:
        self.counters.error(error)
        self.counters.refused(reason)
        fields = {"error": type(error).__name__, "refused": reason, "reason": str(error)}
        _log.info("a connection could not be established", extra={"fields": fields})

    def gauges(self) -> Iterator[Gauge]:
        """What it has to do now, and what it may have."""
        yield Gauge("info", "Version. Always 1.", [({"version": __version__, "source": "dealer"}, 1.0)])
        yield Gauge.single("start_timestamp_seconds", "When the dealer started, in seconds since 1970.", self._started)
        yield Gauge.single("bundles_under_way", "Bundles that are dealt or awaited now.", len(self._meetings))
        yield Gauge.single("bundles_most", "As many as there may be.", self.limits.bundles)
        yield from expiry_gauges(self._identity)

    def troubles(self) -> Iterator[str]:
        """Why a party that came now could not be served."""
        with self._lock:
            connections = len(self._channels)
        if connections >= self.limits.connections:
            yield f"there are {connections} connections, as many as there may be"
        if self._slots.full:
            yield f"{self.limits.bundles} bundles are under way, as many as there may be"


def _fields(channel: Channel, **more: object) -> dict[str, object]:
    return {"role": channel.peer_role, "party": channel.peer_name, **more}


def _authenticated(channel: Channel, claimed: object) -> PartyRole:
    """The role in the certificate, which must be a party's and the one that is claimed."""
    for role in PARTY_ROLES:
        if channel.peer_role == role == claimed:
            return role
    raise NotAuthenticated(f"a certificate with the role {channel.peer_role!r} may not act as {str(claimed)[:20]!r}")


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
