"""A service whose processes all run on this machine, for trials. It is no deployment: all roles have one operator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from comet_mpc.engine.party import SourceName
from comet_mpc.lab.processes import LOOPBACK, Crew, Link
from comet_mpc.models.served import ServedModel
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.offline.sources import DealerSource, PairSource
from comet_mpc.service.deployment import ServiceLimits
from comet_mpc.service.server import Server

__all__ = ["local_service"]


@contextlib.contextmanager
def local_service(
    model: ServedModel, source: SourceName, *, batch: int = 4, workers: int = 2
) -> Iterator[tuple[str, Path, Path]]:
    """A server, and a dealer if that is the source, in processes of their own.

    Gives (the server's address, the directory of keys, a directory for a cache). Without a dealer, a client that
    prepares randomness occupies two workers.
    """
    deals = source == "dealer"
    with Crew(dealer=deals, method="fork") as crew:
        dealer = crew.dealer_address if deals else None
        limits = ServiceLimits(batch=batch)
        server = crew.start("server", _serve, model, dealer, crew.keys, crew.directory / "state", workers, limits)
        ((host, port),) = crew.notes([server])
        yield f"{host}:{port}", crew.keys, crew.directory


def _serve(
    link: Link,
    model: ServedModel,
    dealer: tuple[str, int] | None,
    keys: Path,
    state: Path,
    workers: int,
    limits: ServiceLimits,
) -> None:
    source = PairSource() if dealer is None else DealerSource(dealer)
    server = Server(
        model, (LOOPBACK, 0), source, TlsIdentity.find(keys, "server"), state, workers=workers, limits=limits
    )
    server.serve_forever(lambda: link.tell(server.address))
