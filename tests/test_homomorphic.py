"""Homomorphic products: shares that are exact mod 2^width, at the declared cost, and programs that run on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest

from comet_mpc.activation import Smu, smu, smu_rule
from comet_mpc.bench.models import random_weights
from comet_mpc.channel import FRAME_HEADER, Channel, memory_pair
from comet_mpc.correlations import (
    BitProducts,
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    MonomialTerm,
    SquareSums,
    WeightProduct,
    WeightScale,
)
from comet_mpc.errors import (
    ForeignRandomness,
    ProtocolMismatch,
    RandomnessError,
    RandomnessExhausted,
    RangeError,
    ShapeError,
)
from comet_mpc.homomorphic import Homomorphic, matrix_products
from comet_mpc.lattice import DEGREE, NOISE_LIMIT, PublicKey
from comet_mpc.oblivious_transfer import set_up_transfers
from comet_mpc.packing import PackingKeys
from comet_mpc.pair import PairSource, packing_pays, prepare_bundle
from comet_mpc.party import PartySession
from comet_mpc.plan import plan_program
from comet_mpc.session import Session, Weight
from comet_mpc.share import CLIENT, SERVER, Share, Words, decode
from comet_mpc.slots import Sum, choose_plan, slot_sums
from comet_mpc.tiling import Tiling, centred, choose_tiling
from comet_mpc.transformer import (
    EncoderShape,
    certified_rules,
    classify,
    encode_weights,
    input_mask,
    input_rows,
    public_weights,
)
from comet_mpc.twin import TwinSession

Result = TypeVar("Result")
RNG = np.random.default_rng(11)


def both(
    work: Callable[[Channel, int], Result], timeout: float = 60.0
) -> tuple[Result, Result, tuple[Channel, Channel]]:
    """The same function as the client and as the server, in two threads; the first error of either is raised."""
    ends = memory_pair(timeout=timeout)

    def guarded(party: int) -> Result:
        try:
            return work(ends[party], party)
        except BaseException:
            ends[party].close()
            raise

    with ThreadPoolExecutor(2) as pool:
        client, server = (pool.submit(guarded, party) for party in (CLIENT, SERVER))
        return client.result(), server.result(), ends


def random_words(*shape: int) -> Words:
    return RNG.integers(0, 2**64, shape, dtype=np.uint64)


def same(x: Words, y: Words, width: int) -> bool:
    shift = np.uint64(64 - width)
    return np.array_equal(x << shift, y << shift)


# Matrix products ---------------------------------------------------------------------------------------------


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

    def work(channel: Channel, party: int) -> tuple[Words, float]:
        engine = Homomorphic(channel, party, threads=threads)
        mine = {"x": x} if party == CLIENT else {"y": y}
        return matrix_products(engine, shape, width, bits, batch=batch, **mine), engine.noise

    (client, noise), (server, _), ends = both(work)
    expected = x @ y.view(np.uint64).transpose(0, 2, 1)
    assert same(client + server, expected, width)
    assert not same(client, expected, width)
    assert 0 < noise < NOISE_LIMIT
    tiling = choose_tiling(rows, inputs, outputs, width, bits)
    traffic = ends[CLIENT].traffic
    assert traffic.sent == PublicKey.SIZE + FRAME_HEADER + batch * (tiling.upload_bytes + FRAME_HEADER)
    assert traffic.received == batch * (tiling.response_bytes + FRAME_HEADER)
    assert traffic.rounds == batch + 2


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

    def work(channel: Channel, party: int) -> tuple[Words, float]:
        engine = Homomorphic(channel, party, threads=2)
        engine.set_up_packing()
        engine.set_up_packing()  # once is enough
        mine = {"x": x} if party == CLIENT else {"y": y}
        return matrix_products(engine, shape, width, bits, **mine), engine.noise

    (client, noise), (server, _), ends = both(work)
    assert same(client + server, x @ y.view(np.uint64).transpose(0, 2, 1), width)
    assert 0 < noise < NOISE_LIMIT / 2
    tiling = choose_tiling(rows, inputs, outputs, width, bits, packed=True)
    keys = PublicKey.SIZE + PackingKeys.SIZE + 2 * FRAME_HEADER
    assert ends[CLIENT].traffic.sent == keys + tiling.upload_bytes + FRAME_HEADER
    assert ends[CLIENT].traffic.received == tiling.response_bytes + FRAME_HEADER


def test_packed_products_are_not_chosen_where_the_modulus_has_no_room_for_keys() -> None:
    assert choose_tiling(128, 64, 128, 64, 64, packed=True).levels == 0
    assert choose_tiling(128, 64, 128, 56, 56, packed=True).levels > 0


def test_packing_pays_for_layers_and_not_for_single_rows() -> None:
    assert packing_pays([WeightProduct(0, "w", 128, 768, 768, 56)])
    assert not packing_pays([WeightProduct(0, "w", 1, 768, 768, 56), Mask((3,), 64, 0, 64)])


def test_the_product_of_a_layer_costs_a_quarter_when_packed() -> None:
    plain, packed = (choose_tiling(128, 768, 768, 56, 24, packed=packed) for packed in (False, True))
    assert plain.scheme.limbs == packed.scheme.limbs == 5
    assert plain.upload_bytes + plain.response_bytes < 22e6
    assert packed.upload_bytes + packed.response_bytes < 5.5e6
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
            assert channel.traffic.sent == 0

    both(work)


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

    client, server, _ = both(work)
    expected = [
        sum((left[place] * factor for place, factor in zip(entry, factors, strict=True)), np.zeros(count, np.int64))
        for entry, factors in zip(sums, right, strict=True)
    ]
    assert same(client + server, np.stack(expected).view(np.uint64), width)


def test_narrower_rings_cost_less() -> None:
    costs = [
        (plan := choose_plan(1, ((0,),), width, width)).upload_bytes + plan.response_bytes
        for width in (32, 40, 48, 56, 64)
    ]
    assert costs == sorted(costs)
    assert costs[0] < 0.55 * costs[-1]


# Whole programs ----------------------------------------------------------------------------------------------


def correlations() -> list[Correlation]:
    def term(*powers: int, width: int = 40) -> MonomialTerm:
        return MonomialTerm(powers, (0,) * len(powers), width)

    return [
        Mask((2, 3, 4), 40, 0, 40),
        Mask((2, 3, 1), 64, 0, 64),
        Mask((2, 5, 4), 64, 0, 64),
        ClientMask((6, 4), 56),
        BitProducts(13, 20),
        Monomials((0, 1), (2, 3, 4), (term(1, 1), term(1, 2), term(2, 3))),
        Monomials((1,), (2, 3, 1), (term(2, width=64), term(3, width=64))),
        SquareSums(0, 6, 4, 40),
        MatrixProduct(0, 2, 2, 3, 4, 5, True, 40),
        MatrixProduct(2, 0, 2, 5, 4, 3, True, 40),
        WeightProduct(3, "w", 6, 4, 7, 56),
        WeightScale(3, "v", 6, 4, 56),
        BitProducts(8, 20),
        Mask((2, 4, 3), 32, 0, 32),
        MatrixProduct(0, 13, 2, 3, 4, 3, False, 32),
        SquareSums(2, 10, 4, 40),
        Monomials((1,), (2, 3, 1), (term(1, width=64),)),
    ]


def weights() -> dict[str, Weight]:
    values = {"w": RNG.integers(-(2**20), 2**20, (7, 4)), "v": RNG.integers(-(2**20), 2**20, 4)}
    return {name: Weight(name, value.shape, 14, 1.0, values=value.astype(np.int32)) for name, value in values.items()}


def test_every_correlation_is_what_it_says() -> None:
    program, held = correlations(), weights()

    def work(channel: Channel, party: int) -> list[tuple[Words, ...]]:
        source = prepare_bundle(channel, party, program, held if party == SERVER else None, threads=1)
        drawn = [source.draw(correlation).arrays for correlation in program]
        assert source.remaining == 0
        with pytest.raises(RandomnessExhausted):
            source.draw(program[0])
        return drawn

    client, server, _ = both(work)
    masks = {
        index: (client[index][0] + (server[index][0] if server[index] else np.uint64(0))).reshape(entry.shape)
        for index, entry in enumerate(program)
        if isinstance(entry, Mask | ClientMask)
    }
    assert server[3] == ()
    for index, entry in enumerate(program):
        mine, theirs = client[index], server[index]
        match entry:
            case BitProducts(count=count, width=width):
                bits = [np.unpackbits(part[0].view(np.uint8), bitorder="little")[:count] for part in (mine, theirs)]
                assert same(mine[1] + theirs[1], (bits[0] & bits[1]).astype(np.uint64), width)
            case Monomials(masks=names, shape=shape, terms=terms):
                for place, term in enumerate(terms):
                    expected = np.ones(shape, np.uint64)
                    for name, power in zip(names, term.powers, strict=True):
                        expected = expected * masks[name] ** np.uint64(power)
                    assert same(mine[place] + theirs[place], expected.reshape(-1), term.width)
            case SquareSums(mask=mask, rows=rows, width=width):
                rectangle = masks[mask].reshape(rows, -1)
                assert same(mine[0] + theirs[0], (rectangle * rectangle).sum(axis=1, dtype=np.uint64), width)
            case MatrixProduct(left=left, right=right, transposed=transposed, width=width):
                factor = masks[right].transpose(0, 2, 1) if transposed else masks[right]
                assert same(mine[0] + theirs[0], (masks[left] @ factor).reshape(-1), width)
            case WeightProduct(mask=mask, weight=name, outputs=outputs, width=width):
                values = held[name].values
                assert values is not None
                expected = masks[mask] @ values.T.astype(np.int64).view(np.uint64)
                assert same(mine[0].reshape(-1, outputs) + theirs[0].reshape(outputs, -1).T, expected, width)
            case WeightScale(mask=mask, weight=name, width=width):
                values = held[name].values
                assert values is not None
                expected = masks[mask] * values.astype(np.int64).view(np.uint64)
                assert same(mine[0] + theirs[0], expected.reshape(-1), width)


def run_as_a_pair(
    program: Callable[[Session, Mapping[str, Weight]], Share], held: Mapping[str, Weight], public: Mapping[str, Weight]
) -> tuple[Share, Share]:
    plan = plan_program(lambda session: program(session, public), fused=False)

    def work(channel: Channel, party: int) -> Share:
        own = held if party == SERVER else public
        source = prepare_bundle(channel, party, plan.correlations, own, threads=1)
        before = channel.traffic
        share = program(PartySession(party, channel, source, fused=False), own)
        assert source.remaining == 0
        spent = channel.traffic - before
        assert (spent.sent, spent.rounds) == (plan.sent(party), plan.rounds)
        return share

    client, server, _ = both(work)
    return client, server


def test_an_activation_runs_without_a_dealer_and_equals_its_twin() -> None:
    values, form = RNG.uniform(-1, 1, (4, 50)), Smu(1 / 16)
    rule = smu_rule(form, 1.0, 2)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x = session.private(CLIENT, values.shape, 16, 1.0, values if session.holds(CLIENT) else None)
        return smu(session, x, form, rule)

    twin = program(TwinSession(), {})
    client, server = run_as_a_pair(program, {}, {})
    assert client.values is not None
    assert server.values is not None
    assert twin.values is not None
    result = decode(client.values + server.values, client.fraction, client.width)
    assert np.abs(result - decode(twin.values, twin.fraction, twin.width)).max() < 2.0**-8


def test_a_classifier_runs_without_a_dealer_and_equals_its_twin() -> None:
    shape = EncoderShape(1, 16, 2, 24)
    rules = certified_rules(shape, 2, row_steps=6)
    rows = RNG.standard_normal((1, 6, 16))
    rows = (rows - rows.mean(-1, keepdims=True)) / rows.std(-1, keepdims=True) * 0.999

    def program(session: Session, own: Mapping[str, Weight]) -> Share:
        known = session.holds(CLIENT)
        x = input_rows(session, rows if known else None, rows.shape)
        mask = input_mask(session, np.ones((1, 6)) if known else None, (1, 6))
        return classify(session, x, mask, shape, rules, own)

    held = encode_weights(shape, random_weights(shape, RNG))
    twin = program(TwinSession(), held)
    client, server = run_as_a_pair(program, held, public_weights(shape))
    assert client.values is not None
    assert server.values is not None
    assert twin.values is not None
    result = decode(client.values + server.values, client.fraction, client.width)
    assert np.abs(result - decode(twin.values, twin.fraction, twin.width)).max() < 2.0**-6


def test_randomness_for_another_program_is_refused() -> None:
    def work(channel: Channel, party: int) -> PairSource:
        return prepare_bundle(channel, party, [Mask((2,), 64, 0, 64)], threads=1)

    source, _, _ = both(work)
    with pytest.raises(ForeignRandomness):
        source.draw(Mask((3,), 64, 0, 64))
    assert "party=0" in repr(source)


def test_parties_with_different_programs_stop_before_anything_is_made() -> None:
    def work(channel: Channel, party: int) -> None:
        with pytest.raises(ProtocolMismatch, match="program"):
            prepare_bundle(channel, party, [Mask((2 + party,), 64, 0, 64)])
        assert channel.closed

    both(work)


def test_a_fused_plan_is_refused() -> None:
    def work(channel: Channel, party: int) -> None:
        with pytest.raises(RandomnessError, match="fused=False"):
            prepare_bundle(channel, party, [Mask((2,), 64, 12, 64)])

    both(work)


def test_a_server_without_the_weight_says_so() -> None:
    program: list[Correlation] = [ClientMask((1, 4), 56), WeightProduct(0, "w", 1, 4, 2, 56)]

    def work(channel: Channel, party: int) -> None:
        if party == SERVER:
            with pytest.raises(ForeignRandomness, match="weight w"):
                prepare_bundle(channel, party, program, {}, threads=1)
            channel.close()
        else:
            with pytest.raises(Exception, match="closed"):
                prepare_bundle(channel, party, program, threads=1)

    both(work)
