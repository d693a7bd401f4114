"""Models with fitted functions: what is served is what their tensors say, and no input leaves its certified range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_mpc.errors import CheckpointError
from comet_mpc.models.bounds import SLACK, Weights, polynomial_norm_top, quadratic_norm_top
from comet_mpc.models.certify import certify, variance_tops
from comet_mpc.models.checkpoint import FITTED, NEAR, ActivationChoice, AttentionChoice
from comet_mpc.models.fitted.numbers import curved, head_norms, largest_weight, neurons_as_squares, within_limits
from comet_mpc.models.fitted.quartics import neurons_as_quartics
from comet_mpc.models.planning import plan_shape
from comet_mpc.models.public import PublicModel
from comet_mpc.models.queries import Query
from comet_mpc.models.served import ServedModel
from comet_mpc.models.stored.checkpoints import load_checkpoint, save_checkpoint
from comet_mpc.models.transformer import EncoderShape
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, PAIR
from support.toy_model import make_checkpoint, some_texts
from support.two_parties import run_two_parties, together, twin_value

LOGITS, REAL, UNIT = 0.02, 0.01, 2.0**-8
TEXTS = [*some_texts(1, words=5), *some_texts(1, words=11, seed=4)]


def fitted_model(directory: Path, architecture: str = "bert", rule: str = FITTED, seed: int = 0) -> Path:
    """Every neuron and every head with numbers of its own."""
    config, tensors = load_checkpoint(make_checkpoint(directory, architecture=architecture, rule=rule))
    rng = np.random.default_rng(seed)
    for i in range(config.encoder.layers):
        heads, layer = config.encoder.heads, f"layers.{i}"
        a = rng.uniform(0.5, 2.0, heads) * rng.choice([-1.0, 1.0], heads)
        scores = [a, a * rng.uniform(0.2, 0.6, heads), a**2 * rng.uniform(-0.02, 0.4, heads)]
        scores += [a**4 * rng.uniform(-0.01, 0.3, heads)] if rule == NEAR else []
        tensors[f"{layer}.scores"] = np.stack(scores, axis=1).astype(np.float32)
        shares = rng.uniform(0.02, 0.4, (heads, 2))
        tensors[f"{layer}.softness"] = (shares * head_norms(tensors, i, heads) ** 2).astype(np.float32)
        moved = tensors[f"{layer}.neurons.coefficients"]
        tensors[f"{layer}.neurons.coefficients"] = moved * rng.uniform(0.7, 1.3, moved.shape).astype(np.float32)
    tensors = dict(within_limits(config, tensors))
    save_checkpoint(directory, certify(msgspec.structs.replace(config, sites={}), tensors), tensors)
    return directory


@pytest.fixture(scope="module", params=[("bert", FITTED), ("mpnet", FITTED), ("bert", NEAR), ("mpnet", NEAR)], ids=str)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted_model(tmp_path_factory.mktemp("model"), *request.param)


@pytest.fixture(scope="module")
def model(directory: Path) -> ServedModel:
    return ServedModel.load(directory)


@pytest.mark.slow
@pytest.mark.parametrize("source", [DEALER, PAIR])
def test_two_parties_the_twin_and_the_plaintext_model_agree(model: ServedModel, source: Source) -> None:
    client = PublicModel.unpack(model.package())
    query = client.encode(TEXTS)
    program = client.program(query.batch, query.bucket, query)
    twin = twin_value(program, model.weights())
    plan = client.plan(query.batch, query.bucket, source)
    run = run_two_parties(program, model.weights(), source="pair" if source is PAIR else "dealer", ways=plan.ways)
    assert np.abs(twin - model.plain_logits(query)).max() < REAL + UNIT / 2
    assert np.abs(together(run) - twin).max() < LOGITS + 2 * UNIT
    assert run.plan.correlations == model.plan(query.batch, query.bucket, source).correlations
    exact = model.plain_logits(query, exact=True)
    assert np.abs(model.plain_logits(query) - exact).max() < 0.05


def test_the_served_neurons_are_those_of_the_tensors(directory: Path) -> None:
    config, tensors = load_checkpoint(directory)
    weights, x = Weights(tensors), np.random.default_rng(2).normal(size=(5, config.encoder.hidden))
    w, b = weights.pair("layers.1.up")
    scale = weights["layers.1.neurons.scale"]
    h = (x @ w.T + b) / scale
    neurons = sum(c * h**k for k, c in enumerate(weights["layers.1.neurons.coefficients"].T)) * scale
    wanted = neurons @ weights["layers.1.down.weight"].T
    if config.activation.degree == 2:
        up, bias, down, constant = neurons_as_squares(tensors, 1)
        found = (x @ up.T + bias) ** 2 @ down.T + constant
    else:
        own = neurons_as_quartics(tensors, 1)
        inner = (x @ own.up.T + own.up_bias) ** 2 + own.offsets
        found = inner**2 @ own.down.T + x @ own.matrix.T + own.bias
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_no_private_number_is_in_the_package(directory: Path, model: ServedModel, tmp_path: Path) -> None:
    """Another model with the same ranges gives the same package, but for the digest of its weights."""
    config, tensors = load_checkpoint(directory)
    rng = np.random.default_rng(9)
    for name, value in tensors.items():
        if name.endswith(("scores", "softness", "coefficients")):
            tensors[name] = value * rng.uniform(0.999, 1.001, value.shape).astype(np.float32)
    again = certify(msgspec.structs.replace(config, sites={}), tensors)
    assert again.sites == config.sites
    save_checkpoint(tmp_path, again, tensors, tokenizer=(directory / "tokenizer.json").read_bytes())
    other = ServedModel.load(tmp_path)
    assert other.stated != model.stated
    assert other.package().replace(other.stated.encode(), model.stated.encode()) == model.package()


@pytest.mark.parametrize("kind", ["random", "one token", "padding everywhere", "one coordinate"])
def test_no_input_leaves_the_certified_ranges(model: ServedModel, kind: str) -> None:
    """The twin raises RangeError at the first value outside the bound that was certified for it."""
    vocabulary, d = model.config.encoder.vocabulary, model.config.encoder.hidden
    ids = np.random.default_rng(7).integers(0, vocabulary, (2, 16)) if kind == "random" else np.full((1, 16), 5)
    rows, mask = model.embed(ids, np.zeros_like(ids)), np.ones(ids.shape)
    if kind == "padding everywhere":
        mask[:, 1:] = 0.0
    if kind == "one coordinate":
        rows[..., 0], rows[..., 1:] = np.sqrt(d - 1.0), -np.sqrt(1.0 / (d - 1.0))
    query = Query(rows, mask, (False,) * len(ids))
    logits = twin_value(model.program(len(ids), 16, query), model.weights())
    assert np.all(np.abs(logits) < model.logit_bound)


def climbed(d: int, m: int, seed: int, bent: float, degree: int = 2) -> tuple[float, float]:
    """The bound of the variance behind random polynomials, and the largest that a climb finds."""
    rng = np.random.default_rng(seed)
    up, down = (rng.normal(size=(m, d)), rng.normal(size=m)), (rng.normal(size=(d, m)), rng.normal(size=d))
    gamma, beta = rng.normal(1.0, 0.3, d), rng.normal(0.0, 0.3, d)
    c = rng.normal(size=m), rng.normal(size=m), *(bent**k * rng.normal(size=m) for k in range(1, degree))

    def variance(n: npt.NDArray[np.float64]) -> float:
        x = gamma * n + beta
        h = up[0] @ x + up[1]
        return float(np.var(x + down[0] @ sum(ck * h**k for k, ck in enumerate(c)) + down[1]))

    def row(n: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        n = n - n.mean()
        return np.asarray(n * (np.sqrt(d) * (1.0 + SLACK) / np.linalg.norm(n)))

    best = row(rng.normal(size=d))
    for step in range(150):
        best = max(best, row(best + rng.normal(size=d) * 0.8 * 0.97**step), key=variance)
    top = polynomial_norm_top(up, down, gamma, beta, c, activation_error=np.zeros(m))
    if degree == 2:
        assert top == pytest.approx(
            quadratic_norm_top(up, down, gamma, beta, (c[0], c[1], c[2]), activation_error=np.zeros(m))
        )
    return top, variance(best)


@settings(max_examples=25, deadline=None)
@given(
    d=st.integers(4, 10),
    m=st.integers(1, 12),
    seed=st.integers(0, 999),
    bent=st.floats(0.0, 2.0),
    degree=st.integers(2, 4),
)
def test_the_variance_behind_polynomials_never_exceeds_its_bound(
    d: int, m: int, seed: int, bent: float, degree: int
) -> None:
    top, largest = climbed(d, m, seed, bent, degree)
    assert largest <= top


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_the_bound_says_something(degree: int) -> None:
    """The control of the test above: the climb comes near it."""
    ratios = [np.divide(*climbed(8, 10, seed, 1.0, degree)) for seed in range(9)]
    assert np.median(ratios) < 10.0


def test_the_largest_weight_is_one_that_scores_can_reach(directory: Path) -> None:
    config, tensors = load_checkpoint(directory)
    heads = config.encoder.heads
    top = largest_weight(tensors, config.encoder.layers, heads)
    assert top == config.sites["denominators"].rule.high
    z = np.linspace(-1.0, 1.0, 201)
    found = 0.0
    for i in range(config.encoder.layers):
        a, b, g, *h = tensors[f"layers.{i}.scores"].astype(np.float64).T
        lengths = tensors[f"layers.{i}.softness"] / head_norms(tensors, i, heads) ** 2
        reach = 1.0 / np.sqrt((1.0 + lengths).prod(axis=1))
        biases = tensors.get("relative_positions", np.zeros((1, heads), np.float32))
        shift = np.clip(b / a + biases, -1.0, 1.0)
        r = ((z[:, None, None] * reach + shift) ** 2 + g / a**2) ** 2 / 16.0
        r = (r + h[0] / (2.0 * a) ** 4) ** 2 if h else r
        found = max(found, float(r.max()))
    assert top / 4.0 < found <= top


# What is almost nothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [FITTED, NEAR])
@pytest.mark.parametrize("dead", ["neuron", "straight neuron", "head"])
def test_neurons_and_heads_of_zeros_are_served(tmp_path: Path, rule: str, dead: str) -> None:
    """Models that were pruned, or filled up to a round size, have some."""
    config, tensors = load_checkpoint(fitted_model(tmp_path, rule=rule))
    size = config.encoder.hidden // config.encoder.heads
    for part in ("weight", "bias"):
        name, rows = (f"layers.0.query.{part}", size) if dead == "head" else (f"layers.0.up.{part}", 1)
        tensors[name][:rows] = 0.0
    if dead == "straight neuron":
        tensors["layers.0.neurons.coefficients"][:1] = 0.0
    tensors = dict(within_limits(config, tensors))
    save_checkpoint(tmp_path, certify(msgspec.structs.replace(config, sites={}), tensors), tensors)
    model = ServedModel.load(tmp_path)
    query = model.encode(TEXTS[:1])
    twin = twin_value(model.program(query.batch, query.bucket, query), model.weights())
    assert np.abs(twin - model.plain_logits(query)).max() < REAL + UNIT / 2


def test_the_fourth_power_that_stands_for_none_is_certified(tmp_path: Path) -> None:
    """A quartic without c₄ is served with a tiny one, which counts where |h| is large."""
    config, loaded = load_checkpoint(fitted_model(tmp_path, rule=NEAR))
    tensors: dict[str, Any] = dict(loaded)
    hidden = config.encoder.hidden
    direction = np.where(np.arange(hidden) % 2 == 0, 1.0, -1.0)
    tensors["layers.0.up.weight"] = np.tile(2.0**13 * direction, (len(tensors["layers.0.up.weight"]), 1))
    tensors["layers.0.down.weight"] = np.tile(direction[:, None], (1, len(tensors["layers.0.up.weight"])))
    for name in ("layers.0.up.bias", "layers.0.down.bias", "layers.0.attention_norm.bias"):
        tensors[name] = np.zeros_like(tensors[name])
    tensors["layers.0.attention_norm.weight"] = np.ones(hidden)
    tensors["layers.0.neurons.coefficients"] = np.zeros_like(tensors["layers.0.neurons.coefficients"])
    real = {name: value.astype(np.float32) for name, value in tensors.items()}
    own = neurons_as_quartics(real, 0)
    inner = (own.up @ direction + own.up_bias) ** 2 + own.offsets
    behind = direction + own.down @ inner**2 + own.matrix @ direction + own.bias
    tops = variance_tops(config, real, None, config.sites["denominators"].inverse)
    assert 2.0 < np.var(behind) <= tops["layers.0.output_norm"]


# What is refused ----------------------------------------------------------------------------------------------


def broken(directory: Path, out: Path, name: str, change: Any) -> Path:
    """The checkpoint with a tensor changed, and its ranges as they were."""
    config, tensors = load_checkpoint(directory)
    tensors[name] = np.asarray(change(tensors[name].copy()), np.float32)
    save_checkpoint(out, config, tensors, tokenizer=(directory / "tokenizer.json").read_bytes())
    return out


def with_column(column: int, value: float) -> Any:
    def change(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        array[:, column] = value
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("layers.1.neurons.coefficients", with_column(-1, 0.0), "layer 1: .* (too straight|fitted neurons is above)"),
        ("layers.0.neurons.scale", lambda x: -x, r"layers\.0\.neurons\.scale"),
        ("layers.1.neurons.coefficients", lambda x: 8.0 * x, r"layers\.1\.output_norm: the interval's top"),
        ("layers.1.scores", with_column(0, 0.0), r"layers\.1\.scores has a slope of 0"),
        ("layers.1.scores", with_column(1, 9.0), r"layers\.1\.scores: b/a is .* at head"),
        ("layers.0.scores", with_column(2, 9.0), r"layers\.0\.scores: g/a² is"),
        ("layers.0.softness", with_column(1, -1.0), r"layers\.0\.softness"),
        ("layers.1.softness", lambda x: 1000.0 * x, r"layers\.1\.softness"),
    ],
)
def test_functions_beyond_their_certificate_are_refused(
    directory: Path, tmp_path: Path, name: str, change: Any, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        ServedModel.load(broken(directory, tmp_path, name, change))


def test_what_training_left_a_little_beyond_is_moved_within(directory: Path, tmp_path: Path) -> None:
    config, tensors = load_checkpoint(directory)
    for i in range(config.encoder.layers):
        tensors[f"layers.{i}.neurons.coefficients"][0, -1] = 0.0
        tensors[f"layers.{i}.scores"][0, 1] = 1.1 * tensors[f"layers.{i}.scores"][0, 0]
        tensors[f"layers.{i}.softness"][0] = (-0.1, 1e6)
    mended = within_limits(config, tensors)
    again = certify(msgspec.structs.replace(config, sites={}), mended)
    save_checkpoint(tmp_path, again, mended, tokenizer=(directory / "tokenizer.json").read_bytes())
    ServedModel.load(tmp_path)
    untouched = [name for name in tensors if np.array_equal(tensors[name], mended[name])]
    assert len(untouched) == len(tensors) - 3 * config.encoder.layers


def test_curvature_is_added_to_straight_neurons_alone() -> None:
    coefficients = np.array([[0.0, 0.5, 0.3], [0.0, 0.5, 0.0], [0.1, -0.5, -1e-6]])
    scale, bound = np.ones(3), np.full(3, 10.0)
    bent = curved(coefficients, scale, bound)
    np.testing.assert_array_equal(bent[0], coefficients[0])
    np.testing.assert_allclose(bent[1:, 2], [0.5 / 320.0, -0.5 / 320.0])


@pytest.mark.parametrize(
    ("activation", "attention"),
    [
        (ActivationChoice(kind="fitted", normalised=False), AttentionChoice()),
        (ActivationChoice(kind="fitted", trainable=True), AttentionChoice()),
        (ActivationChoice(), AttentionChoice(kind="fitted", power=2)),
        (ActivationChoice(), AttentionChoice(kind="smu", power=4)),
        (ActivationChoice(), AttentionChoice(kind="fitted", power=4, cosine=False)),
        (ActivationChoice(), AttentionChoice(kind="fitted", power=4, floor=1.0)),
    ],
)
def test_choices_that_do_not_go_together_are_refused(
    directory: Path, activation: ActivationChoice, attention: AttentionChoice
) -> None:
    config, _ = load_checkpoint(directory)
    with pytest.raises(ValueError, match=r"fitted|attention of kind"):
        msgspec.structs.replace(config, activation=activation, attention=attention)


@pytest.mark.parametrize("mixed", ["neurons", "scores"])
def test_one_of_the_two_may_be_fitted_alone(tmp_path: Path, mixed: str) -> None:
    activation = ActivationChoice(kind="fitted") if mixed == "neurons" else ActivationChoice()
    attention = AttentionChoice(kind="fitted", power=4) if mixed == "scores" else AttentionChoice()
    model = ServedModel.load(make_checkpoint(tmp_path, form=(activation, attention), rule="quadratic"))
    assert ("activation" in model.config.sites) == (mixed == "scores")
    query = model.encode(TEXTS)
    twin = twin_value(model.program(query.batch, query.bucket, query), model.weights())
    assert np.abs(twin - model.plain_logits(query)).max() < REAL + UNIT / 2


@pytest.mark.parametrize("source", [DEALER, PAIR])
def test_fitted_functions_cost_less_than_roots(source: Source) -> None:
    shape = EncoderShape(3, 64, 2, 256)
    fitted, roots = (plan_shape(shape, 64, 3, 1, rule, source) for rule in ("fitted", "quadratic"))
    assert fitted.rounds < roots.rounds
    assert fitted.online_bytes < 0.9 * roots.online_bytes
    if source is DEALER:  # without one, so small a model's ciphertexts are half empty
        assert source.offline_bytes(fitted) < 0.9 * source.offline_bytes(roots)
