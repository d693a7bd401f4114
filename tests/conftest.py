"""Settings and fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from comet_mpc.models.served import ServedModel
from comet_mpc.net.authority import make_test_set
from support.certificates import Identities, identities_in
from support.processes import dealer_process
from support.shared_plans import share_plans
from support.toy_model import TINY, make_checkpoint

pytest_plugins = ["pytester", "support.reporting"]

# Kernels and protocols share cores with other work: a deadline would only measure the machine.
# A change is judged by the same examples every time; elsewhere new ones are tried in every run.
settings.register_profile("comet", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("comet")


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """No test cuts the power, and most of the time of a small bundle is spent in fsync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _planned_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share_plans(patch)
        yield


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificates of all roles. Nothing is added to it: copy it to issue more."""
    directory = tmp_path_factory.mktemp("keys")
    make_test_set(directory)
    return directory


@pytest.fixture(scope="session")
def identities(keys: Path) -> Identities:
    return identities_in(keys)


@pytest.fixture(scope="session")
def shared_dealer(keys: Path) -> Iterator[int]:
    """The port of a dealer, for tests to which it does not matter who prepares: with one it costs next to nothing."""
    with dealer_process(keys) as (_, address):
        yield address[1]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest model that a server takes."""
    return make_checkpoint(tmp_path_factory.mktemp("tiny"), **TINY)


@pytest.fixture(scope="session")
def tiny_model(tiny_checkpoint: Path) -> ServedModel:
    return ServedModel.load(tiny_checkpoint)
