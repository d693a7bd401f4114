"""`comet plan` of a model that writes says what a conversation costs, before there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.models.writing.stored import load_decoder
from comet_mpc.offline.sources import find_source
from support.small_writers import write_small


@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_a_plan_is_the_sum_of_its_runs(tmp_path: Path, source: str) -> None:
    write_small(tmp_path)
    command = ["plan", str(tmp_path), "--prompt", "5", "--tokens", "9", "--source", source, "--json", "-"]
    told = json.loads(CliRunner().invoke(app, command).stdout)
    plan = load_decoder(tmp_path).conversation(16, find_source(source))
    runs = [plan.window(0, 5), *(plan.window(at, at + 1) for at in range(5, 13))]
    assert told["online_bytes"] == sum(run.online_bytes for run in runs)
    assert told["rounds"] == sum(run.rounds for run in runs)
    assert (told["prompt_bytes"], told["token_rounds"]) == (runs[0].online_bytes, runs[-1].rounds)
    assert told["offline_bytes"] == find_source(source).offline_bytes(plan.whole)
    shown = CliRunner().invoke(app, command[:-2])
    assert "each token after it" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_a_shape_is_planned_before_there_is_a_model(source: str) -> None:
    """A token of 6 layers of 288."""
    command = ["plan", "--shape", "stories15m", "--tokens", "4", "--source", source, "--json", "-"]
    told = json.loads(CliRunner().invoke(app, command).stdout)
    assert told["token_rounds"] <= {"dealer": 170, "pair": 210}[source]
    assert told["token_bytes"] <= 600_000
    assert told["positions"] == 19


def test_what_cannot_be_planned_is_said(tmp_path: Path) -> None:
    write_small(tmp_path)
    run = CliRunner()
    both = run.invoke(app, ["plan", str(tmp_path), "--shape", "stories15m"])
    assert both.exit_code == 1
    assert "not both" in both.stderr
    unknown = run.invoke(app, ["plan", "--shape", "stories16m"])
    assert unknown.exit_code == 1
    assert "unknown shape" in unknown.stderr
