"""What a client and a server say to each other, apart from the rounds of the program itself.

    client                                server
    greeting                     <->      greeting: version, source of randomness, model
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

Once a Prepare is accepted, both go to the dealer; or, without one, they prepare the bundle right there
(`preparing.py`), on a connection that the client has made for it, so that queries go on meanwhile.

In place of any message the server may send a Refusal, which is raised at the client as the error it names; so no
message of the server can make the client do anything but go on or stop. A program is named by batch, bucket and the
digest of its plan: both sides plan it on their own, and a difference is a `ProtocolMismatch` before anything secret
is used. Messages are JSON, strict, and at most `MESSAGE_LIMIT` bytes; sizes of downloads are told first and held to.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, Protocol, TypeVar, cast, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from comet_mpc import __version__
from comet_mpc.engine.correlations import WeightProduct, WeightScale
from comet_mpc.engine.party import SourceName
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.session import Weight
from comet_mpc.errors import (
    ConfigurationError,
    PeerError,
    ProtocolMismatch,
    ShapeError,
)
from comet_mpc.models.served import PublicModel
from comet_mpc.net.channel import Channel, agree, greet
from comet_mpc.net.messages import Message, Mismatch, Refusal, raise_refusal

__all__ = [
    "FRAME_BYTES",
    "MESSAGE_LIMIT",
    "Accepted",
    "GetPackage",
    "GetWeights",
    "Prepare",
    "Programs",
    "Ready",
    "Run",
    "Welcome",
    "expect",
    "from_client",
    "introduce",
    "masked_names",
    "parse_address",
    "receive_blob",
    "say",
    "send_blob",
]

Reals = npt.NDArray[np.float64]

MESSAGE_LIMIT = 8192
FRAME_BYTES = 1 << 20
_PROGRAMS_KEPT = 64


def parse_address(address: str) -> tuple[str, int]:
    """'host:port' or '[::1]:port'."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigurationError(f"{address!r} is not an address: expected HOST:PORT")
    return host, int(port)


Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 42)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
BundleId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
Host = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Welcome(Message, frozen=True, kw_only=True):
    """What the server has and allows."""

    fingerprint: Digest
    package_bytes: Size
    package_digest: Digest
    weights: tuple[Size, Digest] | None
    """Of all masked weights one after the other; without a dealer nobody needs them."""
    state: Digest
    """Names the server's secret and the very numbers of its weights: randomness from before a change is of no use."""
    dealer: tuple[Host, Port] | None
    largest_batch: Count
    ready: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
    """Bundles that a client may keep ready per program."""


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
    """Asks for a bundle to be prepared: at the dealer's, or right here."""


class Run(_Program, frozen=True):
    """Asks for a run of the program with a bundle that both have."""


class Accepted(Message, frozen=True):
    """The server is on its way to the dealer, or begins to prepare."""


class Ready(Message, frozen=True):
    """The server has consumed its part of the bundle and begins."""


FromServer = Welcome | Accepted | Ready | Refusal | Mismatch
FromClient = GetPackage | GetWeights | Prepare | Run

M = TypeVar("M", bound=Message)


def say(channel: Channel, message: FromServer | FromClient) -> None:
    channel.send(msgspec.json.encode(message))


def expect(channel: Channel, kind: type[M]) -> M:
    """The server's next message, which must be of this kind. A refusal is raised, and the channel stays open."""
    try:
        message: FromServer = msgspec.json.decode(channel.receive(MESSAGE_LIMIT), type=FromServer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        channel.close()
        raise PeerError(f"the server sent something else than {kind.__name__}") from error
    if isinstance(message, Refusal | Mismatch):
        raise_refusal(message, "the server", turned=True)
    if not isinstance(message, kind):
        channel.close()
        raise PeerError(f"the server sent {type(message).__name__}, expected {kind.__name__}")
    return message


def from_client(data: bytes | bytearray) -> FromClient:
    try:
        message: FromClient = msgspec.json.decode(data, type=FromClient)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PeerError("the client sent something that is no message") from error
    return message


def introduce(
    channel: Channel, role: Literal["client", "server"], fingerprint: str = "", source: SourceName | None = None
) -> SourceName:
    """The greeting. Returns the source of randomness that the server has.

    Raises `ProtocolMismatch` on both sides where they differ; a client may leave the model and the source open.
    """
    mine = {"role": role, "version": __version__, "source of randomness": source or "", "model": fingerprint}
    theirs = greet(channel, mine)
    given = [field for field in ("source of randomness", "model") if mine[field] and theirs.get(field)]
    try:
        agree(mine, theirs, ["version", *given])
        agree({"role": "client" if role == "server" else "server"}, theirs, ["role"])
        found = source or theirs.get("source of randomness")
        if found not in (known := get_args(SourceName)):
            raise ProtocolMismatch("source of randomness", got="another one", expected=" or ".join(known))
    except PeerError:
        channel.close()
        raise
    return cast("SourceName", found)


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


def receive_blob(channel: Channel, size: int, digest: str, target: Writer) -> None:
    """Exactly `size` bytes, as they come, whose SHA-256 must be `digest`."""
    hasher = hashlib.sha256()
    rest = size
    while rest:
        frame = channel.receive(min(FRAME_BYTES, rest))
        if not frame:
            raise PeerError("the server sent an empty frame in a download")
        hasher.update(frame)
        target.write(frame)
        rest -= len(frame)
    if hasher.hexdigest() != digest:
        raise PeerError("a download does not have the digest that the server told")


# The program ---------------------------------------------------------------------------------------------


def masked_names(plan: Plan) -> Iterator[str]:
    """The weights whose masked form the client needs, in the order of their first use."""
    seen = dict.fromkeys(c.weight for c in plan.correlations if isinstance(c, WeightProduct | WeightScale))
    return iter(seen)


class Programs:
    """Plans by batch and bucket, made when they are asked for; the least recently used are forgotten."""

    def __init__(self, model: PublicModel, source: SourceName = "dealer") -> None:
        self.source: SourceName = source
        self._model = model
        self._weights = {name: weight.public() for name, weight in model.weights().items()}
        self._plans: OrderedDict[tuple[int, int], Plan] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, batch: int, bucket: int) -> Plan:
        with self._lock:
            plan = self._plans.get((batch, bucket))
            if plan is None:
                if bucket not in self._model.buckets():
                    raise ShapeError(f"this model has no bucket of {bucket} tokens: {self._model.buckets()}")
                plan = self._plans[batch, bucket] = self._model.plan(batch, bucket, fused=self.source == "dealer")
                if len(self._plans) > _PROGRAMS_KEPT:
                    self._plans.popitem(last=False)
            self._plans.move_to_end((batch, bucket))
            return plan

    def weights(self) -> tuple[Weight, ...]:
        """Public part of every weight that is downloaded in masked form, in the order of the download."""
        plan = self.plan(1, self._model.buckets()[0])
        return tuple(self._weights[name] for name in masked_names(plan))
