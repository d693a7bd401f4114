"""A decoder's checkpoint and its package: both sides have the same model, or somebody says why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_tensors
from safetensors.numpy import load_file, save, save_file

from comet_mpc.engine.windows import Window
from comet_mpc.errors import CheckpointError, CometError, ConfigurationError, UnsafeTokenizer
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import read_config
from comet_mpc.models.streams.decoder import DecoderShape
from comet_mpc.models.writing.any_model import load_model
from comet_mpc.models.writing.decoder import FAMILY, Decoder, table_shapes
from comet_mpc.models.writing.packages import parts, unpack
from comet_mpc.models.writing.stored import is_decoder, load_decoder, read_stored
from comet_mpc.models.writing.twin import written_by_twin
from comet_mpc.offline.cheapest import USUAL_NETWORK
from comet_mpc.offline.sources import PAIR
from support.small_writers import GPT2, LLAMA, write_small
from support.toy_writer import ToyWriter


def given(package: bytes) -> Decoder:
    found = unpack(package, network=USUAL_NETWORK, tokenizer=None)
    assert isinstance(found, Decoder)
    return found


@pytest.mark.parametrize(("shape", "tied"), [(LLAMA, True), (LLAMA, False), (GPT2, True)], ids=["tied", "two", "gpt2"])
def test_a_client_has_what_the_server_has(tmp_path: Path, shape: DecoderShape, tied: bool) -> None:
    served = load_decoder(write_small(tmp_path, shape, tied=tied), network=USUAL_NETWORK)
    client = given(served.package())
    assert client.fingerprint == served.fingerprint
    assert client.planned_from() == served.planned_from()
    assert client.plan(1, 16, PAIR).digest == served.plan(1, 16, PAIR).digest
    assert {name: value.shape for name, value in client.tables.items()} == table_shapes(shape, tied=tied)
    states = np.random.default_rng(0).standard_normal((3, shape.hidden))
    np.testing.assert_array_equal(client.logits(states), served.logits(states))
    ids, places = [3, 260, 5], [0, 1, 2]
    np.testing.assert_array_equal(client.rows(ids, places), served.rows(ids, places))
    assert all(weight.values is None for weight in client.weights().values())
    assert client.ends == {1, 2}
    assert client.package() == served.package()


def test_what_is_written_is_the_same_for_every_run_of_the_same_positions(tmp_path: Path) -> None:
    served = load_decoder(write_small(tmp_path, tied=False, seed=1))
    assert [*written_by_twin(served, "abc hi", 6)] == [260, 263, 266, 269, 261, 264]
    assert [*written_by_twin(served, "abc hia", 5)] == [263, 266, 269, 261, 264]


def test_operators_choose_the_digits_that_are_told(tmp_path: Path) -> None:
    write_small(tmp_path)
    found = [load_decoder(tmp_path, answer_bits=bits) for bits in (None, 4, 4)]
    assert [one.answer_bits for one in found] == [8, 4, 4]
    assert [one.rules.hidden_bits for one in found] == [8, 4, 4]
    assert found[0].fingerprint != found[1].fingerprint == found[2].fingerprint
    with pytest.raises(CheckpointError, match="digits"):
        load_decoder(tmp_path, answer_bits=40)
    with pytest.raises(ConfigurationError, match="is its head as well"):
        load_decoder(tmp_path, private_embeddings=True)


def test_the_kind_of_a_checkpoint_is_seen_and_said(tmp_path: Path) -> None:
    write_small(tmp_path)
    assert is_decoder(tmp_path)
    assert isinstance(load_model(tmp_path), Decoder)
    for wrong in (read_config, ServedModel.load):
        with pytest.raises(CheckpointError, match="a model that writes"):
            wrong(tmp_path)
    with pytest.raises(CheckpointError, match="no such directory"):
        load_model(tmp_path / "nothing")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(CheckpointError, match="comet adopt"):
        load_model(tmp_path / "foreign")


def _changed(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """The section, as somebody who removes the checksums edits it."""
    path = directory / "config.json"
    content = json.loads(path.read_text())
    change(content["comet"])
    del content["checksums"]
    path.write_text(json.dumps(content))


def _tensors(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


WRONG: list[tuple[Callable[[Path], object], str]] = [
    (lambda d: _tensors(d, lambda t: t.pop("layers.1.neurons")), r"missing layers\.1\.neurons"),
    (lambda d: _tensors(d, lambda t: t.update(more=np.zeros(3, np.float32))), "unknown more"),
    (lambda d: _tensors(d, lambda t: t.update({"embeddings": np.zeros((9, 24), np.float32)})), "embeddings has shape"),
    (lambda d: _tensors(d, lambda t: t["embeddings"].fill(np.nan)), "not finite"),
    (lambda d: _tensors(d, lambda t: t["embeddings"].fill(0.5)), "checksum"),
    (lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-7]), "cannot be read"),
    (lambda d: (d / "model.safetensors").unlink(), "cannot be read"),
    (lambda d: (d / "tokenizer.json").unlink(), "cannot be read as a tokenizer"),
    (lambda d: (d / "tokenizer.json").write_bytes(b"{}"), "checksum"),
    (lambda d: (d / "config.json").write_bytes(b"{"), "not JSON"),
    (lambda d: _changed(d, lambda c: c.update(format=2)), "section `comet`"),
    (lambda d: _changed(d, lambda c: c.update(more=1)), "more"),
    (lambda d: _changed(d, lambda c: c["decoder"].update(groups=0)), "section `comet`"),
    (lambda d: _changed(d, lambda c: c["decoder"].update(layers=3)), "norms were seen"),
    (lambda d: _changed(d, lambda c: c["seen"].pop()), "norms were seen"),
    (lambda d: _changed(d, lambda c: c.update(ends=[270])), "not in the model's vocabulary"),
    (lambda d: _changed(d, lambda c: c.update(seen=[-1.0] * 5)), "section `comet`"),
    (lambda d: _changed(d, lambda c: c.update(epsilon=2.0)), "section `comet`"),
]


@pytest.mark.parametrize(("spoil", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_checkpoint_that_is_not_whole_is_refused(
    tmp_path: Path, spoil: Callable[[Path], object], message: str
) -> None:
    write_small(tmp_path)
    spoil(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_model(tmp_path)


def test_what_was_fitted_must_prove_itself_again(tmp_path: Path) -> None:
    """A head's scale that is smaller than its rows could leave the ring, whoever wrote the file."""
    write_small(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["layers.0.scales.query"] *= 0.5
    save_file(tensors, tmp_path / "model.safetensors")
    _changed(tmp_path, lambda section: None)
    assert read_stored(tmp_path)[0].decoder == LLAMA
    with pytest.raises(CheckpointError, match="nothing is proved of it: layer 0: a query"):
        load_decoder(tmp_path)


def _repacked(package: bytes, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    size = int.from_bytes(package[:8], "little")
    card = json.loads(json.loads(package[8 : 8 + size])["__metadata__"][FAMILY])
    tables = load_tensors(package)
    change(card, tables)
    return save(tables, {FAMILY: json.dumps(card)})


HOSTILE: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "no table": lambda card, tables: tables.pop("embeddings"),
    "more tables": lambda card, tables: tables.update(head=tables["embeddings"].copy()),
    "whole numbers": lambda card, tables: tables.update(embeddings=tables["embeddings"].astype(np.float32)),
    "no numbers": lambda card, tables: tables["embeddings"].fill(np.nan),
    "a field": lambda card, tables: card.update(more=1),
    "no digest": lambda card, tables: card.update(stated="x"),
    "no layers": lambda card, tables: card["shape"].update(layers=0),
    "other layers": lambda card, tables: card["shape"].update(layers=3),
    "no heads": lambda card, tables: card["shape"].update(heads=0),
    "no groups": lambda card, tables: card["shape"].update(groups=0),
    "too large": lambda card, tables: card["shape"].update(intermediate=1 << 40),
    "a rule": lambda card, tables: card["rules"]["last"].update(kind="newton"),
    "no rule": lambda card, tables: card["rules"].pop("last"),
    "an interval": lambda card, tables: card["rules"]["layers"][0]["attention"]["means"]["numbers"].update(low=-1.0),
    "left over": lambda card, tables: card["rules"].update(more=1),
    "digits": lambda card, tables: card["rules"].update(hidden_bits=40),
    "epsilon": lambda card, tables: card["rules"].update(epsilon=-1.0),
    "ends": lambda card, tables: card.update(ends=[270]),
    "tied": lambda card, tables: card.update(tied=False),
    "factor": lambda card, tables: card.update(factor=-1.0),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_package_that_is_no_decoders_is_refused(
    small_package: bytes, change: Callable[[dict[str, Any], dict[str, Any]], object]
) -> None:
    with pytest.raises(CometError):
        given(_repacked(small_package, change))


def test_an_unchanged_package_passes_and_one_with_a_foreign_tokenizer_does_not(small_package: bytes) -> None:
    given(_repacked(small_package, lambda card, tables: None))
    with pytest.raises(UnsafeTokenizer):
        given(_repacked(small_package, lambda card, tables: card.update(tokenizer="{}")))
    with pytest.raises(CheckpointError, match="damaged"):
        given(small_package[:300])
    assert parts(small_package).keys() == {"model"}


def test_clients_may_bring_their_own_tokenizer(small_package: bytes) -> None:
    own = ToyWriter().tokenizer
    spoilt = _repacked(small_package, lambda card, tables: card.update(tokenizer="{}"))
    assert unpack(spoilt, network=USUAL_NETWORK, tokenizer=own).tokenizer is own


def test_places_are_told_for_every_position(small_package: bytes) -> None:
    model = given(small_package)
    with pytest.raises(CometError, match="2 places for 3 positions"):
        model.step(Window(0, 3, 16), range(2))


@pytest.fixture(scope="module")
def small_package(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return load_decoder(write_small(tmp_path_factory.mktemp("small"))).package()
