"""Homomorphic products: shares that are exact mod 2^width, at the declared cost, and programs that run on them."""

from __future__ import annotations

import tracemalloc
from typing import Any, cast

import numpy as np
import pytest

from comet_mpc.engine import Weight
from comet_mpc.engine.correlations import (
    Mask,
    WeightProduct,
)
from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import RangeError, ShapeError
from comet_mpc.net.channel import FRAME_HEADER, Channel, memory_pair
from comet_mpc.offline.ot.extension import set_up_transfers
from comet_mpc.offline.pair.matrices import packing_of
from comet_mpc.offline.pair.workbench import HeldShares, Workbench
from comet_mpc.offline.rlwe.packing import Packing
from comet_mpc.offline.rlwe.products import Homomorphic, check_lengths, matrix_products, together
from comet_mpc.offline.rlwe.public_key import PublicKey
from comet_mpc.offline.rlwe.scheme import DEGREE
from comet_mpc.offline.rlwe.slots import Sum, choose_plan, slot_sums
from comet_mpc.offline.rlwe.tiling import Tiling, centred, choose_tiling
from support.two_parties import as_parties, equal

RNG = np.random.default_rng(11)


def random_words(*shape: int) -> Words:
    return RNG.integers(0, 2**64, shape, dtype=np.uint64)


# Matrix products ---------------------------------------------------------------------------------------------

SEED = SEED_BYTES + FRAME_HEADER
KEYS = SEED + PublicKey.SIZE + FRAME_HEADER


@pytest.mark.parametrize(
    ("shape", "width", "bits", "batch"),
    [
        ((1, 1, 1), 64, 32, 1),
        ((3, 5, 7), 8, 8, 2),
        ((128, 64, 65), 32, 32, 1),
        ((7, 130, 33), 64, 64, 1),
        ((1, 768, 40), 56, 24, 1),
        ((40, 3, 300), 48, 48, 1),
        ((5000, 2, 3), 40, 40, 1),
        ((20, 1100, 2), 64, 32, 1),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_matrix_products_are_exact_and_cost_what_was_said(
    shape: tuple[int, int, int], width: int, bits: int, batch: int, threads: int
) -> None:
    rows, inputs, outputs = shape
    x, y = random_words(batch, rows, inputs), centred(random_words(batch, outputs, inputs), bits)
    y[0, 0, 0] = -(2 ** (bits - 1))

    def work(channel: Channel, party: int) -> Words:
        engine = Homomorphic(channel, party, threads=threads)
        mine = {"x": x} if party == CLIENT else {"y": y}
        return matrix_products(engine, shape, width, bits, batch=batch, **mine)

    ends = memory_pair()
    client, server = as_parties(work, ends)
    expected = x @ y.view(np.uint64).transpose(0, 2, 1)
    assert equal(client + server, expected, width)
    assert not equal(client, expected, width)
    tiling = choose_tiling(rows, inputs, outputs, width, bits)
    traffic = ends[CLIENT].traffic
    messages = len(together([tiling.upload_bytes] * batch))
    assert traffic.sent == KEYS + batch * tiling.upload_bytes + messages * FRAME_HEADER
    assert traffic.received == SEED + batch * tiling.response_bytes + messages * FRAME_HEADER
    assert traffic.rounds == 4  # seeds, a key, and all uploads at once


def test_small_uploads_travel_together_and_none_is_left_out() -> None:
    for sizes in ([], [5], [3_000_000] * 3, [1_000_000] * 7, [1, 4_000_000, 1, 1]):
        parts = together(sizes)
        assert [place for part in parts for place in range(part.start, part.stop)] == list(range(len(sizes)))
        assert all(sum(sizes[part]) <= 2**21 or part.stop - part.start == 1 for part in parts)
    assert len(together([1_000_000] * 7)) == 4


def test_every_tiling_is_exact() -> None:
    """Also the blocks that would not be chosen: packing by packing, against the product of polynomials."""
    rows, inputs, outputs = 13, 10, 9
    x, y = random_words(rows, inputs), centred(random_words(outputs, inputs), 20)
    expected = x @ y.T.astype(np.uint64)
    for stride in (2, 16, 64, 1024, 8192):
        for block in sorted({1, 2, min(stride, 5), min(stride, inputs)}):
            tiling = Tiling(rows, inputs, outputs, stride, block, choose_tiling(1, 1, 1, 32, 20).scheme)
            result = np.zeros((rows, outputs), np.uint64)
            left, right = tiling.pack_left(x), tiling.pack_right(y, 0, tiling.blocks[2])
            for o, r in tiling.answers():
                total = np.zeros(2 * DEGREE, np.uint64)
                for i in range(tiling.blocks[1]):
                    for place in np.flatnonzero(right[o, i]):
                        total[place : place + DEGREE] += left[r, i] * np.uint64(int(right[o, i, place]) % 2**64)
                wrapped = total[:DEGREE] - total[DEGREE:]
                found = wrapped[tiling.positions(r, o)].reshape(tiling.extent(r, o))
                row, output = r * tiling.block_rows, o * tiling.block_outputs
                result[row : row + found.shape[0], output : output + found.shape[1]] = found
            assert np.array_equal(result, expected), (stride, block)


@pytest.mark.parametrize(
    ("shape", "width", "bits"),
    [
        ((128, 64, 200), 32, 32),
        ((20, 130, 33), 56, 56),
        ((3, 5, 700), 40, 32),
        ((300, 40, 90), 48, 24),
        ((4, 3, 2), 8, 2),
    ],
)
def test_packed_products_are_exact_and_cost_what_was_said(shape: tuple[int, int, int], width: int, bits: int) -> None:
    rows, inputs, outputs = shape
    x, y = random_words(1, rows, inputs), centred(random_words(1, outputs, inputs), bits)

    def work(channel: Channel, party: int) -> Words:
        engine = Homomorphic(channel, party, threads=2)
        engine.set_up_packing()
        engine.set_up_packing()  # once is enough
        mine = {"x": x} if party == CLIENT else {"y": y}
        return matrix_products(engine, shape, width, bits, **mine)

    ends = memory_pair()
    client, server = as_parties(work, ends)
    assert equal(client + server, x @ y.view(np.uint64).transpose(0, 2, 1), width)
    tiling = choose_tiling(rows, inputs, outputs, width, bits, packing=Packing.TURNS)
    keys = KEYS + Packing.TURNS.key_bytes + FRAME_HEADER
    assert ends[CLIENT].traffic.sent == keys + tiling.upload_bytes + FRAME_HEADER
    assert ends[CLIENT].traffic.received == SEED + tiling.response_bytes + FRAME_HEADER


def test_packed_products_are_not_chosen_where_the_modulus_has_no_room_for_keys() -> None:
    assert choose_tiling(128, 64, 128, 64, 64, packing=Packing.TURNS).parts == 2
    assert choose_tiling(128, 64, 128, 32, 32, packing=Packing.TURNS).levels > 0


def test_a_wide_factor_is_cut_where_that_makes_room_for_keys() -> None:
    tiling = choose_tiling(128, 64, 128, 56, 56, packing=Packing.TURNS)
    assert tiling.levels > 0
    assert tiling.parts == 2
    y = centred(random_words(300), 56)
    y[:4] = -(2**55), 2**55 - 1, 2**27, -(2**27)
    low, high = tiling.cut(y)
    assert np.array_equal(low + (high << 28), y)
    assert max(np.abs(low).max(), np.abs(high).max()) <= 2**27 + 1


def test_a_weight_is_multiplied_as_it_is_held() -> None:
    """It has 32 bits a number at the server, and only the blocks that are packed at a time have 64."""
    y = RNG.integers(-(2**23), 2**23, (768, 3072), np.int32)
    weight = Weight("w", y.shape, 14, 2.0**20, y // 2**8)
    unused = cast("Any", None)
    bench = Workbench(unused, unused, [], [], {"w": weight}, HeldShares(lambda index: []))
    assert bench.weight("w", y.shape) is weight.values
    tiling = choose_tiling(128, 3072, 768, 41, 24, Packing.TURNS, length=2.0**23, cuts=(13,))
    (part,) = tiling.cut(y)
    assert part is y
    right = tiling.pack_right(y, 0, 1)
    assert right.dtype == np.int64
    assert right.nbytes < y.nbytes
    tracemalloc.start()
    try:
        with pytest.raises(RangeError, match="longer"):
            check_lengths(y, 2.0**23)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < y.nbytes / 16


def test_packing_pays_for_layers_and_not_for_single_rows() -> None:
    assert packing_of([WeightProduct(0, "w", 1, 768, 768, 56), Mask((3,), 64, 0, 64)]) == Packing.NONE
    assert packing_of([WeightProduct(0, "w", 128, 768, 768, 56)]) == Packing.MERGES
    assert packing_of([WeightProduct(0, name, 128, 768, 3072, 56) for name in "abcdefgh"]) == Packing.TURNS


def test_the_product_of_a_layer_costs_a_quarter_when_packed() -> None:
    plain, packed = (choose_tiling(128, 768, 768, 56, 24, packing) for packing in (Packing.NONE, Packing.TURNS))
    assert plain.scheme.limbs == packed.scheme.limbs == 6
    assert plain.upload_bytes + plain.response_bytes < 31e6
    assert packed.upload_bytes + packed.response_bytes < 6.5e6
    with pytest.raises(ShapeError):
        choose_tiling(0, 1, 1, 64, 32)


def test_a_factor_above_the_public_bound_never_leaves_the_server() -> None:
    def work(channel: Channel, party: int) -> None:
        engine = Homomorphic(channel, party, threads=1)
        if party == SERVER:
            with pytest.raises(RangeError, match="public bound"):
                matrix_products(engine, (1, 1, 1), 64, 8, y=np.full((1, 1, 1), 129, np.int64))
            with pytest.raises(ShapeError):
                matrix_products(engine, (1, 1, 1), 64, 8, y=np.zeros((1, 2, 1), np.int64))
            assert channel.traffic.sent == SEED

    as_parties(work)


# Element by element ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "server_bits", "count", "sums"),
    [
        (32, 32, 100, ((0,),)),
        (40, 40, 9000, ((0, 0),)),
        (48, 48, 50, ((0,), (0, 1))),
        (56, 24, 60, ((0,),)),
        (64, 64, 8192, ((0,), (0, 1), (0, 1, 2))),
        (16, 16, 1, ((0,),)),
    ],
)
def test_sums_of_products_are_exact(width: int, server_bits: int, count: int, sums: tuple[Sum, ...]) -> None:
    uploads = 1 + max(place for entry in sums for place in entry)
    plan = choose_plan(uploads, sums, width, server_bits)
    left = [centred(random_words(count), width) for _ in range(uploads)]
    right = [[centred(random_words(count), server_bits) for _ in entry] for entry in sums]
    left[0][0], right[0][0][0] = -(2 ** (width - 1)), -(2 ** (server_bits - 1))  # the largest product of all

    def work(channel: Channel, party: int) -> Words:
        engine, transfers = Homomorphic(channel, party, threads=1), set_up_transfers(channel, party)
        mine = {"left": left} if party == CLIENT else {"right": right}
        return slot_sums(engine, transfers, plan, count, width, **mine)

    client, server = as_parties(work)
    expected = [
        sum((left[place] * factor for place, factor in zip(entry, factors, strict=True)), np.zeros(count, np.int64))
        for entry, factors in zip(sums, right, strict=True)
    ]
    assert equal(client + server, np.stack(expected).view(np.uint64), width)


def test_narrower_rings_cost_less() -> None:
    costs = [
        (plan := choose_plan(1, ((0,),), width, width)).upload_bytes + plan.response_bytes
        for width in (32, 40, 48, 56, 64)
    ]
    assert costs == sorted(costs)
    assert costs[0] < 0.55 * costs[-1]
