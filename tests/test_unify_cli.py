"""The commands that make models: unify, calibrate, finetune, eval."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")

from comet_mpc import unify_cli
from comet_mpc.certificates import check_certificates
from comet_mpc.checkpoint import load_checkpoint
from comet_mpc.errors import ConfigurationError
from toy_model import WORDS, make_checkpoint


@pytest.fixture
def comet() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    unify_cli.register(app)
    return app


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


def run(app: typer.Typer, *arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_from_a_checkpoint_to_a_tuned_and_calibrated_one(comet: typer.Typer, glue: Path, tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", labels=("0", "1"))
    plain, unified, tuned = tmp_path / "plain", tmp_path / "unified", tmp_path / "tuned"
    task = ("--task", "sst-2", "--data", glue)
    assert "fingerprint" in run(comet, "unify", source, plain, "--form", "unmodified")
    assert "SST-2" in run(comet, "eval", plain, *task, "--mode", "exact")
    run(comet, "unify", plain, unified, "--steps", 3, "--task", "SST-2")
    result = tmp_path / "result.json"
    recipe = ("--epochs", 6, "--rate", 3e-3, "--batch", 8, "--dropout", 0)
    output = run(comet, "finetune", unified, tuned, *task, *recipe, "--json", result)
    assert "s left" in output
    found = json.loads(result.read_text())
    assert found["best"] >= 80.0
    assert found["command"].startswith("comet")
    assert found["versions"]["torch"]
    assert "certified" in run(comet, "calibrate", tuned, *task, "--limit", 16)
    config, tensors = load_checkpoint(tuned)
    check_certificates(config, tensors)
    assert all(len(site.seen) == 5 for site in config.sites.values())
    served = tmp_path / "served.json"
    run(comet, "eval", tuned, *task, "--json", served)
    assert json.loads(served.read_text())["scores"]["accuracy"] >= 80.0
    for rule in ("minimax", "newton"):
        for steps in range(5):
            assert "accuracy" in run(comet, "eval", tuned, *task, "--rule", rule, "--steps", steps)


@pytest.mark.parametrize(
    ("activation", "attention"), [(a, b) for a in ("gelu", "smu") for b in ("softmax", "relu", "smu")]
)
def test_every_combination_of_the_paper(
    comet: typer.Typer, glue: Path, tmp_path: Path, activation: str, attention: str
) -> None:
    source = make_checkpoint(tmp_path / "source", labels=("0", "1"))
    out = tmp_path / "out"
    choice = ("--activation", activation, "--attention", attention, "--attention-mu", 0.1)
    run(comet, "unify", source, out, "--form", "paper", *choice)
    output = run(
        comet, "finetune", out, tmp_path / "tuned", "--task", "SST-2", "--data", glue, "--epochs", 1, "--exact"
    )
    assert "best" in output
    if "smu" in (activation, attention):
        assert "seen" in run(comet, "calibrate", out, "--task", "SST-2", "--data", glue, "--limit", 16)


def test_labels_that_do_not_fit_are_refused(comet: typer.Typer, glue: Path, tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", labels=("spam", "ham"))
    with pytest.raises(ConfigurationError, match="spam, ham"):
        run(comet, "eval", model, "--task", "SST-2", "--data", glue)


def test_a_text_that_is_too_long_is_cut_and_said(comet: typer.Typer, glue: Path, tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", labels=("0", "1"), positions=6)
    assert "longer than 6 tokens: cut" in run(comet, "eval", model, "--task", "SST-2", "--data", glue)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(unify_cli, "import_module", absent)
    with pytest.raises(ConfigurationError, match=r"comet-mpc\[train\]"):
        unify_cli._layer("training")
