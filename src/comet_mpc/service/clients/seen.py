"""What the server sees of a query: a record of what a client sends in the rounds of a run, and how random it looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np

from comet_mpc.errors import PeerError
from comet_mpc.net.channel import Around, Channel
from comet_mpc.service.messages import MESSAGE_LIMIT, Run, from_client

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from comet_mpc.net.channel import Sendable

_FIRST = 16


class Glimpse(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that somebody saw, and how far they are from uniform ones."""

    size: int
    first_bytes: str
    entropy: float
    """Bits a byte, of at most 8."""
    p_value: float
    """Of a chi-squared test: uniform bytes are below 0.001 once in a thousand times. Numbers modulo an odd T are
    uniform and their bits are not, whatever the text: without a dealer, p may be small."""


def glimpse(data: bytes | bytearray) -> Glimpse:
    run = SeenRun(0, 0)
    run.add(data)
    return run.glimpse()


class SeenRun:
    """One run of a program, of so many texts of so many tokens: the bytes of its rounds are counted and not kept."""

    def __init__(self, texts: int, bucket: int) -> None:
        self.texts, self.bucket = texts, bucket
        self._counts = np.zeros(256, np.int64)
        self._first = bytearray()

    def add(self, buffer: Sendable) -> None:
        data = np.frombuffer(memoryview(cast("Buffer", buffer)).cast("B"), np.uint8)
        self._counts += np.bincount(data, minlength=256)
        self._first += data[: _FIRST - len(self._first)].tobytes()

    def glimpse(self) -> Glimpse:
        total = int(self._counts.sum())
        each = max(1, total) / 256
        share = self._counts[self._counts > 0] / max(1, total)
        return Glimpse(
            size=total,
            first_bytes=self._first.hex(" "),
            entropy=float(-np.sum(share * np.log2(share))),
            p_value=_chi_squared_tail(float(np.sum((self._counts - each) ** 2) / each)),
        )


def _chi_squared_tail(value: float) -> float:
    """How likely 255 degrees of freedom exceed it: Q(a, x) = erfc(√x) + Σ_{j<a} x^j·e^-x/Γ(j + 1), j = 1/2, 3/2, …"""
    x = max(value / 2.0, 1e-9)
    terms = (j * math.log(x) - x - math.lgamma(j + 1.0) for j in np.arange(0.5, 127.0))
    return math.erfc(math.sqrt(x)) + math.fsum(map(math.exp, terms))


class Seen:
    """The runs of one client since `clear`. `Client(wrap=seen.wrap)` records them."""

    def __init__(self) -> None:
        self.runs: list[SeenRun] = []

    def clear(self) -> None:
        self.runs = []

    def wrap(self, channel: Channel) -> Channel:
        return _Recorder(channel, self)


class _Recorder(Around):
    """Passes everything on. After a request for a run, what goes out in rounds belongs to that run."""

    def __init__(self, inner: Channel, seen: Seen) -> None:
        super().__init__(inner)
        self._seen = seen
        self._run_seen: SeenRun | None = None

    def send(self, *buffers: Sendable) -> None:
        message = b"".join(bytes(buffer) for buffer in buffers)
        self._run_seen = None
        try:
            asked = from_client(message) if len(message) <= MESSAGE_LIMIT else None
        except PeerError:  # a greeting, or part of a preparation
            asked = None
        if isinstance(asked, Run):
            self._run_seen = SeenRun(asked.batch, asked.bucket)
            self._seen.runs.append(self._run_seen)
        super().send(message)

    def exchange(self, outgoing: Sequence[Sendable], expected: int) -> memoryview:
        if self._run_seen is not None:
            for buffer in outgoing:
                self._run_seen.add(buffer)
        return super().exchange(outgoing, expected)
