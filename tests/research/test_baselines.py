"""The functions of other systems: real parties agree with the twin, the twin with numpy on the stated domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import erf

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, Share
from comet_mpc.errors import RangeError
from comet_research.functions import baselines
from comet_research.functions.newton_rule import exponential
from support.two_parties import run_two_parties, together, twin_value

Reals = npt.NDArray[np.float64]

GRID = np.linspace(-1.0, 1.0, 401)


def gelu(x: Reals) -> Reals:
    return np.asarray(0.5 * x * (1.0 + erf(x / math.sqrt(2.0))))


def unary(
    function: Callable[[Session, Share], Share], values: Reals, bound: float, fraction: int = 12
) -> Callable[[Session, Mapping[str, Weight]], Share]:
    def program(session: Session, weights: Mapping[str, Weight]) -> Share:
        return function(session, session.private(CLIENT, values.shape, fraction, bound, values))

    return program


def finished(share: Share, session: Session, fraction: int = 12) -> Share:
    return session.truncate_to(share, fraction)


Case = tuple[Callable[[Session, Share], Share], Reals, float, Callable[[Reals], Reals], float]

CASES: dict[str, Case] = {
    "exponential": (
        lambda session, z: finished(exponential(session, z), session, 20),
        4.0 * GRID - 4.0,
        8.0,
        lambda z: (1.0 + z / 256) ** 256,
        3e-4,
    ),
    "reciprocal": (
        lambda session, x: finished(baselines.reciprocal(session, x, low=2.0**-5), session, 16),
        np.geomspace(2.0**-5, 200.0, 401),
        200.0,
        lambda x: 1.0 / x,
        0.13,
    ),
    "quad": (baselines.quad, 8.0 * GRID, 8.0, lambda x: 0.125 * x**2 + 0.25 * x + 0.5, 2e-3),
    "tanh": (
        lambda session, w: finished(baselines.chebyshev_tanh(session, w), session),
        GRID,
        1.0,
        lambda w: np.tanh(6.0 * w),
        2e-3,
    ),
    "gelu_tanh": (baselines.gelu_tanh, 4.0 * GRID, 4.0, gelu, 3e-3),
    "gelu_erf": (baselines.gelu_erf, 2.0 * GRID, 2.0, gelu, 1e-3),
}


@pytest.mark.parametrize("name", CASES)
def test_function_is_what_it_stands_for_on_its_domain(name: str) -> None:
    function, values, bound, reference, tolerance = CASES[name]
    fixed = np.rint(values * 2.0**12) * 2.0**-12
    program = unary(function, fixed, bound)
    clear = twin_value(program)
    assert np.max(np.abs(clear - reference(fixed))) < tolerance
    real = together(run_two_parties(program))
    assert np.max(np.abs(real - reference(fixed))) < 2 * tolerance


def test_reciprocal_is_relatively_accurate() -> None:
    values = np.geomspace(2.0**-5, 200.0, 401)
    fixed = np.rint(values * 2.0**20) * 2.0**-20
    program = unary(
        lambda session, x: finished(baselines.reciprocal(session, x, low=2.0**-5), session, 24), fixed, 200.0, 20
    )
    assert np.max(np.abs(twin_value(program) * fixed - 1.0)) < 2e-3


def attention_program(name: str, masked: bool) -> tuple[Callable[[Session, Mapping[str, Weight]], Share], Reals]:
    rng = np.random.default_rng(7)
    q, k, v = (np.clip(rng.normal(0.0, 0.7, (2, 12, 16)), -3.0, 3.0) for _ in range(3))
    mask = (np.arange(12) < 9).astype(np.float64) if masked else np.ones(12)
    scores = q @ k.swapaxes(-1, -2) / 4.0
    weights = np.exp(scores) if name == "softmax" else (scores + 5.0) ** 2
    weights = weights * mask
    reference = (weights / weights.sum(axis=-1, keepdims=True)) @ v

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        shares = [session.private(CLIENT, z.shape, 12, 3.0, z) for z in (q, k, v)]
        m = session.private(CLIENT, mask.shape, 0, 1.0, mask) if masked else None
        function = baselines.softmax_attention if name == "softmax" else baselines.quad2_attention
        return function(session, shares[0], shares[1], shares[2], score_bound=3.5, mask=m)

    return program, reference


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", ["softmax", "quad2"])
def test_attention_gives_the_weighted_mean(name: str, masked: bool) -> None:
    program, reference = attention_program(name, masked)
    tolerance = 2e-2 if name == "softmax" else 2e-3  # (1 + z/256)^256 is low by up to 9 % at z = -7
    assert np.max(np.abs(twin_value(program) - reference)) < tolerance
    assert np.max(np.abs(together(run_two_parties(program)) - reference)) < tolerance


@pytest.mark.parametrize(
    ("function", "rounds"),
    [(baselines.quad, 2), (baselines.gelu_tanh, 37), (baselines.gelu_erf, 5)],
    ids=["quad", "gelu_tanh", "gelu_erf"],
)
def test_rounds_are_the_documented_ones(function: Callable[[Session, Share], Share], rounds: int) -> None:
    def program(session: Session) -> Share:
        return function(session, session.private(CLIENT, (1 << 15,), 12, 2.0))

    assert plan_program(program).rounds == rounds


def test_values_outside_the_domain_are_refused() -> None:
    for function in (baselines.gelu_tanh, baselines.gelu_erf):
        with pytest.raises(RangeError, match="up to"):
            plan_program(lambda session, f=function: f(session, session.private(CLIENT, (4,), 12, 100.0)))  # type: ignore[misc]
    with pytest.raises(RangeError, match="reciprocal"):
        plan_program(lambda session: baselines.reciprocal(session, session.private(CLIENT, (4,), 12, 1.0), low=1e-3))
