"""What `comet eval` shows of two ways to compute the same answers."""

from __future__ import annotations

from typing import Any

import pytest

from comet_mpc.cli.evaluate import show_comparison
from comet_mpc.models.tasks import Task

TASK = Task("films", pairs=False, labels=("bad", "good"), metric="accuracy", length=128)
SCORES = {"scores": {"accuracy": 90.0}, "plain_scores": {"accuracy": 91.0}}


@pytest.mark.parametrize("scores", [{}, SCORES], ids=["without labels", "with labels"])
def test_rows_are_compared_with_and_without_labels(scores: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    show_comparison(TASK, {"examples": 2, "agreement": 1.0, **scores}, "in fixed point", hidden=False)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("films, 2 rows in fixed point")
    assert ("in real arithmetic" in first) == bool(scores)
    assert second == "labels agree on 100.0%"
