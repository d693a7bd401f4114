"""The client's supply of bundles: prepared in the background, so that a query waits for nothing else.

For each program (batch, bucket) that was used, up to `ready` bundles are kept in the store on disk, and the next one
also open, with the work done that needs no input. A bundle is consumed from the store before its seed is expanded; one
that is lost with the process is lost for good.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import ConfigurationError, PeerTimeout, RandomnessError, RandomnessSpent
from comet_mpc.offline.bundle import OpenBundle
from comet_mpc.offline.header import HEADER_BYTES
from comet_mpc.offline.source import Order, Supplier
from comet_mpc.offline.store import new_bundle_id
from comet_mpc.retry import retry
from comet_mpc.service.model_cache import ClientModel
from comet_mpc.units import counted, human_bytes

Size = tuple[int, int]
"""Batch and bucket."""

_MOST_TRIES = 9
_MOST_OPEN = 2  # bundles in memory, of all programs together: each may be a hundred megabytes


class Kept(NamedTuple):
    """What the server keeps for a client; beyond that it evicts the oldest."""

    bundles: int
    size: int
    """Bytes of its own parts."""

    def __str__(self) -> str:
        return f"{counted(self.bundles, 'prepared query', 'prepared queries')} ({human_bytes(self.size)}) per client"


class BundlePool:
    """Bundles for one model, from one supplier.

    ready  how many are kept for each program in use
    """

    def __init__(self, model: ClientModel, ready: int, supplier: Supplier, kept: Kept) -> None:
        self._model = model
        self._ready = ready
        self._supplier, self._kept = supplier, kept
        self._changed = threading.Condition()
        self._open: dict[Size, deque[OpenBundle]] = {}
        self._seconds: dict[str, float] = {}
        self._wanted: deque[Size] = deque()
        self._working: Size | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def take(self, batch: int, bucket: int, timeout: float) -> OpenBundle:
        """A bundle for one run: at once if there is one, else as soon as it has been prepared."""
        size = batch, bucket
        until = time.monotonic() + timeout
        with self._changed:
            while True:
                if found := self._open.get(size):
                    return found.popleft()
                if self._working != size or self._stored(size):
                    break
                if not self._changed.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    raise PeerTimeout(f"no bundle was ready within {timeout:g} s")
        return self._obtain(size)

    def prepare(self, batch: int, bucket: int, count: int = 1) -> tuple[str, ...]:
        """Has that many more bundles prepared, now, or as many of them as go together; the store has them then.

        Returns their ids.
        """
        plan, source = self._model.programs.plan(batch, bucket), self._model.source
        count = min(count, self._kept.bundles, source.together(plan.correlations))
        self._model.store.check_disk(count * source.stored_bytes(CLIENT, plan.correlations))
        order = Order(new_bundle_id(), batch, bucket, plan, count=count)
        self._supplier.prepare(order, self._model.store)
        return order.bundle_ids

    def check_room(self, wanted: Mapping[Size, int]) -> None:
        """Raises if the server would evict some of these bundles to make room for others."""
        count, needed = sum(wanted.values()), 0
        for size, number in wanted.items():
            plan = self._model.programs.plan(*size)
            needed += number * (HEADER_BYTES + self._model.source.stored_bytes(SERVER, plan.correlations))
        if count > self._kept.bundles or needed > self._kept.size:
            raise ConfigurationError(
                f"cannot prepare {counted(count, 'query', 'queries')} ({human_bytes(needed)} at the server): the "
                f"server keeps at most {self._kept}. Prepare fewer, or ask its operator to raise --client-queries or "
                "--client-gb"
            )

    def fitting(self, wanted: Mapping[Size, int]) -> dict[Size, int]:
        """The first of these bundles that the server and the local disk have room for. Ready ones count, but take no
        further room here."""
        bundles, there, here = self._kept.bundles, self._kept.size, self._model.store.room()
        found = {}
        for size, number in wanted.items():
            correlations, source = self._model.programs.plan(*size).correlations, self._model.source
            theirs, ours = (HEADER_BYTES + source.stored_bytes(party, correlations) for party in (SERVER, CLIENT))
            ready = min(number, self.count(*size))
            fits = min(number, bundles, there // theirs, ready + here // ours)
            if fits:
                found[size] = fits
            if fits < number:
                break
            bundles, there, here = bundles - fits, there - fits * theirs, here - (fits - ready) * ours
        return found

    @property
    def kept(self) -> Kept:
        """What the server keeps for this client."""
        return self._kept

    def pause(self) -> None:
        """Nothing more is wanted for now."""
        self._supplier.pause()

    def replenish(self, batch: int, bucket: int) -> None:
        """Asks for this program's bundles to be brought up to the number wanted, in the background."""
        with self._changed:
            if self._ready <= 0 or self._closed or (batch, bucket) in self._wanted:
                return
            self._wanted.append((batch, bucket))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="bundle pool", daemon=True)
                self._thread.start()
                atexit.register(self.close)  # a thread in C++ code must not outlive the interpreter
            self._changed.notify_all()

    def open_one(self, batch: int, bucket: int) -> None:
        """Opens one bundle and does what can be done before a query, unless there is one, or no use or room for it."""
        size = batch, bucket
        with self._changed:
            held = sum(map(len, self._open.values()))
            if not self._model.source.computes_ahead or self._open.get(size) or held >= _MOST_OPEN:
                return
        found = self._obtain(size)
        with self._changed:
            self._open.setdefault(size, deque()).append(found)
            self._changed.notify_all()

    def count(self, batch: int, bucket: int) -> int:
        """Bundles that are ready, in memory or on disk."""
        with self._changed:
            held = len(self._open.get((batch, bucket), ()))
        return held + len(self._stored((batch, bucket)))

    @property
    def failure(self) -> Exception | None:
        """Why the last preparation in the background failed, if it did."""
        return self._failure

    def settle(self, timeout: float) -> bool:
        """Waits until nothing is being prepared; False if that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._wanted and self._working is None, timeout)

    def close(self) -> None:
        """Stops preparing, and waits for the step that is under way; what is in the store stays for the next time."""
        atexit.unregister(self.close)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._supplier.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _stored(self, size: Size) -> tuple[str, ...]:
        return self._model.store.list(self._model.programs.plan(*size).digest)

    def _obtain(self, size: Size) -> OpenBundle:
        start = time.monotonic()

        def once() -> OpenBundle:
            for bundle_id in self._stored(size):
                with contextlib.suppress(RandomnessError):  # another process was quicker, or the file is damaged
                    return self._opened(bundle_id, size, start)
            (bundle_id,) = self.prepare(*size)
            return self._opened(bundle_id, size, start)

        # others with the same cache may take what this one has prepared
        return retry(once, RandomnessSpent, tries=_MOST_TRIES)

    def _opened(self, bundle_id: str, size: Size, start: float) -> OpenBundle:
        model, plan = self._model, self._model.programs.plan(*size)
        bundle = model.store.take(bundle_id, plan.digest, plan.correlations)
        found = model.source.open(bundle, model.weights)
        found.compute_ahead()
        found.seconds = time.monotonic() - start + self._seconds.pop(bundle_id, 0.0)
        return found

    def _work(self) -> None:
        while True:
            with self._changed:
                self._working = None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                self._working = size = self._wanted[0]
            try:
                self._fill(size)
                self._failure = None
            except Exception as error:  # the next query will meet it in the foreground, if it is still there
                self._failure = error
            finally:
                with self._changed:
                    self._wanted.popleft()
            with contextlib.suppress(Exception):
                self.pause()

    def _fill(self, size: Size) -> None:
        """One bundle in memory first, then the rest on disk."""
        self.open_one(*size)
        while not self._closed and self.count(*size) < self._ready:
            start = time.monotonic()
            made = self.prepare(*size, self._ready - self.count(*size))
            with self._changed:
                self._seconds |= dict.fromkeys(made, (time.monotonic() - start) / len(made))
                self._changed.notify_all()
