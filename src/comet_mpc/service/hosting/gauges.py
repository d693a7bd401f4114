"""What a server measures when its operator asks: what waits, what is being done, and the bundles in its stores.

Labels have few values: kinds of requests, models, sizes that were planned, and of the owners of bundles the largest.
An owner goes by a pseudonym (`Deployment.pseudonym`): who may see the metrics need not know who the clients are.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator

from comet_mpc import __version__
from comet_mpc.net.metrics import Counters, Gauge
from comet_mpc.service.catalogue import Catalogue
from comet_mpc.service.hosting.turns import KINDS

_OWNERS = 10
"""Those that have most are told apart, the others together are `others`."""
_STARTED = time.time()


def waiting(counters: Counters) -> dict[str, int]:
    """Connections that wait for a process, and requests that wait for a slot."""
    return {kind: int(counters.total(f"waiting {kind}")) for kind in ("connection", *KINDS)}


def working(counters: Counters) -> dict[str, int]:
    """Requests that have a slot and use it."""
    return {kind: int(counters.total(f"working {kind}")) for kind in KINDS}


def server_gauges(offer: Catalogue, workers: int) -> Iterator[Gauge]:
    counters = offer.counters
    labels = {"version": __version__, "source": offer.source.name}
    yield Gauge("info", "Version, and where the randomness comes from. Always 1.", [(labels, 1.0)])
    yield Gauge.single("start_timestamp_seconds", "When the server started, in seconds since 1970.", _STARTED)
    queue = [({"kind": kind}, float(count)) for kind, count in waiting(counters).items()]
    yield Gauge("waiting", "Connections that wait for a process, and requests that wait for a slot.", queue)
    busy = [({"kind": kind}, float(count)) for kind, count in working(counters).items()]
    yield Gauge("working", "Slots in use. Downloads need none of the workers.", busy)
    yield Gauge.single("workers", "Concurrent requests that the server takes on.", workers)
    yield Gauge.single("clients", "Certificates that have a connection now.", counters.total("clients"))
    yield Gauge.single("models", "Models that are served.", len(offer.models))
    free = shutil.disk_usage(offer.first.store.directory).free
    yield Gauge.single("state_free_bytes", "Free disk where the bundles are.", free)
    yield from _bundles(offer)


def _bundles(offer: Catalogue) -> Iterator[Gauge]:
    by_size: Counter[tuple[str, str, str]] = Counter()
    bytes_by_size: Counter[tuple[str, str, str]] = Counter()
    by_owner: Counter[str] = Counter()
    bytes_by_owner: Counter[str] = Counter()
    names = {id(one): name for kept in (offer.before, offer.models) for name, one in kept.items()}
    for deployment in offer.all():
        sizes = deployment.programs.sizes()
        for one in deployment.store.kept():
            batch, bucket = map(str, sizes.get(one.digest, ("other", "other")))
            size = names[id(deployment)], batch, bucket
            by_size[size] += 1
            bytes_by_size[size] += one.size
            owner = deployment.pseudonym(one.owner)
            by_owner[owner] += 1
            bytes_by_owner[owner] += one.size
    yield Gauge.single("bundles_ready", "Prepared bundles on disk.", by_size.total())
    yield _sized("bundles", "Prepared bundles by model and size.", by_size)
    yield _sized("bundle_bytes", "Their bytes on disk.", bytes_by_size)
    yield Gauge.single("bundle_owners", "Clients that have prepared bundles here.", len(by_owner))
    largest = [name for name, _ in bytes_by_owner.most_common(_OWNERS)]
    yield _owned("owner_bundles", "Prepared bundles by owner: those with most bytes, by pseudonym.", by_owner, largest)
    yield _owned("owner_bundle_bytes", "Their bytes on disk.", bytes_by_owner, largest)


def _sized(name: str, meaning: str, found: Counter[tuple[str, str, str]]) -> Gauge:
    samples = []
    for (model, batch, bucket), amount in sorted(found.items()):
        samples.append(({"model": model, "batch": batch, "bucket": bucket}, float(amount)))
    return Gauge(name, meaning, samples)


def _owned(name: str, meaning: str, found: Counter[str], largest: list[str]) -> Gauge:
    samples = [({"owner": owner}, float(found[owner])) for owner in largest]
    if rest := found.total() - sum(found[owner] for owner in largest):
        samples.append(({"owner": "others"}, float(rest)))
    return Gauge(name, meaning, samples)
