"""Distributed point functions: the native tree against one written from the papers, with another library's AES."""

from __future__ import annotations

import numpy as np
import pytest

from comet_mpc import _native
from comet_mpc.engine.ring import ODD_MODULI
from comet_mpc.engine.share import Words
from support.point_functions import Reference, Shape

ISAS = _native.transfer_isa_names()
ODD = max(ODD_MODULI)
SHAPES = [(1, 0, 2, 0), (3, 1, 2, 0), (5, 2, 3, 0), (9, 2, 2, 0), (7, 0, 2, 0), (7, 0, 2, ODD), (4, 0, 2, 8_388_449)]
ROWS = (2**40 + 3, 300)  # the table's number and that of the first row


def _made(shape: Shape, rows: int, isa: str) -> tuple[Words, ...]:
    index_bits, early, words, modulus = shape
    rng = np.random.default_rng(7)
    client, server = rng.integers(0, 2**64, (2, 2), dtype=np.uint64)
    places = rng.integers(0, 2**index_bits, rows, dtype=np.uint64)
    payloads = rng.integers(0, modulus or 2**64, rows * words, dtype=np.uint64)
    corrections = np.empty(2 * rows * (index_bits - early), np.uint64)
    last = np.empty(rows * words << early, np.uint64)
    _native.make_points(shape, ROWS, client, server, places, payloads, corrections, last, isa)
    return client, server, places, payloads, corrections, last


def _all(shape: Shape, server: bool, root: Words, corrections: Words, last: Words, isa: str) -> Words:
    out = np.empty((last.size // (shape[2] << shape[1]), 2 ** shape[0], shape[2]), np.uint64)
    _native.evaluate_points(shape, ROWS, server, root, corrections, last, out.reshape(-1), isa)
    return out


def _added(left: Words, right: Words, modulus: int) -> Words:
    return np.asarray((left + right) % np.uint64(modulus) if modulus else left + right)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("isa", ISAS)
def test_the_shares_add_up_to_the_payload_at_the_place(shape: Shape, isa: str) -> None:
    client, server, places, payloads, corrections, last = _made(shape, 5, isa)
    parts = [_all(shape, bool(party), (client, server)[party], corrections, last, isa) for party in (0, 1)]
    expected = np.zeros_like(parts[0])
    expected[np.arange(5), places] = payloads.reshape(5, -1)
    assert np.array_equal(_added(parts[0], parts[1], shape[3]), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("isa", ISAS)
def test_the_tree_is_the_one_of_an_independent_implementation(shape: Shape, isa: str) -> None:
    made = _made(shape, 3, isa)
    corrections, last = made[4].tobytes(), made[5].reshape(3, -1)
    levels = shape[0] - shape[1]
    for party in (0, 1):
        native = _all(shape, bool(party), made[party], made[4], made[5], isa)
        root = int.from_bytes(made[party].tobytes(), "little")
        for row in range(3):
            own = [
                int.from_bytes(corrections[16 * at : 16 * at + 16], "little")
                for at in range(row * levels, (row + 1) * levels)
            ]
            reference = Reference(shape, ROWS[0], ROWS[1] + row)
            expected = reference.leaves(bool(party), root, own, [int(word) for word in last[row]])
            assert [int(word) for word in native[row].reshape(-1)] == expected


@pytest.mark.parametrize(("words", "modulus"), [(2, 0), (3, 0), (2, ODD)])
def test_lines_are_those_of_the_table(words: int, modulus: int) -> None:
    shape, rows, size = (6, 0 if modulus else 2, words, modulus), 9, modulus or 2**64
    client, server, places, payloads, corrections, last = _made(shape, rows, "")
    rng = np.random.default_rng(3)
    tables = rng.integers(0, size, (2, 2, 64), dtype=np.uint64)  # columns, (A, B), cells
    doubled = np.ascontiguousarray(np.concatenate([tables, tables], axis=-1)).reshape(-1)
    starts = rng.integers(0, 64, rows, dtype=np.uint64)
    public, factors = rng.integers(0, 2**64, (2, rows), dtype=np.uint64)
    total = np.zeros((rows, 2), np.uint64)
    for party, root in ((False, client), (True, server)):
        out = np.empty(2 * rows, np.uint64)
        _native.evaluate_lines(
            shape,
            ROWS,
            np.empty(0, np.uint64),
            party,
            root,
            corrections,
            last,
            doubled,
            2,
            starts,
            public,
            factors,
            out,
            "",
        )
        total = _added(total, out.reshape(rows, 2), modulus)
    for row in range(rows):
        one, *rest = (int(word) for word in payloads.reshape(rows, words)[row])
        x = int(public[row]) * one + rest[0] + (int(factors[row]) * rest[1] if words == 3 else 0)
        for column in (0, 1):
            level, slope = (int(tables[column, part, int(starts[row] + places[row]) % 64]) for part in (0, 1))
            assert int(total[row, column]) == (level * one + slope * x) % size


@pytest.mark.parametrize("shape", [(5, 0, 2, 0), (5, 0, 2, ODD), (6, 2, 3, 0)])
def test_sums_differ_by_what_a_correction_is_made_of(shape: Shape) -> None:
    """What two parties without a dealer tell each other of a level, and of the leaves: all but one node cancel out."""
    index_bits, early, words, modulus = shape
    rows, levels = 4, index_bits - early
    client, server, places, payloads, corrections, last = _made(shape, rows, "")
    roots = [np.array([root[0] & ~np.uint64(1) | np.uint64(p), root[1]]) for p, root in enumerate((client, server))]
    delta = roots[0] ^ roots[1]
    for level in range(levels):
        sums = np.empty((2, 2 * rows), np.uint64)
        for party in (0, 1):
            _native.point_level_sums(shape, ROWS, bool(party), roots[party], corrections, level, sums[party], "")
        left = (places >> np.uint64(index_bits - 1 - level) & np.uint64(1)) == 0
        expected = (sums[0] ^ sums[1]).reshape(rows, 2) ^ np.where(left[:, None], delta, np.uint64(0))
        assert np.array_equal(corrections.reshape(rows, levels, 2)[:, level], expected)
    leaf = words << early
    sums, controls = np.empty((2, rows * leaf), np.uint64), np.empty((2, rows), np.uint64)
    for party in (0, 1):
        _native.point_leaf_sums(shape, ROWS, bool(party), roots[party], corrections, sums[party], controls[party], "")
    sign = (controls[0] - controls[1]).astype(np.int64)
    assert set(sign.tolist()) <= {1, -1}
    size = modulus or 2**64
    for row in range(rows):
        for word in range(leaf):
            wanted = int(payloads[row * words + word % words]) if word // words == int(places[row]) % 2**early else 0
            value = wanted - int(sums[0, row * leaf + word]) + int(sums[1, row * leaf + word])
            assert int(last[row * leaf + word]) == int(sign[row]) * value % size
