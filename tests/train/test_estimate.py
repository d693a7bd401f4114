"""How long training takes is foretold by a few updates: the arithmetic, by a clock that the test holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="training needs the extra [train]")

from comet_mpc.train.estimate import Amount, Speed, per_token, seconds_of  # noqa: E402

AMOUNT = Amount(epoch=1000, batches=10, epochs=3.0, evaluations=3, judged=200, after=500, fitted=100, fit_work=50.0)
SPEED = Speed(update=0.03, forward=0.01, step=0.5)


def test_every_part_of_the_work_counts_as_often_as_it_is_done() -> None:
    updates, evaluations = 3 * (1000 * 0.03 + 10 * 0.5), 3 * 200 * 0.01
    fit, after = 100 * 2 * 0.01 + 50 * 0.01, 500 * 0.01 + 2.0
    assert seconds_of(AMOUNT, SPEED, proof=2.0) == pytest.approx(fit + updates + evaluations + after)


def test_the_first_update_warms_up_and_does_not_count() -> None:
    now = 0.0

    def takes(seconds: float) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            now += seconds

        return run

    work = [(100, takes(60.0)), (100, takes(2.0)), (300, takes(6.0))]
    assert per_token(work, lambda: now) == pytest.approx(0.02)
