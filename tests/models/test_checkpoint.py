"""Checkpoints: every key and shape is accounted for, and what is certified holds for every input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("safetensors", reason="reading checkpoints needs the package safetensors")

from safetensors.numpy import load_file, save_file

from comet_mpc.errors import CheckpointError
from comet_mpc.models.bounds import (
    _sigma_of_product,
    activation_bounds,
    attention_norm_top,
    embedding_norm_top,
    head_bounds,
    output_norm_top,
    sigma,
)
from comet_mpc.models.certify import certify, check_ranges
from comet_mpc.models.checkpoint import AttentionChoice, tensor_shapes
from comet_mpc.models.fold import in_form, normalised_neurons, normalised_queries
from comet_mpc.models.hugging_face import load_hugging_face
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import checkpoint_digest, load_checkpoint, save_checkpoint
from support.small_models import CERTIFIED, UNMODIFIED, small_model
from support.toy_model import make_checkpoint

Generator = np.random.Generator


def normalised_rows(generator: Generator, count: int, size: int) -> Any:
    """Rows with mean 0 and norm √size, spikes among them: all that LayerNorm can give."""
    rows = generator.standard_normal((count, size)) ** generator.choice([1, 3, 9], (count, 1))
    rows -= rows.mean(axis=1, keepdims=True)
    return rows / np.sqrt((rows**2).mean(axis=1, keepdims=True))


@pytest.mark.slow
def test_a_checkpoint_survives_saving_and_loading(tmp_path: Path) -> None:
    config, tensors = small_model()
    config = certify(config, tensors)
    save_checkpoint(tmp_path, config, tensors)
    again, loaded = load_checkpoint(tmp_path)
    assert again == config
    assert loaded.keys() == tensors.keys()
    assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)
    assert checkpoint_digest(again, loaded) == checkpoint_digest(config, tensors)
    check_ranges(again, loaded)


def test_int8_and_half_precision_are_close_and_smaller(tmp_path: Path) -> None:
    config, tensors = small_model()
    save_checkpoint(tmp_path / "whole", config, tensors)
    save_checkpoint(tmp_path / "small", config, tensors, half=True, int8=("embeddings.words",))
    _, loaded = load_checkpoint(tmp_path / "small")
    for name, value in tensors.items():
        assert np.max(np.abs(loaded[name] - value)) <= np.max(np.abs(value)) / 127
    sizes = [(tmp_path / folder / "model.safetensors").stat().st_size for folder in ("small", "whole")]
    assert sizes[0] < 0.7 * sizes[1]


def test_the_fingerprint_sees_every_tensor_and_setting() -> None:
    config, tensors = small_model()
    first = checkpoint_digest(config, tensors)
    assert checkpoint_digest(msgspec.structs.replace(config, steps=3), tensors) != first
    tensors["pooler.bias"][3] += 1e-6
    assert checkpoint_digest(config, tensors) != first


def test_the_fingerprint_sees_the_tokenizer(tmp_path: Path) -> None:
    """The number of a word decides which row of the table it gets."""
    directory = make_checkpoint(tmp_path / "one")
    first = ServedModel.load(directory).fingerprint
    assert ServedModel.load(make_checkpoint(tmp_path / "two")).fingerprint == first
    config, tensors = load_checkpoint(directory)
    swapped = (directory / "tokenizer.json").read_bytes().replace(b'"good"', b'"x"').replace(b'"bad"', b'"good"')
    save_checkpoint(directory, config, tensors, tokenizer=swapped.replace(b'"x"', b'"bad"'))
    assert ServedModel.load(directory).fingerprint != first


def test_deeply_nested_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_damaged_file_is_refused_by_name_or_changes_nothing(tmp_path: Path, name: str) -> None:
    directory = make_checkpoint(tmp_path, layers=1)
    before = ServedModel.load(directory).fingerprint
    path = directory / name
    whole, generator, refusals = path.read_bytes(), np.random.default_rng(7), []
    for place in generator.integers(0, len(whole), 60):
        data = bytearray(whole)
        data[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(data)
        try:
            assert ServedModel.load(directory).fingerprint == before  # blanks, or the names of checksums
        except CheckpointError as error:
            refusals.append(str(error))
    assert all(name in refusal for refusal in refusals)
    assert len(refusals) == 60 if name != "config.json" else len(refusals) > 20
    path.write_bytes(whole)
    assert ServedModel.load(directory).fingerprint == before


def test_a_checkpoint_without_checksums_is_loaded(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, layers=1)
    path = directory / "config.json"
    content = json.loads(path.read_text())
    assert content.pop("checksums").keys() == {"comet", "model.safetensors", "tokenizer.json"}
    path.write_text(json.dumps(content))
    assert ServedModel.load(directory).fingerprint


def test_missing_unknown_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    config, tensors = small_model()
    save_checkpoint(tmp_path, config, tensors)
    path = tmp_path / "model.safetensors"
    stored = load_file(path)
    save_file({name: value for name, value in stored.items() if name != "layers.1.up.bias"}, path)
    with pytest.raises(CheckpointError, match=r"missing layers\.1\.up\.bias"):
        load_checkpoint(tmp_path)
    save_file({**stored, "layers.2.up.bias": stored["layers.1.up.bias"]}, path)
    with pytest.raises(CheckpointError, match=r"unknown layers\.2\.up\.bias"):
        load_checkpoint(tmp_path)
    save_file({**stored, "pooler.bias": np.zeros(23, np.float32)}, path)
    with pytest.raises(CheckpointError, match=r"pooler\.bias has shape \(23,\), expected \(24,\)"):
        load_checkpoint(tmp_path)
    save_file({**stored, "pooler.bias": np.full(24, np.nan, np.float32)}, path)
    with pytest.raises(CheckpointError, match="not finite"):
        load_checkpoint(tmp_path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, *small_model())
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("comet"), "is a Hugging Face model"),
        (lambda c: c["comet"].update(format=2), "format"),
        (lambda c: c["comet"].update(surprise=1), "surprise"),
        (lambda c: c["comet"]["encoder"].update(architecture="gpt2"), "gpt2"),
        (lambda c: c["comet"]["encoder"].update(heads=7), "not a multiple"),
        (lambda c: c["comet"].update(steps=0), "steps"),
        (lambda c: c["comet"]["encoder"].update(layers=2_000_000_000), "layers"),
        (lambda c: c["comet"]["encoder"].update(vocabulary=2**62), "vocabulary"),
        (lambda c: c["comet"].update(scores={"accuracy": "high"}), "scores"),
        (lambda c: c["comet"].update(task="QNLI"), "was changed since it was written"),
        (lambda c: c.update(checksums=[1]), "checksums"),
    ],
)
def test_a_foreign_configuration_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    save_checkpoint(tmp_path, *small_model())
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(CheckpointError, match="gpt2"):
        load_hugging_face(tmp_path)


def test_an_encoder_is_converted_without_losing_a_weight() -> None:
    config, tensors = small_model(UNMODIFIED)
    activation, attention, _ = CERTIFIED
    changed, made = in_form(
        config, tensors, activation=activation, attention=attention, pooler="algebraic", labels=("a", "b", "c")
    )
    assert {name: value.shape for name, value in made.items()} == tensor_shapes(changed)
    assert made["classifier.weight"].shape == (3, 24)
    assert all(np.array_equal(made[name], tensors[name]) for name in tensors if not name.startswith("classifier"))


def test_a_softmaxs_scores_begin_in_one_range_for_every_input() -> None:
    """Multiplied head by head, which the ratios that Softmax* takes do not feel."""
    config, tensors = small_model(UNMODIFIED)
    relu = AttentionChoice(kind="relu", power=1, cosine=False, mu=0.0, floor=1.0)
    choice = {"activation": CERTIFIED[0], "pooler": "algebraic", "labels": ("a", "b")}
    before = {name: value.copy() for name, value in tensors.items()}
    made = in_form(config, tensors, attention=relu, **choice)[1]  # type: ignore[arg-type]
    assert all(np.array_equal(before[name], value) for name, value in tensors.items())  # the source is as it was
    rows = normalised_rows(np.random.default_rng(1), 300, 24)
    x = rows * made["layers.0.output_norm.weight"] + made["layers.0.output_norm.bias"]

    def scores(found: dict[str, Any]) -> Any:
        q, k = (x @ found[f"layers.1.{part}.weight"].T + found[f"layers.1.{part}.bias"] for part in ("query", "key"))
        return np.einsum("ihd,jhd->hij", q.reshape(-1, 3, 8), k.reshape(-1, 3, 8)) / np.sqrt(8.0)

    new, old = scores(made), scores(tensors)
    assert 4.0 < np.abs(new).max() <= 64.0
    factors = (new * old).sum(axis=(1, 2), keepdims=True) / np.square(old).sum(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(new, factors * old, atol=1e-4)
    changed = [name for name in tensors if name in made and not np.array_equal(made[name], tensors[name])]
    assert changed
    assert all(".query." in name for name in changed)
    again = in_form(*in_form(config, tensors, attention=relu, **choice), attention=relu, **choice)[1]  # type: ignore[arg-type]
    assert all(np.array_equal(again[name], made[name]) for name in made)  # what was learnt since would be kept


@pytest.mark.parametrize(("rows", "between", "columns"), [(24, 4, 24), (24, 1, 9), (6, 8, 7), (5, 5, 5), (30, 12, 8)])
def test_the_norm_of_a_product_is_that_of_its_small_factors(rows: int, between: int, columns: int) -> None:
    generator = np.random.default_rng(rows)
    left, right = generator.standard_normal((rows, between)), generator.standard_normal((between, columns))
    largest = float(np.linalg.norm(left @ right, 2))
    assert largest <= _sigma_of_product(left, right) <= largest * (1 + 1e-8)
    assert _sigma_of_product(left, right) == pytest.approx(sigma(left @ right), rel=1e-12)
    assert _sigma_of_product(left, 0.0 * right) == 0.0


def test_neurons_never_leave_their_bounds() -> None:
    generator = np.random.default_rng(1)
    w, b = generator.standard_normal((40, 24)), generator.standard_normal(40)
    gamma, beta = generator.standard_normal(24), generator.standard_normal(24)
    bound = activation_bounds(w, b, gamma, beta)
    inputs = normalised_rows(generator, 2000, 24)
    scaled = w * gamma
    worst = scaled - scaled.mean(axis=1, keepdims=True)
    worst *= np.sqrt(24) / np.linalg.norm(worst, axis=1, keepdims=True) * np.sign(w @ beta + b)[:, None]
    for rows in (inputs, worst):
        assert np.all(np.abs((rows * gamma + beta) @ w.T + b) <= bound)
    reached = np.abs(np.sum((worst * gamma + beta) * w, axis=1) + b)
    assert np.all(reached >= bound / 1.01), "the bound is attained, but for its slack"


def test_certified_rows_are_normalised() -> None:
    config, tensors = small_model()
    generator = np.random.default_rng(2)
    n = normalised_rows(generator, 500, 24)
    x = n * tensors["layers.0.attention_norm.weight"] + tensors["layers.0.attention_norm.bias"]
    w1, b1, w2 = normalised_neurons(tensors, 0)
    assert np.max(np.abs(x @ w1.T + b1)) <= 1.0
    up, down = (tensors[f"layers.0.{part}.weight"].astype(np.float64) for part in ("up", "down"))
    np.testing.assert_allclose(w2 @ w1, down @ up, atol=1e-9)
    x = n * tensors["embeddings.norm.weight"] + tensors["embeddings.norm.bias"]
    w, b = normalised_queries(tensors, 0, "query", config.encoder.heads)
    assert np.max(np.linalg.norm((x @ w.T + b).reshape(500, 3, 8), axis=2)) <= 1.0


def test_variances_never_leave_their_tops() -> None:
    generator = np.random.default_rng(3)
    d, m, heads, n = 24, 40, 3, 6
    gamma, beta = 1 + 0.3 * generator.standard_normal(d), 0.3 * generator.standard_normal(d)
    up = generator.standard_normal((m, d)) * 0.3, generator.standard_normal(m) * 0.1
    down = generator.standard_normal((d, m)) * 0.3, generator.standard_normal(d) * 0.1
    value = generator.standard_normal((d, d)) * 0.3, generator.standard_normal(d) * 0.1
    output = generator.standard_normal((d, d)) * 0.3, generator.standard_normal(d) * 0.1
    scale = activation_bounds(*up, gamma, beta)

    def smu(h: Any) -> Any:
        return 0.5 * (h + np.sqrt(h**2 + (scale / 16) ** 2))

    variance_top = output_norm_top(up, down, gamma, beta, smu(up[0] @ beta + up[1]))
    attention_top = attention_norm_top(value, output, gamma, beta, heads)
    assert np.all(head_bounds(*value, gamma, beta, heads) > 0)
    largest = 0.0
    for _ in range(200):
        x = normalised_rows(generator, n, d) * gamma + beta
        feed = x + smu(x @ up[0].T + up[1]) @ down[0].T + down[1]
        largest = max(largest, float(feed.var(axis=1).max()))
        weights = generator.dirichlet(np.full(n, 0.1), (heads, n))
        v = (x @ value[0].T + value[1]).reshape(n, heads, -1).transpose(1, 0, 2)
        context = (weights @ v).transpose(1, 0, 2).reshape(n, d)
        assert float((x + context @ output[0].T + output[1]).var(axis=1).max()) <= attention_top
    assert largest <= variance_top <= 20 * largest
    tables = [generator.standard_normal((5, d)) for _ in range(3)]
    sums = tables[0][:, None, None] + tables[1][None, :, None] + tables[2][None, None, :]
    assert float(sums.var(axis=-1).max()) <= embedding_norm_top(tables)


def test_a_model_that_outgrew_its_intervals_is_refused() -> None:
    config, tensors = small_model()
    config = certify(config, tensors)
    check_ranges(config, tensors)
    tensors["layers.1.value.weight"] *= 8.0
    with pytest.raises(CheckpointError, match=r"layers\.1\.attention_norm"):
        check_ranges(config, tensors)


def test_tops_are_proved_for_the_rules_of_the_file() -> None:
    """A rule for scores that errs more than the one the denominators' top was made for: R may be larger than that."""
    config, tensors = small_model()
    config = certify(config, tensors)
    worse = certify(msgspec.structs.replace(config, steps=2), tensors).sites["scores"]
    config = msgspec.structs.replace(config, sites=config.sites | {"scores": worse})
    with pytest.raises(CheckpointError, match=r"denominators.*comet calibrate"):
        check_ranges(config, tensors)


def test_thresholds_outside_the_certified_range_are_refused() -> None:
    config, tensors = small_model()
    config = certify(config, tensors)
    tensors["layers.0.thresholds"][1] = 1.5
    with pytest.raises(CheckpointError, match="thresholds"):
        check_ranges(config, tensors)


def test_only_the_certified_form_is_certified() -> None:
    with pytest.raises(CheckpointError, match="certified form"):
        certify(*small_model(UNMODIFIED))
    with pytest.raises(CheckpointError, match="not in the certified form"):
        check_ranges(*small_model(UNMODIFIED))
