"""`comet adopt`: one command from a model and a file to one that is served, for every kind of head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")

from comet_mpc.cli.adopt import REPORT
from comet_mpc.cli.main import app
from comet_mpc.errors import ConfigurationError, TaskDataError
from comet_mpc.local.evaluation import evaluate_twin
from comet_mpc.models.checkpoint import CometConfig, load_checkpoint, save_checkpoint
from comet_mpc.models.heads import Head, Pooler
from comet_mpc.models.own_data import own_task, read_split
from comet_mpc.models.served import ServedModel
from comet_mpc.offline.sources import PAIR
from support.small_models import UNMODIFIED
from support.toy_model import WORDS, make_checkpoint, toy_tokenizer

pytestmark = pytest.mark.train

KINDS: dict[str, dict[str, Any]] = {
    "label": {"labels": ("ham", "spam")},
    "score": {"labels": ("mood",)},
    "distilbert": {"architecture": "distilbert", "pooler": "smu", "labels": ("ham", "spam")},
    "tokens": {"head": Head(kind="tokens"), "labels": ("O", "B-X")},
    "embedding": {"head": Head(kind="embedding", pooling="mean", unit=True)},
}


def comet(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["--debug", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def original(directory: Path, name: str) -> Path:
    """A model with GeLU, softmax and the usual pooler."""
    config, tensors = load_checkpoint(make_checkpoint(directory, **KINDS[name]))
    activation, attention, _ = UNMODIFIED
    poolers: dict[Pooler, Pooler] = {"algebraic": "tanh", "smu": "relu", "none": "none"}
    plain = CometConfig(
        encoder=config.encoder,
        activation=activation,
        attention=attention,
        pooler=poolers[config.pooler],
        head=config.head,
    )
    kept = {key: value for key, value in tensors.items() if not key.endswith("thresholds")}
    save_checkpoint(directory, plain, kept, tokenizer=toy_tokenizer().to_str().encode())
    return directory


def rows(path: Path, kind: str) -> Path:
    generator = np.random.default_rng(0)
    answers = {"label": "label", "distilbert": "label", "score": "score", "tokens": "tags", "embedding": ""}[kind]
    lines = [f"text,{answers}" if answers else "text"]
    for number in range(40):
        words = list(generator.choice(WORDS, 5))
        answer = {
            "label": ("ham", "spam")[number % 2], "score": f"{number / 10}", "tags": "O O B-X O O", "": "",
        }[answers]  # fmt: skip
        lines.append(",".join([" ".join(words), *([answer] if answers else [])]))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plain", [False, True])
def test_one_command_makes_a_model_that_can_be_served(tmp_path: Path, kind: str, plain: bool) -> None:
    model, data, out = original(tmp_path / "model", kind), rows(tmp_path / "mine.csv", kind), tmp_path / "out"
    command = ("adopt", model, out, "--data", data, "--epochs", 2, *(["--plain"] if plain else []))
    output = comet(*command)
    assert "passes take " in output
    steps = (
        "adopt: starting", "loading PyTorch", "reading ", "asking the original", "measuring how fast", "passes take",
        "fitting to the teacher", "fine-tuning", "calibrating", "proving the ranges", "evaluating", "comet serve",
    )  # fmt: skip
    places = [output.index(step) for step in steps]
    assert places == sorted(places)  # what is being done is said before it is, and how long before it begins
    assert f"comet serve {out}" in output
    report = json.loads((out / REPORT).read_text())
    assert (report["rows"], report["held_out"], report["dev_rows"]) == (29, 3, 8)
    assert report["labelled"] is not (plain or kind == "embedding")
    assert report["original"].keys() == report["adopted"].keys()
    served = ServedModel.load(out)
    assert report["costs"]["online_bytes"] == served.plan(1, 16, PAIR).online_bytes
    assert load_checkpoint(out)[0].fine_tuned
    task = own_task(data, served.config.encoder.labels, served.config.head.kind)
    twin = evaluate_twin(served, read_split(data, task, "dev"), task=task)
    if kind == "embedding":
        assert twin["cosine"]["smallest"] > 0.999
        assert report["agreement"]["cosine"] > 50.0
    else:
        assert twin["logit_difference"]["largest"] < 0.1
        assert plain or twin["plain_scores"][task.metric] == pytest.approx(report["adopted"][task.metric], abs=13.0)
    assert "nothing to do" in comet(*command)


def test_a_broken_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from comet_mpc.train.loop import _Run

    model, data, out = original(tmp_path / "model", "label"), rows(tmp_path / "mine.csv", "label"), tmp_path / "out"
    update = _Run.update

    def broken(self: Any, chosen: list[int]) -> float:
        if self.progress.step == 5:
            raise RuntimeError("power cut")
        return float(update(self, chosen))

    monkeypatch.setattr(_Run, "update", broken)
    command = ("adopt", model, out, "--data", data, "--epochs", 4)
    with pytest.raises(RuntimeError, match="power cut"):
        comet(*command)
    monkeypatch.undo()
    assert "resumed at step 4 of 8" in comet(*command)


def test_it_only_says_how_long_it_takes(tmp_path: Path) -> None:
    model, data, out = original(tmp_path / "model", "label"), rows(tmp_path / "mine.csv", "label"), tmp_path / "out"
    assert " take " in comet("adopt", model, out, "--data", data, "--estimate")
    assert not out.exists()


def test_rows_may_be_taken_from_all_over_a_file(tmp_path: Path) -> None:
    model, data = original(tmp_path / "model", "label"), rows(tmp_path / "mine.csv", "label")
    lines = data.read_text().splitlines()
    for place in range(20, 41):
        if place % 5:  # every fifth row is for evaluation
            lines[place] = "a text,no such label"
    data.write_text("\n".join(lines) + "\n")
    command = ("adopt", model, tmp_path / "out", "--data", data, "--limit", 12, "--estimate")
    assert " take " in comet(*command)
    with pytest.raises(TaskDataError, match=r"row 2\d: the label is not one of"):
        comet(*command, "--spread")


def test_embeddings_get_the_rule_that_keeps_them_unless_one_is_named(tmp_path: Path) -> None:
    model, data = original(tmp_path / "model", "embedding"), rows(tmp_path / "mine.csv", "embedding")

    def adopted(name: str, *options: object) -> tuple[str, tuple[str, int]]:
        output = comet("adopt", model, tmp_path / name, "--data", data, "--epochs", 1, *options)
        report = json.loads((tmp_path / name / REPORT).read_text())
        return output, (report["rule"], report["steps"])

    output, rule = adopted("usual")
    assert "embeddings get 4 steps" in output
    assert rule == ("minimax", 4)
    output, rule = adopted("named", "--rule", "quadratic")
    assert "embeddings get" not in output
    assert rule[0] == "quadratic"
    assert adopted("three", "--steps", 3)[1] == ("minimax", 3)


def test_better_names_for_labels(tmp_path: Path) -> None:
    model, data = original(tmp_path / "model", "label"), rows(tmp_path / "mine.csv", "label")
    comet("adopt", model, tmp_path / "out", "--data", data, "--epochs", 1, "--labels", "SPAM,HAM")
    assert load_checkpoint(tmp_path / "out")[0].encoder.labels == ("SPAM", "HAM")
    with pytest.raises(ConfigurationError, match="3 names for a model with 2 labels"):
        comet("adopt", model, tmp_path / "other", "--data", data, "--labels", "a,b,c")


def test_a_model_that_is_adopted_already_is_refused(tmp_path: Path) -> None:
    model, data = make_checkpoint(tmp_path / "model", **KINDS["label"]), rows(tmp_path / "mine.csv", "label")
    with pytest.raises(ConfigurationError, match="does not have GeLU"):
        comet("adopt", model, tmp_path / "out", "--data", data)
