"""The lookout: a process that answers for the server by HTTP, and tells whether its dealer can be reached.

/metrics    counters, for Prometheus
/healthz    200 while the front desk is alive, else 503: start the server again
/readyz     200 if a client that came now could be served, else 503 and the reasons
"""

from __future__ import annotations

import signal
import threading
import time

from comet_mpc.errors import CometError
from comet_mpc.service.catalogue import Catalogue
from comet_mpc.service.metrics import MetricsEndpoint

__all__ = ["Lookout"]

_ALIVE_SECONDS = 5.0
_LOOK_SECONDS = 10.0


class Lookout:
    """Binds its address when it is made; `run` in a process of its own."""

    def __init__(self, offer: Catalogue, address: tuple[str, int] | None, *, desk_row: int, workers: int) -> None:
        self.offer, self._desk_row, self._workers = offer, desk_row, workers
        pages = {"/metrics": self._metrics, "/healthz": self._healthy, "/readyz": self._ready}
        self._endpoint = MetricsEndpoint(*address, pages) if address is not None else None
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

    def _metrics(self) -> tuple[int, str]:
        ready = sum(one.store.count() for one in self.offer.all())
        return 200, self.offer.counters.text(bundles_ready=ready, models=len(self.offer.models), workers=self._workers)

    def _desk_answers(self) -> bool:
        return time.monotonic() - self.offer.counters.heartbeat(self._desk_row) < _ALIVE_SECONDS

    def _healthy(self) -> tuple[int, str]:
        return (200, "ok\n") if self._desk_answers() else (503, "the front desk does not answer\n")

    def _ready(self) -> tuple[int, str]:
        reasons = [] if self._desk_answers() else ["the front desk does not answer"]
        if not self._third_party:
            reasons.append("the dealer cannot be reached")
        try:
            self.offer.first.store.check_writable()
        except CometError as error:
            reasons.append(str(error))
        return (503, "\n".join(reasons) + "\n") if reasons else (200, "ok\n")
