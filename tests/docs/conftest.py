"""A running server for what the documents and examples do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from comet_mpc.net.authority import issue, make_authority
from support.documents import Service
from support.processes import dealer_process, server_process


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Iterator[Service]:
    """A tiny model, with a dealer: for what depends neither on the answers nor on who prepares."""
    with _serving(tmp_path_factory.mktemp("documents"), tiny_checkpoint, with_dealer=True) as found:
        yield found


@pytest.fixture(scope="session")
def demo_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The bundled model: for snippets whose output is shown."""
    with _serving(tmp_path_factory.mktemp("demo"), Path(str(files("comet_mpc") / "data" / "demo_model"))) as found:
        yield found


@contextlib.contextmanager
def _serving(directory: Path, checkpoint: Path, *, with_dealer: bool = False) -> Iterator[Service]:
    keys = directory / "keys"
    make_authority(keys, "Comet authority")
    issue(keys, "client", "client")
    issue(keys, "server", "server", ["server.example", "127.0.0.1"])
    issue(keys, "dealer", "dealer", ["127.0.0.1"])
    with contextlib.ExitStack() as stack:
        dealer = stack.enter_context(dealer_process(keys))[1][1] if with_dealer else None
        options: dict[str, Any] = {"workers": 2, "limits": {"ready": 0}}
        server = stack.enter_context(server_process(keys, checkpoint, dealer, directory / "state", **options))
        yield Service(server.port, keys, checkpoint)
