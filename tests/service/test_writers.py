"""A decoder that is served: real parties over TLS write what its twin writes, at the cost that is planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.errors import ConfigurationError, ContextFull
from comet_mpc.local.service import local_service
from comet_mpc.models.writing.decoder import Decoder
from comet_mpc.models.writing.stored import load_decoder
from comet_mpc.models.writing.twin import written_by_twin
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, PAIR
from comet_mpc.service.client import Client
from support.small_writers import GPT2, LLAMA, write_small
from support.waiting import PATIENCE

PROMPT = "abc hi"
COUNT = 8


@dataclass(frozen=True)
class Place:
    model: Decoder
    address: str
    keys: Path
    cache: Path
    source: Source

    def client(self, **options: Any) -> Client:
        return Client(self.address, keys=self.keys, cache=self.cache, timeout=PATIENCE, ready=0, **options)


CASES = {"llama-dealer": (LLAMA, 1, DEALER), "llama-pair": (LLAMA, 1, PAIR), "gpt2-dealer": (GPT2, 9, DEALER)}


@pytest.fixture(scope="module", params=[*CASES.values()], ids=[*CASES])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    shape, seed, source = request.param
    model = load_decoder(write_small(tmp_path_factory.mktemp("writer"), shape, tied=False, seed=seed))
    with local_service(model, source) as (address, keys, directory):
        yield Place(model, address, keys, directory / "cache", source)


@pytest.mark.service
@pytest.mark.slow
def test_parties_write_what_the_twin_writes_at_the_planned_cost(place: Place) -> None:
    """Of these seeds the likeliest token is far ahead of the next one each time."""
    with place.client() as client:
        tokens = list(client.generate(PROMPT, tokens=COUNT))
        again = list(client.generate(PROMPT, tokens=COUNT, drafts=2))
    assert [one.id for one in tokens] == [one.id for one in again] == [*written_by_twin(place.model, PROMPT, COUNT)]
    plan, prompt = place.model.conversation(16, place.source), tokens[0].prompt_tokens
    assert prompt == 6
    planned = [plan.window(0, prompt), *(plan.window(i, i + 1) for i in range(prompt, prompt + COUNT - 1))]
    assert [(one.online_bytes, one.rounds) for one in tokens] == [(one.online_bytes, one.rounds) for one in planned]
    assert tokens[0].offline_bytes > 0


@pytest.mark.service
def test_what_is_asked_of_the_wrong_kind_is_refused(place: Place) -> None:
    with place.client() as client:
        with pytest.raises(ConfigurationError, match=r"supports generate\(\)"):
            client.classify(["abc"])
        with pytest.raises(ContextFull, match="room for 43"):
            client.generate(PROMPT, tokens=44)


@pytest.mark.service
def test_the_demo_writes_and_shows_what_it_cost(tmp_path: Path) -> None:
    directory = write_small(tmp_path / "writer", LLAMA, tied=False, seed=1)
    command = ["demo", "--model", str(directory), "--source", "dealer", "--tokens", "3"]
    model = load_decoder(directory)
    text = b"".join(model.tokenizer.spelling[token] for token in written_by_twin(model, PROMPT, 3)).decode()
    shown = CliRunner().invoke(app, [*command, PROMPT])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == PROMPT + text + "\n"
    assert "3 tokens after 6 tokens" in shown.stderr
    refused = CliRunner().invoke(app, [*command, PROMPT, "and more"])
    assert refused.exit_code == 1
    assert "one text to begin with" in refused.stderr
