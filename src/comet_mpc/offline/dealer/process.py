"""The dealer as a process: until a signal ends it, with pages for its operator."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable

from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.metrics import MetricsEndpoint, pages
from comet_mpc.net.sockets import Address
from comet_mpc.offline.dealer.server import Dealer, DealerLimits

_log = logging.getLogger(__name__)


def run_dealer(
    host: str,
    port: int,
    identity: TlsIdentity,
    limits: DealerLimits | None = None,
    *,
    metrics: Address | None = None,
    started: Callable[[Address, Address | None], None] | None = None,
) -> int:
    """Runs a dealer in the main thread until SIGINT or SIGTERM; returns which of them it was.

    metrics  where to answer by HTTP: `net.metrics`
    started  is told where it listens, and where it answers by HTTP
    """
    ended_by = signal.SIGTERM

    def stop(number: int, _: object) -> None:
        nonlocal ended_by
        ended_by = signal.Signals(number)
        dealer.stop()

    with contextlib.ExitStack() as stack:
        dealer = stack.enter_context(Dealer(host, port, identity, limits))
        endpoint = None
        if metrics is not None:
            endpoint = MetricsEndpoint(*metrics, pages(dealer.counters, 0, dealer.gauges, dealer.troubles))
            stack.callback(endpoint.close)
            endpoint.start()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        _log.info("dealing", extra={"fields": {"address": "{}:{}".format(*dealer.address)}})
        if started is not None:
            started(dealer.address, endpoint.address if endpoint is not None else None)
        dealer.serve_forever()
    return ended_by
