"""Lines of public tables at secret places: the cell that is read, the line's value, and keys that do not fit."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.correlations import PointFunctions
from comet_mpc.engine.ops import TableLine
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.share import CLIENT, SERVER, Share
from comet_mpc.engine.tables import PHASES, LineTable, PointKeys, PointShape
from comet_mpc.errors import ForeignRandomness, RandomnessExhausted, RandomnessSpent, ShapeError
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import DealtRandomness
from comet_mpc.testing import deal, run_two_parties

FRACTION = 20


def named_cells(bits: int, *, cut: int, shift: int, width: int, factor: int) -> LineTable:
    """Every entry says which it is: level = phase·2^bits + cell, slope 0."""
    names = np.arange(PHASES << bits, dtype=np.uint64).reshape(PHASES, 1, 1 << bits)
    words = np.zeros((PHASES, 1, 2, 2 << bits), np.uint64)
    words[:, :, 0] = np.concatenate([names, names], axis=-1)
    return LineTable(bits, factor, cut, shift, 0, width, (2.0**30,), words)


def reading(table: LineTable, z: np.ndarray, width: int) -> tuple[Share, ...]:
    def program(session: Session, _: Mapping[str, Weight]) -> tuple[Share, ...]:
        share = session.private(CLIENT, z.shape, FRACTION, 2.0, z * 2.0**-FRACTION, width)
        return session.request(TableLine(share, table.shift, table.width, table=table))

    run = run_two_parties(program)
    return tuple(a.with_values(a.flat() + b.flat()) for a, b in zip(run.client, run.server, strict=True))


def values(share: Share) -> np.ndarray:
    return share.ring.signed(share.flat())


@settings(max_examples=25, deadline=None)
@given(
    bits=st.integers(1, 9),
    factor=st.integers(1, 15),
    shift=st.sampled_from([0, 1, 7]),
    width=st.sampled_from([25, 26, 27, 33, 64]),  # the first just holds the table's cells
    seed=st.integers(0, 2**32),
)
def test_the_cell_that_is_read_holds_the_value(bits: int, factor: int, shift: int, width: int, seed: int) -> None:
    z = np.random.default_rng(seed).integers(0, 2**21, 40)
    cut = max(3, 25 - bits)
    table = named_cells(bits, cut=cut, shift=shift, width=min(34, width), factor=factor)
    (found,) = reading(table, z, width)
    phase, cell = np.divmod(values(found), 1 << bits)
    # in units of a cell, modulo the table: how far the value is above where the entry begins
    above = np.mod(factor * z / 2.0**cut - cell - phase / PHASES, 1 << bits)
    assert np.all(above < 1.0 + 1.0 / PHASES)


@pytest.mark.parametrize("shift", [0, 5])
def test_a_line_is_its_level_and_slope_at_the_value(shift: int) -> None:
    z = np.random.default_rng(4).integers(-(2**19), 2**20, 200)
    line = [(-70_000, 13)] * 8  # the same in all cells: only the value is left to be wrong
    width = 63 if shift else 50  # wider than what is left of the value's ring, so that its wrap-around counts
    table = LineTable.of(3, [line, [(5, -1)] * 8], cut=17, shift=shift, fraction=3, width=width)
    first, second = (values(share) for share in reading(table, z, 55))
    truncated = -second + 5
    assert np.all(np.abs(truncated - z / 2.0**shift) < (1.0 if shift else 1e-9))
    assert np.array_equal(first, -70_000 + 13 * truncated)


def test_a_table_for_another_ring_or_a_narrow_share_is_refused_while_planning() -> None:
    table = named_cells(8, cut=20, shift=4, width=30, factor=1)

    def program(width: int, shift: int) -> object:
        def run(session: Session) -> object:
            share = session.private(CLIENT, (3,), FRACTION, 1.0, width=width)
            return session.request(TableLine(share, shift, table.width, table=table))

        return plan_program(run)

    program(28, 4)
    with pytest.raises(ShapeError, match="another truncation"):
        program(28, 5)
    with pytest.raises(ShapeError, match="no bits 20 to the table's top"):
        program(27, 4)


DESCRIBED = PointFunctions(4, 6, 9, 20, 40, 12, 33)


def test_a_key_that_is_too_short_damaged_or_for_another_table_is_refused() -> None:
    client, _ = deal([DESCRIBED])
    assert isinstance(client.stored, io.BytesIO)
    data = client.stored.getvalue()
    short = Bundle(CLIENT, client.seed, [DESCRIBED], io.BytesIO(data[:-1]))
    with pytest.raises(RandomnessExhausted):
        DealtRandomness(short).draw(DESCRIBED)
    with pytest.raises(ForeignRandomness, match="no corrections"):
        DealtRandomness(Bundle(CLIENT, client.seed, [DESCRIBED]))
    bundle = Bundle(CLIENT, client.seed, [DESCRIBED], io.BytesIO(data))
    drawn = DealtRandomness(bundle)
    with pytest.raises(ForeignRandomness, match="prepared for another program"):
        drawn.draw(PointFunctions(4, 7, 9, 20, 40, 12, 33))
    with pytest.raises(RandomnessSpent):
        DealtRandomness(bundle)
    mask, root, corrections, last = drawn.draw(DESCRIBED).arrays
    with pytest.raises(RandomnessExhausted):
        drawn.draw(DESCRIBED)
    with pytest.raises(ShapeError, match="too short, or for another table"):
        PointKeys(PointShape(7, 3), 0, root, corrections, last)
    keys, starts = PointKeys(DESCRIBED.shape, 0, root, corrections, last), np.zeros(3, np.uint64)
    with pytest.raises(ShapeError, match="3 rows are read with the keys of 4"):
        keys.lines(False, starts, starts, starts, starts, 1)
    assert mask.size == 4


@pytest.mark.parametrize("changed", [{"cut": 35}, {"shift": 39}, {"shift": 0, "out_width": 41}])
def test_a_description_that_makes_no_sense_is_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ShapeError):
        PointFunctions(**{name: getattr(DESCRIBED, name) for name in DESCRIBED.__struct_fields__} | changed).check([])


def test_the_two_parties_have_the_same_corrections_and_other_roots() -> None:
    """A root that both had would give the place away to either of them."""
    bundles = deal([DESCRIBED])
    (mask, root, *common), (mask_s, root_s, *common_s) = (
        DealtRandomness(bundles[party]).draw(DESCRIBED).arrays for party in (CLIENT, SERVER)
    )
    assert all(np.array_equal(a, b) for a, b in zip(common, common_s, strict=True))
    assert not np.any(mask == mask_s)
    assert not np.any(root == root_s)
    assert replace(bundles[0], stored=None).seed != bundles[1].seed
