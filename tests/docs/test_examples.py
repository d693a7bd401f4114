"""Every program in examples/ runs from the command line, as its own text says."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import private_search
import pytest
from nbclient import NotebookClient

from comet_mpc import Client, ServedModel
from comet_mpc.models.heads import Head
from support.documents import ROOT, Service
from support.processes import server_process
from support.toy_model import make_checkpoint, some_texts, twin_logits
from support.waiting import PATIENCE

pytestmark = pytest.mark.service

EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: object, directory: Path = EXAMPLES) -> str:
    command = [sys.executable, str(directory / f"{name}.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_csv_file_is_classified(service: Service, tmp_path: Path) -> None:
    source, labelled = tmp_path / "reviews.csv", tmp_path / "labelled.csv"
    source.write_text('id,text\n1,"a film, good and warm"\n2,the plot is dull\n')
    address = f"127.0.0.1:{service.port}"
    run("classify_csv", address, source, "--keys", service.keys, "--cache", tmp_path / "cache", "--out", labelled)
    with labelled.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == ["1", "2"]
    model = ServedModel.load(service.model)
    for row in rows:
        logits = model.plain_logits(model.encode([row["text"]]))[0]
        odds = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        assert row["label"] == model.config.encoder.labels[int(logits.argmax())]
        assert abs(float(row["probability"]) - odds.max()) < 0.02


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("id,review\n1,dull\n")
    with pytest.raises(AssertionError, match="column 'text'"):
        run("classify_csv", "127.0.0.1:1", tmp_path / "reviews.csv", "--out", tmp_path / "labelled.csv")


def test_a_file_survives_a_client_that_is_killed_twice(tiny_checkpoint: Path) -> None:
    """The short form of what research/benchmarks/csv_kills.py does with a thousand rows."""
    arguments = ("--rows", 30, "--source", "dealer", "--model", tiny_checkpoint)
    found = json.loads(run("csv_kills", *arguments, directory=ROOT / "research" / "benchmarks"))
    assert found["rows"] == 30
    assert all(kept < 30 for kept in found["kept_by_killed_runs"])
    assert len(found["kept_by_killed_runs"]) == 2


def test_your_own_model_is_served(tmp_path: Path, keys: Path, tiny_checkpoint: Path) -> None:
    options = ["--listen", "127.0.0.1:0", "--keys", str(keys), "--state", str(tmp_path / "state")]
    command = [sys.executable, str(EXAMPLES / "serve_your_own_model.py"), str(tiny_checkpoint), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            planned, serving = process.stdout.readline().split(), process.stdout.readline().split()
            model, text = ServedModel.load(tiny_checkpoint), "the film is good"
            with Client(serving[-1], keys=keys, cache=tmp_path / "cache", ready=0) as client:
                (answer,) = client.classify([text])
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert planned[0] == str(answer.cost.bucket)
    assert answer.cost.online_bytes == int(planned[2])
    expected = twin_logits(model, model.encode([text]))[0]
    assert np.max(np.abs(np.array(answer.logits) - expected)) < 0.02


def test_sentences_are_searched_and_the_recall_is_that_of_the_model_in_the_clear(
    keys: Path, shared_dealer: int, tmp_path: Path
) -> None:
    head = Head(kind="embedding", pooling="mean", unit=True)
    checkpoint = make_checkpoint(tmp_path / "model", layers=1, head=head)
    sentences = sorted(set(some_texts(24, seed=3)))
    (tmp_path / "sentences.txt").write_text("\n".join(sentences) + "\n")
    with server_process(keys, checkpoint, shared_dealer, tmp_path / "state", limits={"ready": 0}, workers=2) as server:
        options = ("--keys", keys, "--cache", tmp_path / "cache", "--count", 3, "--clear", checkpoint)
        printed = run("private_search", server.address, tmp_path / "sentences.txt", sentences[7], *options)
    *found, last = printed.splitlines()
    assert found[0].split(maxsplit=1) == ["1.000", sentences[7]]
    assert len(found) == 3
    assert last.startswith(f"of the 3 nearest of {len(sentences)} sentences in the clear, ")
    assert float(last.split()[-3]) > 0.9


def test_a_recall_notices_vectors_that_are_others() -> None:
    first, second = np.random.default_rng(5).standard_normal((2, 100, 16)).astype(np.float32)
    assert private_search.recall(first, 3 * first, 5) == 1.0
    assert private_search.recall(first, second, 5) < 0.2


def test_the_notebook_runs_and_shows_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(EXAMPLES / "first_look.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    done = NotebookClient(notebook, timeout=PATIENCE, resources={"metadata": {"path": tmp_path}}).execute()
    shown = "".join(output.get("text", "") for cell in done.cells for output in cell.get("outputs", []))
    assert "a warm, funny and engaging film  positive" in shown
    assert "the plot is dull and the acting is worse  negative" in shown
    assert "bytes and rounds: as planned" in shown
    assert "server ended with 0" in shown


def test_a_protocol_of_your_own_runs_three_ways() -> None:
    printed = run("your_own_protocol").splitlines()
    assert printed[0] == "products: the client sends 32 bytes, the server 0"
    said = [line.partition(":")[0] for line in printed[3:]]
    assert said == ["in the clear", "by two parties", "online", "online", "offline", "largest error"]
    assert printed[5].replace("planned", "measured") == printed[6] == "online: measured 90 bytes in 3 rounds"


def test_a_plan_is_read() -> None:
    printed = run("read_a_plan", "--tokens", 16)
    rows = [line.split() for line in printed.partition("\n\n")[0].splitlines()[1:]]
    *parts, whole = [(int(row[-2]), int(row[-1])) for row in rows]
    assert len(parts) > 5
    assert (sum(rounds for rounds, _ in parts), sum(sent for _, sent in parts)) == whole


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_how_to_run_it(example: Path) -> None:
    text = example.read_text()
    (command,) = [shlex.split(line) for line in text.splitlines() if line.strip().startswith("python examples/")]
    assert command[1] == f"examples/{example.name}"
    assert all(option in text.partition('"""\n')[2] for option in command if option.startswith("--"))
    tested = Path(__file__).read_text()
    assert f'"{example.stem}"' in tested or f'"{example.name}"' in tested, "no test runs this example"
