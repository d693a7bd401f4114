"""A running server for what the documents and examples do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from comet_mpc.net.identity import issue, make_authority
from support.documents import TINY, Service
from support.server_process import server_process
from support.toy_model import make_checkpoint


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("documents")
    keys = directory / "keys"
    make_authority(keys, "Comet authority")
    issue(keys, "client", "client")
    issue(keys, "server", "server", ["server.example", "127.0.0.1"])
    model = make_checkpoint(directory / "model", **TINY)
    with server_process(keys, model, None, directory / "state", workers=2) as server:
        yield Service(server.port, keys, model)
