"""Two parties alone prepare every correlation, at the predicted cost, and run programs on them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.correlations import (
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
from comet_mpc.engine.kernels import unpack_words
from comet_mpc.engine.share import CLIENT, SERVER, Share, Words
from comet_mpc.errors import (
    ForeignRandomness,
    PeerClosed,
    ProtocolMismatch,
    RandomnessError,
    RandomnessExhausted,
    RangeError,
)
from comet_mpc.functions.activation import smu, smu_rule
from comet_mpc.functions.rule import Smu
from comet_mpc.models.planning import plan_shape
from comet_mpc.models.transformer import (
    SHAPES,
    EncoderShape,
    certified_rules,
    encode_weights,
    forward,
    input_mask,
    input_rows,
    public_weights,
)
from comet_mpc.net.channel import Channel, Traffic, memory_pair
from comet_mpc.offline.pair.costs import preparation_parts, preparation_traffic
from comet_mpc.offline.pair.prepare import Preparer, prepare_bundle
from comet_mpc.offline.pair.shares import PairRandomness
from comet_mpc.offline.pair.workbench import WEIGHT_BITS
from comet_mpc.offline.sources import PAIR
from comet_research.bench.models import random_weights
from comet_research.look_up import TableTransfers
from comet_research.look_up.tables import pick
from support.latency import stamped_pair
from support.two_parties import as_parties, equal, run_two_parties, together, twin_value
from support.waiting import PATIENCE

RNG = np.random.default_rng(11)


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
        TableTransfers(11, 16, (1, 3)),
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

    ends = memory_pair()
    client, server = as_parties(work, ends)
    assert ends[CLIENT].traffic == preparation_traffic(program)
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
                assert equal(mine[1] + theirs[1], (bits[0] & bits[1]).astype(np.uint64), width)
            case Monomials(masks=names, shape=shape, terms=terms):
                for place, term in enumerate(terms):
                    expected = np.ones(shape, np.uint64)
                    for name, power in zip(names, term.powers, strict=True):
                        expected = expected * masks[name] ** np.uint64(power)
                    assert equal(mine[place] + theirs[place], expected.reshape(-1), term.width)
            case TableTransfers(count=count, entries=entries, sizes=sizes):
                places, own, pads = theirs[0], mine[: len(sizes)], mine[len(sizes) :]
                assert places.max() < entries
                for column, size in enumerate(sizes):
                    known = pick(pads[column].view(np.uint8), places, size)
                    assert equal(known - own[column], theirs[1 + column], 8 * size)
                    assert len(np.unique(unpack_words(pads[column].view(np.uint8), size, count * entries))) > entries
            case SquareSums(mask=mask, rows=rows, width=width):
                rectangle = masks[mask].reshape(rows, -1)
                assert equal(mine[0] + theirs[0], (rectangle * rectangle).sum(axis=1, dtype=np.uint64), width)
            case MatrixProduct(left=left, right=right, transposed=transposed, width=width):
                factor = masks[right].transpose(0, 2, 1) if transposed else masks[right]
                assert equal(mine[0] + theirs[0], (masks[left] @ factor).reshape(-1), width)
            case WeightProduct(mask=mask, weight=name, outputs=outputs, width=width):
                values = held[name].values
                assert values is not None
                expected = masks[mask] @ values.T.astype(np.int64).view(np.uint64)
                assert equal(mine[0].reshape(-1, outputs) + theirs[0].reshape(outputs, -1).T, expected, width)
            case WeightScale(mask=mask, weight=name, width=width):
                values = held[name].values
                assert values is not None
                expected = masks[mask] * values.astype(np.int64).view(np.uint64)
                assert equal(mine[0] + theirs[0], expected.reshape(-1), width)


@pytest.mark.parametrize("count", [1, 3])
def test_a_preparation_takes_the_planned_latencies(count: int) -> None:
    """On channels that stamp their frames, and know nothing of a plan. Its keys are there already."""
    ends, program, held = stamped_pair(PATIENCE), correlations(), weights()

    def work(channel: Channel, party: int) -> Traffic:
        preparer = Preparer(channel, party, program, held if party == SERVER else None, threads=1)
        preparer.set_up()
        channel.exchange([b"."], 1)
        ends[party].now, before = 0, channel.traffic
        preparer.prepare(count)
        return channel.traffic - before

    client, server = as_parties(work, ends)
    planned = preparation_traffic(program, first=False, count=count)
    assert client == planned
    assert server == Traffic(planned.received, planned.sent, planned.rounds)
    assert max(end.now for end in ends) == planned.rounds


@pytest.mark.parametrize("count", [1, 2])
def test_scales_that_ride_on_a_product_are_planned_once_beside_sums_of_squares(count: int) -> None:
    riding = [ClientMask((128, 768), 56), WeightProduct(0, "w", 128, 768, 768, 56), WeightScale(0, "v", 128, 768, 56)]
    squares = [Mask((8, 6), 40, 0, 40), SquareSums(3, 8, 6, 40)]
    parts = preparation_parts([*riding, *squares], count)
    assert "sums of squares" in parts
    assert "scales" not in parts
    assert "scales" in preparation_parts([riding[0], riding[2]], count)  # alone it is a part of its own


def test_an_activation_runs_without_a_dealer_and_equals_its_twin() -> None:
    values, form = RNG.uniform(-1, 1, (4, 50)), Smu(1 / 16)
    rule = smu_rule(form, 1.0, 2)

    def program(session: Session, _: Mapping[str, Weight]) -> Share:
        x = session.private(CLIENT, values.shape, 16, 1.0, values if session.holds(CLIENT) else None)
        return smu(session, x, form, rule)

    result = together(run_two_parties(program, source="pair"))
    assert np.abs(result - twin_value(program)).max() < 2.0**-8


def test_a_classifier_runs_without_a_dealer_and_equals_its_twin() -> None:
    shape = EncoderShape(1, 16, 2, 24)
    rules = certified_rules(shape, 2, row_steps=6)
    rng = np.random.default_rng(1)
    held = encode_weights(shape, random_weights(shape, rng))
    assert all(str(held[name].public()) == str(weight) for name, weight in public_weights(shape).items())
    rows = rng.standard_normal((1, 6, 16))
    rows = (rows - rows.mean(-1, keepdims=True)) / rows.std(-1, keepdims=True) * 0.999

    def program(session: Session, own: Mapping[str, Weight]) -> Share:
        known = session.holds(CLIENT)
        x = input_rows(session, rows if known else None, rows.shape)
        mask = input_mask(session, np.ones((1, 6)) if known else None, (1, 6))
        return forward(session, x, mask, shape, rules, own)

    result = together(run_two_parties(program, held, source="pair"))
    assert np.abs(result - twin_value(program, held)).max() <= 3 * 2.0**-8  # rounded at random, and the twin too


def test_randomness_for_another_program_is_refused() -> None:
    def work(channel: Channel, party: int) -> PairRandomness:
        return prepare_bundle(channel, party, [Mask((2,), 64, 0, 64)], threads=1)

    source, _ = as_parties(work)
    with pytest.raises(ForeignRandomness):
        source.draw(Mask((3,), 64, 0, 64))
    assert "party=0" in repr(source)


def test_parties_with_different_programs_stop_before_anything_is_made() -> None:
    def work(channel: Channel, party: int) -> None:
        with pytest.raises(ProtocolMismatch, match="program"):
            prepare_bundle(channel, party, [Mask((2 + party,), 64, 0, 64)])
        assert channel.closed

    as_parties(work)


def test_a_fused_plan_is_refused() -> None:
    def work(channel: Channel, party: int) -> None:
        with pytest.raises(RandomnessError, match="abilities"):
            prepare_bundle(channel, party, [Mask((2,), 64, 12, 64)])

    as_parties(work)


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

    as_parties(work)


def test_a_weight_above_the_public_bound_is_one_error_wherever_it_occurs() -> None:
    large = 2 ** (WEIGHT_BITS - 1) + 1
    cases: list[tuple[tuple[int, ...], Correlation]] = [
        ((4,), WeightScale(0, "w", 2, 4, 56)),
        ((3, 4), WeightProduct(0, "w", 2, 4, 3, 56)),
    ]
    for shape, correlation in cases:
        program: list[Correlation] = [ClientMask((2, 4), 56), correlation]
        held = {"w": Weight("w", shape, 14, 1.0, values=np.full(shape, -large, np.int32))}

        def work(
            channel: Channel,
            party: int,
            program: list[Correlation] = program,
            held: Mapping[str, Weight] = held,
        ) -> None:
            error, message = (RangeError, "public bound") if party == SERVER else (PeerClosed, None)
            with pytest.raises(error, match=message):
                prepare_bundle(channel, party, program, held if party == SERVER else None, threads=1)
            channel.close()

        as_parties(work)


@pytest.mark.slow
def test_two_texts_of_128_tokens_through_bert_base_take_as_much_as_two_of_one() -> None:
    """2^28.6 outputs: no key has a limit on them."""
    one, two = (
        preparation_traffic(plan_shape(SHAPES["bert-base"], 128, 3, batch, "minimax", PAIR).correlations, first=False)
        for batch in (1, 2)
    )
    assert two.sent + two.received == pytest.approx(2 * (one.sent + one.received), rel=0.02)
