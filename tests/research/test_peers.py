"""Other systems beside this one: the parts that need none of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from comet_mpc.errors import CometError
from comet_research.cli.main import app
from comet_research.crypten import Ranges
from comet_research.peers import compare as comparing
from comet_research.peers.compare import SYSTEMS, PeerRecord, compare
from comet_research.peers.crypten_trials import LARGE, TRIALS, expected_wraps
from comet_research.peers.inputs import LAYERS, TASKS, USUAL, load, smooth


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_inputs_and_an_exact_result(task: str, tmp_path: Path) -> None:
    arrays: dict[str, Any] = comparing._draw(task, 4)
    np.savez(tmp_path / "arrays.npz", **arrays)
    values = load(str(tmp_path / "arrays.npz"))
    assert set(TASKS[task].names) <= values.keys()
    usual = TASKS[task].exact(values, USUAL)
    other = TASKS[task].exact(values, smooth(lambda x, bound: np.maximum(x, 0.0) + 0.01, 1.0, 1.0, 1))
    assert np.isfinite(usual).all()
    assert (np.abs(usual - other).max() > 0.0) == (task in ("activation", "attention", *LAYERS))


def test_two_layers_are_a_layer_twice() -> None:
    arrays: dict[str, Any] = comparing._draw("two_layers", 4)
    once = TASKS["layer"].exact(arrays, USUAL)
    assert np.allclose(TASKS["two_layers"].exact(arrays, USUAL), TASKS["layer"].exact({**arrays, "x": once}, USUAL))
    assert comparing._layer_case("two_layers", 4, "dealer", "fitted").shape.layers == 2


@pytest.mark.service
def test_ours_is_measured_and_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    first = list(compare(["comet"], ["layer_norm"], 4, tmp_path))
    assert first[0].right
    assert first[0].online_bytes > 0
    assert list(compare(["comet"], ["layer_norm"], 4, tmp_path, first)) == []
    assert msgspec.json.decode(msgspec.json.encode(first), type=list[PeerRecord]) == first


def test_who_waits_for_an_environment_is_told(tmp_path: Path) -> None:
    assert SYSTEMS["comet"].installing(tmp_path) == ""
    assert "installing" in SYSTEMS["crypten"].installing(tmp_path)
    (tmp_path / "crypten").mkdir()
    (tmp_path / "crypten" / "ready").touch()
    assert SYSTEMS["crypten"].installing(tmp_path) == ""


def test_a_peer_that_fails_says_so() -> None:
    with pytest.raises(CometError, match="no such luck"):
        comparing._record_of(comparing._start([sys.executable, "-c", "raise SystemExit('no such luck')"], {}))


def test_an_unknown_system_is_refused() -> None:
    done = CliRunner().invoke(app, ["bench", "peers", "--system", "nobody"])
    assert done.exit_code == 2
    assert all(name in done.output.replace("\n", "") for name in ("nobody", "spu"))
    assert SYSTEMS.keys() > {"comet", "crypten", "spu-cheetah"}


@pytest.mark.parametrize("function", TRIALS)
def test_trials_are_inside_the_ranges_that_the_plug_in_is_told(function: str) -> None:
    draw, _, exact = TRIALS[function]
    values = draw(np.random.default_rng(0), 7680)
    told = Ranges()
    limits = {"product": LARGE, "inverse_sqrt": told.roots[1], "activation": told.activations, "softmax": told.scores}
    assert values.size == 7680
    assert np.abs(values).max() <= limits.get(function, np.inf)
    if function == "inverse_sqrt":
        assert values.min() >= told.roots[0]
    if function == "layer_norm":
        assert told.variances[0] < values.var(-1).min() < values.var(-1).max() < told.variances[1]
    assert np.isfinite(exact(values, USUAL)).all()


def test_wraps_are_expected_as_local_truncation_makes_them() -> None:
    """Each party divides its share by 2^16. Where the shares of v·2^32 wrap around, the sum is off by 2^48."""
    generator = np.random.default_rng(0)
    count, product = 20_000, 2**60  # v = 2^28, so that it happens often enough to count
    shares = [int(share) for share in generator.integers(-(2**63), 2**63, count, dtype=np.int64)]
    others = [(product - share + 2**63) % 2**64 - 2**63 for share in shares]
    wrapped = sum(abs((a >> 16) + (b >> 16) - (product >> 16)) > 2 for a, b in zip(shares, others, strict=True))
    assert wrapped / count == pytest.approx(2.0**28 * expected_wraps(1) / (LARGE**2 / 3.0), rel=0.1)
