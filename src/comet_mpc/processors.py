"""How many cores this process may use, and how many threads numeric libraries start. Quick to import.

A container or a service may be allowed two of a machine's 64 cores. Libraries that see 64 start 64 threads, and those
wait for each other by spinning. On a busy machine that takes many times as long as one thread would.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path, PurePosixPath

_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_BLAS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""Whichever of them comes first is what numpy's OpenBLAS goes by."""

_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def cores() -> int:
    """Those that the scheduler lets this process run on, and no more than its control groups have time for."""
    return max(1, math.ceil(min(_allowed(), quota())))


def _allowed() -> int:
    """Only Linux says which cores those are; elsewhere all of them count."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def quota(membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> float:
    """Cores' worth of time that the control groups of this process give it, version 2 or 1; infinite without a limit.

    A group cannot use more than those above it, so the smallest of them counts.
    """
    return min((limit for group in _groups(membership, cgroups) for limit in _limits(group)), default=math.inf)


def settle_threads(environment: MutableMapping[str, str]) -> None:
    """Before numpy or torch is imported: one thread for numpy, whose matrices are small here; for torch all cores.

    Threads that wait do not spin. Whatever the environment says already is left as it is.
    """
    if not blas_threads_chosen(environment):
        environment["OPENBLAS_NUM_THREADS"] = "1"
    if not environment.get("OMP_NUM_THREADS"):
        environment["OMP_NUM_THREADS"] = str(cores())
    if not any(environment.get(name) for name in _WAITING):
        environment["OMP_WAIT_POLICY"] = "PASSIVE"


def blas_threads_chosen(environment: Mapping[str, str]) -> bool:
    """Whether somebody has said how many threads numpy's matrices take."""
    return any(environment.get(name) for name in _BLAS)


def _groups(membership: Path, cgroups: Path) -> Iterator[Path]:
    """The directories of this process's control groups and of all above them, as far as they can be seen here."""
    try:
        lines = membership.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        if ".." in group.parts:  # outside of what this container sees
            group = PurePosixPath()
        roots = [cgroups / name for name in {controllers, "cpu"}] if controllers else [cgroups]
        yield from (root / above for root in roots for above in (group, *group.parents))


def _limits(group: Path) -> Iterator[float]:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            share, period = " ".join((group / name).read_text() for name in names).split()
            if share not in ("max", "-1"):
                yield int(share) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue
