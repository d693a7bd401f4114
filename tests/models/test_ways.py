"""A program goes the ways that cost the least on a network: everybody the same ones, and to the same values."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from comet_mpc.engine import Session
from comet_mpc.engine.costs import Network
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.engine.session import IN_ONE_ROUND, USUAL_WAYS, Ways
from comet_mpc.engine.share import Share
from comet_mpc.errors import ConfigurationError
from comet_mpc.functions.row_table import WAY as ROWS_FROM_TABLES
from comet_mpc.local.demo import demo_model
from comet_mpc.models.checkpoint import FITTED
from comet_mpc.models.planning import plan_shape
from comet_mpc.models.public import PublicModel
from comet_mpc.models.queries import Query
from comet_mpc.models.served import ServedModel
from comet_mpc.models.transformer import (
    SHAPES,
    certified_rules,
    forward,
    input_mask,
    input_rows,
    public_weights,
)
from comet_mpc.offline.cheapest import USUAL_NETWORK, offline_seconds
from comet_mpc.offline.source import Source
from comet_mpc.offline.sources import DEALER, PAIR
from support.two_parties import run_two_parties, together, twin_value

SLOW, FAR = Network.parse("50mbit/1ms"), Network.parse("10gbit/200ms")
NETWORKS = [SLOW, *(Network.parse(text) for text in ("1gbit/1ms", "200mbit/10ms", "100mbit/100ms")), FAR]

FIXED: dict[Source, Ways] = {
    DEALER: frozenset(f"{part}: {IN_ONE_ROUND}" for part in ("activation", "attention/activation")),
    PAIR: frozenset(
        f"{part}: {IN_ONE_ROUND}"
        for part in ("attention/division", "attention/division/inverse_sqrt", "layer_norm/inverse_sqrt")
    ),
}
"""What programs did whatever the network, before they went by its price: small tensors in one round."""


@pytest.fixture(scope="module")
def model() -> ServedModel:
    return demo_model()


@pytest.fixture(scope="module")
def query(model: ServedModel) -> Query:
    return model.encode(["a warm, funny and engaging film"])


@cache
def bert(source: Source, network: Network | None = None) -> Plan:
    return plan_shape(SHAPES["bert-base"], 128, 3, 1, "quadratic", source, network)


def seconds(plan: Plan, source: Source, network: Network) -> float:
    return network.seconds(plan) + offline_seconds(plan, source, network)


@pytest.mark.slow
@pytest.mark.parametrize("source", [DEALER, PAIR], ids=str)
@pytest.mark.parametrize("network", [SLOW, USUAL_NETWORK, FAR], ids=str)
def test_the_wire_is_as_planned_and_the_twin_agrees(
    model: ServedModel, query: Query, source: Source, network: Network
) -> None:
    client = PublicModel.unpack(model.package(), network=network)
    plan = client.plan(1, query.bucket, source)
    program = client.program(1, query.bucket, query)
    run = run_two_parties(  # it compares bytes and rounds
        program, model.weights(), source="dealer" if source is DEALER else "pair", ways=plan.ways
    )
    assert run.plan.correlations == plan.correlations
    twin = twin_value(program, model.weights(), fused=source.abilities.fused, ways=plan.ways)
    assert np.abs(together(run) - twin).max() < 0.02 + 2 * 2.0**-8


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
def test_every_fork_alone_is_as_planned_and_leaves_the_value_as_it_is(
    model: ServedModel, query: Query, fused: bool
) -> None:
    """Rows from tables or from steps have errors of their own: there, at most a unit of the answer."""
    program = model.program(1, query.bucket, query)
    usual = twin_value(program, model.weights(), fused=fused)
    forks = run_two_parties(program, model.weights(), fused=fused).plan.forks
    assert len(forks) >= 6
    for fork in forks:
        ways = frozenset({fork})
        run = run_two_parties(program, model.weights(), fused=fused, ways=ways)
        off = np.abs(twin_value(program, model.weights(), fused=fused, ways=ways) - usual).max()
        assert off <= (2.0**-8 if ROWS_FROM_TABLES in fork else 0.0), fork
        assert np.abs(together(run) - usual).max() < 0.02 + 2 * 2.0**-8, fork


@pytest.mark.slow
@pytest.mark.parametrize("source", [DEALER, PAIR], ids=str)
def test_client_and_server_find_the_same_program_and_another_on_another_network(
    model: ServedModel, source: Source
) -> None:
    digests = set()
    for network in (SLOW, FAR):
        server = replace(model, network=network)
        client = PublicModel.unpack(server.package(), network=Network.parse(str(network)))
        assert client.fingerprint == model.fingerprint  # a network is no part of the model
        assert client.plan(1, 16, source) == server.plan(1, 16, source)
        digests.add(client.plan(1, 16, source).digest)
    assert len(digests) == 2


@pytest.mark.parametrize("network", ["fast", "0mbit/1ms", "1gbit/-1ms", "1" + "0" * 30 + "gbit/1ms", "1gbit/9999s"])
def test_a_network_that_cannot_be_is_refused(network: str) -> None:
    with pytest.raises(ConfigurationError, match="a network is RATE/RTT"):
        Network.parse(network)


def test_a_network_is_written_as_it_is_read() -> None:
    for text in ("50mbit/1ms", "1gbit/0.5ms", "9.6kbit/1000ms", "7bit/3ms", "2.5gbit/0ms"):
        assert str(Network.parse(text)) == text


@pytest.mark.slow
def test_unless_a_network_is_named_bert_base_keeps_its_budgets() -> None:
    dealt, paired = bert(DEALER), bert(PAIR)
    assert dealt.rounds <= 403
    assert paired.rounds <= 439
    assert dealt.online_bytes <= 293e6
    assert DEALER.offline_bytes(dealt) <= 312e6
    assert PAIR.offline_bytes(paired) <= 945e6


@pytest.mark.slow
def test_so_does_bert_base_with_fitted_functions() -> None:
    dealt, paired = (plan_shape(SHAPES["bert-base"], 128, 0, 1, FITTED, source) for source in (DEALER, PAIR))
    assert dealt.rounds <= 350
    assert paired.rounds <= 430
    assert max(dealt.online_bytes, paired.online_bytes) <= 246e6
    assert DEALER.offline_bytes(dealt) <= 280e6
    assert PAIR.offline_bytes(paired) <= 755e6


@pytest.mark.slow
@pytest.mark.parametrize("source", [DEALER, PAIR], ids=str)
def test_a_slow_network_gets_fewer_bytes_and_a_far_one_fewer_rounds(source: Source) -> None:
    slow, usual, far = (bert(source, network) for network in (SLOW, USUAL_NETWORK, FAR))
    assert slow.rounds >= usual.rounds > far.rounds
    assert source.offline_bytes(slow) <= source.offline_bytes(usual) < source.offline_bytes(far)
    assert usual.ways != far.ways
    if source is DEALER:  # two parties alone take the same ways on all but far networks
        assert usual.ways not in (USUAL_WAYS, slow.ways)


@pytest.mark.slow
@pytest.mark.parametrize("source", [DEALER, PAIR], ids=str)
def test_no_network_takes_longer_than_with_fixed_ways_and_some_take_less(source: Source) -> None:
    shape, size = SHAPES["bert-base"], (1, 128, 768)
    rules, weights = certified_rules(shape, 3, rule="quadratic"), public_weights(shape)

    def program(session: Session) -> Share:
        rows, mask = input_rows(session, None, size), input_mask(session, None, size[:2])
        return forward(session, rows, mask, shape, rules, weights)

    fixed = plan_program(program, abilities=source.abilities, ways=FIXED[source])
    gains = [seconds(fixed, source, network) / seconds(bert(source, network), source, network) for network in NETWORKS]
    assert min(gains) >= 0.99  # ways are found from one layer that stands for all: a tie may go to the other side
    assert max(gains) > 1.03
