"""Which ways a program goes: those in which preparation and run together take the least time on a network.

Programs come by forks, where two ways give the same values for other bytes and rounds (`Session.goes`). Here, and
nowhere else, they are compared: by planning both, at what a round and a byte cost on the network that was chosen. All
of it is public and exact, so client, server and dealer find the same ways on their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from comet_mpc.engine import Session
from comet_mpc.engine.costs import Network
from comet_mpc.engine.plan import Plan, plan_program
from comet_mpc.engine.session import USUAL_WAYS
from comet_mpc.offline.source import Source

USUAL_NETWORK = Network.parse("1gbit/25ms")
"""Unless somebody names another: a round is worth 1.6 MB each way."""

Program = Callable[[Session], object]


class Sample(NamedTuple):
    """A part of a program that stands for all of it, so many times. Forks that it does not come by stay as usual."""

    program: Program
    times: int


def offline_seconds(plan: Plan, source: Source, network: Network, times: int = 1) -> float:
    """Of preparing a plan, so many times together, without the computing."""
    return network.seconds_of(source.offline_traffic(plan.correlations, times))


def cheapest_plan(
    program: Program,
    source: Source,
    network: Network = USUAL_NETWORK,
    *,
    sample: Sample | None = None,
) -> Plan:
    """Plans a program by the ways that take the least time: at every fork the cheaper one, the others being as chosen.

    sample: what is compared instead of the program itself, which takes so much longer to plan
    """
    tried, times = sample or Sample(program, 1)

    def planned(whole: Program, ways: frozenset[str]) -> Plan:
        return plan_program(whole, abilities=source.abilities, ways=ways)

    def seconds(plan: Plan) -> float:
        return times * network.seconds(plan) + offline_seconds(plan, source, network, times)

    best = planned(tried, USUAL_WAYS)
    least = seconds(best)
    for fork in best.forks:
        other = planned(tried, best.ways ^ {fork})
        if (cost := seconds(other)) < least:
            best, least = other, cost
    return planned(program, best.ways)
