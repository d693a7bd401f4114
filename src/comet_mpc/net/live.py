"""Certificates that follow their files while a party listens: what is renewed or revoked counts without a restart."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from comet_mpc.errors import ConfigurationError, NotAuthenticated
from comet_mpc.files import atomic_write
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.revocation import RevocationList

_log = logging.getLogger(__name__)

REVOKED = "your certificate is revoked"
"""What its holder is told."""
_LOOK_SECONDS = 1.0


class LiveContext:
    """A listener's TLS context that follows its files.

    Files that cannot be used are logged, once, and what was read before them stays. So does a list of revoked
    certificates when an older one takes its place, or none: it counts until the authority writes a newer one. Where the
    identity says so, the newest list is kept, and a restart does not forget it. Several threads may use it.
    """

    def __init__(self, identity: TlsIdentity, *, require_client: bool) -> None:
        self._identity, self._require_client = identity, require_client
        self._files = (identity.certificate, identity.key, identity.authority, identity.revocations)
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._seen = self._stamps()
        self._list: RevocationList | None = None
        self.version = 0
        """Grows whenever something new counts."""
        self._read()

    @property
    def revoked(self) -> frozenset[int]:
        """Serial numbers of the certificates that count no more, as far as was last looked."""
        return frozenset() if self._list is None else self._list.serials

    def check(self, serial: int | None) -> None:
        """Looks at the files, and raises `NotAuthenticated` if the certificate with this number is revoked."""
        self.look(at_once=True)
        if serial in self.revoked:
            raise NotAuthenticated(REVOKED)

    def look(self, *, at_once: bool = False) -> None:
        """Looks at the files, once a second at most unless it is to be at once."""
        with self._lock:
            now = time.monotonic()
            if not at_once and now - self._looked < _LOOK_SECONDS:
                return
            self._looked = now
            stamps = self._stamps()
            if stamps == self._seen:
                return
            self._seen = stamps
            try:
                self._read()
            except ConfigurationError as error:
                fields = {"reason": str(error)}
                _log.error("new certificates cannot be used: those from before stay", extra={"fields": fields})
            else:
                _log.info("read the certificates again", extra={"fields": {"revoked": len(self.revoked)}})

    def _read(self) -> None:
        """All files, or none of them."""
        context = self._identity.server_context(self._require_client, self._list)
        newest = self._identity.revocation_list(self._list)
        self.current, self._list = context, newest
        self.version += 1
        if newest is not None:
            self._compare(newest)
            self._keep(newest)

    def _compare(self, newest: RevocationList) -> None:
        beside = RevocationList.read(self._identity.revocations)
        if beside is None:
            _complain("the list of revoked certificates is gone: the last one stays in force", newest, None)
        elif beside.rank < newest.rank:
            _complain("the list of revoked certificates is an older one: the newer one stays in force", newest, beside)
        elif beside.serials != newest.serials:
            _complain("two lists of revoked certificates have one number: the first one stays", newest, beside)

    def _keep(self, newest: RevocationList) -> None:
        kept = self._identity.kept_list
        if kept is None:
            return
        try:
            if not kept.exists() or kept.read_bytes() != newest.pem:
                with atomic_write(kept, mode=0o600, durable=True) as file:
                    file.write(newest.pem)
        except (OSError, ConfigurationError) as error:
            fields = {"reason": str(error)}
            _log.error("a restart may forget who is revoked: the list cannot be kept", extra={"fields": fields})

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in self._files)


def _complain(event: str, newest: RevocationList, found: RevocationList | None) -> None:
    fields = {"in_force": newest.number, "found": None if found is None else found.number}
    _log.error(event + "; copy revoked.pem from the authority again", extra={"fields": fields})


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ctime_ns, status.st_ino, status.st_size  # a copy may bring its own time of modification
