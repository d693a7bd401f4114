"""What is normalised has the mean 0 before it is opened: weights by the server, what is skipped by a number a row."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_mpc.engine.correlations import ClientMask
from comet_mpc.engine.share import Share, decode
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import CheckpointError
from comet_mpc.models.blocks import MEAN_BOUND, Sum
from comet_mpc.models.bounds import Weights
from comet_mpc.models.certify import certify
from comet_mpc.models.fold import check_fixed
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint, save_checkpoint
from comet_mpc.models.transformer import _rounded_columns, encode_weights
from comet_mpc.offline.sources import DEALER, PAIR
from support.toy_model import make_checkpoint, some_texts


@pytest.fixture(scope="module", params=[32, 24])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model whose width is a power of two, and of one whose is not."""
    directory = make_checkpoint(tmp_path_factory.mktemp("model"), hidden=request.param)
    config, tensors = load_checkpoint(directory)
    generator = np.random.default_rng(5)
    for name in [name for name in tensors if name.endswith("norm.bias")]:  # so that there are means to take off
        shift = 0.2 + 0.1 * generator.standard_normal(tensors[name].shape)
        tensors[name] = (tensors[name] + shift).astype(np.float32)
    save_checkpoint(directory, certify(config, tensors), tensors)
    return directory


@pytest.fixture(scope="module")
def model(directory: Path) -> ServedModel:
    return ServedModel.load(directory, private_embeddings=True)


def test_folded_weights_give_the_sum_centred_and_times_d_over_a_power_of_two(
    directory: Path, model: ServedModel
) -> None:
    """Against the checkpoint's own weights, where nothing is folded."""
    d, generator = model.shape.hidden, np.random.default_rng(2)
    n = generator.standard_normal((5, d))
    n -= n.mean(axis=1, keepdims=True)
    stored = Weights(load_checkpoint(directory)[1])
    (gamma, beta), (matrix, bias) = stored.before(1), stored.pair("layers.1.attention_output")
    context = generator.standard_normal((5, d))
    x = context @ matrix.T + bias + gamma * n + beta
    wanted = (d * x - x.sum(axis=1, keepdims=True)) * 2.0 ** -math.ceil(math.log2(d))
    skip = model.folded["layer.1.first.gamma"] * (n + 1.0) + model.folded["layer.1.output.bias"]
    skip = (d * skip - skip.sum(axis=1, keepdims=True)) * 2.0 ** -math.ceil(math.log2(d))
    np.testing.assert_allclose(context @ model.folded["layer.1.output.weight"].T + skip, wanted, atol=1e-6)


class _Watching(TwinSession):
    """Notes the largest mean of the rows that each LayerNorm takes, before they are truncated."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden, self.means = hidden, list[float]()

    def _check(self, share: Share) -> None:
        super()._check(share)
        embedded = self.here == "embeddings/layer_norm" and share.fraction == 18
        if share.shape[-1] == self.hidden and (embedded or (self.here.endswith("layer_norm") and share.fraction > 30)):
            rows = decode(share.flat(), share.fraction, share.width).reshape(share.shape)
            self.means.append(float(np.abs(rows.mean(axis=-1)).max()))


def test_rows_have_the_mean_zero_before_they_are_opened(model: ServedModel) -> None:
    session, query = _Watching(model.shape.hidden), model.encode(some_texts(2, words=9))
    model.program(query.batch, query.bucket, query)(session, model.weights())
    embeddings, *layers = session.means
    assert len(layers) == 2 * model.shape.layers
    assert embeddings < 2.0 * 2.0**-18  # two tables and a row of types, rounded
    assert max(layers) < 2.0**-32


def test_columns_of_what_is_centred_add_up_to_zero(model: ServedModel) -> None:
    for i in range(model.shape.layers):
        for part in ("output", "down"):
            weight = model.fixed[f"layer.{i}.{part}.weight"]
            assert not weight.fixed().astype(np.int64).sum(axis=0).any()
            real = model.folded[weight.name] * 2.0**weight.fraction
            assert np.abs(weight.fixed() - real).max() < 1.0
            assert np.mean(np.abs(weight.fixed() - real) > 0.5) < 0.1


@given(rows=st.integers(1, 40), columns=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_rounding_keeps_the_sums_of_columns(rows: int, columns: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).normal(0.0, 3.0, (rows, columns))
    rounded = _rounded_columns(matrix)
    assert np.array_equal(rounded, np.rint(rounded))
    assert np.array_equal(rounded.sum(axis=0), np.rint(matrix.sum(axis=0)))
    assert np.abs(rounded - matrix).max() < 1.0
    nearest = np.abs(np.rint(matrix) - matrix)
    moved = np.abs(rounded - matrix) > 0.5
    for column in range(columns):  # what is not rounded to the nearest was nearest to the middle
        chosen = moved[:, column]
        if chosen.any():
            excess = np.rint(matrix).sum(axis=0)[column] - rounded.sum(axis=0)[column]
            assert chosen.sum() == abs(excess)
            up = (np.rint(matrix) - matrix)[:, column] * np.sign(excess)
            assert up[chosen].min() >= up[~chosen].max(initial=-1.0) - 1e-6
    assert nearest.max() <= 0.5


def test_a_mean_that_could_leave_its_range_is_refused(model: ServedModel) -> None:
    name = "layer.1.first.gamma"
    grown = encode_weights(model.shape, {**model.folded, name: np.full(model.shape.hidden, MEAN_BOUND)})
    with pytest.raises(CheckpointError, match=r"layer\.1\.first\.gamma is too large"):
        check_fixed(model.shape, model.rules, grown)


def test_private_embeddings_are_centred_and_given_in_the_ring_that_they_need(model: ServedModel) -> None:
    assert np.abs(model.folded["embeddings.weight"].mean(axis=0)).max() < 1e-7
    rule = model.rules.embeddings
    assert rule is not None
    plan = model.plan(1, 16, DEALER)
    mask = next(entry for entry in plan.correlations if isinstance(entry, ClientMask))
    assert mask.shape == (1, 16, model.shape.symbols)
    largest = math.sqrt(rule.high * 2.0 ** math.ceil(math.log2(model.shape.hidden)))
    assert 2.0 ** (mask.width - 4) <= largest * 2.0**18 < 2.0 ** (mask.width - 2)


def test_rows_are_given_in_the_ring_from_which_their_source_truncates_for_free(model: ServedModel) -> None:
    """It is wider than the sum needs, by a bit more where truncations lead into odd rings."""
    rows = (1, 16, model.shape.hidden)
    widths = {}
    for source in (DEALER, PAIR):
        masks = [entry for entry in model.plan(1, 16, source).correlations if isinstance(entry, ClientMask)]
        widths[source.name] = [mask.width for mask in masks if mask.shape == rows]
    layer = model.rules.layers[0]
    needed = Sum(model.shape.hidden, layer.variances[0])
    assert widths["dealer"][0] == 55
    assert widths["pair"][0] == 56
    assert needed.ring <= 55
    assert widths["dealer"][1] == widths["pair"][1]  # of what attention gives
