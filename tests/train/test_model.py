"""The plain model: equal to `transformers` where unmodified, equal to the rules where unified, and it trains."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [train] is not installed (torch)")
pytest.importorskip("safetensors", reason="reading checkpoints needs the package safetensors")
pytest.importorskip("tokenizers", reason="the extra [train] is not installed (tokenizers)")

from comet_mpc.errors import CheckpointError, ConfigurationError, NotFinite  # noqa: E402
from comet_mpc.functions.attention import certified_form, plain_attention  # noqa: E402
from comet_mpc.functions.minimax import minimax_rule  # noqa: E402
from comet_mpc.functions.root_rule import DEGREES, FINE_PRECISION, RootRule  # noqa: E402
from comet_mpc.functions.rule import PRECISION, Smu  # noqa: E402
from comet_mpc.models.bounds import activation_bounds  # noqa: E402
from comet_mpc.models.certify import calibrated, certify, check_ranges, smu_rules, universal_rules  # noqa: E402
from comet_mpc.models.checkpoint import ActivationChoice, AttentionChoice  # noqa: E402
from comet_mpc.models.fold import in_form  # noqa: E402
from comet_mpc.models.hugging_face import load_hugging_face  # noqa: E402
from comet_mpc.models.served import ServedModel  # noqa: E402
from comet_mpc.models.stored.checkpoints import load_checkpoint  # noqa: E402
from comet_mpc.models.tasks import TASKS  # noqa: E402
from comet_mpc.train.batches import Batch, Encoded, observe, predict, quantiles  # noqa: E402
from comet_mpc.train.fitting.layers import can_fit, fit_to_teacher  # noqa: E402
from comet_mpc.train.forms import Form  # noqa: E402
from comet_mpc.train.loop import Recipe, _distance, _optimiser, train_rows  # noqa: E402
from comet_mpc.train.model import UnifiedModel  # noqa: E402
from comet_mpc.train.steps import newton_rule, other_rules, rounded_smu, smu  # noqa: E402
from support.small_models import CERTIFIED, UNMODIFIED, small_model  # noqa: E402
from support.toy_model import make_checkpoint, some_texts, toy_tokenizer, twin_logits  # noqa: E402
from support.watching import Heard  # noqa: E402

pytestmark = pytest.mark.train

SMU = ActivationChoice(kind="smu", mu=1 / math.sqrt(2), normalised=False)
RELU = AttentionChoice(kind="relu", power=1, cosine=False, mu=0.0, floor=1e-3)
FORMS = {
    "unmodified": UNMODIFIED,
    "certified": CERTIFIED,
    "fitted": (ActivationChoice(kind="fitted"), AttentionChoice(kind="fitted", power=4), "algebraic"),
    "gelu-relu": (UNMODIFIED[0], RELU, "tanh"),
    "smu-softmax": (SMU, UNMODIFIED[1], "tanh"),
    "smu-relu": (msgspec.structs.replace(SMU, trainable=True), RELU, "tanh"),
    "smu-smu": (SMU, msgspec.structs.replace(RELU, kind="smu", mu=0.1, trainable=True), "tanh"),
}


def tokens(seed: int = 0, rows: int = 4, n: int = 12) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 50, (rows, n), generator=generator)
    mask = torch.ones(rows, n, dtype=torch.long)
    mask[1, 7:] = 0
    return ids, mask


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet"])
@pytest.mark.parametrize("form", FORMS)
def test_padding_does_not_change_a_text(architecture: str, form: str) -> None:
    model = UnifiedModel.from_tensors(*small_model(FORMS[form], architecture=architecture)).eval()
    ids, mask = tokens()
    with torch.no_grad():
        padded = model(ids, mask)[0][1]
        alone = model(ids[1:2, :7], mask[1:2, :7])[0][0]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["minilm", "roberta", "mpnet"])
def test_unmodified_equals_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra [train] is not installed (transformers)")
    directory = Path(os.environ.get("COMET_MODELS", "")) / name
    if "COMET_MODELS" not in os.environ or not directory.exists():
        pytest.skip("set COMET_MODELS to a directory with real checkpoints (minilm, roberta, mpnet)")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(directory).eval()
    theirs.save_pretrained(tmp_path)
    config, tensors, absent = load_hugging_face(tmp_path)
    assert not absent
    ours = UnifiedModel.from_tensors(config, tensors).eval()
    ids, mask = torch.randint(5, 5000, (3, 40)), torch.ones(3, 40, dtype=torch.long)
    ids[1, 25:], mask[1, 25:] = config.encoder.padding, 0
    with torch.no_grad():
        wanted = theirs(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        logits, hidden = ours(ids, mask)
    torch.testing.assert_close(logits, wanted.logits, atol=1e-4, rtol=0)
    for mine, other in zip(hidden, wanted.hidden_states, strict=True):
        torch.testing.assert_close(mine[mask == 1], other[mask == 1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("interval", [(0.004, 1.02), (0.3, 900.0)])
def test_torch_evaluates_the_very_numbers_of_the_rule(steps: int, interval: tuple[float, float]) -> None:
    rule = minimax_rule(*interval, steps)
    t = np.geomspace(*interval, 500)
    np.testing.assert_allclose(rule(torch.tensor(t)).numpy(), rule(t), rtol=1e-12)


@pytest.mark.parametrize("steps", [2, 3, 4])
def test_the_activation_and_its_derivative_are_those_of_the_steps(steps: int) -> None:
    config, _ = small_model()
    rule = universal_rules(replace_steps(config, steps))["activation"]
    x = torch.linspace(-1, 1, 101, dtype=torch.float64, requires_grad=True)
    t = x.detach().numpy() ** 2 + 0.0625**2
    expected = 0.5 * (x.detach().numpy() + rule.root(t))
    np.testing.assert_allclose(smu(x, 0.0625, 0.0, rule).detach().numpy(), expected, rtol=1e-10)
    assert torch.autograd.gradcheck(lambda z: smu(z, 0.0625, 0.1, rule), x)


@pytest.mark.parametrize("degree", DEGREES)
def test_the_activation_and_its_derivative_are_those_of_the_roots_polynomial(degree: str) -> None:
    config, _ = small_model()
    rule = universal_rules(msgspec.structs.replace(config, rule=degree))["activation"]
    x = torch.linspace(-1, 1, 101, dtype=torch.float64, requires_grad=True)
    expected = Smu(0.0625)(x.detach().numpy(), rule)
    np.testing.assert_allclose(smu(x, 0.0625, 0.0, rule).detach().numpy(), expected, rtol=1e-10)
    assert torch.autograd.gradcheck(lambda z: smu(z, 0.0625, 0.1, rule), x)
    mu = torch.tensor(0.0625, dtype=torch.float64)
    np.testing.assert_allclose(smu(x, mu, 0.0, rule).detach().numpy(), expected, rtol=1e-10)


def test_rounded_as_the_parties_do_it_is_right_on_average_and_never_a_unit_off() -> None:
    config, _ = small_model()
    x = torch.linspace(-1, 1, 4001, dtype=torch.float64)
    for precision in (PRECISION, FINE_PRECISION):
        rule = smu_rules(msgspec.structs.replace(config, rule="quadratic"), precision)[0]
        assert isinstance(rule, RootRule)
        off = torch.stack([rounded_smu(x, 0.0625, 0.0, rule) - smu(x, 0.0625, 0.0, rule) for _ in range(200)])
        unit = 0.5 * rule.root_rounding * math.sqrt(rule.high)
        assert 0.4 * unit < float(off.abs().max()) <= 1.001 * unit
        assert float(off.mean(0).abs().max()) < 0.25 * unit, "five deviations of the mean of 200"


def replace_steps(config: Any, steps: int) -> Any:
    return msgspec.structs.replace(config, steps=steps)


def test_newton_from_a_constant_is_a_rule_too() -> None:
    t, y = 0.8, 0.4833
    for _ in range(3):
        y = y * (1.5 - 0.5 * t * y * y)
    assert float(newton_rule(0.4833, 3, 0.1, 2.0)(torch.tensor(t, dtype=torch.float64))) == pytest.approx(y)


def test_bounds_are_one_formula_for_numpy_and_torch() -> None:
    _, tensors = small_model()
    names = ("layers.0.up.weight", "layers.0.up.bias", "layers.0.attention_norm.weight", "layers.0.attention_norm.bias")
    arrays = [tensors[name].astype(np.float64) for name in names]
    np.testing.assert_allclose(activation_bounds(*arrays), activation_bounds(*map(torch.tensor, arrays)).numpy())


def test_attention_equals_the_protocols_plain_form() -> None:
    config, tensors = small_model()
    model = UnifiedModel.from_tensors(config, tensors).eval()
    layer: Any = model.layers[0]
    x = torch.randn(1, 9, 24, generator=torch.Generator().manual_seed(3))
    mask = torch.ones(1, 1, 1, 9)
    mask[..., 6:] = 0
    with torch.no_grad():
        found = layer.attend(model, x, model.embeddings.norm, mask, None)[0]
        q, k, v = (layer.split(part(x))[0].double().numpy() for part in (layer.query, layer.key, layer.value))
    thresholds, columns = tensors["layers.0.thresholds"].astype(np.float64), mask[0, 0, 0].double().numpy()
    wanted = plain_attention(q, k, v, certified_form(config.steps, mu=config.attention.mu), thresholds, columns)
    np.testing.assert_allclose(found.numpy(), wanted.transpose(1, 0, 2).reshape(9, 24), atol=1e-5)


@pytest.mark.parametrize(("rule", "steps"), [("minimax", 3), ("minimax", 4), ("fitted", 1)])
def test_the_torch_model_the_twin_and_the_served_rules_agree(tmp_path: Path, rule: str, steps: int) -> None:
    served = ServedModel.load(make_checkpoint(tmp_path, rule=rule, steps=steps))
    query = served.encode(some_texts(3, words=5))
    config, tensors = load_checkpoint(tmp_path)
    for name in ("words", "positions", "types"):  # a client is given its tables in half precision
        tensors[f"embeddings.{name}"] = tensors[f"embeddings.{name}"].astype(np.float16).astype(np.float32)
    model = UnifiedModel.from_tensors(config, tensors).eval().use("served")
    tokenizer = toy_tokenizer()
    ids = torch.tensor([found.ids for found in tokenizer.encode_batch(some_texts(3, words=5))])
    with torch.no_grad():
        logits = model(ids, torch.ones_like(ids))[0].numpy()
    np.testing.assert_allclose(logits, served.plain_logits(query), atol=2e-5, rtol=0)
    np.testing.assert_allclose(logits, twin_logits(served, query), atol=0.02, rtol=0)


def test_more_steps_come_closer_to_exact() -> None:
    config, tensors = small_model()
    for i in range(2):
        tensors[f"layers.{i}.thresholds"][:] = -0.5  # no row without a positive score: no denominator near zero
    ids, mask = tokens()
    with torch.no_grad():
        exact = UnifiedModel.from_tensors(config, tensors).eval()(ids, mask)[0]
        errors = []
        for steps in (2, 4, 6):
            model = UnifiedModel.from_tensors(replace_steps(config, steps), tensors).eval().use("served")
            errors.append(float((model(ids, mask)[0] - exact).abs().max()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-2


def test_arguments_stay_in_their_intervals_for_wild_inputs() -> None:
    config, tensors = small_model()
    model = UnifiedModel.from_tensors(config, tensors).eval()
    rules = {name: site.rule for name, site in certify(config, tensors).sites.items()}
    seen: dict[str, float] = {}

    def look(site: str, t: Any) -> None:
        key = site if site in rules else site.rsplit(".", 1)[1]
        seen[key] = max(seen.get(key, 0.0), float(t.max()))

    model.probe = look
    with torch.no_grad():
        for seed in range(30):
            model.use("served")(*tokens(seed, 8, 16))
    assert seen.keys() == rules.keys()
    for site, largest in seen.items():
        assert largest <= rules[site].high, site


PAPER = (SMU, AttentionChoice(kind="smu", power=1, cosine=False, mu=0.5), "algebraic")


def test_a_calibrated_form_trains_on_although_values_leave_their_intervals(tmp_path: Path) -> None:
    """Held where the rules are stable, and drawn back by the penalty."""
    config, tensors = small_model(PAPER)
    data = toy_data()
    seen = quantiles(observe(UnifiedModel.from_tensors(config, tensors).use("exact"), data))
    config = calibrated(config, tensors, seen)
    for i in range(2):
        tensors[f"layers.{i}.up.weight"] *= 3.0
        tensors[f"layers.{i}.query.weight"] *= 3.0

    def excess(changed: dict[str, Any]) -> float:
        """The largest argument over its interval's top."""
        found = observe(UnifiedModel.from_tensors(config, changed).use("exact"), data)
        return max(float(t.max()) / config.sites[site].rule.high for site, t in found.items())

    model = UnifiedModel.from_tensors(config, tensors)
    assert excess(tensors) > 3.0
    assert np.abs(predict(model.use("steps"), data)).max() < 10.0
    assert not np.abs(predict(model.use("served"), data)).max() < 10.0  # as served, they explode
    recipe = Recipe(epochs=30, rate=3e-3, penalty=3.0, dropout=0.0, evaluations=1)
    train_rows(config, tensors, TASKS["SST-2"], data, data, tmp_path / "out", recipe)
    assert excess(load_checkpoint(tmp_path / "out")[1]) < 0.8 * excess(tensors)


def test_fitted_functions_are_learnt_and_stay_where_the_protocol_takes_them() -> None:
    config, tensors = small_model(FORMS["fitted"])
    model = UnifiedModel.from_tensors(config, tensors).use("steps").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    ids, mask = tokens()
    for _ in range(3):
        optimiser.zero_grad()
        model(ids, mask)[0].square().sum().backward()
        optimiser.step()
    own = ("neurons.coefficients", "scores", "softness")
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert {f"layers.1.{part}" for part in own} <= moved
    assert "layers.1.neurons.scale" not in moved
    learnt = model.tensors()
    check_ranges(certify(config, learnt), learnt)
    learnt["layers.0.scores"][0, 1] = 3.0 * learnt["layers.0.scores"][0, 0]
    acting = UnifiedModel.from_tensors(config, learnt).eval()
    stored = UnifiedModel.from_tensors(config, acting.tensors()).eval()
    with torch.no_grad():
        np.testing.assert_allclose(acting(ids, mask)[0].numpy(), stored(ids, mask)[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "mpnet"])
@pytest.mark.parametrize("fitted", [False, True])
def test_a_fitted_model_begins_near_its_teacher(architecture: str, fitted: bool) -> None:
    config, tensors = small_model(UNMODIFIED, architecture=architecture)
    activation, attention, pooler = CERTIFIED
    if fitted:
        activation, attention = Form(rule="fitted").choices()
    labels = config.encoder.labels
    form = in_form(config, tensors, activation=activation, attention=attention, pooler=pooler, labels=labels)  # type: ignore[arg-type]
    teacher = UnifiedModel.from_tensors(config, tensors).eval()
    model = UnifiedModel.from_tensors(*form).use("steps")
    assert can_fit(model, teacher)
    assert not can_fit(teacher, UnifiedModel.from_tensors(config, tensors))
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def distances(seed: int) -> list[float]:
        ids, mask = tokens(seed, 8)
        with torch.no_grad():
            mine, theirs = model(ids, mask)[1], teacher(ids, mask)[1]
        return [float(_distance([a, a], [b, b], mask)) for a, b in zip(mine[1:], theirs[1:], strict=True)]

    first = distances(99)
    batches = [Batch(*tokens(seed, 16), None, torch.zeros(16)) for seed in range(16)]
    fit_to_teacher(model, teacher, batches)
    for far, near in zip(first, distances(99), strict=True):
        assert near < 0.9 * far  # on other texts than it was fitted to
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    own = {"neurons", "scores", "softness"} if fitted else {"thresholds"}
    matrices = {"query", "key", "value", "attention_output", "up", "down"}
    assert {part for name in changed for part in name.split(".")[2:3]} == {*matrices, *own}


def test_served_bounds_follow_the_weights() -> None:
    model = UnifiedModel.from_tensors(*small_model()).eval()
    ids, mask = tokens()
    with torch.no_grad():
        model.use("served")(ids, mask)
        for name, parameter in model.named_parameters():
            if name.endswith("query.weight"):
                parameter.mul_(30.0)
        wanted, found = model.use("exact")(ids, mask)[0], model.use("served")(ids, mask)[0]
    assert torch.isfinite(found).all()
    assert float((found - wanted).abs().max()) < 0.5


def toy_data(rows: int = 96) -> Encoded:
    """The label is whether token 7 occurs."""
    generator = np.random.default_rng(0)
    ids = [[2, *generator.integers(8, 50, generator.integers(3, 9)).tolist()] for _ in range(rows)]
    labels = generator.integers(0, 2, rows)
    for row, label in zip(ids, labels, strict=True):
        row.append(7 if label else 6)
    return Encoded(ids, [[0] * len(row) for row in ids], labels.astype(np.float32), 0)


def test_training_learns_and_resumes(tmp_path: Path) -> None:
    config, tensors = small_model()
    data, task = toy_data(), TASKS["SST-2"]
    recipe = Recipe(epochs=12, batch=16, rate=3e-3, dropout=0.0, evaluations=1)

    def interrupt(line: str) -> None:
        if line.startswith("epoch 8"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_rows(config, tensors, task, data, data, tmp_path, recipe, watcher=Heard(interrupt))
    heard = Heard()
    result = train_rows(config, tensors, task, data, data, tmp_path, recipe, watcher=heard)
    assert heard.lines[0].startswith("resumed at step 48")
    assert result.best >= 90.0
    best, loaded = load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="not in the certified form"):  # it gets its ranges in one proof, later
        check_ranges(best, loaded)
    for mode in ("steps", "served"):
        logits = predict(UnifiedModel.from_tensors(best, loaded).use(mode), data)
        assert task.score(logits, data.labels)["accuracy"] == result.best


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    config, tensors = small_model()
    data, task = toy_data(32), TASKS["SST-2"]
    wanted = np.zeros((32, 2), np.float32)
    wanted[np.argmax([len(row) for row in data.ids])] = np.nan
    broken = replace(data, wanted=wanted)
    heard = Heard()
    recipe = Recipe(epochs=1, batch=1, evaluations=32)
    with pytest.raises(NotFinite, match="loss is nan") as caught:
        train_rows(config, tensors, task, broken, data, tmp_path, recipe, watcher=heard)
    done, total = heard.told("fine-tuning: updates")[-1]
    assert f"at step {done}:" in str(caught.value)
    assert 0 < done < total == 32, "some step before the broken row was taken"
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert all(torch.isfinite(value).all() for value in state["model"].values())
    best, loaded = load_checkpoint(tmp_path)
    check_ranges(certify(best, loaded), loaded)


def test_parameters_that_do_not_learn_get_no_gradient() -> None:
    model = UnifiedModel.from_tensors(*small_model())
    optimiser = _optimiser(model, Recipe(embedding_rate=0.0))
    still = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert still == {f"embeddings.{part}" for part in ("words", "positions", "types")}
    learning = sum(len(group["params"]) for group in optimiser.param_groups)
    assert learning == len(list(model.parameters())) - len(still)


def test_a_finished_run_is_not_run_again_and_another_is_refused(tmp_path: Path) -> None:
    config, tensors = small_model()
    data, task = toy_data(32), TASKS["SST-2"]
    recipe, heard = Recipe(epochs=1, batch=16), Heard()
    first = train_rows(config, tensors, task, data, data, tmp_path, recipe, watcher=heard)
    before = (tmp_path / "model.safetensors").read_bytes()
    assert not (tmp_path / "state.pt").exists()
    assert train_rows(config, tensors, task, data, data, tmp_path, recipe, watcher=heard) == first
    assert "finished after 2 steps" in heard.lines[-1]
    assert (tmp_path / "model.safetensors").read_bytes() == before
    with pytest.raises(ConfigurationError, match=r"other settings \(rate, training data\)"):
        train_rows(config, tensors, task, toy_data(16), data, tmp_path, replace(recipe, rate=1e-3), watcher=heard)
    tensors["pooler.bias"][0] += 1.0
    with pytest.raises(ConfigurationError, match=r"other settings \(model\)"):
        train_rows(config, tensors, task, data, data, tmp_path, recipe, watcher=heard)
    (tmp_path / "training.json").unlink()
    with pytest.raises(ConfigurationError, match="something else"):
        train_rows(config, tensors, task, data, data, tmp_path, recipe, watcher=heard)


def test_alpha_and_mu_are_learnt_saved_and_loaded(tmp_path: Path) -> None:
    forms = (
        msgspec.structs.replace(SMU, trainable=True),
        msgspec.structs.replace(RELU, kind="smu", mu=0.1, trainable=True),
    )
    config, tensors = small_model((*forms, "tanh"))
    for name in tensors:
        if name.endswith((".mu", ".alpha")):
            tensors[name] = np.full_like(tensors[name], 0.0 if name.endswith("alpha") else 0.3)
    data, task = toy_data(32), TASKS["SST-2"]
    sites = quantiles(observe(UnifiedModel.from_tensors(config, tensors), data))
    config = calibrated(config, tensors, sites, margin=2.0)
    assert config.sites.keys() >= {f"layers.{i}.{part}" for i in range(2) for part in ("activation", "scores")}
    recipe = Recipe(epochs=4, batch=8, rate=5e-5)
    train_rows(config, tensors, task, data, data, tmp_path, recipe)
    best, loaded = load_checkpoint(tmp_path)
    for name in ("activation.alpha", "activation.mu", "attention.mu"):
        moved = abs(float(loaded[f"layers.1.{name}"] - tensors[f"layers.1.{name}"]))
        assert moved > 16 * recipe.rate, "learnt through the steps themselves, faster than 16 updates of a weight"
    scores = [
        task.score(predict(UnifiedModel.from_tensors(best, loaded).use(mode), data), data.labels)["accuracy"]
        for mode in ("exact", "steps")
    ]
    assert all(math.isfinite(score) for score in scores)
    with pytest.raises(CheckpointError, match="certified form"):
        certify(best, loaded)


def test_other_steps_replace_the_rules_of_every_form() -> None:
    config, tensors = small_model(FORMS["smu-softmax"])
    with pytest.raises(ConfigurationError, match="calibrate"):
        other_rules(config, "newton", 2)
    data = toy_data(16)
    config = calibrated(config, tensors, quantiles(observe(UnifiedModel.from_tensors(config, tensors), data)))
    model = UnifiedModel.from_tensors(config, tensors)
    exact = predict(model.use("exact"), data)
    errors = [
        np.abs(predict(model.use("served", other_rules(config, "minimax", n)), data) - exact).max() for n in (0, 2, 8)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert not np.array_equal(predict(model.use("served", other_rules(config, "newton", 1)), data), exact)


def test_a_teacher_of_the_same_size_pulls_hidden_states(tmp_path: Path) -> None:
    teacher = UnifiedModel.from_tensors(*small_model(UNMODIFIED))
    config, tensors = small_model(CERTIFIED, seed=0)
    data, task = toy_data(32), TASKS["SST-2"]
    recipe = Recipe(epochs=1, batch=16)
    result = train_rows(config, tensors, task, data, data, tmp_path, recipe, teacher=teacher)
    assert math.isfinite(result.best)
