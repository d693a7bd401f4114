"""Checkpoints whose claims do not hold, also once weights are rounded, are refused before they serve."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from comet_mpc.engine import Weight
from comet_mpc.errors import CheckpointError
from comet_mpc.functions.layer_norm import layer_norm_rule
from comet_mpc.functions.root_rule import root_rule
from comet_mpc.models.certify import certify, check_ranges
from comet_mpc.models.checkpoint import CometConfig, Site, Tensors
from comet_mpc.models.fold import check_fixed
from comet_mpc.models.queries import Query
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint, save_checkpoint
from comet_mpc.models.stored.rounding import check_moved, moved
from comet_mpc.models.transformer import encode_weight, encode_weights
from comet_mpc.offline.dealer.bundles import mask_weight, weight_key, weights_digest
from support.toy_model import make_checkpoint, twin_logits


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=1)


@pytest.fixture
def loaded(directory: Path) -> tuple[CometConfig, Tensors]:
    return load_checkpoint(directory)


def with_rule(config: CometConfig, site: str, **changes: object) -> CometConfig:
    rule = config.sites[site].minimax
    assert rule is not None
    changed = Site.of(dataclasses.replace(rule, **changes), certified_high=True, certified_low=True)  # type: ignore[arg-type]
    return msgspec.structs.replace(config, sites=config.sites | {site: changed})


@pytest.mark.parametrize("site", ["activation", "scores", "norms", "denominators", "layers.0.output_norm", "pooler"])
def test_a_rule_that_does_not_keep_its_bounds_is_refused(loaded: tuple[CometConfig, Tensors], site: str) -> None:
    config, tensors = loaded
    check_ranges(config, tensors)
    rule = config.sites[site].minimax
    assert rule is not None
    for changes in (
        {"start": tuple(100.0 * c for c in rule.start)},
        {"start_bound": rule.start_bound / 1000.0},
        {"steps": tuple(dataclasses.replace(step, fraction=step.fraction + 9) for step in rule.steps)},
        {"exponent": rule.exponent + 1},
    ):
        with pytest.raises(CheckpointError):
            check_ranges(with_rule(config, site, **changes), tensors)


@pytest.mark.parametrize("site", ["norms", "denominators", "layers.0.output_norm", "pooler"])
def test_a_rule_for_the_root_where_one_for_its_inverse_belongs_is_refused(
    loaded: tuple[CometConfig, Tensors], site: str
) -> None:
    config, tensors = loaded
    rule = config.sites[site].rule
    wrong = Site.of(root_rule(rule.high / 200.0, rule.high, 2), certified_high=True, certified_low=True)
    with pytest.raises(CheckpointError, match=f"{site}: Expected a 1/sqrt rule"):
        check_ranges(msgspec.structs.replace(config, sites=config.sites | {site: wrong}), tensors)


def test_a_root_rule_from_a_file_is_checked(loaded: tuple[CometConfig, Tensors]) -> None:
    config, tensors = loaded
    config = certify(msgspec.structs.replace(config, rule="quadratic"), tensors)
    check_ranges(config, tensors)
    assert msgspec.convert(msgspec.to_builtins(config), CometConfig) == config
    for site in ("activation", "scores"):
        root = config.sites[site].root
        assert root is not None
        for changes in ({"bound": 0.1}, {"high": root.high / 2.0}, {"coefficients": (0.0, *root.coefficients)}):
            changed = msgspec.structs.replace(config.sites[site], root=dataclasses.replace(root, **changes))
            with pytest.raises(CheckpointError):
                check_ranges(msgspec.structs.replace(config, sites=config.sites | {site: changed}), tensors)


@pytest.mark.parametrize("row_steps", [1, 3, 4])
def test_too_few_steps_for_what_every_bound_relies_on_are_refused(
    loaded: tuple[CometConfig, Tensors], row_steps: int
) -> None:
    config, tensors = loaded
    with pytest.raises(CheckpointError, match="row steps"):
        certify(msgspec.structs.replace(config, row_steps=row_steps), tensors)


@pytest.mark.parametrize("mu", [2.0, 16.0])
def test_a_smoothness_that_leaves_the_activations_range_is_refused(
    loaded: tuple[CometConfig, Tensors], mu: float
) -> None:
    config, tensors = loaded
    with pytest.raises(CheckpointError, match="mu"):
        certify(msgspec.structs.replace(config, attention=msgspec.structs.replace(config.attention, mu=mu)), tensors)


def rank_one(tensors: Tensors) -> tuple[Tensors, npt.NDArray[np.float64]]:
    """Queries that all look along one direction of ±1: rounding moves every weight the same way."""
    hidden = tensors["layers.0.query.weight"].shape[0]
    direction = np.where(np.arange(hidden) % 2 == 0, 1.0, -1.0)
    changed = dict(tensors)
    for name in ("query", "key"):
        changed[f"layers.0.{name}.weight"] = (0.05 * np.ones((hidden, 1)) * direction).astype(np.float32)
        changed[f"layers.0.{name}.bias"] = np.zeros(hidden, np.float32)
    for name in ("weight", "bias"):
        changed[f"embeddings.norm.{name}"] = np.full(hidden, 1.0 if name == "weight" else 0.0, np.float32)
    return changed, direction


def test_weights_that_all_round_the_same_way_stay_within_their_range(
    directory: Path, loaded: tuple[CometConfig, Tensors], tmp_path: Path
) -> None:
    config, tensors = loaded
    changed, direction = rank_one(tensors)
    save_checkpoint(tmp_path, certify(config, changed), changed)
    (tmp_path / "tokenizer.json").write_bytes((directory / "tokenizer.json").read_bytes())
    model = ServedModel.load(tmp_path)
    query = Query(np.tile(direction, (1, 16, 1)), np.ones((1, 16)), (False,))
    assert np.max(np.abs(twin_logits(model, query) - model.plain_logits(query))) < 0.1  # the twin checks every bound


def test_sums_that_all_round_the_same_way_are_refused(directory: Path, loaded: tuple[CometConfig, Tensors]) -> None:
    """What is added to a small γ is served twice as large as it is. The control: with more digits it is not."""
    config, _ = loaded
    rng, e = np.random.default_rng(0), config.encoder
    direction = np.where(np.arange(e.hidden) % 2 == 0, 1.0, -1.0)
    real = {
        "layer.0.qkv.weight": 0.01 * rng.normal(size=(3 * e.hidden, e.hidden)),
        "layer.0.qkv.bias": np.zeros(3 * e.hidden),
        "layer.0.output.weight": np.zeros((e.hidden, e.hidden)),
        "layer.0.output.bias": np.zeros(e.hidden),
        "layer.0.up.weight": np.tile(direction / e.hidden, (4096, 1)),
        "layer.0.up.bias": np.zeros(4096),
        "layer.0.down.bias": np.zeros(e.hidden),
    }
    rules = ServedModel.load(directory).rules
    small = dataclasses.replace(
        rules, layers=tuple(dataclasses.replace(own, variances=(layer_norm_rule(e.hidden, 2.0**-8, 0.25),) * 2)
                            for own in rules.layers[:1])
    )  # fmt: skip
    for times, refused in ((0.50001, True), (1.00001, False)):
        down = np.tile(times * 2.0**-12 * direction[:, None], (1, 4096))
        weights = {**real, "layer.0.down.weight": down}
        found = moved(config, weights, {name: encode_weight(name, value) for name, value in weights.items()}, 0)
        with pytest.raises(CheckpointError, match="layer 0: what its neurons add") if refused else nullcontext():
            check_moved(small, e.hidden, [found])


@pytest.mark.parametrize("part", ["layer.0.qkv.weight", "layer.0.up.weight", "pooler.weight"])
def test_served_numbers_above_what_was_certified_are_refused(directory: Path, part: str) -> None:
    model = ServedModel.load(directory)
    check_fixed(model.shape, model.rules, model.fixed)
    larger = encode_weights(model.shape, {**model.folded, part: 8.0 * model.folded[part]})
    with pytest.raises(CheckpointError, match="fixed point"):
        check_fixed(model.shape, model.rules, larger)


def test_another_rounding_of_the_same_checkpoint_gets_other_masks(directory: Path) -> None:
    """Otherwise the difference of two downloads would be the difference of the weights."""
    model = ServedModel.load(directory)
    finer = {
        name: Weight.encode(name, model.folded[name], weight.fraction + 1, weight.gain)
        for name, weight in model.fixed.items()
    }
    keys = [weight_key(bytes(32), weights_digest(weights)) for weights in (model.fixed, finer)]
    assert keys[0] != keys[1]
    name = "layer.0.output.weight"
    difference = mask_weight(keys[1], finer[name]) - mask_weight(keys[0], model.fixed[name])
    assert np.median(np.abs(difference.view(np.int64))) > 2.0**60
