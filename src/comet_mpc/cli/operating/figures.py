"""What a page of metrics says, and what has happened between two looks at it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import msgspec

from comet_mpc.net.metrics import Labels, parse

_WINDOW = 60.0
"""Seconds: what is told of the last minute needs so many of looks."""


class Latency(msgspec.Struct, frozen=True):
    """How long a phase took: estimates within the bounds of a histogram; None if nothing was counted."""

    count: int
    median: float | None
    p95: float | None


class Look:
    """A page as it was at a time. `at`: seconds on any clock."""

    def __init__(self, text: str, at: float) -> None:
        self.at = at
        self._samples = parse(text)

    def value(self, name: str, **labels: str) -> float:
        """Of a metric, summed over what the labels leave open; 0 if there is none."""
        return sum(value for own, value in self.samples(name) if labels.items() <= own.items())

    def has(self, name: str) -> bool:
        return bool(self.samples(name))

    def samples(self, name: str) -> list[tuple[Labels, float]]:
        return self._samples.get(f"comet_{name}", [])

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by the values of a label."""
        found: dict[str, float] = {}
        for labels, value in self.samples(name):
            key = labels.get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found

    @property
    def phases(self) -> list[str]:
        return list(self.by("phase_seconds_count", "phase"))

    def buckets(self, phase: str) -> dict[float, float]:
        """Counts up to every bound."""
        found = self.samples("phase_seconds_bucket")
        return {float(own["le"].replace("+Inf", "inf")): value for own, value in found if own.get("phase") == phase}


class Watch:
    """Looks, of which those of the last minute are remembered."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()

    def add(self, look: Look) -> None:
        if self._looks and look.value("start_timestamp_seconds") != self.last.value("start_timestamp_seconds"):
            self._looks.clear()  # it was started again: its counters begin at 0
        self._looks.append(look)
        while len(self._looks) > 2 and look.at - self._looks[1].at >= _WINDOW:
            self._looks.popleft()

    @property
    def last(self) -> Look:
        return self._looks[-1]

    @property
    def seconds(self) -> float:
        """From the first look that is remembered to the last; 0 with a single one."""
        return self.last.at - self._looks[0].at

    def per_minute(self, name: str, **labels: str) -> float | None:
        if not self.seconds:
            return None
        grown = self.last.value(name, **labels) - self._looks[0].value(name, **labels)
        return 60.0 * grown / self.seconds

    def latency(self, phase: str) -> Latency:
        """Of what ended between the first look and the last; with a single look, since the server started."""
        counts = self.last.buckets(phase)
        if self.seconds:
            before = self._looks[0].buckets(phase)
            counts = {bound: count - before.get(bound, 0.0) for bound, count in counts.items()}
        total = int(max(counts.values(), default=0.0))
        return Latency(total, quantile(counts, 0.5), quantile(counts, 0.95))


def quantile(counts: Mapping[float, float], part: float) -> float | None:
    """As Prometheus' histogram_quantile: values are spread evenly within a bucket."""
    rank, bottom, below = part * max(counts.values(), default=0.0), 0.0, 0.0
    if not rank:
        return None
    for bound, count in sorted(counts.items()):
        if count >= rank:
            return bottom if math.isinf(bound) else bottom + (bound - bottom) * (rank - below) / (count - below)
        bottom, below = bound, count
    return None
