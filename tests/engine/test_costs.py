"""Costs are sums of the plan, and the published shapes stay within their budgets."""

from __future__ import annotations

import pytest

from comet_mpc.engine.costs import Network, by_layer, by_operation, compute_seconds, party_memory, stretches
from comet_mpc.engine.plan import Plan, decode_plan, encode_plan
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.planning import plan_shape
from comet_mpc.models.transformer import SHAPES
from comet_mpc.net.channel import FRAME_HEADER
from comet_mpc.offline.sources import DEALER, PAIR


@pytest.fixture(scope="module")
def bert() -> Plan:
    return plan_shape(SHAPES["bert-base"], 128, 3, 1, "minimax", DEALER)


def test_groups_add_up_to_the_plan(bert: Plan) -> None:
    for costs in (by_operation(bert), by_layer(bert)):
        assert sum(cost.online_bytes for cost in costs) == bert.online_bytes
        assert sum(cost.offline_bytes for cost in costs) == bert.correction_bytes
        assert sum(cost.rounds for cost in costs) == bert.rounds
        assert sum(cost.compute_seconds for cost in costs) == pytest.approx(compute_seconds(bert))


def test_operations_and_layers_have_names(bert: Plan) -> None:
    assert {cost.name for cost in by_operation(bert)} == {"linear", "attention", "layer_norm", "activation", "head"}
    assert [cost.name for cost in by_layer(bert)] == [*(f"layer {i}" for i in range(12)), "head"]


def test_every_round_says_what_it_sends_to_the_byte(bert: Plan) -> None:
    for entry in bert.schedule:
        assert entry.requests
        for party, sent in enumerate((entry.from_client, entry.from_server)):
            payload = sum((each.from_client, each.from_server)[party] for each in entry.requests)
            assert sent == (payload + FRAME_HEADER if payload else 0)
    assert decode_plan(encode_plan(bert)) == bert


def test_alike_layers_are_listed_once_and_no_round_is_left_out(bert: Plan) -> None:
    listed = stretches(bert)
    assert [stretch.alike[0] for stretch in listed] == ["layer 0", "layer 11", "head"]
    assert sum(len(stretch.alike) * len(stretch.rounds) for stretch in listed) == bert.rounds
    assert listed[0].rounds == bert.schedule[: len(listed[0].rounds)]


def test_a_request_that_rides_along_says_what_it_is_for() -> None:
    plan = plan_shape(SHAPES["minilm"], 16, 3, 1, "quadratic", PAIR)
    scores = next(entry for entry in plan.schedule if entry.part == "layer 0/attention/scores")
    assert {each.part for each in scores.requests} >= {"layer 0/attention/scores", "layer 0/attention"}
    assert all(each.part.startswith(entry.part.split("/")[0]) for entry in plan.schedule for each in entry.requests)


def test_bert_base_at_128_tokens_stays_within_its_budget(bert: Plan) -> None:
    assert bert.online_bytes <= 0.53e9
    assert bert.correction_bytes <= 1.1e9
    assert bert.rounds <= 700


@pytest.mark.parametrize(
    ("text", "rate", "round_trip"),
    [("200mbit/10ms", 2e8, 0.01), ("1gbit/500us", 1e9, 5e-4), ("9.6kbit/1s", 9600.0, 1.0)],
)
def test_a_network_is_read(text: str, rate: float, round_trip: float) -> None:
    network = Network.parse(text)
    assert network.rate == pytest.approx(rate)
    assert network.round_trip == pytest.approx(round_trip)


@pytest.mark.parametrize("text", ["", "fast", "200/10", "200mbit", "0mbit/1ms", "-1mbit/1ms"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="RATE/RTT"):
        Network.parse(text)


def test_time_on_a_network_is_bytes_over_rate_and_rounds_of_delay(bert: Plan) -> None:
    slow, far = Network(1e6, 0.0), Network(1e15, 1.0)
    larger = sum(max(entry.from_client, entry.from_server) for entry in bert.schedule)
    assert slow.seconds(bert) == pytest.approx(8 * larger / 1e6)
    assert far.seconds(bert) == pytest.approx(bert.rounds / 2, rel=1e-3)


def test_memory_grows_with_weights_and_tokens(bert: Plan) -> None:
    long = plan_shape(SHAPES["bert-base"], 256, 3, 1, "minimax", DEALER)
    assert party_memory(bert, 0) < party_memory(long, 0)
    assert party_memory(bert, 10**8) - party_memory(bert, 0) == 8 * 10**8
