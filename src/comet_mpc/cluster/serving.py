"""`comet serve --cluster`: one address, behind which the nodes of a Ray cluster serve."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from comet_mpc.cluster import ray_cluster
from comet_mpc.cluster.fleet import Fleet, FleetLimits
from comet_mpc.cluster.relay import Relay
from comet_mpc.cluster.scaling import Scale
from comet_mpc.net.metrics import MetricsEndpoint
from comet_mpc.net.sockets import Address
from comet_mpc.service.hosting.blueprint import Blueprint

_log = logging.getLogger(__name__)


@dataclass
class ClusterServer:
    """Serves until SIGTERM or SIGINT; after SIGHUP all nodes load their checkpoints again.

    cluster    of Ray: see `ray_cluster.connected`
    blueprint  of the server on every node. Its files must be on every node, at the same paths
    state      directory of every node for its secret and its bundles. Never copy it
    """

    cluster: str
    blueprint: Blueprint
    listen: Address
    state: Path
    scale: Scale
    metrics: Address | None = None
    limits: FleetLimits | None = None

    def serve_forever(self, started: Callable[[Address, Address | None], None]) -> int:
        """Returns the signal that ended it. started: is told where clients and metrics are answered, once they are."""
        self.blueprint.identity().server_context(self.blueprint.require_client)  # what is wrong here is wrong there
        with ray_cluster.connected(self.cluster):
            return asyncio.run(self._serve(started))

    async def _serve(self, started: Callable[[Address, Address | None], None]) -> int:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        ended_by = 0

        def stop(number: int) -> None:
            nonlocal ended_by
            ended_by = number
            stopping.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        fleet = Fleet(self.blueprint, self.state, self.scale, self.limits)
        relay = Relay(fleet.choose)
        tasks: set[asyncio.Task[None]] = set()
        loop.add_signal_handler(signal.SIGHUP, lambda: tasks.add(asyncio.create_task(fleet.reload())))
        endpoint = self._endpoint(fleet, relay)
        try:
            opening = asyncio.create_task(fleet.open())
            await asyncio.wait({opening, asyncio.create_task(stopping.wait())}, return_when=asyncio.FIRST_COMPLETED)
            if not stopping.is_set():
                await opening
                await relay.open(*self.listen)
                watch = asyncio.create_task(fleet.watch())
                fields = {"address": "{}:{}".format(*relay.address), "nodes": len(fleet.running())}
                _log.info("serving on a cluster", extra={"fields": fields})
                started(relay.address, endpoint.address if endpoint is not None else None)
                await stopping.wait()
                watch.cancel()
        finally:
            relay.close()
            await fleet.close()
            if endpoint is not None:
                endpoint.close()
            _log.info("stopped")
        return ended_by

    def _endpoint(self, fleet: Fleet, relay: Relay) -> MetricsEndpoint | None:
        if self.metrics is None:
            return None
        pages = {
            "/metrics": lambda: (200, _figures(fleet, relay)),
            "/healthz": lambda: (200, "ok\n"),
            "/readyz": lambda: (200, "ok\n") if fleet.running() else (503, "no node serves\n"),
        }
        endpoint = MetricsEndpoint(*self.metrics, pages)
        endpoint.start()
        return endpoint


def _figures(fleet: Fleet, relay: Relay) -> str:
    """For Prometheus. The nodes have the counters of what they did; here is what is so on each."""
    lines = ["# TYPE comet_nodes gauge", f"comet_nodes {len(fleet.running())}"]
    lines += ["# TYPE comet_relayed_bytes_total counter", f"comet_relayed_bytes_total {relay.passed_bytes}"]
    for name in ("waiting", "working", "slots", "sessions", "bundles"):
        lines.append(f"# TYPE comet_node_{name} gauge")
        with contextlib.suppress(RuntimeError):  # a node came or went meanwhile
            lines += [f'comet_node_{name}{{node="{one.name}"}} {getattr(one.load, name)}' for one in fleet.running()]
    return "\n".join(lines) + "\n"
