"""A running server for what the documents and examples do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from comet_mpc.net.authority import issue, make_authority
from support.documents import Service
from support.processes import server_process


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("documents")
    keys = directory / "keys"
    make_authority(keys, "Comet authority")
    issue(keys, "client", "client")
    issue(keys, "server", "server", ["server.example", "127.0.0.1"])
    with server_process(keys, tiny_checkpoint, None, directory / "state", workers=2) as server:
        yield Service(server.port, keys, tiny_checkpoint)
