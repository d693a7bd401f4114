"""The last layer computes what its head reads, and no more: the same answers for fewer bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.share import Share
from comet_mpc.errors import ShapeError
from comet_mpc.models.heads import Head, Reads, input_averages
from comet_mpc.models.served import ServedModel
from comet_mpc.models.transformer import encoder_block, encoder_blocks, encoder_frame, input_mask, input_rows
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, PAIR
from support.toy_model import make_checkpoint, some_texts
from support.two_parties import Program, run_two_parties, twin_value

TEXTS = [*some_texts(1, words=4), *some_texts(1, words=12, seed=3)]


@pytest.fixture(scope="module", params=["bert", "mpnet"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return ServedModel.load(make_checkpoint(tmp_path_factory.mktemp("model"), architecture=request.param))


def last_layer(model: ServedModel, reads: Reads, *, weighed: bool = True) -> Program[Share]:
    """Its rows, from embeddings that stand for the rows before it."""
    query = model.encode(TEXTS)

    def run(session: Session, weights: Mapping[str, Weight]) -> Share:
        rows = input_rows(session, query.tokens_only, query.rows.shape)
        mask = input_mask(session, query.mask, query.mask.shape)
        averages = input_averages(session, query.mask, query.mask.shape) if weighed else None
        frame = encoder_frame(session, mask, model.rules, weights, averages)
        block, own = encoder_block(model.shape, model.shape.layers - 1, reads), model.rules.layers[-1]
        return block.run(frame, rows, own, model.rules.head.ring(model.shape.hidden))

    return run


def test_the_first_row_alone_is_that_of_all_rows(model: ServedModel) -> None:
    first, every = (twin_value(last_layer(model, reads), model.weights()) for reads in ("first", "all"))
    assert first.shape == (len(TEXTS), model.shape.hidden)
    assert np.array_equal(first, every[:, 0])


def test_a_mean_is_that_of_the_tokens_and_not_of_padding(model: ServedModel) -> None:
    kept = model.encode(TEXTS).mask == 1.0
    mean, every = (twin_value(last_layer(model, reads), model.weights()) for reads in ("mean", "all"))
    wanted = np.stack([rows[chosen].mean(axis=0) for rows, chosen in zip(every, kept, strict=True)])
    assert not kept.all()
    assert np.abs(mean - wanted).max() < 2.0**-12
    padded = every.mean(axis=1)
    assert np.abs(padded - wanted)[~kept.all(axis=1)].max() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("source", ["dealer", "pair"])
@pytest.mark.parametrize("reads", ["first", "mean"])
def test_two_parties_read_what_the_twin_reads(model: ServedModel, reads: Reads, source: str) -> None:
    """And the plan is what goes over the wire."""
    program = last_layer(model, reads)
    run = run_two_parties(program, model.weights(), source="pair" if source == "pair" else "dealer")
    assert np.abs(run.value - twin_value(program, model.weights())).max() < 0.015


def test_a_mean_needs_its_weights(model: ServedModel) -> None:
    with pytest.raises(ShapeError, match="needs its weights"):
        twin_value(last_layer(model, "mean", weighed=False), model.weights())


@pytest.mark.parametrize("source", [DEALER, PAIR])
def test_the_last_layer_costs_less_where_less_is_read(tmp_path: Path, source: Source) -> None:
    model = ServedModel.load(make_checkpoint(tmp_path, pooler="none", positions=64))
    bytes_of = {}
    for head in (Head(), Head(pooling="mean"), Head(kind="tokens")):
        read = replace(model, config=msgspec.structs.replace(model.config, head=head))
        assert [block.reads for block in encoder_blocks(read.shape)] == [None, head.reads]
        schedule = read.plan(1, 64, source).schedule
        parts = [[each for each in schedule if each.part.startswith(name)] for name in ("layer 0", "layer 1", "head")]
        bytes_of[head.reads] = [sum(each.from_client + each.from_server for each in own) for own in parts]
    first, mean, every = (bytes_of[reads] for reads in ("first", "mean", "all"))
    assert first[0] == mean[0] == every[0]
    assert 2 * first[1] < every[1]
    assert first[2] == mean[2]  # one row a text: a mean opens none of its tokens' rows there
    assert 2 * mean[2] < every[2]
