"""`comet adopt`: one command from a model and a file to one that is served, for every kind of head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")

from comet_mpc.cli.adopt import REPORT
from comet_mpc.cli.main import app
from comet_mpc.errors import TaskDataError
from comet_mpc.local.evaluation import evaluate_twin
from comet_mpc.models.own_data import own_task, read_split
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint
from comet_mpc.offline.sources import PAIR
from support.toy_model import toy_tokenizer
from support.training import KINDS, original, write_rows

pytestmark = pytest.mark.train


def comet(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["--debug", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("plain", [False, True])
def test_one_command_makes_a_model_that_can_be_served(tmp_path: Path, kind: str, plain: bool) -> None:
    model, data, out = original(tmp_path / "model", kind), write_rows(tmp_path / "mine.csv", kind), tmp_path / "out"
    trained = not plain
    command = ("adopt", model, out, "--data", data, *(["--epochs", 2] if trained else ["--no-train", "--plain"]))
    output = comet(*command)
    training = ("training (as you asked)", "fine-tuning") if trained else ()
    steps = (
        "adopt: starting", "loading PyTorch", "reading ", "asking the original", "measuring how fast", "this takes",
        "fitting fitted functions", "calibrating", "proving the ranges", "comparing with the original", *training,
        "evaluating", "comet serve",
    )  # fmt: skip
    places = [output.index(step) for step in steps]
    assert places == sorted(places)  # what is being done is said before it is, and how long before it begins
    assert f"comet serve {out}" in output
    report = json.loads((out / REPORT).read_text())
    assert (report["rows"], report["held_out"], report["dev_rows"]) == (29, 3, 8)
    assert (report["rule"], report["updates"] > 0) == ("fitted", trained)
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

    model, data, out = (
        original(tmp_path / "model", "label"),
        write_rows(tmp_path / "mine.csv", "label"),
        tmp_path / "out",
    )
    update = _Run.update

    def broken(self: Any, chosen: list[int]) -> float:
        if self.progress.steps == 5:
            raise RuntimeError("power cut")
        return float(update(self, chosen))

    monkeypatch.setattr(_Run, "update", broken)
    command = ("adopt", model, out, "--data", data, "--epochs", 4)
    with pytest.raises(RuntimeError, match="power cut"):
        comet(*command)
    monkeypatch.undo()
    assert "resumed at step 4 of 8" in comet(*command)


def test_it_only_says_how_long_it_takes(tmp_path: Path) -> None:
    model, data, out = (
        original(tmp_path / "model", "label"),
        write_rows(tmp_path / "mine.csv", "label"),
        tmp_path / "out",
    )
    assert "this takes " in comet("adopt", model, out, "--data", data, "--estimate")
    assert not out.exists()


def test_rows_may_be_taken_from_all_over_a_file(tmp_path: Path) -> None:
    model, data = original(tmp_path / "model", "label"), write_rows(tmp_path / "mine.csv", "label")
    lines = data.read_text().splitlines()
    for place in range(20, 41):
        if place % 5:  # every fifth row is for evaluation
            lines[place] = "a text,no such label"
    data.write_text("\n".join(lines) + "\n")
    command = ("adopt", model, tmp_path / "out", "--data", data, "--limit", 12, "--estimate")
    assert "this takes " in comet(*command)
    with pytest.raises(TaskDataError, match=r"row 2\d: the label is not one of"):
        comet(*command, "--spread")


def test_an_encoder_without_a_head_gives_embeddings(tmp_path: Path) -> None:
    """Nothing beside its weights says what it is for: so one is asked, and told how to answer."""
    torch, transformers = (
        pytest.importorskip("torch"),
        pytest.importorskip("transformers", reason="the extra [train] is not installed (transformers)"),
    )
    model, data, tokenizer = tmp_path / "model", write_rows(tmp_path / "mine.csv", "embedding"), toy_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=64, **sizes)
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained(model)
    tokenizer.save(str(model / "tokenizer.json"))
    command = ["adopt", str(model), str(tmp_path / "out"), "--data", str(data), "--no-train", "--plain"]
    refused = CliRunner().invoke(app, ["--debug", *command])
    assert refused.exit_code
    assert "--head embedding" in str(refused.exception)
    comet(*command, "--head", "embedding")
    assert load_checkpoint(tmp_path / "out")[0].head.kind == "embedding"
