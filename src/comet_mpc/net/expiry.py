"""When a party's certificates expire, as its operator sees it: of the files as they are now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from comet_mpc.errors import ConfigurationError
from comet_mpc.net.identity import TlsIdentity, read_certificate
from comet_mpc.net.metrics import Gauge
from comet_mpc.net.revocation import RevocationList


def expiry_gauges(identity: TlsIdentity) -> Iterator[Gauge]:
    """What cannot be read is left out: the log says why."""
    files = {"own": identity.certificate, "authority": identity.authority}
    ends = [({"certificate": name}, end) for name, path in files.items() if (end := _ends(path)) is not None]
    meaning = "When the certificates in this party's directory of keys expire, in seconds since 1970."
    yield Gauge("certificate_expiry_timestamp_seconds", meaning, ends)
    listed = _listed(identity)
    found = [] if listed is None else [listed]
    meaning = "When the authority wrote the list of revoked certificates, in seconds since 1970."
    yield Gauge("revocation_list_timestamp_seconds", meaning, [({}, one.written.timestamp()) for one in found])
    yield Gauge("certificates_revoked", "Certificates on that list.", [({}, len(one.serials)) for one in found])


def _ends(path: Path) -> float | None:
    try:
        return read_certificate(path).not_valid_after_utc.timestamp()
    except ConfigurationError:
        return None


def _listed(identity: TlsIdentity) -> RevocationList | None:
    try:
        return RevocationList.read(identity.revocations)
    except ConfigurationError:
        return None
