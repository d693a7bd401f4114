"""Fitted functions: squares of neurons, and quartics of soft cosines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, SERVER, Share
from comet_mpc.errors import RangeError, RuleError
from comet_mpc.functions.attention import LARGEST_SOFTNESS, attention, fitted_form, plain_attention
from comet_mpc.functions.constants import Constants
from comet_mpc.functions.inverse_rule import WideRule
from comet_mpc.functions.neurons import LARGEST_MIDDLE, Quartics, Square
from comet_mpc.functions.weighing import LARGEST_OFFSET, Quartic
from support.two_parties import Program, run_two_parties, together, twin_value

Reals = npt.NDArray[np.float64]
SourceName = Literal["dealer", "pair"]
SOURCES: tuple[SourceName, ...] = ("dealer", "pair")
POWERS = (4, 8)
FORMS = {power: fitted_form(largest_weight=1.0, power=power) for power in POWERS}


def squares(x: Reals, width: int = 40) -> Program[Share]:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        return Square().on_shares(session, session.private(CLIENT, x.shape, 32, 1.004, x, 54), width=width)

    return program


@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 6), columns=st.integers(1, 9), seed=st.integers(0, 99), source=st.sampled_from(SOURCES))
def test_a_square_is_that_of_its_twin(rows: int, columns: int, seed: int, source: SourceName) -> None:
    x = np.random.default_rng(seed).uniform(-1.0, 1.0, (rows, columns))
    x.flat[0] = 1.0
    program = squares(x)
    run = run_two_parties(program, source=source)
    assert run.client.fraction == Square().fraction
    assert np.abs(together(run) - x**2).max() <= Square.rounding
    assert np.abs(twin_value(program) - x**2).max() <= Square.rounding


@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 6), columns=st.integers(1, 9), seed=st.integers(0, 99), source=st.sampled_from(SOURCES))
def test_a_quartic_is_that_of_its_twin(rows: int, columns: int, seed: int, source: SourceName) -> None:
    rng = np.random.default_rng(seed)
    x, own = rng.uniform(-1.0, 1.0, (rows, columns)), rng.uniform(-LARGEST_MIDDLE, LARGEST_MIDDLE, columns)
    x.flat[0] = 1.0

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        constants = Constants((columns,), LARGEST_MIDDLE, own if session.holds(SERVER) else None)
        given = session.private(CLIENT, x.shape, 32, 1.004, x, 54)
        return Quartics().on_shares(session, given, constants, width=40)

    run = run_two_parties(program, source=source)
    assert run.client.fraction == Quartics().fraction
    assert np.abs(together(run) - (x**2 + own) ** 2).max() <= Quartics.rounding
    assert np.abs(twin_value(program) - Quartics()(x, own)).max() <= Quartics.rounding


def test_a_quartic_needs_its_constant_within_its_bound() -> None:
    for constants in (None, Constants((2,), 2.0 * LARGEST_MIDDLE)):

        def program(session: Session, own: Constants | None = constants) -> Share:
            return Quartics().on_shares(session, Share((2, 2), 32, 1.0, 54), own, width=40)

        with pytest.raises(RangeError, match="quartics need constants"):
            plan_program(program)
    with pytest.raises(RuleError, match="constants"):
        Quartics()(np.zeros(3))


def test_a_wide_interval_is_read_from_tables_or_refused() -> None:
    """Below it the value stays, as that of a table does."""
    rule = WideRule(2.0**-20, 1.0)
    rule.check()
    np.testing.assert_allclose(rule(np.array([2.0**-30, 2.0**-20, 0.25])), [1024.0, 1024.0, 2.0])
    with pytest.raises(RuleError, match="tables"):
        plan_program(lambda session: rule.inverse_of(session, Share((2, 2), 32, 1.0, 54)))
    for wrong in (WideRule(0.0, 1.0), WideRule(1.0, 0.5), WideRule(2.0**-40, 1.0)):
        with pytest.raises(RuleError, match="no table"):
            wrong.check()


def test_a_square_takes_two_rounds() -> None:
    assert plan_program(lambda session: squares(np.ones((2, 3)))(session, {})).rounds == 2


def test_a_square_that_could_leave_its_ring_is_refused() -> None:
    with pytest.raises(RangeError):
        plan_program(lambda session: Square().on_shares(session, Share((2, 2), 32, 2.0**18, 54), width=60))


class Heads:
    """Queries, keys and values of a few heads, and the private numbers of each."""

    def __init__(
        self, seed: int, heads: int = 2, n: int = 6, d: int = 8, batch: tuple[int, ...] = (), power: int = 4
    ) -> None:
        rng = np.random.default_rng(seed)
        shape = (*batch, heads, n, d)
        lengths = [rng.uniform(0.2, 0.99, (*shape[:-1], 1)) for _ in range(2)]
        first = rng.normal(size=shape)  # every token attends to itself at least: no row is almost without weight
        directions = [
            first,
            first + 0.3 * np.linalg.norm(first, axis=-1, keepdims=True) * rng.uniform(-1, 1, shape) / d,
        ]
        self.q, self.k = (
            length * z / np.linalg.norm(z, axis=-1, keepdims=True)
            for length, z in zip(lengths, directions, strict=True)
        )
        self.v = rng.uniform(-1.0, 1.0, shape)
        self.thresholds = rng.uniform(-0.6, -0.1, heads)
        self.power = power
        self.constants = rng.uniform(-0.02, 0.2, (heads, power.bit_length() - 2))
        self.softness = rng.uniform(2.0**-8, 0.02, (heads, 2))
        self.mask = np.ones((*batch, n))
        self.mask[..., max(1, n - 2) :] = 0.0

    def program(self) -> Program[Share]:
        def program(session: Session, _: Mapping[str, Weight]) -> Share:
            kept = self.v * self.mask[..., None, :, None]
            q, k, v = (session.private(CLIENT, z.shape, 20, 1.0, z) for z in (self.q, self.k, kept))
            heads = len(self.thresholds)
            levels = session.private(SERVER, (heads, 1, 1), 24, 1.0, self.thresholds[:, None, None])
            own = session.holds(SERVER)
            return attention(
                session, q, k, v, FORMS[self.power],
                thresholds=levels,
                constants=Constants(
                    (heads, 1, self.constants.shape[1]), LARGEST_OFFSET, self.constants[:, None] if own else None
                ),
                softness=self.softness if own else None,
                mask=session.private(CLIENT, self.mask.shape, 0, 1.0, self.mask),
            )  # fmt: skip

        return program

    def plain(self, *, exact: bool) -> Reals:
        return plain_attention(
            self.q, self.k, self.v, FORMS[self.power], self.thresholds, self.mask,
            exact=exact, constants=self.constants, softness=self.softness,
        )  # fmt: skip

    def by_hand(self) -> Reals:
        """The formula of the docstring, head by head."""
        lengths = [(z**2).sum(-1) + c[:, None] for z, c in zip((self.q, self.k), self.softness.T, strict=True)]
        z = self.q @ self.k.swapaxes(-1, -2) / np.sqrt(lengths[0][..., :, None] * lengths[1][..., None, :])
        weights = ((z - self.thresholds[:, None, None]) / 2.0) ** 2
        for constant in self.constants.T:
            weights = (weights + constant[:, None, None]) ** 2
        weights = weights * self.mask[..., None, None, :]
        return np.asarray(weights / weights.sum(-1, keepdims=True) @ self.v)


@pytest.mark.parametrize("power", POWERS)
def test_the_plain_form_is_the_formula(power: int) -> None:
    heads = Heads(3, batch=(2,), power=power)
    np.testing.assert_allclose(heads.plain(exact=True), heads.by_hand(), rtol=1e-9)
    assert np.abs(heads.plain(exact=False) - heads.by_hand()).max() < 0.02


@settings(max_examples=6, deadline=None)
@given(
    heads=st.integers(1, 3),
    n=st.integers(1, 9),
    d=st.integers(1, 8),
    batch=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 99),
    source=st.sampled_from(SOURCES),
    power=st.sampled_from(POWERS),
)
def test_fitted_attention_is_that_of_its_twin(
    heads: int, n: int, d: int, batch: tuple[int, ...], seed: int, source: SourceName, power: int
) -> None:
    """Plan and parties are compared by `run_two_parties`."""
    case = Heads(seed, heads, n, d, batch, power)
    program, kept = case.program(), case.mask[..., None, :, None] > 0.0
    twin, real = twin_value(program), together(run_two_parties(program, source=source))
    assert np.abs((twin - case.by_hand()) * kept).max() < 0.02
    assert np.abs((real - twin) * kept).max() < 0.01


@pytest.mark.parametrize("power", POWERS)
def test_softness_and_constants_matter(power: int) -> None:
    """The control of the tests above: other private numbers, other answers."""
    case = Heads(4, power=power)
    before = twin_value(case.program())
    for name in ("softness", "constants", "thresholds"):
        changed = Heads(4, power=power)
        setattr(changed, name, getattr(changed, name) * 0.5)
        assert np.abs(twin_value(changed.program()) - before).max() > 0.01, name


def test_private_numbers_beyond_their_bounds_are_refused() -> None:
    case = Heads(5)
    case.constants = np.full((2, 1), 1.01 * LARGEST_OFFSET)
    with pytest.raises(RangeError, match="exceeds its bound"):
        twin_value(case.program())
    case = Heads(5)
    case.softness = np.full((2, 2), 1.01 * LARGEST_SOFTNESS)
    with pytest.raises(RangeError, match="exceeds its bound"):
        twin_value(case.program())


def test_a_quartic_needs_its_constants() -> None:
    with pytest.raises(RangeError, match="constants"):
        plan_program(lambda session: Quartic().on_shares(session, Share((2, 3, 3), 28, 2.0, 32), None, 24, 50))
    with pytest.raises(RuleError, match="constants"):
        Quartic()(np.zeros((1, 2, 2)), None)


@pytest.mark.parametrize("exponent", [0, -3, -6])
def test_a_smaller_top_keeps_its_weights_as_exact(exponent: int) -> None:
    """R is computed with as many fraction bits below its top, whatever that is."""
    weighing, top = Quartic(2.0**exponent), math.sqrt(2.0**exponent)
    s = 2.0 * np.linspace(-1.0, 1.0, 33)[None, None, :] * math.sqrt(top) * 0.9

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        scores = session.private(CLIENT, s.shape, 28, 2.0, s, 32)
        constants = Constants((1, 1, 1), LARGEST_OFFSET, np.full((1, 1, 1), 0.1 * top))
        return weighing.on_shares(session, scores, constants, weighing.bits[0], 50)

    exact = weighing(s, np.full((1, 1), 0.1 * top))
    assert exact.max() < 2.0**exponent
    off = np.abs(together(run_two_parties(program)) - exact)
    assert off.max() < 2.0**-10.5 * 2.0**exponent
