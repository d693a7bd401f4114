"""How many nodes of a cluster serve: more when requests wait on all that do, fewer when nobody is connected to one.

Nothing here does anything by itself: the fleet tells it what is so and when.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from comet_mpc.errors import ConfigurationError
from comet_mpc.service.hosting.lookout import Load


@dataclass
class Scale:
    least: int = 1
    most: int = 0
    """0: as many as there are nodes."""
    busy_seconds: float = 2.0
    """Requests must have waited everywhere for so long before there is another one: a slot may become free."""
    idle_seconds: float = 600.0
    """Without a client, after which a node serves no more. Its bundles stay on its disk."""
    _busy_since: float | None = None
    _idle_since: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.least < 1 or (self.most and self.most < self.least):
            raise ConfigurationError(
                f"expected 1 <= --min-nodes <= --max-nodes, got {self.least} and {self.most or 'all'}"
            )

    def more(self, loads: Collection[Load], starting: int, now: float) -> bool:
        """Whether another node is to serve, beside those with these loads and those that are starting."""
        serving = len(loads) + starting
        if serving < self.least:
            return True
        if starting or not all(load.waiting for load in loads):
            self._busy_since = None
            return False
        if self._busy_since is None:
            self._busy_since = now
        if now - self._busy_since < self.busy_seconds or (self.most and serving >= self.most):
            return False
        self._busy_since = None
        return True

    def fewer(self, loads: Mapping[str, Load], now: float) -> str | None:
        """The node that is to serve no more, if there is one; of several, the one with the fewest bundles."""
        idle = {name: load for name, load in loads.items() if not load.sessions and not load.waiting}
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        long = [name for name, since in self._idle_since.items() if now - since >= self.idle_seconds]
        if not long or len(loads) <= self.least:
            return None
        return min(long, key=lambda name: (idle[name].bundles, name))
