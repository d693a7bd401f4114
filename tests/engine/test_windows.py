"""Programs of many positions, run a few at a time: every part of every correlation is used once, for its position."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.ops import TableLine
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.share import CLIENT, Reals, Share
from comet_mpc.engine.tables import LineTable
from comet_mpc.engine.windows import Window, WindowPlan, WindowSession, with_past
from comet_mpc.errors import ForeignRandomness, RandomnessExhausted, RandomnessSpent, ShapeError
from comet_mpc.net.channel import memory_pair
from comet_mpc.offline.dealer.bundles import DealtRandomness
from comet_mpc.testing import WEIGHT_KEY, Weights, deal, run_windows

TOTAL, HEADS, SIZE = 7, 2, 4
X, Y = variables("x y")
VALUES = np.random.default_rng(1).uniform(-1.0, 1.0, (TOTAL, HEADS * SIZE))
MATRIX = Weight.encode("matrix", np.random.default_rng(2).uniform(-0.3, 0.3, (HEADS * SIZE, HEADS * SIZE)), 12)
Source = Literal["dealer", "pair"]


def mixed(session: Session, weights: Weights, window: Window) -> Share:
    """One of every kind of correlation, with a causal product of all positions so far."""
    rows = session.private(CLIENT, (window.size, HEADS * SIZE), 10, 1.0, VALUES[window.first : window.stop])
    given_rows = session.give(rows.narrow(48))
    rows = session.linear(given_rows, weights["matrix"], bound=2.0)
    rows = session.truncate(rows, 12, 64)
    heads = rows.reshape(window.size, HEADS, SIZE).transpose(1, 0, 2)
    opened = session.open(heads)
    keys = with_past(session, "keys", opened, window, axis=1)
    squares = session.square_sum(opened, bound=16.0)
    scores = session.matmul(opened, keys, transposed=True, bound=16.0)
    cut = session.truncate_open(scores, 10, 48)
    squared = session.truncate(session.evaluate(X**2, {"x": cut}, bound=256.0), 6, 48)
    narrow = session.open(heads.narrow(48))
    values = with_past(session, "values", narrow, window, axis=1)
    context = session.matmul(session.open(squared), values, causal=window.first, bound=2.0**12)
    return context + squares.narrow(48).lift(context.fraction).narrow(48)


def plain(window: Window) -> Reals:
    rows = VALUES @ (MATRIX.fixed() * 2.0**-12).T
    heads = rows.reshape(TOTAL, HEADS, SIZE).transpose(1, 0, 2)
    weights = np.tril((heads @ heads.transpose(0, 2, 1)) ** 2)
    whole = weights @ heads + (heads**2).sum(-1, keepdims=True)
    return np.asarray(whole[:, window.first : window.stop])


@pytest.mark.parametrize(("source", "sizes"), [("dealer", (7,)), ("dealer", (3, 1, 1, 2)), ("pair", (2, 4, 1))])
def test_windows_give_what_the_whole_gives(source: Source, sizes: tuple[int, ...]) -> None:
    """`run_windows` compares bytes and rounds of each with its plan, and values with the twin's."""
    runs = run_windows(mixed, sizes, TOTAL, {"matrix": MATRIX}, source=source, tolerance=2.0**-6)
    found = np.concatenate([run.value for run in runs], axis=1)
    np.testing.assert_allclose(found, plain(Window(0, TOTAL, TOTAL)), atol=2.0**-5)
    assert len({run.plan.rounds for run in runs}) == 1


def test_all_windows_together_draw_what_was_prepared_for_the_whole() -> None:
    """Every element of every mask belongs to one window, or to none (pairs of a position with a later one)."""
    plan = WindowPlan(lambda session, window: mixed(session, {"matrix": MATRIX.public()}, window), TOTAL)
    for correlation, extent in zip(plan.whole.correlations, plan.extents, strict=True):
        shape = getattr(correlation, "shape", extent)
        used = np.zeros(shape if isinstance(shape, tuple) else extent, int)
        for first, stop in ((0, 3), (3, 4), (4, 7)):
            window = Window(first, stop, TOTAL)
            own = tuple(
                size if size != TOTAL else (window.stop if axis and used.ndim == 3 and axis == 2 else window.size)
                for axis, size in enumerate(used.shape)
            )
            used[window.cut(used.shape, own)] += 1
        assert used.max() == 1


def test_points_are_drawn_for_their_rows() -> None:
    """Keys of point functions, a row each."""
    table = LineTable.of(3, [[(3, 1)] * 8], cut=6, shift=0, fraction=6, width=40)

    def program(session: Session, weights: Weights, window: Window) -> Share:
        t = session.private(CLIENT, (window.size,), 6, 8.0, np.abs(VALUES[window.first : window.stop, 0]), 40)
        (line,) = session.request(TableLine(t, 0, 40, table=table))
        return line

    runs = run_windows(program, (2, 1, 4), TOTAL, tolerance=0.0)
    assert sum(len(run.value) for run in runs) == TOTAL


@given(st.integers(1, 9), st.data())
def test_a_window_takes_its_rows_and_the_columns_before(total: int, data: st.DataObject) -> None:
    stop = data.draw(st.integers(1, total))
    first = data.draw(st.integers(0, stop - 1))
    window = Window(first, stop, total)
    rows, columns = np.arange(total), np.arange(total)
    cut = window.cut((total, total), (window.size, stop))
    assert [*rows[cut[0]]] == [*range(first, stop)]
    assert [*columns[cut[1]]] == [*range(stop)]


def test_what_is_no_part_is_refused() -> None:
    window = Window(2, 3, 6)
    for whole, own in (
        ((6,), (2,)),
        ((5,), (1,)),
        ((6, 4), (1,)),
        ((4,), (4,)),
        ((6,), (3,)),
        ((4, 6), (4, 6)),
        ((), ()),
    ):
        with pytest.raises(ForeignRandomness):
            window.cut(whole, own)
    for first, stop in ((0, 0), (-1, 2), (3, 7)):
        with pytest.raises(ShapeError):
            Window(first, stop, 6)


@pytest.mark.parametrize("axis", ["none", "columns"])
def test_no_two_windows_are_given_the_same_mask(axis: str) -> None:
    """What has no axis of the window's own positions would be opened again under the mask of the window before."""

    def program(session: Session, weights: Weights, window: Window) -> Share:
        shape = (4,) if axis == "none" else (4, window.stop)
        return session.truncate(session.private(CLIENT, shape, 6, 1.0, np.zeros(shape)), 2)

    with pytest.raises(ForeignRandomness, match="no axis of the positions"):
        run_windows(program, (1, 1, 1), 3)


def test_a_window_that_broke_off_cannot_be_followed() -> None:
    """Its masks may have been used: nothing is drawn for it again."""

    def program(session: Session, window: Window) -> None:
        session.open(session.private(CLIENT, (window.size,), 4, 1.0, np.zeros(window.size)))
        session.constant(np.zeros(1), 4)

    plan = WindowPlan(program, 3)
    bundle, _ = deal(plan.whole.correlations, WEIGHT_KEY)
    session = WindowSession(CLIENT, memory_pair(1.0)[0], DealtRandomness(bundle, {}), plan)
    with pytest.raises(RandomnessExhausted, match="4 more positions after 0 of 3"):
        session.begin(4)
    session.begin(1)
    with pytest.raises(RandomnessSpent):
        session.begin(1)
