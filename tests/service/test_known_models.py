"""What a client holds a server to: the model that it met first, one bucket for all texts, its own tokenizer."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.errors import ConfigurationError, ModelChanged
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tokenizers.texts import TextTokenizer, Tokens
from comet_mpc.net.channel import Around, Channel
from comet_mpc.service.client import Client
from comet_mpc.service.model_cache import KnownModel, KnownModels
from support.clients import Wrapping
from support.operated import put, serving
from support.processes import World, running_world
from support.toy_model import TINY, make_checkpoint, some_texts, toy_tokenizer
from support.waiting import PATIENCE, eventually

pytestmark = pytest.mark.service

TEXT = "the film is good"


def with_tokenizer(checkpoint: Path, to: Path, normalizer: Any) -> Path:
    """The same model with another tokenizer."""
    shutil.copytree(checkpoint, to)
    tokenizer = Tokenizer.from_file(str(to / "tokenizer.json"))
    tokenizer.normalizer = normalizer
    tokenizer.save(str(to / "tokenizer.json"))
    config = json.loads((to / "config.json").read_text())
    config["checksums"]["tokenizer.json"] = hashlib.sha256((to / "tokenizer.json").read_bytes()).hexdigest()
    (to / "config.json").write_text(json.dumps(config))
    return to


def test_a_server_that_swaps_its_tokenizer_is_refused_by_who_has_seen_it(
    tmp_path: Path, keys: Path, shared_dealer: int
) -> None:
    """Between real processes, with SIGHUP: pinned at first use, kept to its version, then refused until accepted."""
    first = make_checkpoint(tmp_path / "0", **TINY)
    second = with_tokenizer(first, tmp_path / "1", normalizers.Lowercase())
    third = with_tokenizer(first, tmp_path / "2", normalizers.NFC())
    before, now = ServedModel.load(first).fingerprint, ServedModel.load(third).fingerprint
    place, cache = tmp_path / "model", tmp_path / "cache"
    put(first, place)
    common: dict[str, Any] = {"keys": keys, "cache": cache, "ready": 0, "timeout": PATIENCE}
    with serving(keys, tmp_path / "state", str(place), dealer=shared_dealer) as server:

        def met(**options: Any) -> str:
            with Client(server.address, **{**common, **options}) as client:
                assert client.classify([TEXT])
                return client.connect().fingerprint

        assert met() == before == hashlib.sha256(next(cache.glob("*/package")).read_bytes()).hexdigest()
        put(second, place)
        server.reload()
        assert met() == before  # the server still has it, and a client that knows it names it
        put(third, place)
        server.reload(2)
        for _ in range(2):  # refused is not accepted
            with pytest.raises(ModelChanged, match="its tokenizer changed") as refused:
                eventually(lambda: met() and False)  # until the server has let go of the old one
            assert (refused.value.got, refused.value.expected) == (now, before)
            assert refused.value.changed == ("tokenizer",)
        query = ["query", server.address, TEXT, "--keys", str(keys), "--cache", str(cache)]
        told = CliRunner().invoke(app, query)
        assert told.exit_code != 0
        assert "its tokenizer changed" in told.output
        assert f"--accept-model {now}" in " ".join(told.output.split())
        assert eventually(lambda: met(cache=tmp_path / token_hex(8)) == now)  # who has not seen it cannot know
        assert met(fingerprint=now) == now  # for once
        with pytest.raises(ModelChanged):
            met()
        assert CliRunner().invoke(app, [*query, "--accept-model", now]).exit_code == 0
        assert met() == now
        with pytest.raises(ConfigurationError, match="not both"):
            met(fingerprint=now, accept_model=now)


def known(name: str = "localhost:1", **parts: str) -> KnownModel:
    return KnownModel(name, hashlib.sha256(json.dumps(parts).encode()).hexdigest(), parts)


def test_what_is_known_stays_known(tmp_path: Path) -> None:
    models, one, other = KnownModels(tmp_path), known(tokenizer="a", labels="b"), known(tokenizer="a", labels="c")
    assert models.find(one.server) is None
    models.keep(one)
    models.keep(one)
    with pytest.raises(ModelChanged, match="its labels changed"):
        models.keep(other)
    assert models.find(one.server) == one
    assert models.find("localhost:1 mood") is None  # another model of the same server
    models.keep(other, instead=True)
    assert models.find(one.server) == other
    (path,) = (tmp_path / "known").iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ConfigurationError, match="which model localhost:1 had before"):
        models.find(one.server)


def test_of_two_clients_that_meet_two_models_at_once_one_is_refused(tmp_path: Path) -> None:
    models = [known(tokenizer=name) for name in "abcdefgh"]
    refused: list[KnownModel] = []

    def meet(one: KnownModel) -> None:
        try:
            KnownModels(tmp_path).keep(one)
        except ModelChanged:
            refused.append(one)

    threads = [threading.Thread(target=meet, args=(one,)) for one in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(refused) == len(models) - 1
    assert KnownModels(tmp_path).find("localhost:1") not in refused


def test_a_crash_while_a_model_is_pinned_leaves_nothing_or_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comet_mpc.files.os.link", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        KnownModels(tmp_path).keep(known(tokenizer="a"))
    monkeypatch.undo()
    assert KnownModels(tmp_path).find("localhost:1") is None
    KnownModels(tmp_path).keep(known(tokenizer="b"))


# What the server sees ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("known") / "model", **{**TINY, "positions": 64})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, keys: Path, checkpoint: Path) -> Iterator[World]:
    state = tmp_path_factory.mktemp("world") / "state"
    with running_world(keys, checkpoint, state, with_dealer=True, limits={}, workers=3) as running:
        yield running


class Sizes(Around):
    """Notes every message of a connection, in order: whose it is, and its length. The server sees just these."""

    def __init__(self, inner: Channel, noted: list[tuple[str, int]]) -> None:
        super().__init__(inner)
        self.noted = noted

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        if outgoing is not None:
            self.noted.append(("client", sum(len(part) for part in outgoing)))
        incoming = self._inner._transfer(outgoing, sizes, deadline)
        if sizes is not None:
            self.noted.append(("server", len(incoming)))
        return incoming


def seen(world: World, cache: Path, texts: list[Any], **options: Any) -> list[list[tuple[str, int]]]:
    """Every connection of a call, from set-up to the last answer."""
    connections: list[list[tuple[str, int]]] = []

    def wrap(channel: Channel) -> Channel:
        connections.append([])
        return Sizes(channel, connections[-1])

    with world.client(cache, transport=Wrapping(wrap), **options) as client:
        found = client.classify(texts)
        assert [one.cost.bucket for one in found] == [options.get("bucket") or world.model.bucket_of(t) for t in texts]
    return connections


def test_where_two_parties_prepare_the_server_sees_the_same_too(keys: Path, checkpoint: Path, tmp_path: Path) -> None:
    with running_world(keys, checkpoint, tmp_path / "state", with_dealer=False, limits={}, workers=3) as world:
        shapes: list[list[Any]] = [["good"], some_texts(1, words=60)]
        views = [seen(world, tmp_path / str(i), texts, bucket=16) for i, texts in enumerate(shapes)]
    assert views[0] == views[1]
    assert len(views[0]) >= 2  # queries, and preparation


def test_with_one_bucket_the_server_sees_the_same_of_any_texts(world: World, tmp_path: Path) -> None:
    """Short, a pair, and longer than the bucket, which is cut; and the same of several texts in one call."""
    shapes: list[list[Any]] = [["good"], [("the film", "is good")], some_texts(1, words=60)]
    views = [seen(world, tmp_path / str(i), texts, bucket=32) for i, texts in enumerate(shapes)]
    assert views[0] == views[1] == views[2]
    assert seen(world, tmp_path / "control", shapes[0]) != views[0]
    several: list[list[Any]] = [["good", "bad", "dull"], [*some_texts(2, words=13), "good"]]
    views = [seen(world, tmp_path / f"several {i}", texts, bucket=16) for i, texts in enumerate(several)]
    assert views[0] == views[1]


def test_a_text_that_is_longer_than_the_bucket_is_cut_and_said_to_be(world: World, tmp_path: Path) -> None:
    short, long = "good", " ".join(some_texts(1, words=30))
    with world.client(tmp_path, bucket=16) as client:
        assert client.sizes([short, long]) == {(2, 16): 1}
        assert client.usual_bucket == 16
        found = client.classify([short, long])
    assert [one.truncated for one in found] == [False, True]
    assert (found[1].tokens, found[1].tokens_used) == (32, 16)
    command = ["query", world.server.address, short, long, "--bucket", "16", "--keys", str(world.keys)]
    shown = CliRunner().invoke(app, [*command, "--cache", str(tmp_path)])
    assert "(cut: 16 of 32 tokens)" in shown.output, shown.output


@pytest.mark.parametrize("bucket", [17, 128, 1])
def test_a_bucket_that_the_model_does_not_have_is_refused(world: World, tmp_path: Path, bucket: int) -> None:
    with pytest.raises(ConfigurationError, match="its buckets are 16, 32, 64"):
        world.client(tmp_path, bucket=bucket).connect()
    assert KnownModels(tmp_path).find(world.server.address) is None


def test_no_message_leaves_before_the_last_text_is_encoded(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the pauses between the runs of a call would tell how long its texts are. And each is encoded once."""
    events: list[str] = []
    encode = TextTokenizer.encode

    def noted(self: TextTokenizer, *args: Any, **options: Any) -> Tokens:
        found = encode(self, *args, **options)
        events.append("encoded")
        return found

    class Noted(Around):
        def _transfer(self, outgoing: Any, sizes: Any, deadline: float) -> memoryview:
            events.append("message")
            return self._inner._transfer(outgoing, sizes, deadline)

    monkeypatch.setattr(TextTokenizer, "encode", noted)
    texts = ["good", " ".join(some_texts(1, words=20)), "bad", " ".join(some_texts(1, words=40)), "a film"]
    with world.client(tmp_path, transport=Wrapping(Noted)) as client:
        client.connect()
        events.clear()
        assert sum(client.sizes(texts).values()) == 4
        client.classify(texts)
    assert events[: len(texts)] == ["encoded"] * len(texts)
    assert set(events[len(texts) :]) == {"message"}


def test_a_client_may_use_a_tokenizer_of_its_own(world: World, tmp_path: Path) -> None:
    own = toy_tokenizer()
    own.normalizer = normalizers.Lowercase()
    own.save(str(tmp_path / "own.json"))
    with world.client(tmp_path / "cache", tokenizer=tmp_path / "own.json") as client:
        assert world.right(client.classify([TEXT.upper()])[0].logits, TEXT)
        assert client.connect().fingerprint == world.model.fingerprint
    with world.client(tmp_path / "cache") as client:
        assert not world.right(client.classify([TEXT.upper()])[0].logits, TEXT)  # the server's knows small letters only
