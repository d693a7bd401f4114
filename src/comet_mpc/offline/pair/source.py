"""The source `pair`: the two parties prepare the randomness between themselves, and nobody else takes part."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from comet_mpc.engine import Weight
from comet_mpc.engine.correlations import AnyMask, Correlation
from comet_mpc.engine.plan import Plan
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import ConfigurationError, PeerClosed
from comet_mpc.net.channel import Channel, Traffic
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.pair.commit import prepare_stored
from comet_mpc.offline.pair.costs import preparation_parts, preparation_traffic
from comet_mpc.offline.pair.prepare import Preparer
from comet_mpc.offline.pair.shares import PairRandomness, stored_bytes
from comet_mpc.offline.pair.workbench import check_weight
from comet_mpc.offline.source import (
    MOST_TOGETHER,
    ClientDesk,
    Order,
    Provider,
    ServerDesk,
    Source,
    Supplier,
    Visitor,
)
from comet_mpc.offline.store import BundleStore
from comet_mpc.retry import retry

_MOST_TRIES = 3  # to get a connection on which the server begins
_ELEMENTS_TOGETHER = 1 << 23  # of masks: beyond it, there are no slots left to share, and all wait long for the first


class PairSource(Source):
    """Randomness by homomorphic encryption and oblivious transfer between client and server."""

    name, number = "pair", 1
    who = "between the two parties"
    promise = "There is no third party: privacy rests on the two parties alone."
    abilities = PairRandomness.abilities
    has_third_party = False
    masks_weights = False
    computes_ahead = False
    checked_when_taken = True  # it holds bits that hide what is sent

    def stored_bytes(self, party: int, correlations: Sequence[Correlation]) -> int:
        return stored_bytes(party, correlations)

    def open(self, bundle: Bundle, weights: Mapping[str, Weight]) -> PairRandomness:
        return PairRandomness(bundle)

    def offline_bytes(self, plan: Plan, count: int = 1) -> int:
        most, total = self.together(plan.correlations), 0
        for done in range(0, count, most):
            traffic = preparation_traffic(plan.correlations, first=not done, count=min(most, count - done))
            total += traffic.sent + traffic.received
        return total

    def offline_traffic(self, correlations: Sequence[Correlation], count: int = 1) -> Traffic:
        return preparation_traffic(correlations, count=count)

    def together(self, correlations: Sequence[Correlation]) -> int:
        masked = sum(entry.facts.elements for entry in correlations if isinstance(entry, AnyMask))
        return max(1, min(MOST_TOGETHER, _ELEMENTS_TOGETHER // max(1, masked)))

    def parts(self, correlations: Sequence[Correlation]) -> dict[str, Traffic]:
        return preparation_parts(correlations)

    def supplier(self, desk: ClientDesk) -> Supplier:
        return _Supplier(desk)

    def provider(self, desk: ServerDesk) -> Provider:
        return _Provider(desk)


class _Supplier(Supplier):
    """Keeps one connection, on which bundles of one program are prepared one after the other."""

    def __init__(self, desk: ClientDesk) -> None:
        self._desk = desk
        self._one_at_a_time = threading.Lock()
        self._kept: tuple[Channel, Preparer] | None = None
        self._closed = False

    def prepare(self, order: Order, store: BundleStore) -> None:
        with self._one_at_a_time:
            preparer = self._accepted(order)
            prepare_stored(preparer, order.bundle_ids, order.plan, store, self._desk.progress)

    def pause(self) -> None:
        if self._one_at_a_time.acquire(blocking=False):  # else another thread is preparing
            try:
                self._hang_up()
            finally:
                self._one_at_a_time.release()

    def close(self) -> None:
        self._closed = True
        if (kept := self._kept) is not None:
            kept[0].close()

    def _accepted(self, order: Order) -> Preparer:
        """A connection on which the server has begun to prepare: the last one if it fits, else a new one."""

        def once() -> Preparer:
            kept = self._kept
            if kept is None or kept[1].correlations != order.plan.correlations:
                kept = self._new(order.plan)
            channel, preparer = kept
            try:
                self._desk.ask(order, channel)
            except PeerClosed:
                self._hang_up()
                raise
            return preparer

        # the server ends idle connections to make room
        return retry(once, PeerClosed, tries=_MOST_TRIES, unless=lambda: self._closed)

    def _new(self, plan: Plan) -> tuple[Channel, Preparer]:
        self._hang_up()
        channel = self._desk.connect()
        self._kept = channel, Preparer(channel, CLIENT, plan.correlations)
        if self._closed:
            self._hang_up()
            raise PeerClosed("this client is closed")
        return self._kept

    def _hang_up(self) -> None:
        if self._kept is not None:
            self._kept[0].close()
        self._kept = None


class _Provider(Provider):
    """Every connection has its keys."""

    def __init__(self, desk: ServerDesk) -> None:
        for name in desk.masked:  # what is multiplied: now, and not in the middle of a preparation
            values = desk.weights[name].values
            if values is not None:
                check_weight(values)
        self._desk = desk
        self._preparers: WeakKeyDictionary[Channel, Preparer] = WeakKeyDictionary()

    @property
    def slots(self) -> int:
        return max(1, self._desk.limits.preparations)

    def prepare(self, order: Order, store: BundleStore, visitor: Visitor) -> None:
        """On the client's own connection. Once it is accepted, whatever fails just ends the connection."""
        correlations, channel = order.plan.correlations, visitor.channel
        preparer = self._preparers.get(channel)
        if preparer is None:
            preparer = self._preparers[channel] = Preparer(channel, SERVER, correlations, self._desk.weights)
        elif preparer.correlations != correlations:
            raise ConfigurationError("a connection prepares bundles of one size: connect again for another size")
        with visitor.slot(), visitor.reserved(self._desk.limits.preparation_seconds):
            channel.timeout = self._desk.limits.step_seconds
            visitor.accept()
            start = time.monotonic()
            traffic = prepare_stored(preparer, order.bundle_ids, order.plan, store, owner=order.owner)
        visitor.prepared(order, traffic.sent + traffic.received, time.monotonic() - start)
