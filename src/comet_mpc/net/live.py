"""Certificates that follow their files while a party listens: what is renewed or revoked counts without a restart."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from comet_mpc.errors import ConfigurationError, NotAuthenticated, ServerBusy
from comet_mpc.files import atomic_write
from comet_mpc.net.identity import Authority, TlsIdentity
from comet_mpc.net.revocation import RevocationList, UnreadableList

_log = logging.getLogger(__name__)

REVOKED = "your certificate is revoked"
"""What its holder is told."""
UNREADABLE = "the list of revoked certificates cannot be read at the moment; try again later"
"""What everybody is told whose certificate may be on it."""
_LOOK_SECONDS = 1.0


class LiveContext:
    """A listener's TLS context that follows its files.

    Files that cannot be used are logged, once, and tried again whenever it looks; what was read before them stays. The
    list of revoked certificates counts whatever becomes of the others. An older list, or none, does not replace it: it
    counts until the authority writes a newer one. Where the identity says so, the newest list is kept, and a restart
    does not forget it. The authority is the one of the start: whoever replaces its file decides nothing before a
    restart. Several threads may use it.
    """

    def __init__(self, identity: TlsIdentity, *, require_client: bool) -> None:
        self._identity, self._require_client = identity, require_client
        self._authority = Authority.read(identity.authority)
        self._files = (identity.certificate, identity.key, identity.authority, identity.revocations)
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._seen = self._tried = self._stamps()
        self._told: set[str] = set()
        self._list: RevocationList | None = None
        self._unreadable = False
        self._loaded: object = None
        self.version = 0
        """Grows whenever something new counts."""
        self._read_list()
        self._read_rest()

    @property
    def revoked(self) -> frozenset[int]:
        """Serial numbers of the certificates that count no more, as far as was last looked."""
        return frozenset() if self._list is None else self._list.serials

    def check(self, serial: int | None) -> None:
        """Looks at the files, and raises `NotAuthenticated` if the certificate with this number is revoked.

        `ServerBusy` if there is a new list that cannot be read: this certificate may be on it.
        """
        self.look(at_once=True)
        objection = self.objection(serial)
        if objection is not None:
            raise objection

    def objection(self, serial: int | None) -> NotAuthenticated | ServerBusy | None:
        """What `check` would raise, as far as was last looked."""
        if serial in self.revoked:
            return NotAuthenticated(REVOKED)
        return ServerBusy(UNREADABLE) if self._unreadable and serial is not None else None

    def look(self, *, at_once: bool = False) -> None:
        """Looks at the files, once a second at most unless it is to be at once."""
        with self._lock:
            now = time.monotonic()
            if not at_once and now - self._looked < _LOOK_SECONDS:
                return
            self._looked = now
            stamps = self._stamps()
            if stamps == self._seen:
                self._unreadable = False  # a list that could not be read may be gone again
                return
            if stamps != self._tried:
                self._tried, self._told = stamps, set()
            listed = self._usable(self._read_list, "a new list of revoked certificates cannot be used")
            if self._usable(self._read_rest, "new certificates cannot be used: those from before stay") and listed:
                self._seen = stamps
                _log.info("read the certificates again", extra={"fields": {"revoked": len(self.revoked)}})

    def _usable(self, read: Callable[[], None], otherwise: str) -> bool:
        try:
            read()
        except (OSError, ConfigurationError) as error:
            self._complain(otherwise, {"reason": str(error)})
            return False
        return True

    def _read_list(self) -> None:
        before = self._list
        try:
            newest = self._identity.revocation_list(self._authority, before)
        except ConfigurationError as error:
            self._unreadable = isinstance(error, UnreadableList)
            raise
        self._unreadable = False
        if newest is None:
            return
        self._list = newest
        self.version += before is None or newest.pem != before.pem
        self._compare(newest)
        self._keep(newest)

    def _read_rest(self) -> None:
        wanted = self._tried, self._list
        if wanted == self._loaded:
            return
        self.current = self._identity.server_context(self._require_client, self._authority, self._list)
        self._loaded = wanted
        self.version += 1
        if Authority.read(self._identity.authority).pem != self._authority.pem:
            self._complain("authority.pem is another one: the one from before counts until a restart", {})

    def _compare(self, newest: RevocationList) -> None:
        beside = RevocationList.read(self._identity.revocations)
        event = None
        if beside is None:
            event = "the list of revoked certificates is gone: the last one stays in force"
        elif beside.rank < newest.rank:
            event = "the list of revoked certificates is an older one: the newer one stays in force"
        elif beside.serials != newest.serials:
            event = "two lists of revoked certificates have one number: the first one stays"
        if event is not None:
            fields = {"in_force": newest.number, "found": None if beside is None else beside.number}
            self._complain(event + "; copy revoked.pem from the authority again", fields)

    def _complain(self, event: str, fields: Mapping[str, object]) -> None:
        """Once for these files, however often they are tried."""
        if event not in self._told:
            self._told.add(event)
            _log.error(event, extra={"fields": fields})

    def _keep(self, newest: RevocationList) -> None:
        kept = self._identity.kept_list
        if kept is None:
            return
        try:
            if not kept.exists() or kept.read_bytes() != newest.pem:
                with atomic_write(kept, mode=0o600, durable=True) as file:
                    file.write(newest.pem)
        except (OSError, ConfigurationError) as error:
            self._complain("a restart may forget who is revoked: the list cannot be kept", {"reason": str(error)})

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in self._files)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ctime_ns, status.st_ino, status.st_size  # a copy may bring its own time of modification
