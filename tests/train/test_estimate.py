"""How long training takes is foretold by a few updates: the arithmetic, by a clock that the test holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra [train]")

from comet_mpc.models.checkpoint import CometConfig  # noqa: E402
from comet_mpc.train.batches import Encoded  # noqa: E402
from comet_mpc.train.estimate import Speed, Work, per_token, proof_seconds, work_of  # noqa: E402
from comet_mpc.train.loop import Recipe  # noqa: E402
from comet_mpc.train.model import UnifiedModel  # noqa: E402
from support.small_models import UNMODIFIED, small_model  # noqa: E402

RECIPE = Recipe(epochs=2.0, batch=4, fit=False)


def rows(count: int, length: int) -> Encoded:
    ids = [[5] * length for _ in range(count)]
    return Encoded(ids, [[0] * length for _ in ids], np.zeros(count, np.float32), 0)


def test_every_part_of_the_work_counts() -> None:
    work, speed = Work(trained=1000.0, updates=10.0, evaluated=200.0), Speed(update=0.03, forward=0.01, step=0.5)
    assert work.seconds(speed) == pytest.approx(1000 * 0.03 + 10 * 0.5 + 200 * 0.01)


def test_every_token_counts_as_often_as_it_is_used() -> None:
    model = UnifiedModel.from_tensors(*small_model(UNMODIFIED))
    train, judge, dev = rows(20, 6), rows(3, 5), rows(7, 4)
    found = work_of(model, train, judge, dev, RECIPE, None)
    assert found == Work(trained=2 * 20 * 6, updates=2 * 5, evaluated=2 * 3 * 5 + 7 * 4)
    often = work_of(model, train, judge, dev, replace(RECIPE, evaluations=3), None)
    assert often.evaluated - found.evaluated == 4 * 3 * 5


def test_a_form_with_ranges_is_calibrated_once_and_one_with_a_teacher_is_fitted() -> None:
    model, teacher = (UnifiedModel.from_tensors(*small_model(*form)) for form in ((), (UNMODIFIED,)))
    train, judge, dev = rows(20, 6), rows(3, 5), rows(7, 4)
    found = work_of(model, train, judge, dev, RECIPE, teacher)
    assert found.evaluated == 2 * 3 * 5 + 7 * 4 + 20 * 6
    fitted = work_of(model, train, judge, dev, replace(RECIPE, fit=True), teacher)
    assert fitted.evaluated > found.evaluated + 2 * 20 * 6
    assert (fitted.trained, fitted.updates) == (found.trained, found.updates)


def test_a_proof_takes_as_long_as_its_layers_and_what_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    config, tensors = small_model()
    config = msgspec.structs.replace(config, encoder=msgspec.structs.replace(config.encoder, layers=12))
    now = 0.0

    def certify(first: CometConfig, given: object, told: Callable[[int, int], None]) -> None:
        nonlocal now
        assert (first.encoder.layers, given) == (1, tensors)
        for done, seconds in enumerate((5.0, 2.0)):
            now += seconds
            told(done, 1)
        now += 0.3

    monkeypatch.setattr("comet_mpc.train.estimate.certify", certify)
    assert proof_seconds(config, tensors, lambda: now) == pytest.approx(5.0 + 12 * 2.0 + 0.3)


def test_the_first_update_warms_up_and_does_not_count() -> None:
    now = 0.0

    def takes(seconds: float) -> Callable[[], None]:
        def run() -> None:
            nonlocal now
            now += seconds

        return run

    work = [(100, takes(60.0)), (100, takes(2.0)), (300, takes(6.0))]
    assert per_token(work, lambda: now) == pytest.approx(0.02)
