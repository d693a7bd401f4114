"""GLUE files and metrics."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from comet_mpc.errors import TaskDataError
from comet_mpc.models.own_data import own_task, read_split
from comet_mpc.models.tasks import TASKS, find_task, with_labels

ROWS = {"RTE": (2490, 277), "MRPC": (3668, 408), "STS-B": (5749, 1500), "CoLA": (8551, 1043), "SST-2": (67349, 872)}


def write(directory: Path, task: str, text: str, split: str = "dev") -> Path:
    (directory / task).mkdir(exist_ok=True)
    (directory / task / f"{split}.tsv").write_text(text, encoding="utf-8")
    return directory


def test_rows_are_read_as_they_stand(tmp_path: Path) -> None:
    write(tmp_path, "MRPC", 'sentence1\tsentence2\tlabel\nHe said "no .\tShe said so .\t1\nA\tB\t0\n')
    rows = read_split(tmp_path, TASKS["MRPC"], "dev")
    assert [(row.first, row.second, row.label) for row in rows] == [
        ('He said "no .', "She said so .", 1),
        ("A", "B", 0),
    ]
    assert len(read_split(tmp_path, TASKS["MRPC"], "dev", limit=1)) == 1


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("MRPC", "sentence1\tsentence2\tlabel\na\tb\t1\na\tb\n", "row 3: 2 columns, expected 3"),
        ("MRPC", "sentence1\tsentence2\tlabel\na\tb\t2\n", "row 2: the label is not one of 0, 1"),
        ("RTE", "sentence1\tsentence2\tlabel\na\tb\t1\n", "row 2: the label is not one of entailment"),
        ("STS-B", "sentence1\tsentence2\tlabel\na\tb\t5.5\n", "row 2: the label is not a number from 0 to 5"),
        ("STS-B", "sentence1\tsentence2\tlabel\na\tb\tnan\n", "row 2: the label is not a number"),
        ("SST-2", "sentence1\tlabel\n \t1\n", "row 2: a sentence is empty"),
        ("SST-2", "sentence\tlabel\na\t1\n", "row 1: expected the columns sentence1, label"),
        ("SST-2", "sentence1\tlabel\n", "no rows"),
        ("SST-2", "", "row 1"),
    ],
)
def test_a_malformed_file_names_row_and_reason(tmp_path: Path, task: str, text: str, message: str) -> None:
    with pytest.raises(TaskDataError, match=message):
        read_split(write(tmp_path, task, text), TASKS[task], "dev")


def test_missing_and_undecodable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskDataError, match=r"no such file: .*train\.tsv"):
        read_split(tmp_path, TASKS["RTE"], "train")
    write(tmp_path, "CoLA", "")
    (tmp_path / "CoLA" / "dev.tsv").write_bytes(b"sentence1\tlabel\n\xff\t1\n")
    with pytest.raises(TaskDataError, match="line 2: not UTF-8"):
        read_split(tmp_path, TASKS["CoLA"], "dev")


def test_tasks_are_found_by_any_spelling() -> None:
    assert find_task("sst2").name == find_task("SST-2").name == "SST-2"
    with pytest.raises(TaskDataError, match="QNLI"):
        find_task("QNLI")


def test_labels_of_a_model_in_another_order_and_case(tmp_path: Path) -> None:
    task = TASKS["SST-2"]
    rows = read_split(write(tmp_path, "SST-2", "sentence1\tlabel\na\t1\nb\t0\n"), task, "dev")
    for labels, expected in [
        (("0", "1"), [1, 0]),
        (("LABEL_0", "LABEL_1"), [1, 0]),
        (("NEGATIVE", "POSITIVE"), [1, 0]),
        (("positive", "negative"), [0, 1]),
    ]:
        assert [row.label for row in with_labels(rows, task, labels)] == expected
    others: list[tuple[str, ...]] = [
        ("spam", "ham"),
        ("negative", "neutral", "positive"),
        ("LABEL_1", "LABEL_0"),
        ("0",),
    ]
    for other in others:
        with pytest.raises(TaskDataError, match=f"the model's labels are {', '.join(other)}, SST-2's are 0, 1"):
            with_labels(rows, task, other)


def test_a_data_set_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\tham\nc\td\tspam\n")
    task = own_task(tmp_path, ("spam", "ham"))
    assert (task.pairs, task.metric) == (True, "accuracy")
    assert [row.label for row in read_split(tmp_path, task, "dev")] == [1, 0]
    with pytest.raises(TaskDataError, match="row 3: the label is not one of ham, eggs"):
        read_split(tmp_path, own_task(tmp_path, ("ham", "eggs")), "dev")
    (tmp_path / "dev.tsv").write_text("sentence1\tscore\na\t-7.5\nb\tinf\n")
    task = own_task(tmp_path, ("mood",))
    assert read_split(tmp_path, task, "dev", 1)[0].label == -7.5
    with pytest.raises(TaskDataError, match="row 3: the score is not a number"):
        read_split(tmp_path, task, "dev")
    with pytest.raises(TaskDataError, match=r"no such file or directory: .*absent"):
        own_task(tmp_path / "absent", ("a", "b"))


def test_metrics_agree_with_scipy() -> None:
    generator = np.random.default_rng(0)
    labels = np.round(generator.uniform(0, 5, 200), 1)
    scores = labels + generator.standard_normal(200)
    found = TASKS["STS-B"].score(scores[:, None], labels)
    pearson, spearman = stats.pearsonr(scores, labels)[0], stats.spearmanr(scores, labels)[0]
    assert found["pearson"] == pytest.approx(100 * pearson)
    assert found["spearman"] == pytest.approx(100 * spearman)
    assert next(iter(found.values())) == pytest.approx(50 * (pearson + spearman))


def test_matthews_by_its_definition() -> None:
    logits = np.array([[0, 1], [0, 1], [1, 0], [1, 0], [0, 1.0]])
    labels = np.array([1, 0, 0, 1, 1])
    tp, tn, fp, fn = 2, 1, 1, 1
    expected = (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert TASKS["CoLA"].score(logits, labels)["matthews"] == pytest.approx(100 * expected)
    assert TASKS["CoLA"].score(np.array([[1.0, 0.0]] * 5), labels)["matthews"] == 0.0
    assert TASKS["RTE"].score(logits, labels) == {"accuracy": pytest.approx(60.0)}


def test_outputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TaskDataError, match="shape"):
        TASKS["MRPC"].score(np.zeros((3, 3)), np.zeros(3))
    assert np.isnan(TASKS["MRPC"].score(np.full((3, 2), np.nan), np.zeros(3))["accuracy"])


@pytest.mark.skipif("COMET_GLUE" not in os.environ, reason="set COMET_GLUE to a directory of GLUE TSV files")
@pytest.mark.parametrize("task", TASKS)
def test_official_row_counts(task: str) -> None:
    directory = Path(os.environ["COMET_GLUE"])
    assert tuple(len(read_split(directory, TASKS[task], split)) for split in ("train", "dev")) == ROWS[task]
