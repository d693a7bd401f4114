"""Hugging Face checkpoints: from a directory or the hub's cache, with every key, shape and label accounted for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from comet_mpc.errors import CheckpointError, ConfigurationError
from comet_mpc.models.checkpoint import load_checkpoint, tensor_shapes
from comet_mpc.models.hugging_face import _foreign_name, _labels, fetch, load_hugging_face, need, tokenizer_json
from support.small_models import UNMODIFIED, small_model
from support.toy_model import toy_tokenizer

SIZES = {
    "vocab_size": 50,
    "max_position_embeddings": 20,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
}


def write(directory: Path, *, architecture: str = "bert", head: bool = True, **changes: Any) -> Path:
    """A small classifier (or encoder) as Hugging Face stores it."""
    config, tensors = small_model(UNMODIFIED, architecture=architecture)
    directory.mkdir(parents=True, exist_ok=True)
    kind = {"bert": "Bert", "roberta": "Roberta", "mpnet": "MPNet"}[architecture]
    content = {
        "model_type": architecture,
        "architectures": [f"{kind}ForSequenceClassification" if head else f"{kind}Model"],
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": config.encoder.padding,
        **SIZES,
        **changes,
    }
    (directory / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    stored: dict[str, Any] = {}
    for name in tensor_shapes(config):
        there = _foreign_name(name, architecture)
        if there.startswith("classifier"):
            stored |= {there: tensors[name]} if head else {}
        else:
            stored[f"{architecture}.{there}" if head else there] = tensors[name]
    save_file(stored, directory / "model.safetensors")
    toy_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def change(directory: Path, **tensors: Any) -> Path:
    """Tensors replaced, or removed where None."""
    path = directory / "model.safetensors"
    stored = load_file(path) | {name.replace("__", "."): value for name, value in tensors.items()}
    save_file({name: value for name, value in stored.items() if value is not None}, path)
    return directory


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet"])
@pytest.mark.parametrize("head", [True, False])
def test_classifiers_and_encoders_are_read(tmp_path: Path, architecture: str, head: bool) -> None:
    names = {"0": "ham", "1": "spam"}
    config, tensors, absent = load_hugging_face(write(tmp_path, architecture=architecture, head=head, id2label=names))
    _, wanted = small_model(UNMODIFIED, architecture=architecture)
    kept = tensor_shapes(config).keys() - set(absent)
    assert all(np.array_equal(tensors[name], wanted[name]) for name in kept)
    assert config.encoder.labels == (("ham", "spam") if head else ("0", "1"))
    assert not head or not absent
    assert head or "classifier.weight" in absent


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bert__encoder__layer__1__output__dense__bias": None}, r"missing encoder\.layer\.1\.output\.dense\.bias"),
        ({"bert__encoder__layer__2__output__dense__bias": np.zeros(24, np.float32)}, r"unknown encoder\.layer\.2"),
        ({"qa_outputs__weight": np.zeros((2, 24), np.float32)}, r"unknown qa_outputs\.weight"),
        ({"classifier__bias": None}, r"missing classifier\.bias"),
        ({"bert__pooler__dense__bias": np.zeros(23, np.float32)}, r"pooler\.dense\.bias has shape \(23,\)"),
        ({"bert__pooler__dense__bias": np.full(24, np.inf, np.float32)}, "not finite"),
    ],
)
def test_foreign_missing_and_misshapen_tensors_are_named(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_hugging_face(change(write(tmp_path), **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "distilbert"}, "distilbert"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "decoder"),
        ({"architectures": ["BertForTokenClassification"]}, "BertForTokenClassification"),
        ({"problem_type": "multi_label_classification"}, "several labels"),
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "3 labels, the classifier has 2 outputs"),
        ({"id2label": {"0": "a", "1": "a"}}, "'a' twice"),
        ({"id2label": {"a": "0", "b": "1"}}, "labels from 0"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"num_hidden_layers": 0}, "layers"),
        ({"num_attention_heads": 5}, "not a multiple"),
    ],
)
def test_another_kind_of_model_is_refused(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_hugging_face(write(tmp_path, **changes))


def test_names_of_old_files_and_heads_for_pretraining(tmp_path: Path) -> None:
    directory = write(tmp_path, architectures=["BertForPreTraining"])
    path = directory / "model.safetensors"
    stored = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in load_file(path).items()
        if not name.startswith("classifier")
    }
    save_file({**stored, "cls.predictions.bias": np.zeros(50, np.float32)}, path)
    _, tensors, absent = load_hugging_face(directory)
    assert absent == ("classifier.weight", "classifier.bias")
    assert np.array_equal(tensors["embeddings.norm.weight"], small_model(UNMODIFIED)[1]["embeddings.norm.weight"])


def test_weights_in_several_files(tmp_path: Path) -> None:
    directory = write(tmp_path)
    stored = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(stored)
    places = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for part in set(places.values()):
        save_file({name: stored[name] for name in names if places[name] == part}, directory / part)
    with pytest.raises(CheckpointError, match="no weights"):
        load_hugging_face(directory)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert not load_hugging_face(directory)[2]


def test_pickled_weights_hold_numbers_only(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")
    from comet_mpc.train import read_pickled

    directory = write(tmp_path)
    wanted = load_hugging_face(directory)[1]
    stored = {name: torch.tensor(value) for name, value in load_file(directory / "model.safetensors").items()}
    (directory / "model.safetensors").unlink()
    torch.save({**stored, "bert.embeddings.position_ids": torch.arange(20)}, directory / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"in pytorch_model\.bin only"):
        load_hugging_face(directory)
    found = load_hugging_face(directory, read_pickled)[1]
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    torch.save({"x": Path("code")}, directory / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin cannot be read"):
        load_hugging_face(directory, read_pickled)


def test_regressions_and_unnamed_labels() -> None:
    assert _labels(Path("x"), {}, 3) == ("0", "1", "2")
    assert _labels(Path("x"), {"id2label": {"0": "LABEL_0"}}, 1) == ("LABEL_0",)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet"])
def test_logits_equal_those_of_transformers(tmp_path: Path, architecture: str) -> None:
    torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")
    transformers = pytest.importorskip("transformers", reason="the extra [train] is not installed (transformers)")
    from comet_mpc.train.model import UnifiedModel

    kind = {"bert": "Bert", "roberta": "Roberta", "mpnet": "MPNet"}[architecture]
    settings = SIZES | {"id2label": {0: "no", 1: "yes", 2: "perhaps"}, "initializer_range": 0.3}
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{kind}ForSequenceClassification")(
        getattr(transformers, f"{kind}Config")(**settings)
    ).eval()
    theirs.save_pretrained(tmp_path)
    config, tensors, absent = load_hugging_face(tmp_path)
    assert not absent
    assert config.encoder.labels == ("no", "yes", "perhaps")
    ids, mask = torch.randint(5, 50, (3, 12)), torch.ones(3, 12, dtype=torch.long)
    ids[1, 8:], mask[1, 8:] = config.encoder.padding, 0
    with torch.no_grad():
        wanted = theirs(input_ids=ids, attention_mask=mask).logits
        found = UnifiedModel.from_tensors(config, tensors).eval()(ids, mask)[0]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def unify(cache: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    code = "from comet_mpc.cli.main import app; app()"
    environment = os.environ | {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, "unify", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_a_name_is_found_in_the_hubs_cache(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="the extra [train] is not installed (huggingface_hub)")
    home, commit = tmp_path / "hub-home", "0123456789abcdef0123456789abcdef01234567"
    repository = home / "hub" / "models--somebody--film-mood"
    write(repository / "snapshots" / commit, id2label={"0": "NEGATIVE", "1": "POSITIVE"})
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    done = unify(home, "somebody/film-mood", tmp_path / "out", "--form", "unmodified")
    assert done.returncode == 0, done.stderr
    assert "labels NEGATIVE, POSITIVE" in done.stdout
    assert "made anew" not in done.stdout
    config, _ = load_checkpoint(tmp_path / "out")
    assert config.encoder.labels == ("NEGATIVE", "POSITIVE")
    assert (tmp_path / "out" / "tokenizer.json").exists()
    failed = unify(home, "somebody/not-there", tmp_path / "other")
    assert failed.returncode == 1
    assert failed.stderr.startswith("comet: somebody/not-there is not a directory, and it could not be loaded")
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "other").exists()


def test_what_is_no_directory_and_no_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in (tmp_path / "file", tmp_path / "absent", "a/b/c"):
        with pytest.raises(CheckpointError, match="not a directory"):
            fetch(str(name))
    with pytest.raises(CheckpointError, match="no tokenizer"):
        tokenizer_json(tmp_path)


def test_an_absent_package_is_named_with_its_extra() -> None:
    with pytest.raises(ConfigurationError, match=r"needs no_such_package.*comet-mpc\[train\]"):
        need("no_such_package")
