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

from comet_mpc.errors import CheckpointError, ConfigurationError, needs_extra
from comet_mpc.models.checkpoint import tensor_shapes
from comet_mpc.models.heads import Head
from comet_mpc.models.hugging_face import _USUAL, _foreign_name, _labels, fetch, load_hugging_face
from comet_mpc.models.stored.checkpoints import load_checkpoint
from comet_mpc.models.tokenizers.files import tokenizer_json
from support.small_models import UNMODIFIED, small_model
from support.toy_model import toy_tokenizer
from support.waiting import PATIENCE

SIZES = {
    "vocab_size": 50,
    "max_position_embeddings": 20,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
}
DISTILLED = {
    "vocab_size": 50,
    "max_position_embeddings": 20,
    "dim": 24,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 40,
}


def write(directory: Path, *, architecture: str = "bert", head: bool = True, **changes: Any) -> Path:
    """A small classifier (or encoder) as Hugging Face stores it."""
    config, tensors = small_model(UNMODIFIED, architecture=architecture)
    directory.mkdir(parents=True, exist_ok=True)
    kind = {"bert": "Bert", "distilbert": "DistilBert", "roberta": "Roberta", "mpnet": "MPNet"}[architecture]
    content = {
        "model_type": architecture,
        "architectures": [f"{kind}ForSequenceClassification" if head else f"{kind}Model"],
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": config.encoder.padding,
        **(DISTILLED if architecture == "distilbert" else SIZES),
        **changes,
    }
    (directory / "config.json").write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    stored: dict[str, Any] = {}
    for name in tensor_shapes(config):
        there = _foreign_name(name, architecture, _USUAL[architecture])
        if there.startswith(("classifier", "pre_classifier")):
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


@pytest.mark.parametrize("architecture", ["bert", "distilbert", "roberta", "mpnet"])
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
        ({"model_type": "electra"}, "electra"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "decoder"),
        ({"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering"),
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


def theirs(kind: str, **settings: Any) -> Any:
    """One of transformers' own models, with random weights."""
    transformers = pytest.importorskip("transformers", reason="the extra [train] is not installed (transformers)")
    torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")
    torch.manual_seed(0)
    family = next(name for name in ("DistilBert", "Bert", "Roberta", "MPNet") if kind.startswith(name))
    sizes = DISTILLED if family == "DistilBert" else SIZES
    config = getattr(transformers, f"{family}Config")(**sizes, pad_token_id=1, **settings)
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.train
@pytest.mark.parametrize("family", ["Bert", "DistilBert", "Roberta", "MPNet"])
@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForTokenClassification"])
def test_a_classifier_of_three_labels_answers_as_in_transformers(tmp_path: Path, family: str, kind: str) -> None:
    model = theirs(family + kind, num_labels=3)
    model.save_pretrained(tmp_path)
    torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")
    from comet_mpc.train.model import UnifiedModel

    config, tensors, absent = load_hugging_face(tmp_path)
    assert not absent
    assert config.head == Head(kind="tokens" if "Token" in kind else "label")
    ids, mask = torch.randint(2, 50, (3, 9)), torch.ones(3, 9).long()
    mask[1, 5:] = mask[2, 7:] = 0
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask).logits
        found, _ = UnifiedModel.from_tensors(config, tensors).eval()(ids, mask)
    rows = mask.bool() if "Token" in kind else torch.ones(3).bool()
    np.testing.assert_allclose(found[rows], wanted[rows], atol=2e-4)
    assert wanted[rows].std() > 0.1


def sentence_encoder(directory: Path, *, mode: str = "mean_tokens", modules: tuple[str, ...] = ("Normalize",)) -> Path:
    theirs("BertModel").save_pretrained(directory)
    kinds = ("Transformer", "Pooling", *modules)
    listed = [
        {"path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(listed))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    return directory


@pytest.mark.train
def test_an_encoder_of_sentence_transformers_gives_embeddings(tmp_path: Path) -> None:
    config, tensors, absent = load_hugging_face(sentence_encoder(tmp_path))
    assert config.head == Head(kind="embedding", pooling="mean", unit=True)
    assert config.length == 12
    assert config.encoder.labels == ()
    assert not absent
    assert "pooler.weight" not in tensors, "an encoder's own pooler has no part in the mean"
    config, tensors, absent = load_hugging_face(tmp_path, kind="label")
    assert config.head == Head()
    assert "pooler.weight" in tensors, "a classifier on the same encoder goes through it"
    assert absent == ("classifier.weight", "classifier.bias")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modules": ("Dense", "Normalize")}, "Dense"),
        ({"mode": "max_tokens"}, "pooling_mode_max_tokens, expected the mean"),
    ],
)
def test_embeddings_that_are_made_in_another_way_are_refused(tmp_path: Path, changes: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_hugging_face(sentence_encoder(tmp_path, **changes))


def test_a_classifier_without_a_pooler_reads_the_first_state(tmp_path: Path) -> None:
    directory = change(write(tmp_path), bert__pooler__dense__weight=None, bert__pooler__dense__bias=None)
    config, tensors, absent = load_hugging_face(directory)
    assert (config.pooler, absent) == ("none", ())
    assert "pooler.weight" not in tensors


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


def write_shards(directory: Path) -> dict[str, str]:
    """Weights in two files, and no index yet: which tensor is in which."""
    stored = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(stored)
    places = {name: f"model-0000{1 + (i % 2)}-of-00002.safetensors" for i, name in enumerate(names)}
    for part in set(places.values()):
        save_file({name: stored[name] for name in names if places[name] == part}, directory / part)
    return places


def write_index(directory: Path, places: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_weights_in_several_files(tmp_path: Path) -> None:
    directory = write(tmp_path)
    places = write_shards(directory)
    with pytest.raises(CheckpointError, match="no weights"):
        load_hugging_face(directory)
    write_index(directory, places)
    assert not load_hugging_face(directory)[2]


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "{home}/elsewhere.safetensors", "link.safetensors", "."])
def test_an_index_cannot_name_files_outside_its_directory(tmp_path: Path, name: str) -> None:
    """Each of them would be read: elsewhere.safetensors is there, and has what is missing."""
    directory = write(tmp_path / "model")
    places = write_shards(directory)
    first = min(places.values())
    (directory / first).rename(tmp_path / "elsewhere.safetensors")
    (directory / "link.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    outside = name.format(home=tmp_path)
    write_index(directory, {key: outside if part == first else part for key, part in places.items()})
    with pytest.raises(CheckpointError, match="not a file in its own directory"):
        load_hugging_face(directory)


def test_shards_in_the_cache_of_the_hub_are_links_to_its_blobs(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "0123abcd", tmp_path / "blobs"
    blobs.mkdir()
    places = write_shards(write(snapshot))
    write_index(snapshot, places)
    for part in set(places.values()):
        (snapshot / part).rename(blobs / part)
        (snapshot / part).symlink_to(Path("../../blobs") / part)
    assert not load_hugging_face(snapshot)[2]


@pytest.mark.parametrize("places", [None, [], {"x": 3}, {"x": "model\0.safetensors"}, {"x": "circle"}])
def test_an_index_that_names_no_files_is_refused(tmp_path: Path, places: object) -> None:
    directory = write(tmp_path)
    write_shards(directory)
    (directory / "circle").symlink_to("circle")
    write_index(directory, places)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        load_hugging_face(directory)


@pytest.mark.train
def test_pickled_weights_hold_numbers_only(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")
    from comet_mpc.train.reading import read_pickled

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


@pytest.mark.train
@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet"])
def test_logits_equal_those_of_transformers(tmp_path: Path, architecture: str) -> None:
    torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")
    transformers = pytest.importorskip("transformers", reason="the extra [train] is not installed (transformers)")
    from comet_mpc.train.model import UnifiedModel

    kind = {"bert": "Bert", "distilbert": "DistilBert", "roberta": "Roberta", "mpnet": "MPNet"}[architecture]
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
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.train
@pytest.mark.service
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
    assert "\ncomet: somebody/not-there is not a directory, and it could not be loaded" in failed.stderr
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
    with (
        pytest.raises(ConfigurationError, match=r"needs no_such_package.*comet-mpc\[train\]"),
        needs_extra("train"),
    ):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
