"""What a client and a server say to each other, apart from the rounds of the program itself.

    client                                server
    greeting                     <->      greeting: version, source of randomness, model (by name, by fingerprint)
                                 <-       Welcome: what there is to download, limits, where the dealer is
    GetPackage                    ->
                                 <-       the public package, in frames           once per client and model
    GetWeights                    ->
                                 <-       the masked weights, in frames           the same, with a dealer only
    Prepare (id, program)         ->
                                 <-       Accepted                                any number of times
    Run (id, program)             ->
                                 <-       Ready; both have consumed the bundle
    the rounds of the program    <->

    Begin (id, program)           ->
                                 <-       Ready; both have consumed the bundle    to write: instead of Run
    Step (positions)              ->                                              any number of times
                                 <-       Ready
    the rounds for these         <->
    End                           ->

Once a Prepare is accepted, the source of randomness says what happens: both go to the dealer; or, without one, they
prepare the bundle right there, on a connection that the client has made for it, so that queries go on meanwhile.

In place of any message the server may send a Refusal, which is raised at the client as the error it names; so no
message of the server can make the client do anything but go on or stop. A program is named by batch, bucket and the
digest of its plan: both sides plan it on their own, and a difference is a `ProtocolMismatch` before anything secret
is used. Messages are JSON, strict, and at most `MESSAGE_LIMIT` bytes; sizes of downloads are told first and held to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from comet_mpc import __version__
from comet_mpc.errors import (
    PeerError,
    ProtocolMismatch,
)
from comet_mpc.net.channel import UNREADABLE, Channel, agree, greet, greeting_frame
from comet_mpc.net.messages import Message, Mismatch, Refusal, raise_refusal
from comet_mpc.offline.source import MOST_TOGETHER, Progress, Source
from comet_mpc.offline.sources import SOURCES

MESSAGE_LIMIT = 8192
FRAME_BYTES = 1 << 20


Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 42)]
MOST_KEPT = 1 << 16
Count = Annotated[int, msgspec.Meta(ge=1, le=MOST_KEPT)]
Together = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOGETHER)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
BundleId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Host = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Welcome(Message, frozen=True, kw_only=True):
    """What the server has and allows."""

    fingerprint: Digest
    """SHA-256 of the package: a client computes it from what it gets."""
    package_bytes: Size
    network: Annotated[str, msgspec.Meta(max_length=64)]
    """Between clients and the server, as its operator says: both plan for it."""
    weights: tuple[Size, Digest] | None
    """Of all masked weights one after the other; without a dealer nobody needs them."""
    state: Digest
    """Names the server's secret and the very numbers of its weights: randomness from before a change is of no use."""
    dealer: tuple[Host, Port] | None
    largest_batch: Count
    ready: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
    """Bundles that a client may keep ready per program."""
    kept: Count
    """Bundles that the server keeps for a client, of all programs together; beyond that the oldest go."""
    kept_bytes: Size
    """The same in bytes of its own parts."""


class GetPackage(Message, frozen=True):
    """Asks for the public package."""


class GetWeights(Message, frozen=True):
    """Asks for the masked weights."""


class _Program(Message, frozen=True):
    bundle_id: BundleId
    batch: Count
    bucket: Count
    digest: Digest


class Prepare(_Program, frozen=True):
    """Asks for a bundle to be prepared: at the dealer's, or right here; or for several at once (`Source.together`)."""

    count: Together = 1


class Run(_Program, frozen=True):
    """Asks for a run of the program with a bundle that both have."""


class Begin(_Program, frozen=True):
    """Begins a conversation, in place of the one before: consumes a bundle for `bucket` positions."""


class Step(Message, frozen=True):
    """Asks for a run for the next positions of the conversation."""

    size: Count
    kept: Annotated[int, msgspec.Meta(ge=0, le=MOST_KEPT)]
    """How many positions of the run before count; those after them are dropped."""


class End(Message, frozen=True):
    """Ends the conversation, and frees what it held. There is no answer."""


class Accepted(Message, frozen=True):
    """The server is on its way to the dealer, or begins to prepare."""


class Ready(Message, frozen=True):
    """The server has consumed its part of the bundle and begins."""


FromServer = Welcome | Accepted | Ready | Refusal | Mismatch
FromClient = GetPackage | GetWeights | Prepare | Run | Begin | Step | End

M = TypeVar("M", bound=Message)


def say(channel: Channel, message: FromServer | FromClient) -> None:
    channel.send(msgspec.json.encode(message))


def expect(channel: Channel, kind: type[M]) -> M:
    """The server's next message, which must be of this kind. A refusal is raised, and the channel stays open."""
    try:
        message: FromServer = msgspec.json.decode(channel.receive(MESSAGE_LIMIT), type=FromServer)
    except UNREADABLE as error:
        channel.close()
        raise PeerError(f"the server sent something other than {kind.__name__}") from error
    if isinstance(message, Refusal | Mismatch):
        raise_refusal(message, "the server", turned=True)
    if not isinstance(message, kind):
        channel.close()
        raise PeerError(f"the server sent {type(message).__name__}, expected {kind.__name__}")
    return message


def from_client(data: bytes | bytearray) -> FromClient:
    try:
        message: FromClient = msgspec.json.decode(data, type=FromClient)
    except UNREADABLE as error:
        raise PeerError("the client sent something that is not a message") from error
    return message


Side = Literal["client", "server"]


class Wanted(NamedTuple):
    """The model that a client asks for; what is empty is open."""

    name: str
    fingerprint: str


def _hello(role: Side, fingerprint: str, source: Source | None, name: str = "") -> dict[str, str | int]:
    return {
        "role": role,
        "version": __version__,
        "source of randomness": source.name if source else "",
        "model": fingerprint,
        "model name": name,
    }


def greeting(role: Side, fingerprint: str, source: Source) -> bytes:
    """What `introduce` sends first: for a server that has nothing to say but a refusal."""
    return greeting_frame(_hello(role, fingerprint, source))


def introduce(
    channel: Channel,
    role: Side,
    fingerprint: str = "",
    source: Source | None = None,
    *,
    name: str = "",
    timeout: float = 10.0,
) -> tuple[Source, Wanted]:
    """The greeting. Returns the source of randomness that the server has, and which model the other side names.

    Raises `ProtocolMismatch` on both sides where they differ; a client may leave the model and the source open, and a
    server with several models leaves the model open.
    timeout: for the other side's greeting; a server with many clients lets them wait for it.
    """
    mine = _hello(role, fingerprint, source, name)
    theirs = greet(channel, mine, timeout)
    given = [field for field in ("source of randomness", "model") if mine[field] and theirs.get(field)]
    try:
        agree(mine, theirs, ["version", *given])
        agree({"role": "client" if role == "server" else "server"}, theirs, ["role"])
        found = source or SOURCES.get(str(theirs.get("source of randomness")))
        if found is None:
            raise ProtocolMismatch("source of randomness", got="another one", expected=" or ".join(SOURCES))
    except PeerError:
        channel.close()
        raise
    return found, Wanted(str(theirs.get("model name", "")), str(theirs.get("model", "")))


# Downloads -----------------------------------------------------------------------------------------------


class Writer(Protocol):
    def write(self, data: bytearray, /) -> object: ...


def send_blob(channel: Channel, pieces: Iterable[memoryview]) -> int:
    """Pieces of any size in frames of at most `FRAME_BYTES`. Returns the bytes sent, without headers."""
    total = 0
    for piece in pieces:
        flat = piece.cast("B")
        total += len(flat)
        for start in range(0, len(flat), FRAME_BYTES):
            channel.send(flat[start : start + FRAME_BYTES])
    return total


def receive_blob(channel: Channel, size: int, digest: str, target: Writer, told: Progress | None = None) -> None:
    """Exactly `size` bytes, as they come, whose SHA-256 must be `digest`. `told` is a callback(bytes so far)."""
    hasher = hashlib.sha256()
    rest = size
    while rest:
        frame = channel.receive(min(FRAME_BYTES, rest))
        if not frame:
            raise PeerError("the server sent an empty frame in a download")
        hasher.update(frame)
        target.write(frame)
        rest -= len(frame)
        if told is not None:
            told(size - rest, size)
    if hasher.hexdigest() != digest:
        raise PeerError("a download does not match the digest that the server sent")
