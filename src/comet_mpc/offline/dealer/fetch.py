"""How a party asks a dealer for its part of a bundle: the messages of both sides, and the party's side.

    party                               dealer
    greeting (role)              <->    greeting
    Ask (id, digest, …)           ->
                                 <-     Proceed                     to the server only
    the program                   ->                                from the server only
                                 <-     Wait …                      while the other party is awaited or served
                                 <-     Seed, then the corrections: to the client those that both get
    Received                      ->
                                 <-     Done

The client gets its seed only after the server has confirmed the last correction, and Done comes only after the
client has confirmed too; a party keeps nothing before Done. If Done reaches one party and not the other, the first
holds a bundle that the second does not know: they compare ids before they use one, so it is never used.

One bundle per connection. In place of any message the dealer may send a Refusal, which is raised here as the error
it names. Frames from the dealer begin with a byte: corrections or message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from comet_mpc.engine.correlations import Correlation, encode_correlations, program_digest
from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import (
    ConfigurationError,
    NotAuthenticated,
    PeerError,
    PeerTimeout,
    ProtocolMismatch,
)
from comet_mpc.net.channel import UNREADABLE, Channel, greet
from comet_mpc.net.messages import Message, Mismatch, Refusal, raise_refusal
from comet_mpc.offline.store import check_bundle_id

PartyRole = Literal["client", "server"]
PARTY_ROLES: tuple[PartyRole, PartyRole] = ("client", "server")  # by number: CLIENT is 0, SERVER is 1

MESSAGE_LIMIT = 4096
FRAME_BYTES = 1 << 20
CORRECTIONS, MESSAGE = b"\x00", b"\x01"


class Ask(Message, frozen=True):
    """A party's request. program_bytes and key (of the weight masks) come from the server only."""

    bundle_id: str
    digest: str
    program_bytes: int = 0
    key: bytes = b""


class Received(Message, frozen=True):
    """The party has all of its part."""


class Proceed(Message, frozen=True):
    """The server may send the program."""


class Wait(Message, frozen=True):
    """Sign of life."""

    dealt: int = 0
    """Bytes of corrections that the server has been sent so far."""
    alone: bool = False
    """The other party has not come yet."""


class Seed(Message, frozen=True):
    """The party's seed, and how many bytes of corrections follow."""

    seed: bytes
    corrections: int


class Done(Message, frozen=True):
    """Both parties have their parts: the bundle is good."""


FromDealer = Proceed | Wait | Seed | Done | Refusal | Mismatch
FromParty = Ask | Received

M = TypeVar("M", bound=Message)

Waiting = Callable[[Wait], None]


def _nothing(sign: Wait) -> None:
    """Nobody wants to know."""


def decode_from_party(data: bytes | bytearray, kind: type[M]) -> M:
    """A party's message of the kind that is due."""
    try:
        message = msgspec.json.decode(data, type=FromParty)
    except UNREADABLE as error:
        raise PeerError(f"the party sent something other than a {kind.__name__}: {error}") from error
    if not isinstance(message, kind):
        raise PeerError(f"the party sent {type(message).__name__}, expected {kind.__name__}")
    return message


def dealt_bytes(party: int, correlations: Sequence[Correlation]) -> int:
    """What a party's part has beside its seed."""
    return sum(entry.correction_bytes if party == SERVER else entry.common_bytes for entry in correlations)


class BundleSink(Protocol):
    """Where a party's part goes as it comes in: see `store.BundleWriter`."""

    def write(self, data: bytearray, /) -> None: ...
    def seal(self) -> None: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...


class _FromDealer:
    """What comes from the dealer: messages, corrections, signs of life in between."""

    def __init__(self, channel: Channel, patience: float, waiting: Waiting = _nothing) -> None:
        self._channel = channel
        self._waiting = waiting
        self._patience = patience
        self._until = time.monotonic() + patience

    def message(self, kind: type[M]) -> M:
        received = self._next()
        if not isinstance(received, kind):
            raise PeerError(f"the dealer sent {type(received).__name__}, expected {kind.__name__}")
        return received

    def corrections(self, rest: int) -> bytearray:
        """The next piece, at most `rest` bytes."""
        received = self._next()
        if not isinstance(received, bytearray) or not 0 < len(received) <= rest:
            raise PeerError("the dealer sent something other than the corrections that are due")
        return received

    def _next(self) -> FromDealer | bytearray:
        while True:
            if time.monotonic() > self._until:
                raise PeerTimeout(f"the dealer did not deliver within {self._patience:g} s")
            frame = self._channel.receive(1 + FRAME_BYTES)
            tag = bytes(frame[:1])
            del frame[:1]
            if tag == CORRECTIONS:
                return frame
            if tag != MESSAGE:
                raise PeerError("the dealer sent something that is not a message")
            try:
                message: FromDealer = msgspec.json.decode(frame, type=FromDealer)
            except UNREADABLE as error:
                raise PeerError("the dealer sent something that is not a message") from error
            if isinstance(message, Refusal | Mismatch):
                raise_refusal(message, "the dealer")
            if not isinstance(message, Wait):
                return message
            self._waiting(message)


def fetch_bundle(
    channel: Channel,
    party: int,
    bundle_id: str,
    correlations: Sequence[Correlation],
    sink: Callable[[bytes], BundleSink],
    *,
    key: bytes | None = None,
    patience: float = 3600.0,
    waiting: Waiting = _nothing,
) -> None:
    """One party's part of a bundle, from a dealer that it is connected to by TLS. Closes the channel.

    bundle_id   fresh (`store.new_bundle_id`), chosen by one party and told to the other over their own channel;
                after any error, both need another one
    sink        is given the seed and returns what takes the corrections: `lambda seed: store.add(id, digest, seed)`.
                It is committed once the dealer says that both parties have their parts, discarded on any error
    key         at the server, `dealing.weight_key`
    patience    seconds for all of it
    waiting     is given every sign of life from the dealer, while it is at work or waits for the other party

    The peer must have a dealer's certificate: whoever deals knows every mask. A dealer that the other party runs
    gives no privacy at all; a certificate cannot show that, so it must be arranged.
    """
    check_bundle_id(bundle_id)
    if party not in (CLIENT, SERVER):
        raise ConfigurationError(f"a party is {CLIENT} (client) or {SERVER} (server), not {party}")
    if len(key or b"") != (SEED_BYTES if party == SERVER else 0):
        raise ConfigurationError(f"the server, and only the server, gives a weight key of {SEED_BYTES} bytes")
    with channel:
        if channel.peer_role != "dealer":
            raise NotAuthenticated(
                f"the peer is not a dealer: its certificate says {channel.peer_role!r}, expected 'dealer'"
            )
        greet(channel, {"role": PARTY_ROLES[party]})
        dealer = _FromDealer(channel, patience, waiting)
        program = encode_correlations(correlations) if party == SERVER else b""
        ask = Ask(bundle_id, program_digest(correlations), len(program), key or b"")
        channel.send(msgspec.json.encode(ask))
        if party == SERVER:
            dealer.message(Proceed)
            channel.send(program)
        header = dealer.message(Seed)
        expected = dealt_bytes(party, correlations)
        if len(header.seed) != SEED_BYTES:
            raise PeerError(f"the dealer sent a seed of {len(header.seed)} bytes, expected {SEED_BYTES}")
        if header.corrections != expected:
            raise ProtocolMismatch("the bytes of corrections", got=header.corrections, expected=expected)
        _fill(sink(header.seed), dealer, channel, expected)


def _fill(writer: BundleSink, dealer: _FromDealer, channel: Channel, rest: int) -> None:
    """So many bytes of corrections, which are kept when the dealer says that both parties have their parts."""
    try:
        while rest:
            piece = dealer.corrections(rest)
            writer.write(piece)
            rest -= len(piece)
        writer.seal()
        channel.send(msgspec.json.encode(Received()))
        dealer.message(Done)
        writer.commit()
    except BaseException:
        writer.discard()
        raise
