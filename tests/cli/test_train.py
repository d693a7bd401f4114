"""The commands that make models: unify, calibrate, finetune, eval."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")

from comet_mpc.cli.main import app
from comet_mpc.errors import CheckpointError, ConfigurationError
from comet_mpc.models.certify import check_ranges
from comet_mpc.models.own_data import read_split
from comet_mpc.models.stored.checkpoints import load_checkpoint
from comet_mpc.models.tasks import TASKS
from support.documents import ROOT
from support.toy_model import make_checkpoint, toy_tokenizer
from support.training import write_glue

pytestmark = pytest.mark.train


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_glue(tmp_path / "glue")


def comet(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["--debug", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_from_a_checkpoint_to_a_tuned_and_calibrated_one(glue: Path, tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", labels=("0", "1"))
    plain, unified, tuned = tmp_path / "plain", tmp_path / "unified", tmp_path / "tuned"
    task = ("--task", "sst-2", "--data", glue)
    assert "checkpoint" in comet("unify", source, plain, "--form", "unmodified")
    assert "SST-2" in comet("eval", plain, *task, "--mode", "exact")
    comet("unify", plain, unified, "--steps", 3, "--task", "SST-2")
    result = tmp_path / "result.json"
    recipe = ("--epochs", 6, "--rate", 3e-3, "--batch", 8, "--dropout", 0)
    output = comet("finetune", unified, tuned, *task, *recipe, "--teacher", plain, "--json", result)
    assert f"next: comet serve {tuned}" in output
    assert "the new form costs" in output
    found = json.loads(result.read_text())
    assert found["best"] >= 80.0
    assert found["command"].startswith("comet")
    assert found["versions"]["torch"]
    assert found["teacher_scores"]["accuracy"] < found["scores"]["accuracy"]
    config, tensors = load_checkpoint(tuned)
    assert all(len(site.seen) == 5 for site in config.sites.values()), "calibrated when it was finished"
    check_ranges(config, tensors)
    before = (tuned / "config.json").read_bytes()
    again = comet("finetune", unified, tuned, *task, *recipe, "--teacher", plain)
    assert "nothing to do" in again
    assert (tuned / "config.json").read_bytes() == before
    assert "certified" in comet("calibrate", tuned, *task, "--limit", 16)
    config, tensors = load_checkpoint(tuned)
    check_ranges(config, tensors)
    assert all(len(site.seen) == 5 for site in config.sites.values())
    served = tmp_path / "served.json"
    comet("eval", tuned, *task, "--json", served)
    assert json.loads(served.read_text())["scores"]["accuracy"] >= 80.0
    for rule in ("minimax", "newton"):
        for steps in range(5):
            output = comet("eval", tuned, *task, "--rule", rule, "--steps", steps, "--limit", 8, "--json", "-")
            measured = json.loads(output[output.index("{") :])
            assert (measured["rule"], measured["steps"], measured["rows"]) == (rule, steps, 8)
            assert 0.0 <= measured["scores"]["accuracy"] <= 100.0


def test_a_hugging_face_classifier_with_names_of_its_own(glue: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra [train] is not installed (transformers)")
    torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")
    size = len(toy_tokenizer().get_vocab())
    settings = transformers.BertConfig(
        vocab_size=size, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=40,
        id2label={0: "POSITIVE", 1: "NEGATIVE"}, initializer_range=0.5,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(settings).eval()
    model.save_pretrained(tmp_path / "theirs")
    toy_tokenizer().save(str(tmp_path / "theirs" / "tokenizer.json"))
    task = ("--task", "SST-2", "--data", glue)
    output = comet("eval", tmp_path / "theirs", *task, "--json", tmp_path / "result.json")
    assert "32 rows" in output
    examples = read_split(glue, TASKS["SST-2"], "dev")
    encoded = toy_tokenizer().encode_batch([example.first for example in examples])
    chosen = model(input_ids=torch.tensor([text.ids for text in encoded])).logits.argmax(-1).numpy()
    wanted = 100 * np.mean(chosen == [1 - example.label for example in examples])  # theirs: 0 is positive
    assert json.loads((tmp_path / "result.json").read_text())["scores"]["accuracy"] == pytest.approx(wanted)
    unified = tmp_path / "unified"
    assert "labels POSITIVE, NEGATIVE" in comet("unify", tmp_path / "theirs", unified)
    comet("finetune", unified, tmp_path / "tuned", *task, "--epochs", 1, "--teacher", tmp_path / "theirs")
    assert load_checkpoint(tmp_path / "tuned")[0].encoder.labels == ("POSITIVE", "NEGATIVE")
    bare = transformers.BertModel(settings)
    bare.save_pretrained(tmp_path / "bare")
    toy_tokenizer().save(str(tmp_path / "bare" / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="no classifier"):
        comet("eval", tmp_path / "bare", *task)


def test_a_data_set_of_ones_own(glue: Path, tmp_path: Path) -> None:
    mine = tmp_path / "letters"
    mine.mkdir()
    for split in ("train", "dev"):
        text = (glue / "SST-2" / f"{split}.tsv").read_text()
        (mine / f"{split}.tsv").write_text(text.replace("\t1\n", "\tham\n").replace("\t0\n", "\tspam\n"))
    source = make_checkpoint(tmp_path / "source", labels=("0", "1"))
    assert "must be trained" not in comet("unify", source, tmp_path / "model", "--labels", "ham,spam")
    output = comet("finetune", tmp_path / "model", tmp_path / "tuned", "--data", mine, "--epochs", 1)
    assert "accuracy" in output
    picture = tmp_path / "pictures" / "letters.png"
    pytest.importorskip("matplotlib", reason="the extra [train] is not installed (matplotlib)")
    output = comet("calibrate", tmp_path / "tuned", "--data", mine, "--limit", 16, "--picture", picture)
    assert "drew" in output
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigurationError, match=r"\.png, \.svg or \.pdf"):
        comet("calibrate", tmp_path / "tuned", "--data", mine, "--picture", tmp_path / "letters.txt")


def test_learnt_alpha_and_mu_are_for_experiments(glue: Path, tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", labels=("0", "1"))
    comet("unify", source, tmp_path / "out", "--form", "paper", "--trainable")
    task = ("--task", "SST-2", "--data", glue)
    comet("calibrate", tmp_path / "out", *task, "--margin", 2)
    output = comet("finetune", tmp_path / "out", tmp_path / "tuned", *task, "--epochs", 1)
    assert "not in the certified form" in output
    assert "accuracy" in comet("eval", tmp_path / "tuned", *task)


def test_the_script_that_made_the_demo_model_still_makes_one(glue: Path, tmp_path: Path) -> None:
    """With few rows, from a tiny encoder of random weights; what it makes can be served."""
    transformers = pytest.importorskip("transformers", reason="the extra [train] is not installed (transformers)")
    encoder, out, record = tmp_path / "encoder", tmp_path / "out", tmp_path / "record.json"
    settings = transformers.BertConfig(
        vocab_size=len(toy_tokenizer().get_vocab()), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=128,
    )  # fmt: skip
    transformers.BertModel(settings).save_pretrained(encoder)
    toy_tokenizer().save(str(encoder / "tokenizer.json"))
    few = {"rows": 48, "dev-rows": 16, "teacher-rows": 24, "teacher-epochs": 1, "epochs": 1, "layers": 1, "hidden": 8}
    options = [f"--{name}={value}" for name, value in {**few, "heads": 1, "intermediate": 8}.items()]
    script = ROOT / "scripts" / "train_demo_model.py"
    command = [sys.executable, script, encoder, glue, tmp_path / "work", "--out", out, "--json", record, *options]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config, tensors = load_checkpoint(out)
    check_ranges(config, tensors)
    assert config.encoder.labels == ("negative", "positive")
    assert config.scores == json.loads(record.read_text())["scores"]["served"]
