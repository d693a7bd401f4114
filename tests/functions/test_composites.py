"""Activation, attention, LayerNorm: two real parties beside the twin, the twin beside exact real arithmetic.

Tolerances are derived from what the rules certify (`error`, `root_error`, `rounding`) and from the units of what is
truncated. Costs are compared with the plan by `run_two_parties`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import comet_research.functions  # noqa: F401 -- registers their names
from comet_mpc.engine import Session, Weight
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, SERVER, Share
from comet_mpc.engine.twin import TwinSession
from comet_mpc.errors import RangeError, RuleError, ScaleError, ShapeError
from comet_mpc.functions.activation import smu, smu_rule, tanh_like, tanh_like_rule
from comet_mpc.functions.attention import AttentionForm, attention, certified_form, paper_form, plain_attention
from comet_mpc.functions.inverse_rule import MinimaxRule
from comet_mpc.functions.layer_norm import Centred, layer_norm, layer_norm_rule, normalised_mean, power_in
from comet_mpc.functions.rule import Smu
from comet_mpc.functions.rules import make_rule
from comet_mpc.functions.weighing import SmuWeighing
from support.two_parties import Program, run_two_parties, together, twin_value

Reals = npt.NDArray[np.float64]

SEEDS = (bytes(range(16)), bytes(range(16, 32)))  # where a tolerance is plain and not derived


def on_grid(values: npt.ArrayLike, fraction: int = 12) -> Reals:
    """The nearest numbers that have so many fraction bits, so that encoding rounds nothing."""
    return np.rint(np.asarray(values, np.float64) * 2.0**fraction) * 2.0**-fraction


def client_secret(session: Session, values: Reals, bound: float, fraction: int = 12) -> Share:
    return session.private(CLIENT, values.shape, fraction, bound, values)


def minimax(rule: object) -> MinimaxRule:
    assert isinstance(rule, MinimaxRule)
    return rule


# Activations --------------------------------------------------------------------------------------------------


def smu_tolerance(rule: MinimaxRule, t: Reals, fraction: int, *, certified: bool) -> Reals:
    """Half the root's error (the rule's own only if asked for), and one unit of the result."""
    root = np.sqrt(t)
    opened = 2.0 ** (rule.exponent - rule.fraction_t) / root  # a unit of t
    own = rule.root_error * math.sqrt(rule.high) if certified else 0.0
    return np.asarray(0.5 * (own + rule.rounding * root + opened) + 2.0**-fraction)


FORMS = {
    "certified": (Smu(1.0 / 16.0), 1.0),
    "wide": (Smu(0.5), 6.0),
    "leaky": (Smu(0.25, alpha=0.25), 2.0),
    "leaky, the paper's factor": (Smu(0.25, alpha=0.25, paper_factor=True), 2.0),
    "a mu for every neuron": (Smu((0.125, 0.25, 0.5, 1.0)), 1.0),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("steps", [2, 3, 4])
@pytest.mark.parametrize("fused", [True, False])
def test_smu_is_what_its_rule_certifies(name: str, steps: int, fused: bool) -> None:
    form, bound = FORMS[name]
    rule = minimax(smu_rule(form, bound, steps))
    x = on_grid(np.linspace(-bound, bound, 400).reshape(100, 4))
    t = form.factor * x**2 + np.square(form.mu)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return smu(session, client_secret(session, x, bound), form, rule)

    twin, real = twin_value(program), together(run_two_parties(program, fused=fused))
    factor = 2.0**-12 * bound  # 1+α and φ are rounded to 12 bits
    certified = smu_tolerance(rule, t, 12, certified=True) + factor
    assert np.all(np.abs(twin - form(x)) <= certified)
    assert np.all(np.abs(real - form(x)) <= certified)
    assert np.all(np.abs(real - twin) <= 2.0 * smu_tolerance(rule, t, 12, certified=False))


def test_smu_takes_a_product_with_its_many_bits() -> None:
    form, bound = FORMS["certified"]
    rule = minimax(smu_rule(form, 1.01 * bound, 4))
    x = np.linspace(-bound, bound, 300)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return smu(session, session.private(CLIENT, x.shape, 24, bound, x), form, rule)

    real = together(run_two_parties(program))
    cut = 2.0**-12  # x is cut to 12 bits before it is squared, and |d sqrt(x² + μ²)/dx| <= 1
    t = form.factor * x**2 + np.square(form.mu)
    assert np.all(np.abs(real - form(x)) <= smu_tolerance(rule, t, 12, certified=True) + cut)


def test_smu_goes_to_the_maximum_as_mu_goes_to_zero() -> None:
    x = np.linspace(-2.0, 2.0, 101)
    for alpha in (0.0, 0.25):
        gap = np.abs(Smu(1e-9, alpha=alpha)(x) - np.maximum(x, alpha * x))
        assert np.max(gap) < 1e-8
    assert np.max(np.abs(Smu(1e-9, alpha=0.25, paper_factor=True)(x) - np.maximum(x, 0.25 * x))) > 0.05
    assert Smu(1.0 / math.sqrt(2.0))(0.0) == pytest.approx(0.354, abs=0.001)


def test_smu_by_the_papers_protocol_runs_where_leaks_are_permitted() -> None:
    form = Smu(1.0)
    rule = smu_rule(form, 2.0, 4, name="paper")
    x = on_grid(np.linspace(-2.0, 2.0, 64))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return smu(session, client_secret(session, x, 2.0), form, rule)

    real = together(run_two_parties(program))
    assert np.max(np.abs(real - form(x))) < 0.02
    assert np.max(np.abs(real - twin_value(program))) < 0.005


@pytest.mark.parametrize("form", [Smu(0.0), Smu((0.5, 0.0)), Smu(0.5, alpha=1.0), Smu(0.5, alpha=-0.1)])
def test_smu_without_a_positive_argument_is_refused(form: Smu) -> None:
    with pytest.raises(RuleError, match="positive lower end"):
        smu_rule(form, 1.0, 3)


def test_smu_of_more_than_its_rule_is_made_for_is_refused() -> None:
    form = Smu(0.25)
    rule = smu_rule(form, 1.0, 3)
    with pytest.raises(RangeError, match="stable only up to"):
        plan_program(lambda session: smu(session, Share((4,), 12, 2.0), form, rule))


@pytest.mark.parametrize(("bound", "steps"), [(1.0, 3), (4.0, 4), (8.0, 5)])
def test_tanh_like_is_what_its_rule_certifies(bound: float, steps: int) -> None:
    rule = tanh_like_rule(bound, steps)
    x = on_grid(np.linspace(-bound, bound, 300))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return tanh_like(session, client_secret(session, x, bound), rule)

    exact = x / np.sqrt(1.0 + x**2)
    units = np.abs(x) * 2.0**-14 + 2.0**-12  # of 1/sqrt(t) and of the result
    twin = twin_value(program)
    assert np.all(np.abs(twin - exact) <= np.abs(exact) * (rule.error + rule.rounding) + units)
    for fused in (True, False):
        real = together(run_two_parties(program, fused=fused))
        assert np.all(np.abs(real - twin) <= 2.0 * (np.abs(exact) * rule.rounding + units))


# LayerNorm ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 5, 16, 100, 768, 1000])
def test_layer_norm_is_what_its_rule_certifies(size: int) -> None:
    rng = np.random.default_rng(size)
    deviations = np.linspace(0.3, 3.0, 6)[:, None]
    x = rng.normal(size=(6, size))
    x = on_grid((x - x.mean(axis=-1, keepdims=True)) / x.std(axis=-1, keepdims=True) * deviations + 0.7)
    rule = minimax(layer_norm_rule(size, 0.05, 10.0, 6))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return layer_norm(session, client_secret(session, x, 128.0), rule)

    std = x.std(axis=-1, keepdims=True)
    exact = (x - x.mean(axis=-1, keepdims=True)) / std
    shrink = size / 2.0 ** math.ceil(math.log2(size))
    cut = 2.0**-12 / (shrink * std)  # a unit of v, beside its own size; it also moves the deviation by as much
    row = np.abs(exact) * (rule.rounding + 2.0**-14 * std * shrink / rule.gain + cut) + cut + 2.0**-12
    twin = twin_value(program)
    assert np.all(np.abs(twin - exact) <= np.abs(exact) * rule.error + row)
    for fused in (True, False):
        real = together(run_two_parties(program, fused=fused))
        assert np.all(np.abs(real - exact) <= np.abs(exact) * rule.error + 2.0 * row)
        assert np.all(np.abs(real - twin) <= 2.0 * row)


def test_layer_norm_does_not_see_the_mean_nor_the_scale() -> None:
    rng = np.random.default_rng(1)
    x = on_grid(rng.normal(size=(3, 64)), 10)
    rule = layer_norm_rule(64, 0.05, 40.0, 7)

    def of(values: Reals) -> Reals:
        return twin_value(lambda session, _: layer_norm(session, client_secret(session, values, 64.0), rule))

    assert np.array_equal(of(x), of(x + 8.0))
    assert np.max(np.abs(of(x) - of(4.0 * x))) < 0.01


@given(rows=st.integers(1, 5), size=st.integers(1, 40), width=st.integers(40, 52), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_centring_is_exact_but_for_a_unit_of_the_mean(rows: int, size: int, width: int, seed: int) -> None:
    """Into rings in which the truncation of the mean is free, and into others, where it rides along."""
    x = on_grid(np.random.default_rng(seed).uniform(-4.0, 4.0, (rows, size)), 20)
    bits = math.ceil(math.log2(size))
    exact = (size * x - x.sum(axis=-1, keepdims=True)) * 2.0**-bits

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        secret = session.private(CLIENT, x.shape, 20, 4.0, x, 52)
        return Centred.of(session, secret, width, 4.0).result()

    unit = 2.0 ** -(20 + bits - power_in(size))
    for value in (twin_value(program), together(run_two_parties(program))):
        assert np.all(np.abs(value - exact) <= unit)
    free = power_in(size) <= 52 - width
    assert plan_program(lambda session: program(session, {})).rounds == (0 if free else 1)


@pytest.mark.parametrize("source", ["dealer", "pair"])
@given(batch=st.integers(1, 3), tokens=st.integers(1, 6), size=st.sampled_from([4, 5, 24]), seed=st.integers(0, 99))
@settings(max_examples=4, deadline=None)
def test_a_mean_of_normalised_rows_is_what_its_rule_certifies(
    source: Literal["dealer", "pair"], batch: int, tokens: int, size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(batch, tokens, size))
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True)) * rng.uniform(0.3, 3.0, (batch, tokens, 1))
    shrink = size / 2.0 ** math.ceil(math.log2(size))
    v = on_grid(shrink * x, 20)
    w = rng.uniform(size=(batch, tokens)) * (np.arange(tokens) <= rng.integers(0, tokens, (batch, 1)))
    w = np.floor(w / w.sum(axis=1, keepdims=True) * 2.0**20) * 2.0**-20
    rule = minimax(layer_norm_rule(size, 0.05, 10.0, 6))

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        averages = client_secret(session, w, 1.0, 20)
        return normalised_mean(session, client_secret(session, v, 128.0, 20), rule, averages, fraction=18)

    std = np.sqrt((v**2).mean(axis=-1, keepdims=True)) / shrink
    exact = v / (shrink * std)
    cut = 2.0**-12 / (shrink * std)
    row = np.abs(exact) * (rule.rounding + 2.0**-14 * std * shrink / rule.gain + cut) + cut
    mean, certified, rounding = ((w[..., None] * each).sum(axis=1) for each in (exact, np.abs(exact) * rule.error, row))
    rounding = rounding * (1.25 if source == "pair" else 1.0) + 2.0**-17  # odd rings: 9/8 units, and their bias
    twin = twin_value(program)
    assert twin.shape == (batch, size)
    assert np.all(np.abs(twin - mean) <= certified + rounding)
    real = together(run_two_parties(program, source=source))
    assert np.all(np.abs(real - mean) <= certified + 2.0 * rounding)


def test_gamma_is_the_servers() -> None:
    rng = np.random.default_rng(2)
    n = on_grid(rng.normal(size=(2, 5, 24)))
    weight = Weight.encode("gamma", rng.normal(size=24), 12)

    def program(session: Session, held: Mapping[str, Weight]) -> Share:
        return session.scale(session.give(client_secret(session, n, 8.0)), held["gamma"])

    assert weight.values is not None
    exact = n * weight.values * 2.0**-12
    assert np.array_equal(twin_value(program, {"gamma": weight}), exact)
    assert np.array_equal(together(run_two_parties(program, {"gamma": weight})), exact)


def test_gamma_must_fit() -> None:
    session = TwinSession()
    n = session.private(CLIENT, (2, 3), 8, 1.0, np.ones((2, 3)))
    with pytest.raises(ShapeError, match="weight gamma"):
        session.scale(session.give(n), Weight.encode("gamma", np.ones(4), 8))


def test_a_layer_norm_with_more_bits_than_it_has_is_refused() -> None:
    rule = layer_norm_rule(8, 0.05, 10.0, 4)
    with pytest.raises(RangeError, match="cannot truncate"):
        plan_program(lambda session: layer_norm(session, Share((2, 8), 12, 8.0), rule, fraction=60))


# Attention ----------------------------------------------------------------------------------------------------


CERTIFIED = certified_form(5)
PAPER = paper_form(5, mu=0.5, score_bound=4.0)
FORMS_OF_ATTENTION = {"certified": CERTIFIED, "paper": PAPER}


def tokens(form: AttentionForm, seed: int, heads: int = 2, n: int = 6, d: int = 8) -> tuple[Reals, Reals, Reals]:
    """Every token attends to itself at least, so that no row is almost without weight."""
    rng = np.random.default_rng(seed)
    q, v = (rng.normal(size=(heads, n, d)) for _ in range(2))
    k = q + 0.5 * rng.normal(size=(heads, n, d))
    if form.cosine:  # a server scales its weights so that no norm is above one
        q, k = (z / np.linalg.norm(z, axis=-1, keepdims=True) * rng.uniform(0.2, 0.99, (heads, n, 1)) for z in (q, k))
    else:
        q, k = np.clip(q, -1.0, 1.0), np.clip(k, -1.0, 1.0)
    return on_grid(q), on_grid(k), on_grid(np.clip(v, -1.0, 1.0))


def attention_program(
    form: AttentionForm,
    q: Reals,
    k: Reals,
    v: Reals,
    thresholds: Reals | None = None,
    mask: Reals | None = None,
) -> Program[Share]:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        kept = v if mask is None else v * mask[..., None, :, None]  # values of padding are zero
        query, key, value = (client_secret(session, z, 1.0) for z in (q, k, kept))
        levels = None
        if thresholds is not None:
            levels = session.private(SERVER, (len(thresholds), 1, 1), 12, 1.0, thresholds[:, None, None])
        secret_mask = None if mask is None else session.private(CLIENT, mask.shape, 0, 1.0, mask)
        return attention(session, query, key, value, form, thresholds=levels, mask=secret_mask)

    return program


def attention_tolerance(
    form: AttentionForm,
    q: Reals,
    k: Reals,
    thresholds: Reals | None,
    mask: Reals | None,
    *,
    certified: bool,
) -> Reals:
    """For |v| <= 1: Σ ΔR/ΣR twice (numerator and denominator), and the division's own error.

    ΔR comes from the scores (norms, units of 12 bits, all halved with them), from smu, and from R's rounding.
    """
    weighing, denominators = form.weighing, minimax(form.denominators)
    assert isinstance(weighing, SmuWeighing)
    scores_rule = minimax(weighing.rule)
    d = q.shape[-1]
    if form.cosine:
        norms = minimax(form.norms)
        shortest = min(np.min(np.linalg.norm(z, axis=-1)) for z in (q, k))
        row = norms.rounding + (norms.error if certified else 0.0)
        bits = math.ceil(0.5 * math.log2(d / norms.low)) + 5
        units = math.sqrt(d) * (2.0**-12 + 2.0**-14 + 2.0 ** -min(bits, 12) / float(shortest))
        score = 2.0 * (row + units)
        q, k = (z / np.linalg.norm(z, axis=-1, keepdims=True) for z in (q, k))
        scores = q @ k.swapaxes(-1, -2)
    else:
        score = weighing.score_bound * 2.0**-11  # 1/√d is rounded to 12 bits
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(d)
    if thresholds is not None:
        scores = scores - thresholds[:, None, None]
    s = scores / weighing.score_bound
    activated = weighing.smu(s)
    t = s**2 + np.square(weighing.smu.mu)
    change = score / weighing.score_bound + 2.0**-12 + smu_tolerance(scores_rule, t, 14, certified=certified)
    r = activated**weighing.power
    loss = (activated + change) ** weighing.power - r + 2.0**-22
    if mask is not None:
        r, loss = r * mask, loss * mask
    total = r.sum(axis=-1, keepdims=True)
    share = (loss.sum(axis=-1, keepdims=True) + len(s) * 2.0**-22) / total
    mean = total / 2.0 ** math.ceil(math.log2(s.shape[-1]))
    division = denominators.rounding + (denominators.error if certified else 0.0) + 2.0**-12 * np.sqrt(mean)
    return np.asarray(2.0 * share + 2.0 * division + 2.0**-26 / mean + 2.0**-12)


@pytest.mark.parametrize("name", FORMS_OF_ATTENTION)
@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_some_queries_is_that_of_all(name: str, masked: bool) -> None:
    form = FORMS_OF_ATTENTION[name]
    q, k, v = tokens(form, 7, n=5)
    mask = np.array([1.0, 1.0, 1.0, 1.0, 0.0]) if masked else None
    one, every = (attention_program(form, queries, k, v, on_grid([0.1, -0.2]), mask) for queries in (q[:, :1], q))
    assert np.array_equal(twin_value(one), twin_value(every)[:, :1])
    plain = plain_attention(q[:, :1], k, v, form, mask=mask)
    np.testing.assert_allclose(plain, plain_attention(q, k, v, form, mask=mask)[:, :1])
    for fused in (True, False):
        run = run_two_parties(one, fused=fused, seeds=SEEDS)
        assert together(run).shape == (2, 1, 8)
        assert np.max(np.abs(together(run) - twin_value(one))) < 0.02


@pytest.mark.parametrize("name", FORMS_OF_ATTENTION)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
def test_attention_is_what_its_rules_certify(name: str, masked: bool, shifted: bool) -> None:
    form = FORMS_OF_ATTENTION[name]
    q, k, v = tokens(form, 5)
    thresholds = on_grid([0.2, -0.3]) if shifted else None
    mask = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0]) if masked else None
    real_tokens = slice(0, 4 if masked else 6)
    program = attention_program(form, q, k, v, thresholds, mask)
    exact = plain_attention(q, k, v, form, thresholds, mask)[:, real_tokens]
    twin = twin_value(program)[:, real_tokens]
    certified, rounding = (
        attention_tolerance(form, q, k, thresholds, mask, certified=c)[:, real_tokens] for c in (True, False)
    )
    assert np.max(certified) < 0.35, "a tolerance that says nothing"
    assert np.all(np.abs(twin - exact) <= certified)
    assert np.max(np.abs(twin - exact)) < 0.03
    for fused in (True, False):
        real = together(run_two_parties(program, fused=fused, seeds=SEEDS))[:, real_tokens]
        assert np.all(np.abs(real - exact) <= certified + rounding)
        assert np.all(np.abs(real - twin) <= 2.0 * rounding)
        assert np.max(np.abs(real - twin)) < 0.02


@pytest.mark.parametrize("name", FORMS_OF_ATTENTION)
def test_padding_never_influences_a_token(name: str) -> None:
    form = FORMS_OF_ATTENTION[name]
    q, k, v = tokens(form, 6)
    mask = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    others = [np.concatenate([z[:, :4], w[:, 4:]], axis=1) for z, w in zip((q, k, v), tokens(form, 7), strict=True)]

    def of(queries: Reals, keys: Reals, values: Reals, mask: Reals | None) -> Reals:
        return twin_value(attention_program(form, queries, keys, values, mask=mask))[:, :4]

    assert np.array_equal(of(q, k, v, mask), of(others[0], others[1], others[2], mask))
    assert not np.array_equal(of(q, k, v, None), of(others[0], others[1], others[2], None))


@pytest.mark.parametrize("name", FORMS_OF_ATTENTION)
def test_a_batch_is_its_texts(name: str) -> None:
    form = FORMS_OF_ATTENTION[name]
    texts = [tokens(form, seed) for seed in (1, 2, 3)]
    masks = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]], np.float64)
    q, k, v = (np.stack([text[i] for text in texts]) for i in range(3))
    together_ = twin_value(attention_program(form, q, k, v, mask=masks))
    for place, text in enumerate(texts):
        alone = twin_value(attention_program(form, text[0], text[1], text[2], mask=masks[place]))
        assert np.array_equal(together_[place], alone)
    program = attention_program(form, q, k, v, mask=masks)
    difference = np.abs(together(run_two_parties(program, seeds=SEEDS)) - together_)
    assert np.max(difference * masks[:, None, :, None]) < 0.02


def test_a_single_token_attends_to_itself() -> None:
    for form in FORMS_OF_ATTENTION.values():
        q, k, v = tokens(form, 8, n=1)
        real = together(run_two_parties(attention_program(form, q, k, v)))
        assert np.max(np.abs(real - v)) < 0.01


def test_attention_refuses_what_does_not_fit() -> None:
    def planned(*shapes: tuple[int, ...], form: AttentionForm = CERTIFIED, mask: tuple[int, ...] | None = None) -> None:
        q, k, v = (Share(shape, 12, 1.0) for shape in shapes)
        secret_mask = None if mask is None else Share(mask, 0, 1.0)
        plan_program(lambda session: attention(session, q, k, v, form, mask=secret_mask))

    good = (2, 6, 8)
    planned(good, good, good, mask=(6,))
    with pytest.raises(ShapeError, match="one shape"):
        planned(good, good, (2, 5, 8))
    with pytest.raises(ShapeError, match="one shape"):
        planned((6, 8), (6, 8), (6, 8))
    with pytest.raises(ShapeError, match="padding mask"):
        planned(good, good, good, mask=(5,))
    with pytest.raises(ShapeError, match="padding mask"):
        planned((3, *good), (3, *good), (3, *good), mask=(6,))
    with pytest.raises(RuleError, match="norms"):
        planned(good, good, good, form=replace(CERTIFIED, norms=None))
    with pytest.raises(RuleError, match="mu = 0"):
        paper_form(4, mu=0.0, score_bound=4.0)


def test_thresholds_and_masks_of_a_wrong_scale_are_refused() -> None:
    q = Share((2, 6, 8), 12, 1.0)
    with pytest.raises(ScaleError, match="cannot lift"):
        plan_program(lambda s: attention(s, q, q, q, CERTIFIED, thresholds=Share((2, 1, 1), 60, 1.0)))
    with pytest.raises(ScaleError, match="no fraction bits"):
        plan_program(lambda s: attention(s, q, q, q, CERTIFIED, mask=Share((6,), 4, 1.0)))


def test_a_norm_above_its_certified_top_shows_up_in_the_twin() -> None:
    q, k, v = tokens(CERTIFIED, 9)
    with pytest.raises(RangeError, match="times the bound"):
        twin_value(attention_program(CERTIFIED, on_grid(np.full_like(q, 0.999)), k, v))


def test_a_rule_for_denominators_can_be_any_rule() -> None:
    form = replace(CERTIFIED, denominators=make_rule("reference", 2.0**-14, 1.0 + 2.0**-4).inverse())
    q, k, v = tokens(form, 10)
    exact = plain_attention(q, k, v, form)
    assert np.max(np.abs(twin_value(attention_program(form, q, k, v)) - exact)) < 0.03
