"""What a plan costs, summed by operation and by layer, and how long that takes on a network."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby

from comet_mpc.engine.parts import PROGRAM, in_all_blocks, names, path
from comet_mpc.engine.plan import Plan, PlannedRound
from comet_mpc.errors import ConfigurationError
from comet_mpc.net.channel import Traffic

_UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_FASTEST, _SLOWEST = 1e15, 3600.0


@dataclass(frozen=True)
class Network:
    """A link between the parties: bits per second each way, and the time there and back."""

    rate: float
    round_trip: float

    @staticmethod
    def parse(text: str) -> Network:
        """`200mbit/10ms`: rate each way and round-trip time."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)/(\d+(?:\.\d+)?)(ms|us|s)", text.strip().lower())
        if found is not None:
            unit = {"s": 1.0, "ms": 1e-3, "us": 1e-6}[found[4]]
            network = Network(float(found[1]) * _UNITS[found[2]], float(found[3]) * unit)
            if 0.0 < network.rate <= _FASTEST and network.round_trip <= _SLOWEST:
                return network
        raise ConfigurationError(f"a network is RATE/RTT, for example 200mbit/10ms or 1gbit/500us, not {text[:40]!r}")

    def __str__(self) -> str:
        """As `parse` reads it."""
        name, unit = next((name, unit) for name, unit in reversed(_UNITS.items()) if self.rate >= unit or unit == 1.0)
        return f"{self.rate / unit:g}{name}/{self.round_trip * 1e3:g}ms"

    def seconds(self, plan: Plan) -> float:
        """Every round takes half a round trip (both send at once) and the time of the longer message."""
        largest = sum(max(entry.from_client, entry.from_server) for entry in plan.schedule)
        return plan.rounds * self.round_trip / 2 + 8.0 * largest / self.rate

    def seconds_of(self, traffic: Traffic) -> float:
        """The same of what is sent in rounds that have about as much to send each way as all of them together."""
        return traffic.rounds * self.round_trip / 2 + 8.0 * max(traffic.sent, traffic.received) / self.rate


@dataclass(frozen=True)
class Cost:
    """Bytes are both parties' together."""

    name: str
    rounds: int
    online_bytes: int
    offline_bytes: int
    compute_seconds: float


def _grouped(plan: Plan, name_of: Callable[[str], str]) -> list[Cost]:
    rounds, online, offline = Counter[str](), Counter[str](), Counter[str]()
    compute = defaultdict[str, float](float)
    for entry in plan.schedule:
        name = name_of(entry.part)
        rounds[name] += 1
        online[name] += entry.from_client + entry.from_server
    for correlation, part in zip(plan.correlations, plan.parts, strict=True):
        name = name_of(part)
        offline[name] += correlation.correction_bytes + correlation.common_bytes
        compute[name] += correlation.facts.seconds
    found = dict.fromkeys([*online, *offline])
    return [Cost(name, rounds[name], online[name], offline[name], compute[name]) for name in found]


def by_operation(plan: Plan) -> list[Cost]:
    """One row per operation (linear, attention, …), all blocks together."""
    return _grouped(plan, lambda part: (in_all_blocks(names(part)) or [PROGRAM])[0])


def by_layer(plan: Plan) -> list[Cost]:
    return _grouped(plan, lambda part: names(part)[0])


@dataclass(frozen=True)
class Stretch:
    """Rounds that follow each other in one part of a program, such as a layer.

    alike: the names of the parts that have the same rounds, this one's first
    """

    alike: tuple[str, ...]
    rounds: tuple[PlannedRound, ...]


def stretches(plan: Plan) -> list[Stretch]:
    """All rounds, in order; blocks of a kind that have the same ones are put together."""
    found: dict[tuple[PlannedRound, ...], tuple[list[str], tuple[PlannedRound, ...]]] = {}
    for name, group in groupby(plan.schedule, lambda entry: names(entry.part)[0]):
        rounds = tuple(group)
        found.setdefault(tuple(map(_anywhere, rounds)), ([], rounds))[0].append(name)
    return [Stretch(tuple(alike), rounds) for alike, rounds in found.values()]


def _anywhere(entry: PlannedRound) -> PlannedRound:
    """A round without the names of its blocks."""
    requests = tuple(replace(each, part=path(in_all_blocks(names(each.part)))) for each in entry.requests)
    return replace(entry, part=path(in_all_blocks(names(entry.part))), requests=requests)


def compute_seconds(plan: Plan) -> float:
    """A party's online compute, an estimate."""
    return sum(correlation.facts.seconds for correlation in plan.correlations)


def party_memory(plan: Plan, weight_words: int) -> int:
    """A party's memory, an estimate: 8 bytes a masked weight at the client, and what the widest operation holds."""
    widest: dict[str, int] = {}
    for correlation, part in zip(plan.correlations, plan.parts, strict=True):
        widest[part] = widest.get(part, 0) + correlation.facts.party_words
    return 8 * (weight_words + 2 * max(widest.values(), default=0)) + (80 << 20)
