"""A running server for what the documents and examples do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from comet_mpc.net.authority import issue, make_authority
from support.documents import Service
from support.processes import server_process


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    """A tiny model: for what does not depend on the answers."""
    with _serving(tmp_path_factory.mktemp("documents"), tiny_checkpoint) as found:
        yield found


@pytest.fixture(scope="session")
def demo_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The bundled model: for snippets whose output is shown."""
    with _serving(tmp_path_factory.mktemp("demo"), Path(str(files("comet_mpc") / "data" / "demo_model"))) as found:
        yield found


@contextlib.contextmanager
def _serving(directory: Path, checkpoint: Path) -> Iterator[Service]:
    keys = directory / "keys"
    make_authority(keys, "Comet authority")
    issue(keys, "client", "client")
    issue(keys, "server", "server", ["server.example", "127.0.0.1"])
    with server_process(keys, checkpoint, None, directory / "state", workers=2, limits={"ready": 0}) as server:
        yield Service(server.port, keys, checkpoint)
