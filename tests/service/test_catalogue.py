"""Several models on one server, and new versions of them without a stop."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.errors import ConfigurationError, ProtocolMismatch
from comet_mpc.models.served import ServedModel
from comet_mpc.models.writing.stored import load_decoder
from comet_mpc.models.writing.twin import written_by_twin
from comet_mpc.service.catalogue import check_name
from comet_mpc.service.client import Client
from support.clients import after_rounds
from support.operated import Running, put, serving
from support.processes import TWIN_BOUND
from support.small_writers import LLAMA, write_small
from support.toy_model import TINY, make_checkpoint, twin_logits
from support.waiting import PATIENCE, eventually

TEXT = "the film is good"


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("versions")
    return [make_checkpoint(directory / str(seed), **TINY, seed=seed) for seed in range(3)]


def right(logits: tuple[float, ...], checkpoint: Path, text: str = TEXT) -> bool:
    model = ServedModel.load(checkpoint)
    return bool(np.max(np.abs(np.array(logits) - twin_logits(model, model.encode([text]))[0])) < TWIN_BOUND)


def ask(client: Client) -> tuple[float, ...]:
    return client.classify([TEXT])[0].logits


@pytest.mark.service
def test_models_are_asked_for_by_name_or_fingerprint(
    tmp_path: Path, keys: Path, shared_dealer: int, versions: list[Path]
) -> None:
    first, second, other = versions
    with serving(keys, tmp_path / "state", f"mood={first}", f"topic={second}", dealer=shared_dealer) as server:
        common: dict[str, Any] = {"keys": keys, "cache": tmp_path / "cache", "ready": 0, "timeout": PATIENCE}
        wanted: list[tuple[dict[str, Any], Path]] = [
            ({}, first),
            ({"model": "mood"}, first),
            ({"model": "topic"}, second),
            ({"fingerprint": ServedModel.load(second).fingerprint}, second),
        ]
        for chosen, expected in wanted:
            with Client(server.address, **common, **chosen) as client:
                assert right(ask(client), expected)
        assert not right(ask_of(server, common, "mood"), second)  # the control: the two do differ
        with pytest.raises(ConfigurationError, match="no model called 'weather': it has mood, topic"):
            Client(server.address, **common, model="weather").connect()
        for name in ("", "mood"):
            with pytest.raises(ProtocolMismatch, match="model"):
                Client(server.address, **common, model=name, fingerprint=ServedModel.load(other).fingerprint).connect()
        with pytest.raises(ProtocolMismatch, match="model"):
            Client(server.address, **common, model="mood", fingerprint=ServedModel.load(second).fingerprint).connect()


def ask_of(server: Running, common: dict[str, Any], model: str) -> tuple[float, ...]:
    with Client(server.address, **common, model=model) as client:
        return ask(client)


@pytest.mark.service
def test_models_that_answer_and_that_write_are_side_by_side(
    tmp_path: Path, keys: Path, shared_dealer: int, versions: list[Path]
) -> None:
    writer = write_small(tmp_path / "writer", LLAMA, tied=False, seed=1)
    expected = [*written_by_twin(load_decoder(writer), "abc hi", 4)]
    models = f"mood={versions[0]}", f"stories={writer}"
    with serving(keys, tmp_path / "state", *models, dealer=shared_dealer) as server:
        common: dict[str, Any] = {"keys": keys, "cache": tmp_path / "cache", "ready": 0, "timeout": PATIENCE}
        with (
            Client(server.address, **common, model="mood") as asking,
            Client(server.address, **common, model="stories") as writing,
        ):
            tokens = writing.generate("abc hi", tokens=4)
            found = [next(tokens).id, next(tokens).id]
            assert right(ask(asking), versions[0])  # between two tokens
            assert [*found, *(token.id for token in tokens)] == expected
        for command, message in {
            ("generate", "abc", "--model", "mood"): "does not write: ask it with classify",
            ("query", "abc", "--model", "stories"): "comet generate",
            ("generate", "", "--model", "stories"): "the prompt is empty",
            ("generate", "a" * 49, "--model", "stories"): "the prompt has 49 tokens, and this model takes 48",
            ("generate", "abc hi", "--model", "stories", "--tokens", "44"): "there is room for 43",
        }.items():
            where = ["--keys", str(keys), "--cache", str(tmp_path / "cache")]
            shown = CliRunner().invoke(app, [command[0], server.address, *command[1:], *where])
            assert shown.exit_code == 1, shown.output
            assert message in " ".join(shown.stderr.split())
            assert not shown.stdout


@pytest.mark.service
def test_a_new_version_disturbs_nobody(tmp_path: Path, keys: Path, shared_dealer: int, versions: list[Path]) -> None:
    """A client stays with its version, in the middle of a run and after it; a new one gets the new one."""
    old, new, newest = versions
    place = tmp_path / "model"
    put(old, place)
    with serving(keys, tmp_path / "state", str(place), dealer=shared_dealer) as server:
        common: dict[str, Any] = {"keys": keys, "ready": 0, "timeout": PATIENCE}
        with Client(server.address, cache=tmp_path / "a", **common) as before:
            assert right(ask(before), old)
            assert before.prepare(2, warm=False) == 2
            put(new, place)
            after_rounds(before, 3, server.reload)
            assert right(ask(before), old)  # it ran while the server was loading, and went over to another desk
            with Client(server.address, cache=tmp_path / "b", **common) as after:
                assert right(ask(after), new)
                assert right(ask(before), old)
                assert before.prepare(1, warm=False) == 1  # also what is prepared now is for the old one
                assert right(ask(before), old)
                put(newest, place)
                server.reload(2)
                assert right(ask(after), new)
            with Client(server.address, cache=tmp_path / "c", **common) as latest:
                assert right(ask(latest), newest)
            with pytest.raises(ProtocolMismatch):  # two versions back is gone
                eventually(lambda: before.classify([TEXT]) and False)
    assert server.process.returncode == 0
    assert not [event for event in server.log if event.get("level") == "error"]


@pytest.mark.service
def test_a_checkpoint_that_cannot_be_loaded_changes_nothing(
    tmp_path: Path, keys: Path, shared_dealer: int, versions: list[Path]
) -> None:
    place = tmp_path / "model"
    put(versions[0], place)
    with serving(keys, tmp_path / "state", f"mood={place}", dealer=shared_dealer) as server:
        common: dict[str, Any] = {"keys": keys, "cache": tmp_path / "cache", "ready": 0, "timeout": PATIENCE}
        (place / "model.safetensors").write_bytes(b"damaged")
        server.process.send_signal(signal.SIGHUP)
        assert server.logged("could not be loaded again")["error"] == "CheckpointError"
        with Client(server.address, **common) as client:
            assert right(ask(client), versions[0])


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "-x", "a=b"])
def test_a_name_is_a_word(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a valid model name"):
        check_name(name)
