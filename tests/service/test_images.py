"""Private answers about images between real processes over TLS: the model's answers, at the planned cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.errors import ConfigurationError
from support.processes import World, running_world
from support.toy_vision import make_vision_checkpoint, some_images
from support.waiting import PATIENCE

pillow = pytest.importorskip("PIL.Image", reason="needs the extra images")
pytestmark = pytest.mark.service

LIMITS = {"stall_seconds": PATIENCE, "idle_seconds": PATIENCE, "dealer_seconds": PATIENCE, "ready": 2, "batch": 2}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("images")
    model = make_vision_checkpoint(directory / "model")
    with running_world(keys, model, directory / "state", with_dealer=True, limits=LIMITS) as made:
        yield made


def test_the_labels_of_image_files_are_the_models(world: World, keys: Path, tmp_path: Path) -> None:
    """From the command line, with a file in its own size and one that is made smaller; planned costs are measured."""
    files = []
    for i, array in enumerate((some_images(1)[0], some_images(1, 40, 60, seed=1)[0])):
        files.append(tmp_path / f"{i}.png")
        pillow.fromarray(array).save(files[-1])
    asked = [word for file in files for word in ("--image", str(file))]
    where = ["--keys", str(keys), "--cache", str(tmp_path / "cache"), "--json", "-"]
    result = CliRunner().invoke(app, ["query", world.server.address, *asked, *where])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [one["image"] for one in found] == [str(file) for file in files]
    (run,) = world.model.runs(files, 2)
    plain = world.model.plain_logits(world.model.query(run.tokens, run.bucket))
    np.testing.assert_allclose([one["logits"] for one in found], plain, atol=0.05)
    plan = world.programs.plan(2, run.bucket)
    assert (found[0]["cost"]["online_bytes"], found[0]["cost"]["rounds"]) == (plan.online_bytes, plan.rounds)


def test_a_client_takes_arrays_and_refuses_texts(world: World, tmp_path: Path) -> None:
    images = some_images(1, seed=2)
    with world.client(tmp_path) as client:
        (found,) = client.classify(images)
        assert client.sizes(images) == {(1, 7): 1}
        with pytest.raises(ConfigurationError, match="takes images"):
            client.classify([("two", "texts")])
        with pytest.raises(ConfigurationError, match="takes images"):
            client.classify([str(tmp_path / "a text, not a file.png")])
    (run,) = world.model.runs(images, 1)
    np.testing.assert_allclose(found.logits, world.model.plain_logits(world.model.query(run.tokens))[0], atol=0.05)
