"""Which form `adopt` takes: the first that is near enough as it is served, or else the nearest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")

from comet_mpc import train
from comet_mpc.errors import CheckpointError
from comet_mpc.functions.layer_norm import layer_norm_rule
from comet_mpc.models.checkpoint import Site
from comet_mpc.train import nearest
from comet_mpc.train.nearest import Fitted, Search, form_name
from comet_mpc.train.reading import Model
from support.training import original, write_rows
from support.watching import Heard

pytestmark = pytest.mark.train

SHORT = train.Recipe(epochs=1.0, batch=16, dropout=0.0)


@pytest.fixture
def search(tmp_path: Path) -> Search:
    """Of a small model of embeddings, both forms."""
    model, data = original(tmp_path / "model", "embedding"), write_rows(tmp_path / "mine.csv", "embedding")
    return train.prepare_adoption(model, data, SHORT, trained=False).search


def chosen(search: Search, out: Path, monkeypatch: pytest.MonkeyPatch, **found: float | None) -> tuple[Fitted, Heard]:
    """What is taken if forms are as near as that. None: a form cannot be certified."""
    heard = Heard()

    def certified(self: Search, made: Model, watcher: Any) -> Any:
        if found[form_name(made)] is None:
            raise CheckpointError("its neurons could overflow")
        return made.config

    with monkeypatch.context() as patched:
        patched.setattr(nearest, "_fitted", lambda start, *rest: start)
        patched.setattr(Search, "_certified", certified)
        patched.setattr(Search, "nearness", lambda self, made, watcher: found[form_name(made)])
        return search.run(out, heard), heard


@pytest.mark.parametrize(
    ("fitted", "near", "taken", "why"),
    [
        (98.5, 99.5, "fitted", "at least 98 % near, and no dearer ones are needed"),
        (97.0, 98.5, "near", "the cheaper ones were not near enough"),
        (90.0, 95.0, "near", "none are 98 % near, and these are the nearest (fitted 90.00 %)"),
        (95.0, 90.0, "fitted", "none are 98 % near, and these are the nearest (near 90.00 %)"),
        (95.0, 95.0, "fitted", "none are 98 % near"),
        (95.0, None, "fitted", "the only ones that can be certified"),
        (None, 99.0, "near", "98 % near"),
    ],
)
def test_a_near_model_that_is_less_near_is_never_taken(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    fitted: float | None, near: float | None, taken: str, why: str,
) -> None:  # fmt: skip
    best, heard = chosen(search, tmp_path, monkeypatch, fitted=fitted, near=near)
    assert form_name(best.model) == taken
    assert best.nearness == {"fitted": fitted, "near": near}[taken]
    assert heard.lines[-1].startswith(f"taking {taken} functions")
    assert why in heard.lines[-1]


def test_a_form_that_could_overflow_is_refused_and_said(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match="overflow"):
        chosen(search, tmp_path, monkeypatch, fitted=None, near=None)
    _, heard = chosen(search, tmp_path, monkeypatch, fitted=90.0, near=None)
    assert any("near functions cannot be certified: its neurons could overflow" in line for line in heard.lines)


@pytest.mark.slow
def test_forms_are_compared_as_they_are_served(search: Search, tmp_path: Path) -> None:
    """The control: with an interval far above what a LayerNorm sees, the same weights are less near."""
    best = search.run(tmp_path, Heard())
    assert any(site.seen for site in best.model.config.sites.values())
    assert search.nearness(best.model, Heard()) == pytest.approx(best.nearness)
    sites, hidden = dict(best.model.config.sites), best.model.config.encoder.hidden
    for name, site in sites.items():
        if name.endswith("norm"):
            far = layer_norm_rule(hidden, 2.0**10, 2.0**20)
            sites[name] = Site.of(far, certified_high=site.certified_high, certified_low=site.certified_low)
    spoilt = best.model._replace(config=msgspec.structs.replace(best.model.config, sites=sites))
    assert search.nearness(spoilt, Heard()) < best.nearness - 1.0
    assert np.isfinite(best.nearness)
