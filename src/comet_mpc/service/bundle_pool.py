"""The client's randomness for queries to come: prepared in the background, so that a query waits for nothing else.

For each program (batch, bucket) that was used, up to `ready` bundles are kept in the store on disk, and the next one
also open: with a dealer, the products with the masked weights are most of the client's work. A bundle is
consumed from the store before its seed is expanded; one that is lost with the process is lost for good.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from comet_mpc.engine.party import Source
from comet_mpc.engine.plan import Plan
from comet_mpc.errors import CometError, PeerTimeout, RandomnessError, RandomnessSpent
from comet_mpc.offline.dealer.bundles import Bundle, DealtSource
from comet_mpc.service.model_cache import SetUp

__all__ = ["Portion", "Reserve"]

Key = tuple[int, int]

_MOST_LOST = 8
_MOST_WARM = 2  # portions in memory, of all programs together: each may be a hundred megabytes


@dataclass(frozen=True, eq=False)
class Portion:
    """One bundle, consumed and ready to be used, once."""

    bundle_id: str
    plan: Plan
    bundle: Bundle = field(repr=False)
    source: Source = field(repr=False)
    seconds: float
    """What it took to fetch (if this process did) and to make ready."""


class Reserve:
    """fetch(batch, bucket, plan) has a new bundle prepared and returns its id once the store has it.

    rest() is called whenever nothing more is to be prepared for now.
    """

    def __init__(
        self,
        set_up: SetUp,
        ready: int,
        fetch: Callable[[int, int, Plan], str],
        rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._set_up = set_up
        self._ready = ready
        self._fetch, self._rest = fetch, rest
        self._changed = threading.Condition()
        self._warm: dict[Key, deque[Portion]] = {}
        self._spent: dict[str, float] = {}
        self._wanted: deque[Key] = deque()
        self._working: Key | None = None
        self._failure: CometError | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def take(self, batch: int, bucket: int, timeout: float) -> Portion:
        """A portion for one run: at once if there is one, else as soon as it has been prepared."""
        key = batch, bucket
        until = time.monotonic() + timeout
        with self._changed:
            while True:
                if warm := self._warm.get(key):
                    return warm.popleft()
                if self._working != key or self._stored(key):
                    break
                if not self._changed.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    raise PeerTimeout(f"no randomness within {timeout:g} s")
        return self._make(key)

    def replenish(self, batch: int, bucket: int) -> None:
        """Asks for this program's portions to be brought up to the number wanted, in the background."""
        with self._changed:
            if self._ready <= 0 or self._closed or (batch, bucket) in self._wanted:
                return
            self._wanted.append((batch, bucket))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="reserve", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def warm(self, batch: int, bucket: int) -> None:
        """Makes one portion ready in memory, unless there is one, or no room, or nothing to compute for it."""
        if self._set_up.source == "pair":
            return
        key = batch, bucket
        with self._changed:
            if self._warm.get(key) or sum(map(len, self._warm.values())) >= _MOST_WARM:
                return
        portion = self._make(key)
        with self._changed:
            self._warm.setdefault(key, deque()).append(portion)
            self._changed.notify_all()

    def count(self, batch: int, bucket: int) -> int:
        """Portions that are ready, in memory or on disk."""
        with self._changed:
            warm = len(self._warm.get((batch, bucket), ()))
        return warm + len(self._stored((batch, bucket)))

    @property
    def failure(self) -> CometError | None:
        """Why the last preparation in the background failed, if it did."""
        return self._failure

    def settle(self, timeout: float) -> bool:
        """Waits until nothing is being prepared; False if that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._wanted and self._working is None, timeout)

    def close(self) -> None:
        """Stops preparing; what is in the store stays there for the next time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _stored(self, key: Key) -> tuple[str, ...]:
        return self._set_up.store.list(self._set_up.programs.plan(*key).digest)

    def _make(self, key: Key) -> Portion:
        start = time.monotonic()
        plan = self._set_up.programs.plan(*key)
        for last in range(_MOST_LOST, -1, -1):
            for bundle_id in self._stored(key):
                with contextlib.suppress(RandomnessError):  # another process was quicker, or the file is damaged
                    return self._open(bundle_id, plan, start)
            bundle_id = self._fetch(*key, plan)
            try:
                return self._open(bundle_id, plan, start)
            except RandomnessSpent:  # others with the same cache may take what this one has fetched
                if not last:
                    raise
        raise AssertionError("unreachable")

    def _open(self, bundle_id: str, plan: Plan, start: float) -> Portion:
        bundle = self._set_up.store.take(bundle_id, plan.digest, plan.correlations)
        source = self._set_up.store.draw_from(bundle, self._set_up.weights)
        if isinstance(source, DealtSource):
            source.prepare()
        seconds = time.monotonic() - start
        return Portion(bundle_id, plan, bundle, source, seconds + self._spent.pop(bundle_id, 0.0))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._working = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                self._working = key = self._wanted[0]
            try:
                self._fill(key)
                self._failure = None
            except CometError as error:  # the next query will meet it in the foreground, if it is still there
                self._failure = error
            self._rest()
            with self._changed:
                self._wanted.popleft()

    def _fill(self, key: Key) -> None:
        """One portion in memory first, then the rest on disk."""
        self.warm(*key)
        plan = self._set_up.programs.plan(*key)
        while not self._closed and self.count(*key) < self._ready:
            start = time.monotonic()
            bundle_id = self._fetch(*key, plan)
            with self._changed:
                self._spent[bundle_id] = time.monotonic() - start
                self._changed.notify_all()
