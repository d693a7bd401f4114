"""A source of randomness: who prepares it, and all that follows from that.

Client, server, store and plan know this interface only. A further source is a package beside `dealer` and `pair` with a
`Source` in it, and a line in `sources.py`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from comet_mpc.engine import Abilities, Weight
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.plan import Plan
from comet_mpc.net.channel import Channel, Traffic
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import Address
from comet_mpc.offline.bundle import Bundle, OpenBundle
from comet_mpc.offline.store import BundleStore

MOST_TOGETHER = 8
"""Bundles that are prepared at once, at most."""

Progress = Callable[[int, int], None]
"""Is told how far something is, in bytes and of how many: in proportion to the time that it takes."""


@dataclass(frozen=True)
class Order:
    """A bundle, or several together, to be prepared. The two parties find the same plan by the batch and the bucket."""

    bundle_id: str
    batch: int
    bucket: int
    plan: Plan
    owner: str = ""
    """At the server, the name of the client's certificate: no other client can run the bundle."""
    count: int = 1
    """Of bundles that are prepared together, where the source can do that (`Source.together`)."""

    @property
    def bundle_ids(self) -> tuple[str, ...]:
        """Of all of them: those after the first follow from its id."""
        further = (f"{self.bundle_id} {number}".encode() for number in range(1, self.count))
        return (self.bundle_id, *(hashlib.sha256(name).hexdigest()[: len(self.bundle_id)] for name in further))


# The client's side -----------------------------------------------------------------------------------------


class ClientDesk(Protocol):
    """What a client has for preparing bundles."""

    timeout: float
    """Seconds without progress, on every connection, after which it is given up."""
    progress: Progress | None

    @property
    def third_party(self) -> Address | None:
        """Where it is, if the source has one: as this client was told, or else as the server says."""

    def ask(self, order: Order, channel: Channel | None = None) -> Callable[[], bool]:
        """Tells the server, on this channel or on the connection for queries, and returns once it has accepted.

        Retries while the server is busy, and raises what it refuses with. What it returns says whether the connection
        has ended since.
        """

    def connect(self) -> Channel:
        """Another connection to the server."""

    def dial(self, address: Address) -> Channel:
        """A connection to another address, by TLS."""


class Supplier(ABC):
    """The client's side of preparing bundles with one server. Several threads may ask at once."""

    @abstractmethod
    def prepare(self, order: Order, store: BundleStore) -> None:
        """Has what is ordered prepared, by agreement with the server; the store has it when this returns."""

    def pause(self) -> None:
        """Nothing more is wanted for now: gives the server back what it keeps busy."""

    def close(self) -> None:
        """Ends what is under way, from any thread."""


# The server's side -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PreparationLimits:
    """What a server spends on preparing bundles."""

    fetches: int = 16
    """Bundles on their way from the dealer at a time, for all clients together."""
    preparations: int = 0
    """Bundles being prepared with clients at a time, of all of them together; 0: one less than there are workers."""
    stall_seconds: float = 30.0
    dealer_seconds: float = 5.0
    """To reach the dealer."""
    preparation_seconds: float = 3600.0
    """For a bundle, from the dealer or with the client."""
    step_seconds: float = 120.0
    """Between two messages of a preparation with a client, which computes for a while."""


@dataclass(frozen=True)
class ServerDesk:
    """What a server has for preparing bundles."""

    weights: Mapping[str, Weight]
    secret: bytes
    """From which the masks of the weights are derived."""
    masked: Sequence[str]
    """Names of the weights that a client may need in masked form, in the order of the download."""
    identity: TlsIdentity
    state: Path
    limits: PreparationLimits


class Visitor(Protocol):
    """The client that asked for a bundle, as a conversation sees it."""

    channel: Channel

    def slot(self) -> AbstractContextManager[None]:
        """A slot to prepare a bundle in, when it is this client's turn; `ServerBusy` if that takes too long."""

    def accept(self) -> None:
        """Tells the client that its bundle is being prepared."""

    def reserved(self, seconds: float) -> AbstractContextManager[None]:
        """The connection belongs to the preparation, for so long: an error just ends it."""

    def prepared(self, order: Order, count: int, seconds: float) -> None:
        """What was ordered is in the store; `count` bytes were sent for it."""

    def failed(self, order: Order, error: Exception) -> None:
        """It is not, after `accept`."""


class Provider(ABC):
    """The server's side of preparing bundles, for all its clients. Made once, before workers are forked."""

    lag_seconds: ClassVar[float] = 0.0
    """How long a bundle may take to appear at the server after the client has its part."""
    computes: ClassVar[bool] = True
    """Whether preparing a bundle keeps one of the server's cores busy."""

    @property
    @abstractmethod
    def slots(self) -> int:
        """Bundles that may be prepared at a time, for all clients together."""

    @abstractmethod
    def prepare(self, order: Order, store: BundleStore, visitor: Visitor) -> None:
        """Prepares a bundle with this client, here or in the background."""

    def masked_weights(self) -> Iterator[memoryview] | None:
        """The weights as clients download them, one tensor at a time; None if nobody needs them."""
        return None

    def settle(self, seconds: float) -> None:
        """Waits, for so long at most, until nothing is being prepared in the background of this process."""

    def abandon(self) -> None:
        """Gives up what is being prepared in the background of this process. Nothing of it is kept."""

    def await_third_party(self) -> None:
        """Returns once the third party can be reached, and logs that it is missing until then."""

    def third_party_answers(self) -> bool:
        """Whether it can be reached now; True if there is none."""
        return True


# Both ------------------------------------------------------------------------------------------------------


class Source(ABC):
    """Who prepares the randomness of a program."""

    name: ClassVar[str]
    """In greetings, on command lines and in tables."""
    who: ClassVar[str]
    """Between whom the randomness goes, in words."""
    promise: ClassVar[str]
    """What privacy rests on, in words."""
    number: ClassVar[int]
    """In files."""
    abilities: ClassVar[Abilities]
    """What it can prepare."""
    has_third_party: ClassVar[bool]
    masks_weights: ClassVar[bool]
    """Whether a client works with masked weights, which it downloads once."""
    computes_ahead: ClassVar[bool]
    """Whether a client can do part of a query's work before it has a text (`OpenBundle.compute_ahead`)."""
    checked_when_taken: ClassVar[bool]
    """Whether a stored bundle is checked to the last byte before it is used; else, before its last byte is used."""
    third_party: Address | None = None
    """Where the third party is, if there is one."""

    def __str__(self) -> str:
        return self.name

    def at(self, address: Address | None) -> Source:
        """This source, with its third party at the address if it has one."""
        return self

    @abstractmethod
    def stored_bytes(self, party: int, correlations: Sequence[Correlation]) -> int:
        """What a bundle takes on disk, beside its header."""

    @abstractmethod
    def open(self, bundle: Bundle, weights: Mapping[str, Weight]) -> OpenBundle:
        """A bundle that was taken, as what a program draws from."""

    @abstractmethod
    def offline_bytes(self, plan: Plan, count: int = 1) -> int:
        """Bytes on the wire of preparing so many bundles for a plan, keys included."""

    @abstractmethod
    def offline_traffic(self, correlations: Sequence[Correlation], count: int = 1) -> Traffic:
        """What is sent to prepare a program, so many times together: what a choice between programs goes by."""

    def together(self, correlations: Sequence[Correlation]) -> int:
        """How many bundles of a program are best prepared at once."""
        return 1

    def parts(self, correlations: Sequence[Correlation]) -> dict[str, Traffic]:
        """What the two parties send each other for it, by what it is for, as the client counts it."""
        return {}

    @abstractmethod
    def supplier(self, desk: ClientDesk) -> Supplier:
        """The client's side of preparing."""

    @abstractmethod
    def provider(self, desk: ServerDesk) -> Provider:
        """The server's side."""
