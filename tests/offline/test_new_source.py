"""A new source of randomness is its package and one line: it is planned, prepared, stored, asked for and named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from comet_mpc.engine.plan import Plan
from comet_mpc.errors import ProtocolMismatch
from comet_mpc.local.service import local_service
from comet_mpc.models.planning import plan_shape
from comet_mpc.models.served import ServedModel
from comet_mpc.models.transformer import SHAPES
from comet_mpc.offline.sources import PAIR, SOURCES, PairSource, find_source
from comet_mpc.service.client import Client
from support.toy_model import TINY, make_checkpoint

SEALED = 3
"""Bytes that this source sends beside what `pair` sends."""


class SealedSource(PairSource):
    """As `pair`, by another name, with a seal of three bytes that only its price knows."""

    name, number = "sealed", 9
    promise = "There is a seal."

    def offline_bytes(self, plan: Plan, count: int = 1) -> int:
        return super().offline_bytes(plan, count) + SEALED


@pytest.fixture
def registered() -> Iterator[SealedSource]:
    SOURCES["sealed"] = source = SealedSource()
    yield source
    del SOURCES["sealed"]


def test_a_new_source_is_planned(registered: SealedSource) -> None:
    assert find_source("sealed") is registered
    plan = plan_shape(SHAPES["minilm"], tokens=8, steps=3, batch=1, rule="quadratic", source=registered)
    assert registered.offline_bytes(plan) == PAIR.offline_bytes(plan) + SEALED


@pytest.mark.service
def test_a_new_source_serves_a_client(registered: SealedSource, tmp_path: Path) -> None:
    model = ServedModel.load(make_checkpoint(tmp_path / "model", **TINY))
    with local_service(model, registered) as (address, keys, cache):
        with Client(address, keys=keys, cache=cache, source="sealed", ready=0) as client:
            (answer,) = client.classify(["good film"])
            assert (client.source, answer.cost.source) == ("sealed", "sealed")
        with pytest.raises(ProtocolMismatch), Client(address, keys=keys, cache=tmp_path, source="pair") as other:
            other.connect()
