"""How many nodes serve, by what is so on each."""

from __future__ import annotations

import pytest

from comet_mpc.cluster.scaling import Scale
from comet_mpc.errors import ConfigurationError
from comet_mpc.service.hosting.lookout import Load

BUSY, CALM, ALONE = Load(waiting=2, working=2, sessions=5), Load(working=1, sessions=1), Load()


def test_there_are_never_fewer_than_the_least() -> None:
    scale = Scale(2)
    assert scale.more([], 0, 0.0)
    assert scale.more([CALM], 0, 0.0)
    assert not scale.more([CALM], 1, 0.0), "one is starting"
    assert not scale.more([CALM, CALM], 0, 0.0)
    assert scale.fewer({"a": ALONE, "b": ALONE}, 0.0) is None
    assert scale.fewer({"a": ALONE, "b": ALONE}, 1e6) is None


def test_another_node_serves_when_requests_wait_on_all_of_them_for_a_while() -> None:
    scale = Scale(1, busy_seconds=2.0)
    assert not scale.more([BUSY, CALM], 0, 0.0), "one has a free place"
    assert not scale.more([BUSY, BUSY], 0, 1.0)
    assert not scale.more([BUSY, CALM], 0, 2.5), "a place came free meanwhile"
    assert not scale.more([BUSY, BUSY], 0, 3.0)
    assert scale.more([BUSY, BUSY], 0, 5.0)
    assert not scale.more([BUSY, BUSY], 1, 5.5), "it is starting"


def test_there_are_never_more_than_the_most() -> None:
    scale = Scale(1, 2, busy_seconds=0.0)
    assert scale.more([BUSY], 0, 0.0)
    assert not scale.more([BUSY, BUSY], 0, 100.0)


def test_a_node_without_clients_for_long_serves_no_more() -> None:
    scale = Scale(1, idle_seconds=60.0)
    nodes = {"a": ALONE, "b": CALM, "c": Load(bundles=3)}
    assert scale.fewer(nodes, 0.0) is None
    assert scale.fewer({**nodes, "a": CALM}, 30.0) is None
    assert scale.fewer(nodes, 60.0) == "c", "a had a client since"
    assert scale.fewer(nodes, 120.0) == "a", "it has the fewest bundles"


@pytest.mark.parametrize(("least", "most"), [(0, 0), (3, 2), (-1, 4)])
def test_impossible_numbers_are_refused(least: int, most: int) -> None:
    with pytest.raises(ConfigurationError, match="1 <= --min-nodes <= --max-nodes"):
        Scale(least, most)
