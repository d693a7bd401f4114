"""The paper's tables of accuracy, from the command to the report: every row of every table, with a toy encoder."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")

from comet_mpc.errors import CheckpointError
from comet_mpc.models.certify import check_ranges
from comet_mpc.models.stored.checkpoints import load_checkpoint
from comet_research.bench.published_models import ACCURACY_TABLES
from comet_research.report.drawings import distribution_drawings
from comet_research.report.published_models import accuracy_grids
from comet_research.report.records import read_results
from support.documents import ROOT
from support.toy_model import TINY, WORDS, make_checkpoint

pytestmark = pytest.mark.train


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """research/benchmarks/accuracy.py as a module."""
    monkeypatch.syspath_prepend(ROOT / "research" / "benchmarks")
    return importlib.import_module("accuracy")


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, Path, Path]:
    """An encoder, a directory of GLUE, and one for checkpoints."""
    generator, folder = np.random.default_rng(0), tmp_path / "glue" / "SST-2"
    folder.mkdir(parents=True)
    for split, count in (("train", 24), ("dev", 8)):
        labels = generator.integers(0, 2, count)
        lines = [f"{' '.join(generator.choice(WORDS, 3))} {('bad', 'good')[label]}\t{label}" for label in labels]
        lines.insert(0, "sentence1\tlabel")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return make_checkpoint(tmp_path / "toy", labels=("0", "1"), **TINY), tmp_path / "glue", tmp_path / "work"


def run(module: Any, *words: object) -> str:
    found = CliRunner().invoke(module.app, [str(word) for word in words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_every_row_of_every_table_by_one_recipe(accuracy: Any, world: tuple[Path, Path, Path], tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    where = (*world, "--task", "SST-2", "--results", results)
    said = run(accuracy, "table", "1", *where, "--estimate")
    assert "table 1: 7 rows are missing, which take about" in said
    assert not list(results.iterdir())
    for number in ACCURACY_TABLES:
        run(accuracy, "table", number, *where)
        assert f"table {number}: 0 rows are missing" in run(accuracy, "table", number, *where)
    rows = {row.stage for table in ACCURACY_TABLES.values() for row in table.rows}
    stages = {stage if stage == "unmodified" else f"short-{stage}" for stage in rows}
    assert {path.stem for path in results.iterdir()} == {f"toy-sst-2-seed1-{stage}" for stage in stages}
    records = {
        path.stem.partition("seed1-")[2].removeprefix("short-"): json.loads(path.read_text())
        for path in results.iterdir()
    }
    for stage, record in records.items():
        assert record["held_out"]["rows"] > 0, stage
        assert (record["rows"], record["batch"]) == (records["unmodified"]["rows"], 32 if stage == "unmodified" else 16)
        assert record["distilled"] == (stage != "unmodified")
        assert 0.0 <= record["scores"]["accuracy"] <= 100.0
    assert (records["through-newton-3"]["rule"], records["through-newton-3"]["steps"]) == ("newton", 3)
    assert records["paper-smu-smu"]["mode"] == "exact"
    learnt = {"activation.alpha", "activation.mu", "attention.mu"}
    assert records["paper-smu-smu-trainable"]["learnt"].keys() == learnt
    assert "learnt" not in records["paper-smu-smu"]
    base = world[2] / "toy-sst-2-seed1"
    check_ranges(*load_checkpoint(base / "short-certified-quadratic"))
    with pytest.raises(CheckpointError, match="cannot be served"):
        check_ranges(*load_checkpoint(base / "short-through-newton-3"))
    lost = "short-through-newton-3"  # and its teacher with it: a result alone teaches nothing
    shutil.rmtree(base / "unmodified")
    shutil.rmtree(base / lost)
    (results / f"toy-sst-2-seed1-{lost}.json").unlink()
    assert f"seed1, {lost}: accuracy" in run(accuracy, "table", "2", *where)
    text = "\n".join(grid.markdown() for grid in accuracy_grids(read_results(results)))
    for table in ACCURACY_TABLES.values():
        assert all(f"| {row.name} | toy | - | - | - | {records[row.stage]['scores']['accuracy']:.2f} |" in text
                   for row in table.rows)  # fmt: skip


def test_distributions_are_recorded_and_drawn(accuracy: Any, world: tuple[Path, Path, Path], tmp_path: Path) -> None:
    encoder, glue, _ = world
    results = tmp_path / "paper"
    results.mkdir()
    run(accuracy, "distributions", encoder, glue, "--task", "SST-2", "--rows", 8, "--results", results)
    found = read_results(results)
    sites = {record["site"]: record for record in found.of("distribution")}
    assert set(sites) == {"layers.0.activation", "layers.0.attention_norm", "layers.0.output_norm"}
    for record in sites.values():
        (left, _), (right, _) = record["curve"][0], record["curve"][-1]
        width = (right - left) / (len(record["curve"]) - 1)
        assert sum(density for _, density in record["curve"]) * width == pytest.approx(1.0, rel=0.02)
        assert record["quantiles"][0] <= left + width
    titles = {drawing.title for drawing in distribution_drawings(found)}
    assert titles == {f"toy, SST-2: what goes into {what}" for what in ("activations", "LayerNorms")}


def test_an_unknown_row_is_answered_with_the_known_ones(accuracy: Any, world: tuple[Path, Path, Path]) -> None:
    found = CliRunner().invoke(accuracy.app, ["table", "1", *map(str, world), "--form", "nothing"])
    assert found.exit_code == 2
    assert "paper-smu-smu" in found.output.replace("\n", "")
