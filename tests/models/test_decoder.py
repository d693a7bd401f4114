"""Decoders: a conversation of two parties gives what the formulas say, position by position."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np
import pytest

from comet_mpc.engine import Session
from comet_mpc.engine.correlations import AnyMask, MatrixProduct
from comet_mpc.engine.share import CLIENT, Reals, Share
from comet_mpc.engine.share import decode as decode_words
from comet_mpc.engine.twin import TwinSession
from comet_mpc.engine.windows import Window, WindowPlan
from comet_mpc.errors import RangeError, ShapeError
from comet_mpc.models.streams import causal
from comet_mpc.models.streams.causal import CausalForm, Guard, Reading, Scores, denominator_rule, mean_rule
from comet_mpc.models.streams.decoder import (
    DecoderShape,
    decode,
    encode_weights,
    input_rows,
    plain_states,
    public_weights,
    tell,
    top_of,
)
from comet_mpc.offline.sources import PAIR
from comet_mpc.testing import Weights, run_two_parties, run_windows
from support.small_decoders import GATED, PLAIN, small_rows, small_rules, small_weights

TOTAL = 6
UNIT = 2.0**-6
Source = Literal["dealer", "pair"]


def _program(shape: DecoderShape, rows: Reals) -> Callable[[Session, Weights, Window], Share]:
    rules = small_rules(shape)

    def run(session: Session, weights: Weights, window: Window) -> Share:
        own = None if not rows.size else rows[:, window.first : window.stop]
        given = input_rows(session, own, window, shape, top_of(shape, rules))
        return decode(session, given, window, shape, rules, weights)

    return run


@lru_cache(maxsize=4)
def _expected(shape: DecoderShape) -> Reals:
    return plain_states(small_rows(shape, TOTAL)[0], shape, small_rules(shape), small_weights(shape))[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "source", "sizes"),
    [(GATED, "dealer", (3, 1, 2)), (PLAIN, "dealer", (6,)), (GATED, "pair", (5, 1))],
    ids=["llama", "gpt2", "llama-pair"],
)
def test_a_conversation_gives_what_the_formulas_say(
    shape: DecoderShape, source: Source, sizes: tuple[int, ...]
) -> None:
    """`run_windows` compares bytes and rounds of every window with its plan, and values with the twin's."""
    weights = encode_weights(shape, small_weights(shape))
    runs = run_windows(
        _program(shape, small_rows(shape, TOTAL)), sizes, TOTAL, weights, source=source, tolerance=4 * UNIT
    )
    found = np.concatenate([run.value[0] for run in runs])
    np.testing.assert_allclose(found, _expected(shape), atol=0.15)
    others = plain_states(small_rows(shape, TOTAL, seed=5)[0], shape, small_rules(shape), small_weights(shape))[-1]
    assert np.max(np.abs(found - others)) > 0.5  # the tolerance says something


@pytest.mark.parametrize("shape", [GATED, PLAIN], ids=["llama", "gpt2"])
def test_no_position_sees_a_later_one(shape: DecoderShape) -> None:
    """The control changes the first row, which every position sees."""
    weights, rows = encode_weights(shape, small_weights(shape)), small_rows(shape, TOTAL)
    last, first = rows.copy(), rows.copy()
    last[:, -1], first[:, 0] = small_rows(shape, 1, seed=9)[:, 0], small_rows(shape, 1, seed=9)[:, 0]

    def states(changed: Reals) -> Reals:
        share = _program(shape, changed)(TwinSession(), weights, Window(0, TOTAL, TOTAL))
        return np.asarray(decode_words(share.flat(), share.fraction, share.width).reshape(share.shape)[0])

    np.testing.assert_array_equal(states(rows)[:-1], states(last)[:-1])
    assert np.all(np.any(states(rows) != states(first), axis=1))


def test_a_token_opens_its_own_rows_only() -> None:
    """What a window sends grows with the positions before by its scores, and no mask of keys is drawn for it again."""
    public = public_weights(GATED)
    program = _program(GATED, np.empty(0))
    plan = WindowPlan(lambda session, window: program(session, public, window), 8)
    costs = [plan.window(i, i + 1).online_bytes for i in range(1, 8)]
    assert len({plan.window(i, i + 1).rounds for i in range(8)}) == 1
    steps = np.diff(costs)
    assert steps.min() > 0
    assert steps.max() < 0.02 * costs[0] + 100
    products = [each for each in plan.whole.correlations if isinstance(each, MatrixProduct)]
    assert sum(each.causal for each in products) == GATED.layers == len(products) // 2
    masks = [each for each in plan.whole.correlations if isinstance(each, AnyMask)]
    assert all(8 in each.shape for each in masks)


def test_the_guard_bounds_every_row_and_leaves_usual_ones() -> None:
    guard, norms = Guard(), np.linspace(0.0, 1.0, 10_001)
    lengths = np.abs(norms * guard(norms**2))
    assert lengths.max() <= guard.top * (1.0 + 2.0**-12)
    usual = norms <= guard.seen
    np.testing.assert_allclose(guard(norms[usual] ** 2), 1.0, atol=0.008)
    assert np.abs(guard(norms**2)).max() <= guard.bound


def test_a_row_beyond_the_bound_is_noticed() -> None:
    """The twin checks what the bounds claim; a stream that leaves its ring would be refused before anything is sent."""
    weights, rows = encode_weights(GATED, small_weights(GATED)), 200.0 * small_rows(GATED, 2)
    with pytest.raises(RangeError):
        _program(GATED, rows)(TwinSession(), weights, Window(0, 2, 2))


def test_rows_of_another_shape_are_refused() -> None:
    session, rules = TwinSession(), small_rules(GATED)
    rows = input_rows(session, small_rows(GATED, 2), Window(0, 2, 4), GATED, top_of(GATED, rules))
    with pytest.raises(ShapeError, match="expected rows"):
        decode(session, rows, Window(0, 3, 4), GATED, rules, encode_weights(GATED, small_weights(GATED)))
    with pytest.raises(ShapeError, match="weights do not fit"):
        encode_weights(GATED, {"layer.0.qkv.weight": np.zeros((3, 3))})


def test_only_what_is_asked_for_is_told() -> None:
    """The hidden state of the last position, and no other, is revealed."""
    weights = encode_weights(GATED, small_weights(GATED))
    session = TwinSession()
    states = _program(GATED, small_rows(GATED, 3))(session, weights, Window(0, 3, 3))
    told = tell(session, states)
    assert told is not None
    assert told.shape == (1, GATED.hidden)
    np.testing.assert_allclose(told[0], _expected(GATED)[2], atol=0.15)


@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_no_row_of_weights_is_larger_than_proved(source: Source) -> None:
    """Rows that read one position of 64: means near the low end of their interval, where a table's cells are wide. A
    party's cells depend on masks, so a twin does not see the worst of them."""
    heads, form = 400, CausalForm(mean_rule(2.0**-8), denominator_rule(64))
    z = np.linspace(0.1, form.guard.top**2, heads).reshape(heads, 1, 1)
    hidden = np.full(heads, form.shift), np.zeros(heads)

    def program(session: Session, _: Weights) -> Share:
        scores = Scores(hidden, heads)
        given = session.private(CLIENT, z.shape, 26, form.guard.top**2, z, 62)
        return causal._weights(session, given, form, scores, Reading(Window(0, 1, 64)))

    weights = run_two_parties(program, source=source).value
    assert np.max(weights) <= causal.LARGEST
    assert np.min(weights) >= 0.75**4


_PLACES = (0, 1, 2, -1, -1, 3, 4)
"""Of seven positions: three of a prompt, two drafts that did not hold, and two that follow."""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_a_dropped_draft_is_as_if_it_had_never_been(source: Source) -> None:
    """Between two parties, with bytes and rounds as planned without drafts. The control keeps the drafts."""
    plain = {
        name: 12.0 * value if name.endswith("output.weight") else value for name, value in small_weights(GATED).items()
    }
    weights, rules = encode_weights(GATED, plain), small_rules(GATED)
    rows = small_rows(GATED, len(_PLACES))

    def program(places: tuple[int, ...] | None) -> Callable[[Session, Weights, Window], Share]:
        def run(session: Session, weights: Weights, window: Window) -> Share:
            given = input_rows(session, rows[:, window.first : window.stop], window, GATED, top_of(GATED, rules))
            own = None if places is None else _at(places, window)
            return decode(session, given, window, GATED, rules, weights, own)

        return run

    total, sizes = len(_PLACES), (3, 2, 2)
    runs = run_windows(program(_PLACES), sizes, total, weights, source=source, tolerance=8 * UNIT)
    kept = [index for index, place in enumerate(_PLACES) if place >= 0]
    expected = plain_states(rows[0, kept], GATED, rules, plain)[-1]
    np.testing.assert_allclose(runs[-1].value[0], expected[-2:], atol=0.15)
    with_drafts = plain_states(rows[0], GATED, rules, plain)[-1]
    assert np.max(np.abs(expected[-2:] - with_drafts[-2:])) > 0.3


def _at(places: tuple[int, ...], window: Window) -> list[int]:
    """As they are known when a window is run: its own positions are in the text, whatever becomes of them."""
    known = [*places[: window.stop]]
    for index in range(window.first, window.stop):
        if known[index] < 0:
            known[index] = known[index - 1] + 1
    return known


def test_places_that_do_not_fit_are_refused() -> None:
    session, rules = TwinSession(), small_rules(GATED)
    window = Window(0, 2, 4)
    rows = input_rows(session, small_rows(GATED, 2), window, GATED, top_of(GATED, rules))
    weights = encode_weights(GATED, small_weights(GATED))
    for wrong in ([0], [0, 1, 2], [0, -1], [0, GATED.positions]):
        with pytest.raises(ShapeError, match="expected places"):
            decode(session, rows, window, GATED, rules, weights, wrong)


def test_a_product_that_is_less_exact_than_what_is_cut_from_it_is_refused_while_planning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pair's products are near. What attention adds up is cut to as many digits as it has, and to none besides."""
    weights = public_weights(GATED)

    def plan() -> WindowPlan:
        program = _program(GATED, np.zeros(0))
        return WindowPlan(lambda session, window: program(session, weights, window), TOTAL, abilities=PAIR.abilities)

    plan()
    monkeypatch.setattr(causal, "_NEAR", causal._NEAR - 1)
    with pytest.raises(RangeError, match="near"):
        plan()
