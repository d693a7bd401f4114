"""Where the gateway listens: at an address of this machine, or at a socket in the file system that has an owner."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from comet_mpc.errors import ConfigurationError
from comet_mpc.net.sockets import parse_address

UNIX = "unix:"


@dataclass(frozen=True)
class Listener:
    """Somebody listens there."""

    socket: socket.socket
    shown: str
    """The address of the page, or unix:PATH."""
    names: frozenset[str]
    """What `Host` may say."""

    @property
    def has_owner(self) -> bool:
        """Whether only one user of this machine can get in."""
        return self.shown.startswith(UNIX)


@contextlib.contextmanager
def listening(at: str, others: Iterable[str] = ()) -> Iterator[Listener]:
    """HOST:PORT or unix:PATH. others: what else `Host` may say; whoever is not on this machine needs one."""
    others = frozenset(name.lower() for name in others)
    if at.startswith(UNIX):
        path = Path(at.removeprefix(UNIX))
        with _at_path(path) as bound:
            yield Listener(bound, at, others | {"localhost"})
        return
    host, port = parse_address(at)
    if not is_this_machine(host) and not others:
        raise ConfigurationError(
            f"{host} can be reached from other machines, and this gateway has no TLS: texts and the token would cross "
            "the network in the clear. Listen at 127.0.0.1, or name with --allow-host what others may call it"
        )
    with _at_address(host, port) as bound:
        at_port = bound.getsockname()[1]
        written = f"[{host}]" if ":" in host else host
        yield Listener(bound, f"http://{written}:{at_port}/", own_names(host, at_port) | others)


def own_names(host: str, port: int) -> frozenset[str]:
    """This machine's names for itself, with the port."""
    written = f"[{host}]" if ":" in host else host
    return frozenset(f"{name}:{port}".lower() for name in (written, "localhost", "127.0.0.1", "[::1]"))


def is_this_machine(host: str) -> bool:
    """Whether an address is one that only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _at_address(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error


@contextlib.contextmanager
def _at_path(path: Path) -> Iterator[socket.socket]:
    """Mode 0600 from its first moment. What a gateway that was killed has left there is replaced.

    A lock beside the socket keeps others away who start at the same time: it stays behind, empty.
    """
    with contextlib.ExitStack() as held:
        try:
            bound, inode = _bound(path, held)
        except OSError as error:
            raise ConfigurationError(f"cannot listen at {UNIX}{path}: {error.strerror or error}") from error
        try:
            yield bound
        finally:
            with contextlib.suppress(OSError):  # gone, or another's: not ours to remove
                if _inode(path) == inode:
                    path.unlink()


def _bound(path: Path, held: contextlib.ExitStack) -> tuple[socket.socket, tuple[int, int]]:
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    held.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from error
    bound = held.enter_context(socket.socket(socket.AF_UNIX))
    if _left_behind(path):
        path.unlink(missing_ok=True)
    before = os.umask(0o177)
    try:
        bound.bind(str(path))
    finally:
        os.umask(before)
    bound.listen(128)
    return bound, _inode(path)


def _inode(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _left_behind(path: Path) -> bool:
    """Whether a socket is there at which nobody listens. One that cannot be asked may be somebody's."""
    if not path.exists() or not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)  # a queue that is full is no reason to wait
        return asking.connect_ex(str(path)) in (errno.ECONNREFUSED, errno.ENOENT)
