"""How much a store of bundles keeps, of each owner and of all together, and what goes first; and stores nobody uses."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Kept:
    """A bundle in a store."""

    bundle_id: str
    owner: bytes
    size: int
    stored: int
    """When, in nanoseconds."""
    digest: str = ""
    """Of the program that it is for."""


@dataclass(frozen=True)
class Shelf:
    """The most that a store keeps."""

    most_bytes: int
    """Of all owners together."""
    bytes_per_owner: int
    per_owner: int
    """Bundles."""

    def outgoing(self, kept: Sequence[Kept], needed: int, owner: bytes) -> list[str]:
        """Which bundles go so that an owner's new one, of `needed` bytes, has room.

        First the owner's own, oldest first, if it has more than it may; then, where all together are too many bytes,
        the oldest of whoever has the most. So nobody pushes out what belongs to others.
        """
        gone: list[Kept] = []
        left = sorted(kept, key=lambda one: one.stored)
        own = [one for one in left if one.owner == owner]
        while own and (len(own) >= self.per_owner or needed + sum(one.size for one in own) > self.bytes_per_owner):
            gone.append(own.pop(0))
        left = [one for one in left if one not in gone]
        sizes = Counter({owner: needed})
        for one in left:
            sizes[one.owner] += one.size
        while left and sizes.total() > self.most_bytes:
            largest = max((one.owner for one in left), key=lambda name: sizes[name])
            one = next(one for one in left if one.owner == largest)
            left.remove(one)
            gone.append(one)
            sizes[largest] -= one.size
        return [one.bundle_id for one in gone]


def forget_unused(directory: Path, pattern: str, seconds: float) -> list[Path]:
    """Removes the stores in a directory that nobody has opened, filled or emptied for so long; returns them.

    They are those of models that are served no more, for example. One that a process works with is left alone.
    """
    removed = []
    for path in sorted(directory.glob(pattern)):
        try:
            if time.time() - path.stat().st_mtime < seconds:
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
            removed.append(path)
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return removed
