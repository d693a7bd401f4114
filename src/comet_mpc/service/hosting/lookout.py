"""The lookout: a process that answers for the server by HTTP, and tells whether its dealer can be reached.

Beside the pages of `net.metrics` there is /load: how busy the server is and which states it has, in JSON, for whoever
sends clients to several servers.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import msgspec

from comet_mpc.errors import CometError
from comet_mpc.net.expiry import expiry_gauges
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.metrics import Gauge, MetricsEndpoint, pages
from comet_mpc.service.catalogue import Catalogue
from comet_mpc.service.hosting.gauges import server_gauges, waiting, working

_LOOK_SECONDS = 10.0


class Load(msgspec.Struct, frozen=True):
    """How busy a server is. A client belongs to the server that has the state that it was set up with."""

    waiting: int = 0
    """Requests and connections that wait for a slot."""
    working: int = 0
    slots: int = 0
    sessions: int = 0
    bundles: int = 0
    states: tuple[str, ...] = ()


class Lookout:
    """Binds its address when it is made; `run` in a process of its own."""

    def __init__(
        self, offer: Catalogue, identity: TlsIdentity, address: tuple[str, int] | None, *, desk_row: int, workers: int
    ) -> None:
        self.offer, self._identity, self._workers = offer, identity, workers
        answered = pages(offer.counters, desk_row, self._gauges, self._troubles) | {"/load": self._load}
        self._endpoint = MetricsEndpoint(*address, answered) if address is not None else None
        self._third_party = not offer.source.has_third_party

    @property
    def address(self) -> tuple[str, int] | None:
        return self._endpoint.address if self._endpoint is not None else None

    @property
    def needed(self) -> bool:
        return self._endpoint is not None or self.offer.source.has_third_party

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._endpoint is None:
            self._watch_third_party()
            return
        threading.Thread(target=self._watch_third_party, name="third party", daemon=True).start()
        self._endpoint.serve_forever()

    def close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()

    def _watch_third_party(self) -> None:
        provider = self.offer.first.provider
        if not self.offer.source.has_third_party:
            return
        while True:
            provider.await_third_party()
            self._third_party = True
            while provider.third_party_answers():
                time.sleep(_LOOK_SECONDS)
            self._third_party = False

    def _bundles(self) -> int:
        return sum(one.store.count() for one in self.offer.all())

    def _gauges(self) -> Iterator[Gauge]:
        yield from server_gauges(self.offer, self._workers)
        yield from expiry_gauges(self._identity)

    def _load(self) -> tuple[int, str]:
        counters = self.offer.counters
        load = Load(
            waiting=sum(waiting(counters).values()),
            working=sum(count for kind, count in working(counters).items() if kind != "download"),
            slots=self._workers,
            sessions=counters.active,
            bundles=self._bundles(),
            states=tuple(one.welcome.state for one in self.offer.all()),
        )
        return 200, msgspec.json.encode(load).decode()

    def _troubles(self) -> Iterator[str]:
        if not self._third_party:
            yield "the dealer cannot be reached"
        try:
            self.offer.first.store.check_disk()
        except CometError as error:
            yield str(error)
