"""A server's state directory is one server's: a lock that its first process holds for as long as it lives.

The kernel lets go of the lock when that process is gone, however it ends. Processes that it forks must close their copy
of the file, else the lock would last until the last of them has ended.
"""

from __future__ import annotations

import fcntl
import os
from io import FileIO
from pathlib import Path

from comet_mpc.errors import ConfigurationError, StateInUse

_LOCK = "server.lock"


def claim(state: Path) -> FileIO:
    """Makes the directory if there is none. The lock is held until the file is closed; `StateInUse` if it is taken."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = FileIO(os.open(state / _LOCK, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    except OSError as error:
        raise ConfigurationError(f"cannot use {state} for the server's state: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = file.read(20).decode(errors="replace").strip()
        file.close()
        who = f"another server (process {holder})" if holder.isdecimal() else "another server"
        remedy = "stop it, or give this one a directory of its own with --state"
        raise StateInUse(f"{who} works with {state}: {remedy}") from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n".encode())
    return file
