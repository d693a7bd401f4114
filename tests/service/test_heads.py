"""Embeddings and tags between real processes over TLS: the answers are the model's, and cost what was planned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.heads import Head
from comet_mpc.service.prediction import Tag, Tagging
from support.processes import World, running_world
from support.toy_model import make_checkpoint, some_texts
from support.waiting import PATIENCE

pytestmark = pytest.mark.service

LIMITS = {"stall_seconds": PATIENCE, "idle_seconds": PATIENCE, "dealer_seconds": PATIENCE, "ready": 2, "batch": 4}
TEXTS = [*some_texts(3, seed=1), " ".join(some_texts(1, words=25, seed=2))]
LABELS = ("O", "B-FILM", "I-FILM")


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[dict[str, World]]:
    directory = tmp_path_factory.mktemp("heads")
    models: dict[str, dict[str, Any]] = {
        "embedding": {"head": Head(kind="embedding", pooling="mean", unit=True)},
        "tokens": {"head": Head(kind="tokens"), "labels": LABELS},
    }
    made = {name: make_checkpoint(directory / name, **options) for name, options in models.items()}
    with (
        running_world(keys, made["embedding"], directory / "state 1", with_dealer=True, limits=LIMITS) as first,
        running_world(keys, made["tokens"], directory / "state 2", with_dealer=True, limits=LIMITS) as second,
    ):
        yield {"embedding": first, "tokens": second}


def planned(world: World, cost: Any) -> tuple[int, int]:
    plan = world.programs.plan(cost.texts, cost.bucket)
    return plan.online_bytes, plan.rounds


def test_private_embeddings_are_the_models(worlds: dict[str, World], tmp_path: Path) -> None:
    world = worlds["embedding"]
    with world.client(tmp_path) as client:
        found = client.embed(TEXTS)
        assert client.ask(TEXTS[:1])[0].tokens_used == found[0].tokens_used
        with pytest.raises(ConfigurationError, match=r"supports embed\(\), not classify\(\)"):
            client.classify(TEXTS)
    for text, one in zip(TEXTS, found, strict=True):
        plain = world.model.plain_logits(world.model.encode([text]))[0]
        assert np.linalg.norm(one.vector) == pytest.approx(1.0)
        assert np.dot(one.vector, plain) / np.linalg.norm(plain) > 0.9999
        assert planned(world, one.cost) == (one.cost.online_bytes, one.cost.rounds)


def test_private_tags_are_the_models(worlds: dict[str, World], tmp_path: Path) -> None:
    world = worlds["tokens"]
    with world.client(tmp_path) as client:
        found = client.tag(TEXTS)
        with pytest.raises(ConfigurationError, match="not pairs"):
            client.tag([("a film", "a plot")])  # type: ignore[list-item]
    agreed = total = 0
    for text, one in zip(TEXTS, found, strict=True):
        assert [word.text for word in one.words] == text.split()
        assert all(text[word.start : word.end] == word.text for word in one.words)
        plain = world.model.plain_logits(world.model.encode([text]))[0, : one.tokens_used]
        assert np.abs(np.array(one.logits) - plain).max() < 0.05
        agreed += int(np.sum(np.argmax(one.logits, axis=1) == plain.argmax(axis=1)))
        total += len(plain)
        assert planned(world, one.cost) == (one.cost.online_bytes, one.cost.rounds)
    assert agreed >= 0.97 * total  # a tie may fall either way


def test_the_command_line_shows_every_kind(worlds: dict[str, World], tmp_path: Path, keys: Path) -> None:
    for kind, key in (("embedding", "vector"), ("tokens", "words")):
        address = worlds[kind].server.address
        options = ["--keys", str(keys), "--cache", str(tmp_path / kind)]
        shown = CliRunner().invoke(app, ["query", address, "the film is good", *options])
        assert shown.exit_code == 0, shown.output
        assert "the film is good" in shown.output
        result = CliRunner().invoke(app, ["query", address, "the film is good", *options, "--json", "-"])
        (entry,) = json.loads(result.stdout)
        assert len(entry[key]) == (32 if kind == "embedding" else 4)


def test_words_that_belong_together_are_one_entity() -> None:
    labels = ("B-PER", "I-PER", "O", "I-LOC", "I-PER", "B-PER")
    words, at = [], 0
    for number, label in enumerate(labels):
        words.append(Tag(text=f"w{number}", label=label, probability=0.9 - 0.1 * number, start=at, end=at + 2))
        at += 3
    entities = Tagging(words=tuple(words), logits=(), truncated=False, cost=None).entities  # type: ignore[arg-type]
    shown = [(part.text, part.label, part.start, part.end) for part in entities]
    assert shown == [("w0 w1", "PER", 0, 5), ("w3", "LOC", 9, 11), ("w4", "PER", 12, 14), ("w5", "PER", 15, 17)]
    assert entities[0].probability == pytest.approx(0.8)
