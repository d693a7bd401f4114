"""Clients to look into, and one that talks to a service in this process over lines with a fault.

What tests know of the insides of `Client` and `Deployment` is here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, Share
from comet_mpc.errors import CometError
from comet_mpc.models.served import ServedModel
from comet_mpc.net.channel import Channel, Traffic, memory_pair
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import Address
from comet_mpc.net.transport import TlsTransport, Whom
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import Dealing, mask_weight
from comet_mpc.offline.source import Order, Source, Supplier
from comet_mpc.offline.sources import DEALER, DealerSource
from comet_mpc.offline.store import BundleStore
from comet_mpc.service.bundle_pool import BundlePool, Kept
from comet_mpc.service.catalogue import Catalogue
from comet_mpc.service.client import Client
from comet_mpc.service.conversation import Conversation
from comet_mpc.service.deployment import Deployment, ServiceLimits
from comet_mpc.service.messages import Welcome
from comet_mpc.service.prediction import Prediction
from support.faulty_channel import Fault, FaultyChannel
from support.waiting import PATIENCE

__all__ = [
    "EnoughSlots",
    "LocalClient",
    "NamedChannel",
    "RecordingService",
    "Side",
    "Wrapping",
    "after_rounds",
    "always_the_same_bundle",
    "begin_conversation",
    "bundles_ready",
    "local_service",
    "only_what_is_stored",
    "out_of_range",
    "places_in_use",
    "pool_of",
    "set_up_bytes",
    "settled",
]

Side = Literal["client", "server"]


# Any client -----------------------------------------------------------------------------------------------------


def pool_of(client: Client) -> BundlePool:
    """The bundles of a client that is connected."""
    assert client._link.setup is not None
    return client._link.setup.pool


class Wrapping(TlsTransport):
    """Every connection to the server goes through what `wrap` makes of it."""

    def __init__(self, wrap: Callable[[Channel], Channel]) -> None:
        self._wrap = wrap

    def connect(self, address: Address, tls: ssl.SSLContext, timeout: float, whom: Whom) -> Channel:
        channel = super().connect(address, tls, timeout, whom)
        return self._wrap(channel) if whom == "server" else channel


def only_what_is_stored(client: Client) -> None:
    """From now on the client can prepare nothing."""
    pool_of(client).prepare = None  # type: ignore[assignment, method-assign]


def bundles_ready(client: Client, batch: int = 1, bucket: int = 16) -> int:
    return pool_of(client).count(batch, bucket)


def settled(client: Client) -> bool:
    """Waits until nothing is prepared in the background any more; whether all of it succeeded."""
    pool = pool_of(client)
    return pool.settle(PATIENCE) and pool.failure is None


def set_up_bytes(client: Client) -> int:
    """What the client has downloaded."""
    assert client._link.setup is not None
    return client._link.setup.bytes


def always_the_same_bundle(client: Client, batch: int = 1, bucket: int = 16) -> None:
    """From now on the client takes one bundle for every run."""
    pool = pool_of(client)
    bundle = pool.take(batch, bucket, PATIENCE)
    pool.take = lambda *_: bundle  # type: ignore[method-assign]


def after_rounds(client: Client, rounds: int, action: Callable[[], object]) -> None:
    """Does something once, in the middle of the client's next run."""
    channel = client._link.connection._channel
    assert channel is not None
    until = channel.traffic.rounds + rounds

    def watch(traffic: Traffic) -> None:
        if traffic.rounds >= until:
            channel.watcher = None
            action()

    channel.watcher = watch


# A service in this process --------------------------------------------------------------------------------------


def local_service(model: ServedModel, source: Source, identity: TlsIdentity, state: Path, **limits: Any) -> Deployment:
    return Deployment(model, source, identity, state, ServiceLimits(**limits))


class EnoughSlots:
    """As many as are asked for, counted: who fails must give back what it has."""

    def __init__(self) -> None:
        self.used: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def slot(self, kind: str, channel: Channel) -> Iterator[None]:
        with self._lock:
            self.used[kind] += 1
        try:
            yield
        finally:
            with self._lock:
                self.used[kind] -= 1

    def idle(self, idle: bool, *, refused: bool = False) -> None:
        """Nobody else waits."""


_slots: WeakKeyDictionary[Deployment, EnoughSlots] = WeakKeyDictionary()


def places_in_use(service: Deployment) -> int:
    """By runs and preparations of the conversations in this process."""
    return sum(_slots[service].used.values())


def begin_conversation(service: Deployment, channel: Channel) -> threading.Thread:
    """The server's side of one connection, in a thread of its own."""
    slots = _slots.setdefault(service, EnoughSlots())
    conversation = Conversation(Catalogue({"model": service}), channel, slots, require_client=False)
    thread = threading.Thread(target=conversation.serve, daemon=True)
    thread.start()
    return thread


def out_of_range(answer: memoryview, model: ServedModel) -> memoryview:
    """The server's last message with half the ring added to every logit: whatever it was, it is impossible now.

    Rubbish would not do: the ring is so narrow that it often makes a logit that could be.
    """
    shares: list[Share] = []
    plan_program(lambda session: shares.append(model.program(1, 16)(session, model.public().weights())))
    ring, count = shares[0].ring, shares[0].count
    return ring.pack(ring.unpack(answer, count) ^ np.uint64(1 << (ring.width - 1))).data


class NamedChannel(FaultyChannel):
    """The server's end of a line to a client whose certificate has this name."""

    def __init__(self, inner: Channel, name: str) -> None:
        super().__init__(inner, role="client")
        self.peer_name = name


class RecordingService(Deployment):
    """Notes which bundles were consumed, and deals them itself."""

    def __init__(self, model: ServedModel, identity: TlsIdentity, state: Path) -> None:
        super().__init__(model, DealerSource(("127.0.0.1", 1)), identity, state, ServiceLimits(stall_seconds=PATIENCE))
        self.consumed: list[str] = []
        self._dealt: tuple[bytes, bytes, bytes, bytes] | None = None
        take = self.store.take

        def recorded(bundle_id: str, digest: str, correlations: Any, *, owner: str = "") -> Bundle:
            bundle = take(bundle_id, digest, correlations, owner=owner)
            self.consumed.append(bundle_id)
            return bundle

        self.store.take = recorded  # type: ignore[method-assign]

    def deal(self, order: Order, client: BundleStore | None = None) -> None:
        """What a dealer would do, under fresh names: one part goes into this store, the other into the client's.

        The masks are always the same, to save time; what is checked here is that no name is used twice.
        """
        plan, name = order.plan, order.bundle_id
        if self._dealt is None:
            dealing = Dealing(plan.correlations, self.key)
            streams = b"".join(dealing.common()), b"".join(dealing.corrections())
            self._dealt = dealing.client_seed, dealing.server_seed, *streams
        client_seed, server_seed, common, corrections = self._dealt
        with self.store.add(name, plan.digest, server_seed, owner=order.owner) as writer:
            writer.write(corrections)
        if client is not None:
            with client.add(name, plan.digest, client_seed) as part:
                part.write(common)


class LocalSupplier(Supplier):
    """Bundles without a dealer's process, one after the other."""

    def __init__(self, service: RecordingService) -> None:
        self._service = service

    def prepare(self, order: Order, store: BundleStore) -> None:
        self._service.deal(order, store)


class _Local(TlsTransport):
    """Reaches a conversation in this process, and a dealer as usual."""

    def __init__(self, client: LocalClient) -> None:
        self._client = client

    def connect(self, address: Address, tls: ssl.SSLContext, timeout: float, whom: Whom) -> Channel:
        return self._client._reach() if whom == "server" else super().connect(address, tls, timeout, whom)


class LocalClient(Client):
    """Talks to conversations in this process.

    fault, side, at   who strikes in which message of the connection
    connection        the number of the faulty connection
    hurried           the other side gives up soon, from that message on
    """

    def __init__(
        self,
        service: Deployment,
        identity: TlsIdentity,
        cache: Path,
        *,
        timeout: float = PATIENCE,
        fault: Fault | None = None,
        side: Side = "client",
        at: int = -1,
        connection: int = 0,
        hurried: bool = False,
    ) -> None:
        super().__init__(
            "127.0.0.1:1", identity=identity, cache=cache, ready=0, timeout=timeout, transport=_Local(self)
        )
        self._service, self.cache = service, cache
        self._link.connection._welcomed = self._set_up
        self._faulty = connection
        other: Side = "server" if side == "client" else "client"
        self._strikes: dict[Side, tuple[Fault | None, int]] = {
            side: (fault, at),
            other: ("hurry" if hurried else None, at),
        }
        self.near: list[FaultyChannel] = []
        self.far: list[FaultyChannel] = []
        self._threads: list[threading.Thread] = []

    def _reach(self) -> Channel:
        mine, theirs = memory_pair(self._link.connection.timeout)
        strikes = self._strikes if len(self.near) == self._faulty else {}
        near = FaultyChannel(mine, *strikes.get("client", (None, -1)), role="server")
        far = FaultyChannel(theirs, *strikes.get("server", (None, -1)))
        self.near.append(near)
        self.far.append(far)
        self._threads.append(begin_conversation(self._service, far))
        return near

    def _set_up(self, channel: Channel, source: Source, welcome: Welcome) -> None:
        self._link._set_up(channel, source, welcome)
        if isinstance(self._service, RecordingService):
            pool_of(self)._supplier = LocalSupplier(self._service)

    @property
    def store(self) -> BundleStore | None:
        """Where its bundles are, once it is set up."""
        return None if self._link.setup is None else self._link.setup.model.store

    def adopt(self, other: LocalClient, service: RecordingService) -> None:
        """The model as the other client has set it up, with a store of its own."""
        assert other._link.setup is not None
        model = other._link.setup.model
        weights = dict(model.weights)
        if service is not other._service:  # another secret, other masks
            for name, weight in model.weights.items():
                if weight.masked is not None:
                    weights[name] = dataclasses.replace(weight, masked=mask_weight(service.key, service.weights[name]))
        store = BundleStore(self.cache / "bundles", CLIENT, DEALER)
        model = dataclasses.replace(model, weights=weights, store=store)
        pool = BundlePool(model, 0, LocalSupplier(service), Kept(128, 1 << 32))
        self._link.setup = dataclasses.replace(other._link.setup, model=model, pool=pool)
        self._link.connection._welcome = service.welcome
        self._link.connection._fingerprint = service.welcome.fingerprint

    def try_to_classify(self, text: str) -> list[Prediction] | CometError:
        """One classification; afterwards both sides have come to an end."""
        try:
            return self.classify([text])
        except CometError as error:
            return error
        finally:
            self._end()

    def try_to_prepare(self, batch: int = 1, bucket: int = 16) -> str | CometError:
        """The name of a new bundle; afterwards both sides have come to an end."""
        try:
            self.connect()
            (made,) = pool_of(self).prepare(batch, bucket)
            return made
        except CometError as error:
            return error
        finally:
            self._end()

    def _end(self) -> None:
        self.close()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
