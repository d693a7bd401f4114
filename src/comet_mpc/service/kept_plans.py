"""Plans on disk: whoever needs one first makes it, everybody after that loads it.

    <home>/plans-<key, shortened>/<batch>x<bucket>      a checksum of key, size and plan; then the plan

The key names all that a plan follows from: the model, the source of randomness, the network, and the code that plans.
So a plan that an older version has made, or one of another model, is never found. A file that is damaged is made anew.
What cannot be written is not kept, and nothing else comes of it.

The directory belongs to the party that plans, as its randomness does. Nobody takes a plan from the other party.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import msgspec
import numpy as np

import comet_mpc
from comet_mpc import _native
from comet_mpc.engine.plan import Plan, decode_plan, encode_plan
from comet_mpc.errors import ConfigurationError
from comet_mpc.files import atomic_write
from comet_mpc.models.writing.packages import Model
from comet_mpc.offline.shelf import forget_unused
from comet_mpc.offline.source import Source

_log = logging.getLogger(__name__)

_UNUSED_SECONDS = 30 * 86_400.0
_USED_SECONDS = 3600.0
"""So often it is noted that plans are in use."""
_SUM_BYTES = hashlib.sha256().digest_size


@cache
def code_digest() -> bytes:
    """Names the code that plans: every module of this package, Python's and numpy's version. Takes 10 ms, once."""
    digest = hashlib.sha256(f"{sys.version} {np.__version__}".encode())
    home = Path(comet_mpc.__file__).parent
    for path in [*sorted(home.rglob("*.py")), Path(_native.__file__)]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.digest()


class KeptPlans:
    """Of one model, by batch and bucket. Several processes and threads may share them."""

    def __init__(self, home: Path, model: Model, source: Source) -> None:
        """home: the server's state, or the directory of the model in a client's cache."""
        key = hashlib.sha256(code_digest() + source.name.encode() + b" " + model.planned_from())
        self._key = key.digest()
        self.directory = home / f"plans-{key.hexdigest()[:32]}"
        self._noted = -_USED_SECONDS
        self.note_use()
        forget_unused(home, "plans-*", _UNUSED_SECONDS)

    def find(self, batch: int, bucket: int) -> Plan | None:
        """The plan that was kept; None if there is none, or if it is damaged."""
        path = self._path(batch, bucket)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        data = content[_SUM_BYTES:]
        try:
            if content[:_SUM_BYTES] == self._sum(path.name, data):
                return decode_plan(data)
        except msgspec.MsgspecError:
            pass
        _log.warning("a kept plan is damaged: it is made anew", extra={"fields": {"file": str(path)}})
        return None

    def sizes(self) -> list[tuple[int, int]]:
        """Batch and bucket of all that are kept."""
        found = (re.fullmatch(r"(\d+)x(\d+)", path.name) for path in self.directory.glob("[0-9]*"))
        return [(int(name[1]), int(name[2])) for name in found if name]

    def make(self, batch: int, bucket: int, plan: Callable[[int, int], Plan]) -> Plan:
        """The plan that was kept, or else a new one: of all who ask at a time, one makes it and the others wait."""
        path = self._path(batch, bucket)
        with self._alone(path):
            found = self.find(batch, bucket)
            if found is not None:
                return found
            made = plan(batch, bucket)
            data = encode_plan(made)
            try:
                with atomic_write(path, mode=0o600) as file:
                    file.write(self._sum(path.name, data) + data)
            except ConfigurationError as error:
                _log.warning("a plan cannot be kept", extra={"fields": {"reason": str(error)}})
            return made

    def note_use(self) -> None:
        """To be called whenever a plan is used, from disk or memory: what nobody used for long is removed."""
        now = time.monotonic()
        if now - self._noted >= _USED_SECONDS:
            self._noted = now
            with contextlib.suppress(OSError):  # there are none yet
                os.utime(self.directory)

    def _path(self, batch: int, bucket: int) -> Path:
        return self.directory / f"{batch}x{bucket}"

    def _sum(self, size: str, data: bytes) -> bytes:
        return hashlib.sha256(self._key + size.encode() + b" " + data).digest()

    @contextlib.contextmanager
    def _alone(self, path: Path) -> Iterator[None]:
        """Nobody else makes this plan meanwhile; unless the disk does not let anybody, when each makes its own."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError):
                self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                held.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
