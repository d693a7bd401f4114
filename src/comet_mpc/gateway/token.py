"""The token that a program must show to use the gateway, in a file that only its owner can read.

The file holds a whole header, `Authorization: Bearer …`, so that `curl -H @FILE` sends it: a token on a command line
could be read by every user of the machine.
"""

from __future__ import annotations

import re
import secrets
import stat
from pathlib import Path

from comet_mpc.errors import ConfigurationError
from comet_mpc.files import atomic_write

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{32,}=*")


def find_token(path: Path) -> str:
    """The token in this file, or a new one if there is no such file. Refuses a file that other users can read."""
    if not path.exists():
        with atomic_write(path, mode=0o600, once=True) as file:
            file.write(f"Authorization: Bearer {secrets.token_urlsafe(32)}\n".encode())
    try:
        mode, text = path.stat().st_mode, path.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the token in {path}: {error}") from error
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise ConfigurationError(f"other users can read or write {path}, which lets them in: chmod 600 {path}")
    words = text.split()
    if not words or not _TOKEN.fullmatch(words[-1]):
        raise ConfigurationError(
            f"there is no token in {path}: it holds `Authorization: Bearer TOKEN`, of 32 characters or more. "
            "Remove the file, and the gateway makes one"
        )
    return words[-1]
