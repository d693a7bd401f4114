"""The certificates of a directory made by `make_test_set`."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from comet_mpc.net.identity import Role, TlsIdentity

__all__ = ["Identities", "identities_in"]

Identities = dict[Role, TlsIdentity]


def identities_in(keys: Path) -> Identities:
    return {role: TlsIdentity.find(keys, role) for role in get_args(Role)}
