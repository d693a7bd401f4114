"""Row functions from one opening: errors that hold with every rounding and every mask, and what is outside."""

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
from comet_mpc.engine.ops.operation import Abilities
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.ring import ODD_MODULI, Ring
from comet_mpc.engine.share import CLIENT, Share
from comet_mpc.errors import RangeError
from comet_mpc.functions.layer_norm import (
    largest_norm,
    layer_norm_rule,
    normalise,
    normalised_mean,
    padding_bits,
    wide_layer_norm_rule,
)
from comet_mpc.functions.minimax import minimax_rule
from comet_mpc.functions.row_rule import ROW_ERROR, row_rule
from comet_mpc.functions.row_table import (
    ROW_ALLOWED,
    WAY,
    WAY_OF_TWO,
    Allowed,
    AnyArgument,
    Argument,
    Curve,
    CutArgument,
    RowTable,
    open_row,
    row_table,
)
from comet_mpc.functions.rule import InverseRule
from support.two_parties import Program, run_two_parties, together, twin_value

Reals = npt.NDArray[np.float64]
Source = Literal["dealer", "pair"]

NORMS, DENOMINATORS = Allowed(0.0016, 2 * ROW_ERROR), Allowed(2.0**-8, 2.0**-8)
SITES = {
    "variances": (row_rule(2.0**-6, 27.0, gain=0.866), ROW_ALLOWED, 0.5, 34, 61, 14, 1),
    "norms": (row_rule(2.0**-12, 1.0078, above=0.0016), NORMS, 0.5, 28, 31, 14, 4096),
    "denominators": (row_rule(2.0**-14, 1.0625, error=2.0**-7), DENOMINATORS, 1.0, 39, 47, 22, 4096),
    "pooler": (row_rule(1.0, 257.0, floor=0.99), ROW_ALLOWED, 0.5, 24, 64, 14, 1),
}


def points(low: float, high: float, count: int) -> Reals:
    """Dense at the low end, and at the top."""
    return np.concatenate([np.geomspace(low, high, count - count // 4), np.linspace(0.9 * high, high, count // 4)])


ODD_33, ODD_37, ODD_41, ODD_50, ODD_59, ODD_63 = (Ring(modulus.bit_length(), modulus) for modulus in ODD_MODULI)
RINGS: dict[str, tuple[float, Ring, Ring]] = {
    "variances": (32.0, ODD_41, ODD_41),
    "norms": (28.75, ODD_33, ODD_33),
    "denominators": (39, Ring(47), ODD_59),
    "pooler": (22.5, ODD_37, ODD_50),
}
"""Of two parties alone: fraction bits of t, its ring, and that of y."""


def of_secret(t: Reals, name: str, keep: Reals | None = None) -> Program[Share]:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        rule, allowed, power, own, width, bits, rows = SITES[name]
        fraction, argument, ring = float(own), Ring(width), Ring(56 if power == 1.0 else width)
        if not session.fused:
            fraction, argument, ring = RINGS[name]
        share = session.private(CLIENT, t.shape, fraction, rule.high, t, argument)
        kept = None if keep is None else session.private(CLIENT, t.shape, 0, 1.0, keep)
        found = open_row(
            session, share, rule, fraction=bits, ring=ring, allowed=allowed, power=power, keep=kept, count=rows
        )
        assert found is not None
        return session.evaluate(found.polynomial, found.opened, fraction=bits, bound=found.opened["y"].bound)

    return program


def table_of(name: str, source: Source, padded: bool = False) -> RowTable:
    rule, allowed, power, fraction, width, bits, rows = SITES[name]
    own: AnyArgument = Argument(fraction, width, padded)
    ring = Ring(56 if power == 1.0 else width)
    if source == "pair":
        at, argument, ring = RINGS[name]
        own = CutArgument(at, argument, rule.high * 2.0**at, padded)
    table = row_table(allowed.curve(rule, power), own, bits, ring, 14 if rows == 1 else 11)
    assert table is not None
    return table


@pytest.mark.parametrize("source", ["dealer", "pair"])
@pytest.mark.parametrize("name", SITES)
def test_real_parties_and_the_twin_err_no_more_than_allowed(name: str, source: Source) -> None:
    rule, allowed, power, *_, rows = SITES[name]
    curve, table = allowed.curve(rule, power), table_of(name, source)
    assert table.error <= curve.error
    assert table.overshoot <= 1.0 + curve.above
    count = max(rows, 600)
    t = np.random.default_rng(1).permutation(points(rule.low, rule.high * (1 - 1e-9), count))
    run = run_two_parties(of_secret(t, name), source=source)
    for value in (together(run), twin_value(of_secret(t, name), fused=source == "dealer")):
        ratio = value * t**power / curve.gain
        assert np.max(np.abs(ratio - 1.0)) <= table.error
        assert np.max(ratio) <= table.overshoot


@pytest.mark.parametrize(("name", "source"), [*((name, "dealer") for name in SITES), ("norms", "pair")])
def test_below_the_interval_values_are_bounded_and_never_too_large(name: str, source: Source) -> None:
    rule, allowed, power, *_, rows = SITES[name]
    t = np.concatenate([np.zeros(8), np.geomspace(rule.low * 2.0**-9, rule.low, max(rows, 300) - 8)])
    value = together(run_two_parties(of_secret(t, name), source=source))
    curve = allowed.curve(rule, power)
    assert np.all(value > 0.0)
    assert np.max(value) <= 1.25 * curve.gain * rule.low**-power
    assert np.max(value * t**power / curve.gain) <= 1.0 + curve.above


@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_a_row_of_padding_is_zero_whatever_its_value(source: Source) -> None:
    t = np.concatenate([[0.0], points(2.0**-6, 27.0 * (1 - 1e-9), 199)])
    keep = np.random.default_rng(5).integers(0, 2, 200).astype(np.float64)
    keep[:2], keep[-2:] = (0.0, 1.0), (0.0, 1.0)
    for value in (
        together(run_two_parties(of_secret(t, "variances", keep), source=source)),
        twin_value(of_secret(t, "variances", keep), fused=source == "dealer"),
    ):
        assert np.all(value[keep == 0.0] == 0.0)
        inside = (keep == 1.0) & (t > 0.0)
        assert np.max(np.abs(value[inside] * np.sqrt(t[inside]) / 0.866 - 1.0)) <= ROW_ERROR


@settings(max_examples=12, deadline=None)
@given(
    ratio=st.floats(1.0, 11.0),
    top=st.floats(-8.0, 12.0),
    gain=st.floats(0.5, 2.0),
    power=st.sampled_from([0.5, 1.0]),
    phase=st.floats(0.0, 1.0),
    odd=st.booleans(),
)
def test_the_certificate_holds_on_a_fine_grid(
    ratio: float, top: float, gain: float, power: float, phase: float, odd: bool
) -> None:
    """Every cell's line, at the ends of where it may be read, t off by a unit, against the curve itself."""
    curve = Curve(2.0 ** (top - ratio), 2.0**top, gain, power, 0.01, 0.01)
    own: AnyArgument = CutArgument(30.7, ODD_50, 2.0 ** (top + 30.7)) if odd else Argument(30, 48)
    table = row_table(curve, own, 20, ODD_63 if odd else Ring(60))
    if table is None:
        return
    if odd:
        _check_integers(table, phase)
        return
    for which, fit in enumerate(table.fits):
        lines = table.table(which)
        begin, end = fit.cells.intervals()
        t = begin + phase * (end - begin)
        read = (t > 0.0) & (t <= min(curve.high, end.max())) & (fit.levels != 0.0)
        where = np.nonzero(read)
        cells = np.where(where[1] == 2**fit.cells.bits - 1, 2**fit.cells.index_bits - 1, where[1])
        for off in (-1.0, 1.0):
            moved = t[read] * 2.0**fit.fraction_t + off
            level, slope = (lines.words[where[0], 0, part, cells].view(np.int64) for part in (0, 1))
            ratio_of = (level + slope * moved) * 2.0**-20 * t[read] ** power / gain
            assert np.max(ratio_of, initial=0.0) <= table.overshoot
            inside = t[read] >= curve.low
            assert np.max(np.abs(ratio_of[inside] - 1.0), initial=0.0) <= table.error


def _check_integers(table: RowTable, phase: float) -> None:
    """Tables of integers z, off by as much as their truncation may be, on both ways around the ring."""
    curve = table.curve
    for which, fit in enumerate(table.fits):
        lines, cells = table.table(which), fit.cells
        size = 2.0 ** (cells.cut + cells.index_bits)
        t = np.geomspace(2.0**-6 * curve.low, curve.high, 4000)
        for off in (-cells.off, cells.off):
            z = np.floor(t * 2.0**cells.fraction + off * phase + phase)
            mask = np.floor(np.mod(np.arange(4000) * 0.618, 1.0) * size)
            public = np.mod(z - mask, size)
            place = lines.places(public.astype(np.uint64), cells.cut + cells.index_bits)
            at = (place + np.floor(mask * 2.0**-cells.cut).astype(np.uint64)).astype(np.int64)
            flat, period = lines.words.reshape(-1), 2 << cells.index_bits
            level, slope = flat[at], flat[at + period]
            sums = lines.ring.add(
                level, lines.ring.multiply(slope, lines.ring.reduced((public + mask).astype(np.uint64)))
            )
            value = lines.ring.signed(sums) * 2.0**-table.fraction
            read = (value != 0.0) & (t <= fit.cells.unit * (2**cells.bits - 2)) & (np.abs(value) <= fit.bound)
            assert np.all(read[t < curve.low * 2.0**-1] | (which == 0) & (len(table.fits) == 2))
            ratio = value[read] * t[read] ** curve.power / curve.gain
            assert np.max(ratio, initial=0.0) <= table.overshoot
            assert np.max(np.abs(ratio - 1.0)[t[read] >= curve.low], initial=0.0) <= table.error


def test_what_may_exceed_the_top_is_refused() -> None:
    rule = SITES["variances"][0]

    def program(session: Session) -> object:
        t = session.private(CLIENT, (4,), 34, 4.5 * rule.high, width=61)
        return open_row(session, t, rule, fraction=14, ring=Ring(61), allowed=ROW_ALLOWED)

    with pytest.raises(RangeError, match="stable only up to"):
        plan_program(program)


def test_rules_with_counted_steps_and_sources_without_points_keep_their_rounds() -> None:
    def lines(rule: InverseRule, abilities: Abilities) -> list[object]:
        found: list[object] = []

        def program(session: Session) -> None:
            t = session.private(CLIENT, (4,), 34, rule.high, width=61)
            found.append(open_row(session, t, rule, fraction=14, ring=Ring(61), allowed=ROW_ALLOWED))

        plan_program(program, abilities=abilities)
        return found

    assert lines(minimax_rule(2.0**-6, 27.0, 6), Abilities()) == [None]
    assert lines(SITES["variances"][0], Abilities(points=False)) == [None]
    assert lines(SITES["variances"][0], Abilities()) != [None]


def _normalised(x: Reals, mask: Reals, rule: InverseRule) -> Program[Share]:
    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        share = session.private(CLIENT, x.shape, 18, 16.0, x, 52)
        keep = padding_bits(session, session.private(CLIENT, mask.shape, 0, 1.0, mask), rule)
        size = x.shape[-1]
        bits = math.ceil(math.log2(size))
        v = (share.times(size) - share.sum(keep=True)).times_power(-bits)
        return normalise(session, v, rule, fraction=12, keep=keep)

    return program


def test_both_ways_of_a_layer_norm_agree_and_the_table_saves_rounds() -> None:
    """A plan may choose either: the same values within the errors of both, padding included."""
    rng, rule = np.random.default_rng(2), layer_norm_rule(48, 2.0**-5, 2.0**6)
    x = rng.normal(size=(1, 6, 48)) * np.geomspace(0.3, 4.0, 6)[:, None]
    mask = np.array([[1.0, 1.0, 0.0, 1.0, 0.0, 1.0]])
    steps = frozenset({f"layer_norm: {WAY}"})
    runs = [run_two_parties(_normalised(x, mask, rule), ways=ways) for ways in (frozenset[str](), steps)]
    exact = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True)) * mask[..., None]
    for run in runs:
        assert f"layer_norm: {WAY}" in run.plan.forks
        assert np.max(np.abs(together(run) - exact)) <= 4.0 * (ROW_ERROR + 2.0**-10)
        assert np.all(np.abs(together(run)[0, [2, 4]]) <= 2.0**-12)
    assert runs[1].plan.rounds - runs[0].plan.rounds == 4  # three steps, and the mask to be opened
    assert math.isclose(float(together(runs[0])[0, 5].std()), 1.0, rel_tol=0.01)


@pytest.mark.parametrize("name", ["norms", "denominators"])
def test_two_tables_may_be_put_together_in_the_product(name: str) -> None:
    """A round fewer, and the same integers: nothing is rounded in between."""
    rule, *_ = SITES[name]
    t = points(rule.low, rule.high * (1 - 1e-9), 4096)
    seeds = (bytes(16), bytes([1] * 16))
    usual = run_two_parties(of_secret(t, name), seeds=seeds)
    (fork,) = (fork for fork in usual.plan.forks if WAY_OF_TWO in fork)
    together_in_product = run_two_parties(of_secret(t, name), seeds=seeds, ways=frozenset({fork}))
    assert np.array_equal(together(usual), together(together_in_product))
    assert usual.plan.rounds - together_in_product.plan.rounds == 1


@pytest.mark.slow
@pytest.mark.parametrize("source", ["dealer", "pair"])
@pytest.mark.parametrize("ratio", [14, 18, 22])
def test_a_layer_norm_reads_a_wide_interval_from_two_tables(ratio: int, source: Source) -> None:
    """Rows are never too long, padding stays zero, and near the low end rows are as exact as by one table."""
    d, tokens, low = 64, 24, 0.25
    rule = wide_layer_norm_rule(d, low, low * 2.0**ratio)
    rows = np.random.default_rng(0).normal(size=(1, tokens, d))
    rows -= rows.mean(axis=-1, keepdims=True)
    rows *= np.sqrt(np.geomspace(low, 0.98 * rule.high, tokens))[:, None] / rows.std(axis=-1, keepdims=True)
    bits = np.ones((1, tokens))
    bits[0, ::5] = 0.0

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        share = session.private(CLIENT, rows.shape, 24, largest_norm(d, rule), rows)
        mask = session.private(CLIENT, bits.shape, 0, 1.0, bits)
        return normalise(session, share, rule, keep=padding_bits(session, mask, rule), fraction=14, width=40)

    for value in (together(run_two_parties(program, source=source)), twin_value(program, fused=source == "dealer")):
        lengths = np.linalg.norm(value[0], axis=-1) / math.sqrt(d)
        assert np.all(lengths[bits[0] == 0.0] == 0.0)
        kept = lengths[bits[0] == 1.0]
        assert np.max(kept) <= 1.0 + 2.0**-8
        seen = rows[0].var(axis=-1)[bits[0] == 1.0] < low * rule.exact
        assert np.max(np.abs(kept[seen] - 1.0)) <= 2.0**-7
        assert np.min(kept) > 0.8


@pytest.mark.parametrize("source", ["dealer", "pair"])
def test_a_mean_of_rows_reads_a_wide_interval_too(source: Source) -> None:
    d, rule = 64, wide_layer_norm_rule(64, 0.25, 2.0**16)
    rows = np.random.default_rng(1).normal(size=(1, 8, d))
    rows -= rows.mean(axis=-1, keepdims=True)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        share = session.private(CLIENT, rows.shape, 24, largest_norm(d, rule), rows)
        weights = session.private(CLIENT, (1, 8), 20, 1.0, np.full((1, 8), 0.125))
        return normalised_mean(session, share, rule, weights, fraction=14, width=40)

    wanted = (rows / rows.std(axis=-1, keepdims=True)).mean(axis=1)
    for value in (together(run_two_parties(program, source=source)), twin_value(program, fused=source == "dealer")):
        assert np.max(np.abs(value - wanted)) < 0.02
