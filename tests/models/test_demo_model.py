"""The bundled demonstration model: small, certified, and it knows good films from bad ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from comet_mpc.cli.main import app
from comet_mpc.functions import fit
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.local.evaluation import evaluate_twin
from comet_mpc.models.checkpoint import USUAL_RULE
from comet_mpc.models.own_data import read_split
from comet_mpc.models.public import PublicModel
from comet_mpc.models.served import ServedModel
from comet_mpc.models.tasks import TASKS, Example
from comet_mpc.offline.sources import PAIR
from support.waiting import PATIENCE

DIRECTORY = Path(str(files("comet_mpc") / "data" / "demo_model"))
REVIEWS = {
    "a moving and beautiful film with wonderful performances": 1,
    "an absolute delight from start to finish": 1,
    "one of the best and funniest comedies of the year": 1,
    "a boring , lifeless mess with terrible acting": 0,
    "the plot is stupid and the dialogue is awful": 0,
    "a complete waste of time and money": 0,
}


@pytest.fixture(scope="module")
def model() -> ServedModel:
    """Loading proves the ranges again from the weights."""
    return ServedModel.load(DIRECTORY)


def test_it_fits_into_the_repository() -> None:
    assert sum(path.stat().st_size for path in DIRECTORY.iterdir()) <= 12_000_000


def test_it_is_certified_and_has_the_usual_rule(model: ServedModel) -> None:
    assert model.config.certified
    assert model.config.rule == USUAL_RULE
    assert all(site.certified_high for site in model.config.sites.values())


def test_nothing_is_fitted_to_serve_it_or_to_query_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coefficients come with the checkpoint, and with the package that a client downloads."""

    def refuse(*_: object) -> None:
        raise AssertionError("a fit")

    fit.fit_start_and_steps.cache_clear()
    minimax_rule.cache_clear()
    monkeypatch.setattr(fit, "chebyshev_fit", refuse)
    client = PublicModel.unpack(ServedModel.load(DIRECTORY).package())
    assert client.plan(1, client.encode(list(REVIEWS)).bucket, PAIR).rounds > 0


@pytest.mark.service
def test_a_client_classifies_without_scipy_and_torch(tmp_path: Path) -> None:
    """The server and the dealer, whose processes inherit the environment, do without them as well."""
    for module in ("scipy", "torch"):
        (tmp_path / f"{module}.py").write_text(f"raise ImportError('this test has no {module}')\n")
    program = """
import importlib
from comet_mpc.local.demo import demo_model, run_demo
from comet_mpc.offline.sources import DEALER
for module in ("scipy", "torch"):
    try:
        importlib.import_module(module)
    except ImportError:
        continue
    raise AssertionError(module)
print(run_demo(demo_model(), ["an absolute delight from start to finish"], DEALER)[0].label)
"""
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command, environment = [sys.executable, "-c", program], os.environ | {"PYTHONPATH": search}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert result.stdout.split() == ["positive"], result.stderr


def test_it_knows_good_films_from_bad_ones(model: ServedModel) -> None:
    logits = model.plain_logits(model.encode(list(REVIEWS)))
    assert logits.argmax(axis=1).tolist() == list(REVIEWS.values())


def test_fixed_point_changes_nothing(model: ServedModel) -> None:
    """Also with texts of several lengths; what the bound leaves room for is a few of the largest seen on a dev set."""
    long = " ".join([*REVIEWS] * 2)
    examples = [Example(text, None, label) for text, label in [*REVIEWS.items(), (long, 1)]]
    report = evaluate_twin(model, examples, task=TASKS["SST-2"])
    assert report["agreement"] == 1.0
    assert report["scores"] == report["plain_scores"]
    assert report["logit_difference"]["median"] <= report["logit_difference"]["largest"] < 0.005 + 2.0**-9


@pytest.mark.skipif("COMET_GLUE" not in os.environ, reason="set COMET_GLUE to a directory of GLUE TSV files")
def test_fixed_point_changes_nothing_on_the_dev_set(model: ServedModel) -> None:
    rows = read_split(Path(os.environ["COMET_GLUE"]), TASKS["SST-2"], "dev")
    report = evaluate_twin(model, rows, task=TASKS["SST-2"])
    assert report["agreement"] >= 0.999
    assert report["logit_difference"]["99 %"] < 0.005 + 2.0**-9  # half a unit of the answer's last digit
    assert report["logit_difference"]["largest"] < 0.02


@pytest.mark.skipif("COMET_GLUE" not in os.environ, reason="set COMET_GLUE to a directory of GLUE TSV files")
def test_it_reaches_eighty_per_cent_on_the_dev_set(model: ServedModel) -> None:
    rows = read_split(Path(os.environ["COMET_GLUE"]), TASKS["SST-2"], "dev")
    rows.sort(key=lambda row: len(row.first))
    logits = [
        model.plain_logits(model.encode([row.first for row in rows[at : at + 32]])) for at in range(0, len(rows), 32)
    ]
    assert TASKS["SST-2"].score(np.concatenate(logits), [row.label for row in rows])["accuracy"] >= 80.0


def test_the_twin_is_a_command(tmp_path: Path) -> None:
    folder = tmp_path / "SST-2"
    folder.mkdir()
    rows = [f"{text}\t{label}" for text, label in REVIEWS.items()]
    (folder / "dev.tsv").write_text("\n".join(["sentence1\tlabel", *rows]) + "\n")
    arguments = ["eval", DIRECTORY, "--task", "SST-2", "--data", tmp_path, "--twin"]
    result = CliRunner().invoke(app, [*map(str, arguments), "--limit", "4", "--json", str(tmp_path / "twin.json")])
    assert result.exit_code == 0, result.output
    assert "labels agree on 100.0%, logits differ by median 0.00" in result.output
    found = json.loads((tmp_path / "twin.json").read_text())
    assert found["examples"] == 4
    assert found["scores"] == found["plain_scores"] == {"accuracy": 100.0}
    both = CliRunner().invoke(app, [*map(str, arguments), "--secure"])
    assert both.exit_code != 0
