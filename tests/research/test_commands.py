"""`comet-lab`: what it prints, what it writes, and that errors are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from comet_research.cli.main import app

FIELDS = {
    "operation", "method", "elements", "shape", "steps", "online_bytes", "offline_bytes", "planned_online_bytes",
    "planned_offline_bytes", "rounds", "planned_rounds", "seconds", "cpu_seconds", "offline_seconds", "peak_rss",
    "max_abs_error", "max_relative_error",
}  # fmt: skip


def comet_lab(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.mark.parametrize("name", ["bench", "paper", "report"])
def test_every_command_says_what_it_does(name: str) -> None:
    shown = comet_lab(name, "--help")
    assert shown.exit_code == 0, shown.output
    assert f" {name} " in shown.stdout


def test_tables_fit_80_columns() -> None:
    shown = CliRunner().invoke(app, ["bench", "truncation", "--values", "700"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0, shown.output
    assert "…" not in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


@pytest.mark.service
def test_ops_writes_a_table_and_json(tmp_path: Path) -> None:
    target = tmp_path / "results" / "ops.json"
    result = comet_lab("bench", "ops", "--operation", "activation", "--method", "quad", "--method", "minimax",
                       "--tokens", "2", "--steps", "2", "--json", str(target))  # fmt: skip
    assert result.exit_code == 0, result.output
    records = json.loads(target.read_text())
    assert [record["method"] for record in records] == ["minimax", "quad"]
    for record in records:
        assert set(record) >= FIELDS
        assert record["online_bytes"] == record["planned_online_bytes"]
        assert record["rounds"] == record["planned_rounds"]
    assert records[0]["steps"] == 2
    assert records[0]["shape"] == [2, 3072]
    for word in ("activation", "quad", "minimax", "online", "offline"):
        assert word in result.stdout


@pytest.mark.service
def test_json_on_stdout_is_only_json() -> None:
    result = comet_lab("bench", "ops", "--operation", "matmul", "--tokens", "2", "--json", "-")
    assert result.exit_code == 0
    assert json.loads(result.stdout)[0]["operation"] == "matmul"


@pytest.mark.parametrize(
    ("arguments", "known"),
    [(("--operation", "gelu"), "inverse_sqrt"), (("--method", "magic"), "minimax"), (("--tokens", "0"), "1<=x")],
)
def test_wrong_use_is_code_2_and_says_what_there_is(arguments: tuple[str, str], known: str) -> None:
    result = comet_lab("bench", "ops", *arguments)
    assert result.exit_code == 2
    assert known in result.stderr
    assert "Traceback" not in result.output


def test_truncation_reports_no_wraps() -> None:
    result = comet_lab("bench", "truncation", "--values", "70000", "--json", "-")
    assert result.exit_code == 0
    records = json.loads(result.stdout)
    assert [record["shift"] for record in records] == [1, 4, 12, 16, 24, 40, 58]
    assert all(record["wraps"] == 0 and record["max_error"] <= 1.0 for record in records)


@pytest.mark.service
def test_bench_model_measures_what_was_planned() -> None:
    result = comet_lab("bench", "model", "--shape", "minilm", "--layers", "1", "--tokens", "8", "--json", "-")
    assert result.exit_code == 0, result.output
    (record,) = json.loads(result.stdout)
    assert record["online_bytes"] == record["planned_online_bytes"]
    assert record["rounds"] == record["planned_rounds"]
    assert record["max_logit_difference"] < 0.05
    assert {cost["operation"] for cost in record["operations"]} >= {"linear", "attention", "layer_norm", "activation"}


@pytest.mark.service
def test_bench_model_over_a_network_takes_its_time() -> None:
    arguments = ("bench", "model", "--shape", "minilm", "--layers", "1", "--tokens", "8", "--network", "100mbit/20ms")
    (record,) = json.loads(comet_lab(*arguments, "--json", "-").stdout)
    assert record["seconds"] > record["rounds"] * 0.01
    assert record["network"] == "100mbit/20ms"


def test_an_unwritable_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = comet_lab("bench", "truncation", "--values", "700", "--json", str(tmp_path / "file" / "x.json"))
    assert result.exit_code == 1
    assert "cannot write" in result.stderr
