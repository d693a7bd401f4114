"""The tables of measured accuracies."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

PATH = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"


@pytest.fixture(scope="module")
def accuracy() -> Any:
    specification = importlib.util.spec_from_file_location("accuracy_benchmark", PATH)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["accuracy_benchmark"] = module
    specification.loader.exec_module(module)
    return module


def write(directory: Path, name: str, **content: Any) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "accuracy"
    for seed, plain, certified in ((1, 80.0, 78.0), (2, 82.0, 81.0)):
        write(folder, f"mini-lm-mrpc-seed{seed}-unmodified", best=plain)
        write(folder, f"mini-lm-mrpc-seed{seed}-certified-3", best=certified)
    write(folder, "mini-lm-sst-2-seed1-unmodified", best=90.0)
    write(folder, "mini-lm-sst-2-seed1-certified-3", best=89.0)
    write(folder, "mini-lm-sst-2-seed1-certified-4", best=89.5)
    write(folder, "mini-lm-sst-2-seed1-certified-3-undistilled", best=87.0)
    write(folder, "mini-lm-sst-2-seed1-paper-smu-4", best=88.5)
    write(folder, "mini-lm-rte-seed1-unmodified", best=60.0)
    for count, score in enumerate((50.0, 60.0, 70.0, 89.0, 88.0)):
        write(folder, f"mini-lm-sst-2-seed1-certified-3-eval-minimax-{count}", scores={"accuracy": score})
    write(folder, "demo-sst-2-seed1-eval-newton-2", scores={"accuracy": 77.0})
    write(folder, "not-a-run", anything=1)
    differences = {"median": 0.001, "99 %": 0.02, "largest": 0.0321}
    secure = {"task": "SST-2", "examples": 20, "agreement": 0.95, "logit_difference": differences}
    write(tmp_path / "secure", "sst2-demo", scores={"accuracy": 80.0}, plain_scores={"accuracy": 85.0}, **secure)
    return folder


def tables(accuracy: Any, results: Path, *options: str) -> str:
    arguments = ["tables", str(results), "--secure", str(results.parent / "secure"), *options]
    done = CliRunner().invoke(accuracy.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_markdown_has_every_number(accuracy: Any, results: Path) -> None:
    text = tables(accuracy, results, "--markdown")
    for line in (
        "| task | unmodified | certified-3 | difference | certified-4 | difference |",
        "| MRPC (accuracy) | 81.00 ± 1.41 | 79.50 ± 2.12 | -1.50 ± 0.71 |  |  |",
        "| SST-2 (accuracy) | 90.00 | 89.00 | -1.00 | 89.50 | -0.50 |",
        "| RTE (accuracy) | 60.00 |  |  |  |  |",
        "| mean over tasks |  |  | -1.25 (2 of 5 tasks) |  | -0.50 (1 of 5 tasks) |",
        "| SST-2 (accuracy) | 87.00 | 89.00 | +2.00 |",
        "| SST-2 (accuracy) | 90.00 | 88.50 | -1.50 |",
        "| mini-lm certified-3 | SST-2 | minimax | 50.00 | 60.00 | 70.00 | 89.00 | 88.00 |",
        "| demo | SST-2 | newton |  |  | 77.00 |  |  |",
        "| sst2-demo | SST-2 | 20 | 80.00 | 85.00 | 95.0% | 0.0010 | 0.0200 | 0.0321 |",
    ):
        assert line in text


def test_on_a_terminal_nothing_is_cut_off(accuracy: Any, results: Path) -> None:
    text = tables(accuracy, results)
    assert "…" not in text
    assert "79.50 ± 2.12" in text


def test_no_results(accuracy: Any, tmp_path: Path) -> None:
    done = CliRunner().invoke(accuracy.app, ["tables", str(tmp_path), "--secure", str(tmp_path)])
    assert done.exit_code == 1
    assert "no results" in done.output
