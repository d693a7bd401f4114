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
from comet_mpc.errors import CheckpointError, ConfigurationError, TaskDataError
from comet_mpc.models.certify import check_ranges
from comet_mpc.models.checkpoint import load_checkpoint, save_checkpoint
from comet_mpc.models.own_data import read_split
from comet_mpc.models.tasks import TASKS
from support.documents import ROOT
from support.toy_model import WORDS, make_checkpoint, toy_tokenizer

pytestmark = pytest.mark.train


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """A review is positive if it says `good`."""
    generator = np.random.default_rng(0)
    folder = tmp_path / "glue" / "SST-2"
    folder.mkdir(parents=True)
    plain = [word for word in WORDS if word not in ("good", "bad")]
    for split, count in (("train", 64), ("dev", 32)):
        rows = ["sentence1\tlabel"]
        for label in generator.integers(0, 2, count):
            words = [*generator.choice(plain, 4), "good" if label else "bad"]
            rows.append(f"{' '.join(generator.permutation(words))}\t{label}")
        (folder / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path / "glue"


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
    with pytest.raises(ConfigurationError, match="takes no steps"):
        comet("eval", tuned, *task, "--mode", "exact", "--steps", 2)
    with pytest.raises(ConfigurationError, match="unmodified"):
        comet("eval", plain, *task, "--rule", "newton")
    with pytest.raises(ConfigurationError, match="nothing to calibrate"):
        comet("calibrate", plain, *task)


def test_neurons_are_finer_in_a_model_whose_answers_feel_their_rounding(glue: Path, tmp_path: Path) -> None:
    bits = {}
    for loud in (1.0, 1000.0):
        directory = make_checkpoint(tmp_path / f"loud-{loud:g}", labels=("0", "1"), rule="quadratic", row_steps=0)
        config, tensors = load_checkpoint(directory)
        tensors["classifier.weight"] *= loud
        save_checkpoint(directory, config, tensors, tokenizer=toy_tokenizer().to_str().encode())
        said = comet("calibrate", directory, "--task", "sst-2", "--data", glue)
        config, tensors = load_checkpoint(directory)
        check_ranges(config, tensors)
        rules = config.sites["activation"].root, config.sites["scores"].root
        assert rules[0] is not None
        assert rules[1] is not None
        assert rules[1].fraction_t == 13
        bits[loud] = rules[0].fraction_t
        assert ("neurons get 15 fraction bits" in said) == (bits[loud] == 15)
        assert all(len(site.seen) == 5 for site in config.sites.values())
    assert bits == {1.0: 13, 1000.0: 15}


@pytest.mark.parametrize(
    ("activation", "attention"), [(a, b) for a in ("gelu", "smu") for b in ("softmax", "relu", "smu")]
)
def test_every_combination_of_the_paper(glue: Path, tmp_path: Path, activation: str, attention: str) -> None:
    source = make_checkpoint(tmp_path / "source", labels=("0", "1"))
    out = tmp_path / "out"
    choice = ("--activation", activation, "--attention", attention, "--attention-mu", 0.1)
    comet("unify", source, out, "--form", "paper", *choice)
    output = comet("finetune", out, tmp_path / "tuned", "--task", "SST-2", "--data", glue, "--epochs", 1, "--exact")
    assert "best" in output
    if "smu" in (activation, attention):
        assert "seen" in comet("calibrate", out, "--task", "SST-2", "--data", glue, "--limit", 16)


def test_a_teacher_alone_is_enough_and_nobody_is_too_little(glue: Path, tmp_path: Path) -> None:
    plain, unified = tmp_path / "plain", tmp_path / "unified"
    comet("unify", make_checkpoint(tmp_path / "source", labels=("0", "1")), plain, "--form", "unmodified")
    task = ("--task", "SST-2", "--data", glue)
    comet("unify", plain, unified, "--task", "SST-2")
    words = ("finetune", unified, tmp_path / "tuned", *task, "--label-weight", 0, "--epochs", 1)
    with pytest.raises(ConfigurationError, match="--teacher"):
        comet(*words)
    result = tmp_path / "result.json"
    comet(*words, "--teacher", plain, "--fit-tokens", 64, "--limit", 40, "--spread", "--json", result)
    found = json.loads(result.read_text())
    assert (found["label_weight"], found["fit_tokens"], found["distilled"]) == (0.0, 64, True)
    assert (found["rows"], found["held_out"]["rows"], found["spread"]) == (36, 4, True)


def test_only_rows_from_all_over_the_file_reach_its_end(glue: Path, tmp_path: Path) -> None:
    rows = glue / "SST-2" / "train.tsv"
    rows.write_text(rows.read_text().removesuffix("\n").rpartition("\n")[0] + "\tone column too many\nfilm good\t1\n")
    comet("unify", make_checkpoint(tmp_path / "source", labels=("0", "1")), tmp_path / "plain", "--form", "unmodified")
    words = ("finetune", tmp_path / "plain", tmp_path / "tuned", "--task", "SST-2", "--data", glue, "--limit", 40)
    comet(*words, "--epochs", 1)
    with pytest.raises(TaskDataError, match="row 64: 3 columns"):
        comet(*words, "--epochs", 1, "--spread")


def test_labels_that_do_not_fit_are_refused(glue: Path, tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", labels=("spam", "ham"))
    with pytest.raises(ConfigurationError, match="spam, ham"):
        comet("eval", model, "--task", "SST-2", "--data", glue)


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


def test_learnt_alpha_and_mu_cannot_be_certified(glue: Path, tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", labels=("0", "1"))
    with pytest.raises(ConfigurationError, match="cannot be certified"):
        comet("unify", source, tmp_path / "out", "--trainable")
    comet("unify", source, tmp_path / "out", "--form", "paper", "--trainable")
    task = ("--task", "SST-2", "--data", glue)
    comet("calibrate", tmp_path / "out", *task, "--margin", 2)
    output = comet("finetune", tmp_path / "out", tmp_path / "tuned", *task, "--epochs", 1)
    assert "not in the certified form" in output
    assert "accuracy" in comet("eval", tmp_path / "tuned", *task)


def test_a_text_that_is_too_long_is_cut_and_said(glue: Path, tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", labels=("0", "1"), positions=6)
    assert "truncated to 6 tokens" in comet("eval", model, "--task", "SST-2", "--data", glue)


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
