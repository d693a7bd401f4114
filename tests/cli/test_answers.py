"""What `comet query` reads and writes: nothing is left out silently, and a broken run is gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from comet_mpc.cli.answers import AnswerFile, entry, read_texts
from comet_mpc.cli.service import _show
from comet_mpc.errors import ConfigurationError
from comet_mpc.service.prediction import Cost, Prediction, prediction

COST = Cost(
    texts=1, bucket=16, setup_bytes=0, setup_seconds=0.0, offline_bytes=1, offline_seconds=0.0, online_bytes=1,
    online_seconds=0.0, rounds=1, source="pair",
)  # fmt: skip
TEXTS = {1: "good", 3: "bad", 4: "long"}


def answer(*logits: float, labels: tuple[str, ...] = ("no", "yes"), cut: bool = False) -> Prediction:
    return prediction(np.array(logits), labels, cut, COST, 103, 64)


def test_blank_lines_are_counted_and_numbers_are_those_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts"
    file.write_text("good\n\nbad\nlong\n  \n")
    assert read_texts(None, file) == TEXTS
    assert capsys.readouterr().err == "2 blank lines are left out\n"


def test_a_regression_has_a_score_and_no_probability(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(3.25, labels=("similarity",))
    assert found.score == 3.25
    assert entry("good", found)["score"] == 3.25
    assert not {"probability", "probabilities"} & entry("good", found).keys()
    assert "score" not in entry("good", answer(1.0, 2.0))
    _show(["good"], [found])
    shown = capsys.readouterr().out
    assert "3.250" in shown
    assert "score" in shown
    assert "1.000" not in shown


def test_a_cut_text_says_how_many_tokens_were_read(capsys: pytest.CaptureFixture[str]) -> None:
    _show(["good"], [answer(1.0, 2.0, cut=True)])
    assert "(cut: 64 of 103 tokens)" in " ".join(capsys.readouterr().out.split())


def test_a_broken_run_keeps_what_was_answered_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    with AnswerFile(path, TEXTS) as file:
        assert file.left == TEXTS
        file.add(3, answer(1.0, 2.0))
    with path.open("ab") as half:
        half.write(b'{"number": 4, "tex')  # the machine stopped here
    with AnswerFile(path, TEXTS) as file:
        assert file.left == {1: "good", 4: "long"}
        file.add(1, answer(3.0, 2.0))
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["number"], one["text"], one["label"]) for one in found] == [(3, "bad", "yes"), (1, "good", "no")]


@pytest.mark.parametrize("content", [b'{"number": 1, "text": "other"}\n', b"no json\n", b"[1]\n", b"[" * 9999 + b"\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="choose another"):
        AnswerFile(path, TEXTS)
    assert path.read_bytes() == content
