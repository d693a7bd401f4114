"""Prepared bundles on disk, one directory per party. A bundle is consumed before it is used.

A mask that serves two openings reveals their difference. So `take` first removes the bundle's name from the
directory, durably, and only then hands out its seed and corrections, read from a file that has no name any more.
A crash at any instant loses at most the bundle; it can never bring one back.

What software cannot prevent is a copy: do not back up, snapshot or replicate this directory, and do not restore it.

    <bundle id>.bundle    a complete bundle: header, then what is not in the seed
    .writing-…            being written; nobody takes it
    .taken-…              consumed, about to be unlinked; nobody takes it

`take` verifies the header (`offline.header`) and the length. The rest is checked before any of it is used, if the
source asks for that (`BundleFormat`), or else while it is read: the last byte is handed out only if all of them are as
they were written, and no program reveals its result before it has drawn that byte. `verify` checks every byte at
leisure, and consumes nothing. A damaged bundle is dropped (`RandomnessDamaged`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import ConfigurationError, ForeignRandomness, RandomnessDamaged, RandomnessError, RandomnessSpent
from comet_mpc.files import sync
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.header import HEADER_BYTES, Header, owned_by
from comet_mpc.offline.shelf import Kept, Shelf
from comet_mpc.units import human_bytes

_HEX_ID = re.compile(r"[0-9a-f]{32}")
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".bundle"
_WRITING = ".writing-"
_TAKEN = ".taken-"
_READ = 1 << 20
_SPARE = 1 << 20


def new_bundle_id() -> str:
    """A fresh name for a bundle: 128 bits from the operating system, in hex."""
    return secrets.token_hex(16)


def check_bundle_id(bundle_id: str) -> str:
    """The id itself if it is one. It becomes part of a file name, so nothing else may pass."""
    if not _HEX_ID.fullmatch(bundle_id):
        raise ForeignRandomness("a bundle id has 32 hexadecimal digits in lower case")
    return bundle_id


def check_digest(digest: str) -> str:
    """The digest itself if it is one."""
    if not _HEX_DIGEST.fullmatch(digest):
        raise ForeignRandomness("a program's digest has 64 hexadecimal digits in lower case")
    return digest


class BundleFormat(Protocol):
    """What the store must know of the source of its bundles: `source.Source` is one."""

    @property
    def number(self) -> int: ...

    @property
    def checked_when_taken(self) -> bool: ...

    def stored_bytes(self, party: int, correlations: Sequence[Correlation]) -> int: ...


class BundleStore:
    """One party's prepared bundles, from one source. Several processes may share it."""

    def __init__(
        self,
        directory: Path,
        party: int,
        source: BundleFormat,
        shelf: Shelf | None = None,
        evicted: Callable[[int], None] = lambda count: None,
    ) -> None:
        """Opens or makes the directory, mode 0700, and removes what crashed processes left half done.

        shelf: how much is kept; to make room for a new bundle, old ones are dropped when it is committed.
        evicted: is told how many were.
        """
        if party not in (CLIENT, SERVER):
            raise ConfigurationError(f"a party is {CLIENT} (client) or {SERVER} (server), not {party}")
        self.directory = Path(directory)
        self.party = party
        self._source, self._shelf, self._evicted = source, shelf, evicted
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.directory.stat()
        except OSError as error:
            raise ConfigurationError(f"cannot use {self.directory}: {error.strerror}") from error
        if not os.access(self.directory, os.W_OK):
            raise ConfigurationError(f"cannot use {self.directory}: it is not writable")
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigurationError(
                f"{self.directory} holds secrets: it must belong to this user and be closed to others (chmod 700)"
            )
        self._clean()
        os.utime(self.directory)  # it is in use: see `forget_unused`

    def add(self, bundle_id: str, digest: str, seed: bytes, *, spent: int = 0, owner: str = "") -> BundleWriter:
        """A writer for a new bundle, which becomes visible when the writer commits, complete or not at all.

        spent: bytes on the wire that preparing it took, to be told when it is used.
        owner: at the server, the name of the certificate of the client that it was prepared with.
        """
        check_bundle_id(bundle_id)
        check_digest(digest)
        if len(seed) != SEED_BYTES:
            raise RandomnessError(f"a seed has {SEED_BYTES} bytes, got {len(seed)}")
        return BundleWriter(
            self, Header(self.party, digest, bundle_id, seed, self._source.number, owned_by(owner), spent)
        )

    def list(self, digest: str) -> tuple[str, ...]:
        """Ids of the complete bundles for a program, oldest first. Files with a damaged header are dropped."""
        found = []
        for path in self.directory.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError, RandomnessError), _opened(path) as file:
                header = Header.read(file, path.stem)
                known = (header.digest, header.party, header.source, header.bundle_id)
                if known == (digest, self.party, self._source.number, path.stem):
                    found.append((os.fstat(file.fileno()).st_mtime_ns, path.stem))
        return tuple(bundle_id for _, bundle_id in sorted(found))

    def take(self, bundle_id: str, digest: str, correlations: Sequence[Correlation], *, owner: str = "") -> Bundle:
        """Consumes a bundle, then returns it. Of several callers at once, one gets it.

        digest, correlations: of the program it is for (`Plan.digest`, `Plan.correlations`). owner: as in `add`. Raises
        `RandomnessSpent` if there is no such bundle (any more) or it is another owner's, `ForeignRandomness` if it is
        another program's, `RandomnessDamaged` if it is damaged: then it is dropped. Where the source does not want all
        of it checked here, reading the bundle raises that, with the last byte at the latest.
        """
        check_bundle_id(bundle_id)
        path = self._path(bundle_id)
        with self._directory() as descriptor:
            with _spent_if_missing(bundle_id), _opened(path) as peeked:
                self._check(Header.read(peeked, bundle_id), bundle_id, digest, correlations, owner)
            # Renaming decides who gets it, and what was renamed is what is opened: even if the name was reused
            # since the check above, nobody reads a file that another has won.
            won = self.directory / f"{_TAKEN}{bundle_id}-{secrets.token_hex(8)}"
            with _spent_if_missing(bundle_id):
                path.rename(won)
            sync(descriptor)
            file: BinaryIO = won.open("rb", buffering=_READ)
            try:
                won.unlink()
                sync(descriptor)
                header = Header.read(file, bundle_id)
                self._check(header, bundle_id, digest, correlations, owner)
                if self._source.checked_when_taken:
                    header.check_rest(file)
            except BaseException:
                file.close()
                raise
        stored = file if self._source.checked_when_taken else header.checked(file)
        return Bundle(self.party, header.seed, tuple(correlations), stored, bundle_id, header.spent)

    def discard(self, bundle_id: str) -> None:
        """Removes a bundle that will not be used, for example because the peer does not have its part."""
        with self._directory() as descriptor:
            self._path(check_bundle_id(bundle_id)).unlink(missing_ok=True)
            sync(descriptor)

    def _make_room(self, needed: int, owner: bytes) -> None:
        """Drops what the shelf says. Whose it was will notice, and have others prepared."""
        if self._shelf is not None:
            outgoing = self._shelf.outgoing(list(self.kept()), needed, owner)
            for bundle_id in outgoing:
                self.discard(bundle_id)
            self._evicted(len(outgoing))

    def kept(self) -> Iterator[Kept]:
        """Every complete bundle, of all owners and programs."""
        for path in self.directory.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError, RandomnessError), _opened(path) as file:
                status = os.fstat(file.fileno())
                header = Header.read(file, path.stem)
                yield Kept(path.stem, header.owner, status.st_size, status.st_mtime_ns, header.digest)

    def check_disk(self, needed: int = _SPARE) -> None:
        """Raises if so many bytes (or hardly any) cannot be stored now: the directory is not there or not ours, or the
        disk is full."""
        if not os.access(self.directory, os.W_OK | os.X_OK):  # a client is told, and paths are not its business
            what = str(self.directory) if self.party == CLIENT else "the state directory of the server"
            raise ConfigurationError(f"{what} is not writable")
        if shutil.disk_usage(self.directory).free < needed + _SPARE:
            raise self.disk_full(needed)

    def room(self) -> int:
        """Bytes that can still be stored."""
        return max(0, shutil.disk_usage(self.directory).free - 2 * _SPARE)

    def disk_full(self, needed: int) -> ConfigurationError:
        """What to say where so many bytes do not fit."""
        who = "client" if self.party == CLIENT else "server"
        free = shutil.disk_usage(self.directory).free
        return ConfigurationError(
            f"the disk of the {who} is full: randomness of {human_bytes(needed)} does not fit into {human_bytes(free)}"
        )

    def count(self) -> int:
        """Bundles that are complete, of all programs."""
        return sum(1 for _ in self.directory.glob(f"*{_SUFFIX}"))

    def verify(self, bundle_id: str) -> None:
        """Checks a bundle to the last byte without consuming it; raises as `take` does."""
        check_bundle_id(bundle_id)
        with _spent_if_missing(bundle_id), self._path(bundle_id).open("rb") as file:
            Header.read(file, bundle_id).check_rest(file)

    def _check(
        self, header: Header, bundle_id: str, digest: str, correlations: Sequence[Correlation], owner: str
    ) -> None:
        if header.owner != owned_by(owner):  # it does not learn that there is such a bundle
            raise _spent(bundle_id)
        if (header.party, header.source, header.bundle_id) != (self.party, self._source.number, bundle_id):
            raise ForeignRandomness(f"the file of bundle {bundle_id} holds another bundle")
        if header.digest != digest:
            raise ForeignRandomness(
                f"bundle {bundle_id} was prepared for another program: got {header.digest[:16]}…, "
                f"expected {digest[:16]}…"
            )
        expected = self._source.stored_bytes(self.party, correlations)
        if header.length != expected:
            raise RandomnessError(f"bundle {bundle_id} has {header.length} bytes, the program needs {expected}")

    def _path(self, bundle_id: str) -> Path:
        return self.directory / f"{bundle_id}{_SUFFIX}"

    def _clean(self) -> None:
        """Removes remains, unless some process is in the middle of writing or taking."""
        with self._directory(fcntl.LOCK_EX | fcntl.LOCK_NB) as descriptor:
            if descriptor < 0:
                return
            for path in self.directory.iterdir():
                if path.name.startswith((_WRITING, _TAKEN)):
                    path.unlink(missing_ok=True)
            sync(descriptor)

    @contextlib.contextmanager
    def _directory(self, lock: int = fcntl.LOCK_SH) -> Iterator[int]:
        """The directory's descriptor under a lock, or -1 if the lock is not to be had at once.

        The lock only keeps `_clean` away from files in use; who gets a bundle does not depend on it.
        """
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(descriptor, lock)
            except BlockingIOError:
                yield -1
            else:
                yield descriptor
        finally:
            os.close(descriptor)


class BundleWriter:
    """Writes one bundle: `write` all that is not in the seed, then `seal`, then `commit` to make it visible.

    As a context manager it commits at the end, and leaves no trace if there was an error.
    """

    def __init__(self, store: BundleStore, header: Header) -> None:
        self._store = store
        self._header = header
        self._final = store._path(header.bundle_id)
        self._temporary = store.directory / f"{_WRITING}{header.bundle_id}-{secrets.token_hex(8)}"
        self._hasher = hashlib.sha256()
        self._length = 0
        self._sealed = self._committed = False
        self._resources = contextlib.ExitStack()
        with contextlib.ExitStack() as stack, self._storing():
            self._directory = stack.enter_context(store._directory())
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            self._file = stack.enter_context(open(os.open(self._temporary, flags, 0o600), "wb"))
            self._file.write(bytes(HEADER_BYTES))  # no header, no bundle: the true one comes last
            self._resources = stack.pop_all()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """The next piece of what comes after the header."""
        with self._storing():
            self._file.write(data)
        self._hasher.update(data)
        self._length += len(data)

    def seal(self) -> None:
        """Everything is written: puts the header in place and waits until the disk has it. Not visible yet."""
        header = replace(self._header, length=self._length, checksum=self._hasher.digest())
        with self._storing():
            self._file.seek(0)
            self._file.write(header.pack())
            self._file.flush()
            sync(self._file.fileno())
        self._sealed = True

    def commit(self) -> None:
        """Makes the bundle visible, durably; once."""
        if self._committed:
            return
        if not self._sealed:
            self.seal()
        if self._final.exists():
            raise self._taken_already()
        self._store._make_room(self._length, self._header.owner)
        with self._storing():
            try:
                os.link(self._temporary, self._final)  # unlike a rename it never replaces a bundle
            except FileExistsError:
                raise self._taken_already() from None
            self._committed = True
            self._temporary.unlink()
            sync(self._directory)
        self._resources.close()

    def retract(self) -> None:
        """Takes back what this writer has committed, and nothing else: the other party will not name it."""
        if self._committed:
            self._store.discard(self._header.bundle_id)

    def _taken_already(self) -> RandomnessError:
        return RandomnessError(f"bundle {self._header.bundle_id} is in the store already")

    def discard(self) -> None:
        """Gives the bundle up; after a commit it does nothing."""
        with contextlib.suppress(OSError):
            self._resources.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.discard()

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._store.disk_full(self._length) from error
            raise ConfigurationError(f"cannot store a bundle in {self._store.directory}: {error.strerror}") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A bundle's file, which is removed if it turns out to be damaged."""
    try:
        with path.open("rb") as file:
            yield file
    except RandomnessDamaged:
        path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _spent_if_missing(bundle_id: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise _spent(bundle_id) from error


def _spent(bundle_id: str) -> RandomnessSpent:
    return RandomnessSpent(f"bundle {bundle_id} is spent or was never stored here; take another one")
