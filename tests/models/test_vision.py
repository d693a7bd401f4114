"""A whole vision Transformer: plan, twin, two parties and the plaintext model agree, for images of odd sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from comet_mpc.models.heads import Head
from comet_mpc.models.images.format import ImageFormat
from comet_mpc.models.public import PublicModel
from comet_mpc.models.queries import Query
from comet_mpc.models.served import ServedModel
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, PAIR
from support.toy_vision import make_vision_checkpoint, some_images
from support.two_parties import run_two_parties, together, twin_value

PARTIES, REAL, UNIT = 0.02, 0.02, 2.0**-8
"""Two parties against the twin; the twin against real arithmetic; the last digit of an answer."""


def _query(model: PublicModel, count: int) -> Query:
    (run,) = model.runs(some_images(count, model_size(model)[0], model_size(model)[1]), 8)
    return model.query(run.tokens, run.bucket)


def model_size(model: PublicModel) -> tuple[int, int]:
    assert model.image is not None
    return model.image.height, model.image.width


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "head", "image", "power"),
    [
        (DEALER, Head(), ImageFormat(height=8, width=12, patch=4), None),
        (PAIR, Head(kind="embedding", unit=True), ImageFormat(height=15, width=5, patch=5), None),
        (PAIR, Head(), ImageFormat(height=8, width=12, patch=4), 4),
        (DEALER, Head(), ImageFormat(height=8, width=12, patch=4), 8),
        (PAIR, Head(), ImageFormat(height=8, width=12, patch=4), 8),
    ],
)
def test_two_parties_the_twin_and_the_plaintext_model_agree(
    tmp_path: Path, source: Source, head: Head, image: ImageFormat, power: Literal[4, 8] | None
) -> None:
    """power: of fitted attention. The eighth divides by a table, of a sum that no padding mask has brought with it."""
    model = ServedModel.load(make_vision_checkpoint(tmp_path, head=head, image=image, power=power))
    client = PublicModel.unpack(model.package())
    query = _query(client, 2)
    program = client.program(query.batch, query.bucket, query)
    plain = model.plain_logits(query)
    twin = twin_value(program, model.weights())
    plan = client.plan(query.batch, query.bucket, source)
    run = run_two_parties(program, model.weights(), fused=source.abilities.fused, ways=plan.ways)
    assert np.abs(twin - plain).max() < REAL + UNIT / 2
    assert np.abs(together(run) - twin).max() < PARTIES + 2 * UNIT
    assert run.plan.correlations == model.plan(query.batch, query.bucket, source).correlations
