"""How many texts a client may have classified in a day: a count for each certificate that survives restarts.

Every answer tells something about the weights, so an operator may want to ration them. A day is one of UTC. The count
is on disk before the server begins to answer: a crash may cost a client a query and never gives it one.

    <state>/queries/<SHA-256 of the name>.json    the name, the day, and the texts of that day
    <state>/queries/lock                          held while a count is changed, by any worker
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from comet_mpc.errors import ConfigurationError, QuotaExceeded
from comet_mpc.files import atomic_write
from comet_mpc.net.channel import UNREADABLE

_DAY = 86_400


class _Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    client: str
    day: int
    """Days since 1970-01-01, UTC."""
    texts: int


class Quota:
    """At most `limit` texts for a name and day; 0: no limit, and nothing is written. Workers share the directory.

    tokens: they are counted instead, of texts that are written
    """

    def __init__(
        self, directory: Path, limit: int, now: Callable[[], float] = time.time, *, tokens: bool = False
    ) -> None:
        self._verb, self._what = ("writes", "tokens") if tokens else ("classifies", "texts")
        if limit < 0:
            raise ConfigurationError(f"the queries of a day cannot be negative, got {limit}")
        self._directory, self._limit, self._now = directory, limit, now
        if limit:
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigurationError(f"cannot count queries in {directory}: {error.strerror}") from error

    def check(self, name: str, texts: int) -> None:
        """Raises QuotaExceeded if `charge` would. Counts nothing."""
        if self._limit:
            self._counted(name, texts)

    def charge(self, name: str, texts: int) -> None:
        """Counts texts that are about to be classified, durably; or raises QuotaExceeded and counts nothing."""
        if not self._limit:
            return
        with self._locked():
            count = self._counted(name, texts)
            with atomic_write(self._path(name), mode=0o600, durable=True) as file:
                file.write(msgspec.json.encode(count))

    def _counted(self, name: str, texts: int) -> _Count:
        """The count with these texts, if there is room for them."""
        today = int(self._now() // _DAY)
        found = self._read(name)
        if found is None or found.day < today:  # a clock that was put back does not begin a new day
            found = _Count(name, today, 0)
        if found.texts + texts > self._limit:
            again = datetime.fromtimestamp((found.day + 1) * _DAY, UTC)
            left = self._limit - found.texts
            raise QuotaExceeded(
                f"this server {self._verb} {self._limit} {self._what} a day for a client, and {left} of them are left: "
                f"ask again at {again:%Y-%m-%d %H:%M} UTC" + (f", or send fewer {self._what} at a time" if left else "")
            )
        return _Count(name, found.day, found.texts + texts)

    def _read(self, name: str) -> _Count | None:
        path = self._path(name)
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Count)
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:  # not to be taken for a new client
            raise ConfigurationError("this server cannot read its count of queries: ask its operator") from error

    def _path(self, name: str) -> Path:
        return self._directory / f"{hashlib.sha256(name.encode()).hexdigest()}.json"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o600), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
