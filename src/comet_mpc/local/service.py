"""A service whose processes all run on this machine, for trials. It is no deployment: all roles have one operator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from comet_mpc.engine.costs import Network
from comet_mpc.local.processes import LOOPBACK, Crew, Link
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.offline.source import Source
from comet_mpc.service.deployment import Served, ServiceLimits
from comet_mpc.service.hosting.server import Server

ON_THIS_MACHINE = Network.parse("10gbit/0.1ms")
"""What a model that is served so may be planned for: a loopback device is fast."""
_WORKERS = 2
"""Without a dealer, a client that prepares randomness occupies both."""


@contextlib.contextmanager
def local_service(
    model: Served, source: Source, *, batch: int = 4, limits: ServiceLimits | None = None
) -> Iterator[tuple[str, Path, Path]]:
    """A server, and a dealer if the source has a third party, in processes of their own.

    Gives (the server's address, the directory of keys, a directory for a cache).
    """
    with Crew(dealer=source.has_third_party, method="fork") as crew:
        limits = limits or ServiceLimits(batch=batch)
        server = crew.start(
            "server", _serve, model, source.at(crew.dealer_address), crew.keys, crew.directory / "state", limits
        )
        ((host, port),) = crew.notes([server])
        yield f"{host}:{port}", crew.keys, crew.directory


def _serve(link: Link, model: Served, source: Source, keys: Path, state: Path, limits: ServiceLimits) -> None:
    identity = TlsIdentity.find(keys, "server")
    server = Server(model, (LOOPBACK, 0), source, identity, state, workers=_WORKERS, limits=limits)
    server.serve_forever(lambda: link.tell(server.address))
