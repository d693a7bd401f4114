"""The source `dealer`: a third party prepares the randomness and sends each party its part."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from comet_mpc.engine import Weight
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import CometError, ConfigurationError, PeerClosed, PeerError
from comet_mpc.net.channel import Channel, Traffic
from comet_mpc.net.sockets import Address, connect
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import DealtRandomness, mask_weight
from comet_mpc.offline.dealer.fetch import Wait, dealt_bytes, fetch_bundle
from comet_mpc.offline.source import ClientDesk, Order, Provider, ServerDesk, Source, Supplier, Visitor
from comet_mpc.offline.store import BundleStore
from comet_mpc.retry import retry

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_MISSED = 5


class DealerSource(Source):
    """Randomness from a dealer. A server must know where it is; a client learns it from its server."""

    name, number = "dealer", 0
    who = "from the dealer to the two parties"
    promise = "Privacy rests on the dealer being run by neither the server's operator nor the client's."
    abilities = DealtRandomness.abilities
    has_third_party = True
    masks_weights = True
    computes_ahead = True
    checked_when_taken = False  # what damaged corrections make wrong reveals nothing: checked as they are read

    def __init__(self, address: Address | None = None) -> None:
        self.third_party = address

    def at(self, address: Address | None) -> Source:
        return DealerSource(address)

    def stored_bytes(self, party: int, correlations: Sequence[Correlation]) -> int:
        return dealt_bytes(party, correlations)

    def open(self, bundle: Bundle, weights: Mapping[str, Weight]) -> DealtRandomness:
        return DealtRandomness(bundle, weights)

    def offline_bytes(self, plan: Plan, count: int = 1) -> int:
        return count * plan.correction_bytes

    def offline_traffic(self, correlations: Sequence[Correlation], count: int = 1) -> Traffic:
        return Traffic(0, count * sum(dealt_bytes(party, correlations) for party in (CLIENT, SERVER)), 1)

    def supplier(self, desk: ClientDesk) -> Supplier:
        return _Supplier(desk)

    def provider(self, desk: ServerDesk) -> Provider:
        if self.third_party is None:
            raise ConfigurationError("a server whose randomness comes from a dealer needs the dealer's address")
        return _Provider(desk, self.third_party)


class _Supplier(Supplier):
    def __init__(self, desk: ClientDesk) -> None:
        self._desk = desk
        self._under_way: set[Channel] = set()
        self._closed = False

    def prepare(self, order: Order, store: BundleStore) -> None:
        ended = self._desk.ask(order)
        address = self._desk.third_party
        if address is None:
            raise PeerError("the server does not say where its dealer is")
        channel = self._desk.dial(address)
        self._under_way.add(channel)
        try:
            if self._closed:
                raise PeerClosed("this client is closed")
            spent = order.plan.correction_bytes + 2 * SEED_BYTES
            sink = partial(store.add, order.bundle_id, order.plan.digest, spent=spent)
            waiting = partial(self._waiting, _Absence(ended), dealt_bytes(SERVER, order.plan.correlations))
            fetch_bundle(channel, CLIENT, order.bundle_id, order.plan.correlations, sink, waiting=waiting)
        finally:
            channel.close()
            self._under_way.discard(channel)

    def _waiting(self, absence: _Absence, total: int, sign: Wait) -> None:
        """Until the dealer begins, nobody can say how far it is. A server that is gone will not come there."""
        if self._closed:
            raise PeerClosed("this client is closed")
        if absence.lasts(sign):
            raise PeerClosed("the server has ended the connection and did not go to the dealer")
        if self._desk.progress is not None:
            self._desk.progress(min(sign.dealt, total), total if sign.dealt > 0 else 0)

    def close(self) -> None:
        self._closed = True
        for channel in tuple(self._under_way):
            channel.close()


class _Absence:
    """Of a server that was asked for a bundle, from the dealer: it has ended the connection, and does not come.

    A busy server ends idle connections to make room, and goes to the dealer all the same. So the dealer must have
    missed it several times, a second apart.
    """

    def __init__(self, ended: Callable[[], bool]) -> None:
        self._ended, self._times = ended, 0

    def lasts(self, sign: Wait) -> bool:
        self._times = self._times + 1 if sign.alone and self._ended() else 0
        return self._times >= _MISSED


class _Provider(Provider):
    lag_seconds = 1.0  # the dealer tells the client first
    computes = False

    def __init__(self, desk: ServerDesk, address: Address) -> None:
        self._desk, self._address = desk, address
        self._fetches: list[threading.Thread] = []
        self._under_way: set[Channel] = set()

    @property
    def slots(self) -> int:
        return self._desk.limits.fetches

    def masked_weights(self) -> Iterator[memoryview]:
        """D = W - B, one tensor at a time."""
        for name in self._desk.masked:
            yield mask_weight(self._desk.secret, self._desk.weights[name]).reshape(-1).view("u1").data

    def prepare(self, order: Order, store: BundleStore, visitor: Visitor) -> None:
        """In the background: the client goes to the dealer meanwhile, and this connection serves other requests."""
        with contextlib.ExitStack() as held:  # given back if the client is gone before it could be told
            held.enter_context(visitor.slot())
            channel = held.enter_context(self._reach())
            visitor.accept()
            held = held.pop_all()
        arguments = (channel, order, store, visitor, held)
        thread = threading.Thread(target=self._fetch, args=arguments, name="fetch", daemon=True)
        self._fetches = [other for other in self._fetches if other.is_alive()] + [thread]
        thread.start()

    def _fetch(
        self, channel: Channel, order: Order, store: BundleStore, visitor: Visitor, held: contextlib.ExitStack
    ) -> None:
        start = time.monotonic()
        self._under_way.add(channel)
        with held:
            try:
                fetch_bundle(
                    channel,
                    SERVER,
                    order.bundle_id,
                    order.plan.correlations,
                    lambda seed: store.add(order.bundle_id, order.plan.digest, seed, owner=order.owner),
                    key=self._desk.secret,
                    patience=self._desk.limits.preparation_seconds,
                )
            except Exception as error:
                visitor.failed(order, error)
            else:
                visitor.prepared(order, dealt_bytes(SERVER, order.plan.correlations), time.monotonic() - start)
            finally:
                self._under_way.discard(channel)

    def abandon(self) -> None:
        for channel in tuple(self._under_way):
            channel.close()

    def settle(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for thread in self._fetches:
            thread.join(max(0.0, until - time.monotonic()))

    def await_third_party(self) -> None:
        retry(self._reach, CometError, pause=_RETRY_SECONDS).close()
        _log.info("the dealer can be reached")

    def third_party_answers(self) -> bool:
        try:
            self._reach().close()
        except CometError:
            return False
        return True

    def _reach(self) -> Channel:
        """A connection to the dealer, or an error that says that it cannot be had."""
        limits = self._desk.limits
        try:
            return connect(
                *self._address,
                self._desk.identity.client_context(),
                limits.stall_seconds,
                limits.dealer_seconds,
                connect_timeout=limits.dealer_seconds,
                whom="dealer",
            )
        except CometError as error:
            fields = {"dealer": "{}:{}".format(*self._address), "error": type(error).__name__}
            _log.warning("the dealer cannot be reached: waiting for it", extra={"fields": fields})
            raise PeerClosed(f"the server cannot reach its dealer: {error}") from error
