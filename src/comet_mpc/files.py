"""Files: text that must be UTF-8, and writing so that nobody ever sees half of a file."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from comet_mpc.errors import ConfigurationError


def read_utf8(path: Path, error: type[ConfigurationError] = ConfigurationError) -> str:
    """The text of a file, without a byte order mark. Raises `error`, which says what to do."""
    try:
        return as_utf8(path.read_bytes(), str(path), error)
    except IsADirectoryError as found:
        raise error(f"{path} is a directory, not a file") from found
    except FileNotFoundError as found:
        raise error(f"no such file: {path}") from found
    except OSError as found:
        raise error(f"cannot read {path}: {found.strerror}") from found


def as_utf8(data: bytes, where: str, error: type[ConfigurationError] = ConfigurationError) -> str:
    """where: the name of the file, for the message"""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise error(f"{where} is UTF-16. Convert it to UTF-8: iconv -f UTF-16 -t UTF-8 {where}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as found:
        line = found.object[: found.start].count(b"\n") + 1
        raise error(f"{where}, line {line}: not UTF-8. Save the file as UTF-8") from found


@contextlib.contextmanager
def atomic_write(path: Path, *, mode: int = 0o644, durable: bool = False, once: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which appears as `path` when the block ends; after an error, `path` is as it was before.

    mode     of the file from its first byte on (less the umask), so that a secret is never readable by others
    durable  wait until the disk has the file and its name
    once     the first of several writers wins: a `path` that is there already stays as it is

    Makes the directory if there is none. Raises ConfigurationError if the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                yield file
                if durable:
                    file.flush()
                    sync(file.fileno())
            if once:
                with contextlib.suppress(FileExistsError):
                    os.link(beside, path)  # unlike a rename it does not replace what another process has just made
            else:
                beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        if durable:
            _sync_directory(path.parent)
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror or error}") from error


def sync(descriptor: int) -> None:
    """Waits until the disk has what was written. On macOS, `fsync` only waits until the drive has it in its memory."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):  # not every file system can
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
