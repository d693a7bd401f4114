"""What an operator may see of a server or a dealer, by HTTP: counters that its processes share, and whether it is well.

/metrics    counters, histograms and gauges, for Prometheus
/healthz    200 while connections are let in, else 503: start it again
/readyz     200 if a peer that came now could be served, else 503 and the reasons

No page contains a text, a share, a mask, a weight or the name of a client: counts, bytes, seconds and names of errors.
Every label has few values, whatever peers do. Every process has a row of counters of its own, so nobody waits for a
lock of another process.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import mmap
import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from comet_mpc import errors
from comet_mpc.errors import ConfigurationError

_REFUSALS = {
    "half_open": "its address has too many connections that have not shown who they are",
    "handshake_timeout": "it did not finish its TLS handshake in time",
    "handshake_failed": "it broke off its TLS handshake, or spoke something else",
    "certificate": "its certificate was not accepted, or is revoked",
    "role": "its certificate does not entitle it to what it asked for",
    "connections": "this client has too many connections",
    "busy": "there was no process or slot for it in time",
    "quota": "the client's queries of the day were used up",
    "room": "the server has no disk, memory or room for it",
    "randomness": "the bundle that it named is spent, or another's",
    "mismatch": "it runs another version, model or program",
    "request": "it asked for something that makes no sense",
    "gone": "it, or the other party of its bundle, left or was too slow",
    "out_of_sockets": "the server had no file descriptor left",
    "out_of_processes": "the server could start no process",
    "other": "the server failed",
}
"""Why a connection or a request was refused."""
_REASONS: tuple[tuple[type[errors.CometError], str], ...] = (
    (errors.ServerBusy, "busy"),
    (errors.QuotaExceeded, "quota"),
    (errors.NotAuthenticated, "role"),
    (errors.ProtocolMismatch, "mismatch"),
    (errors.WrongVersion, "mismatch"),
    (errors.RandomnessError, "randomness"),
    (errors.ConfigurationError, "room"),
    (errors.ShapeError, "request"),
    (errors.PeerClosed, "gone"),
    (errors.PeerTimeout, "gone"),
    (errors.PeerError, "request"),
)
_ERRORS = (*errors.__all__, "other")
_ACTIVE, _ALIVE = "active", "alive"
_COMMON = (_ACTIVE, _ALIVE, *_ERRORS, *(f"refused {name}" for name in _REFUSALS))
"""What is counted beside what somebody names."""
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, math.inf)
"""Seconds: the upper bounds of the histograms' buckets. From a round trip to the preparation of a large bundle."""
_ALIVE_SECONDS = 5.0
_TIMEOUT = 5.0


def refusal_reason(error: errors.CometError) -> str:
    """The word for it in the metrics."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "other")


Labels = Mapping[str, str]


@dataclass(frozen=True)
class Gauge:
    """What is measured at the time of asking: a value, or several with different labels."""

    name: str
    meaning: str
    samples: Sequence[tuple[Labels, float]]

    @classmethod
    def single(cls, name: str, meaning: str, value: float) -> Gauge:
        return cls(name, meaning, [({}, value)])


class Counters:
    """One row per process in shared memory; made before the processes are forked.

    meanings  of what is counted beside sessions, errors and refusals, by name
    phases    of what is timed, by name
    states    what `measure` may be told
    """

    def __init__(
        self,
        meanings: Mapping[str, str],
        rows: int = 1,
        *,
        phases: Mapping[str, str] | None = None,
        states: Sequence[str] = (),
    ) -> None:
        self._meanings = {"sessions_total": "Conversations begun.", **meanings}
        self._phases = dict(phases or {})
        timed = [_cell(phase, bound) for phase in self._phases for bound in (*BOUNDS, None)]
        names = (*self._meanings, *_COMMON, *states, *timed)
        self._indices = {name: index for index, name in enumerate(names)}
        self._memory = mmap.mmap(-1, rows * len(self._indices) * 8)
        self._table = np.frombuffer(self._memory, np.float64).reshape(rows, len(self._indices))
        self._lock = threading.Lock()
        self._row = 0

    def own(self, row: int) -> None:
        """From now on this process counts in that row. A lock of before the fork could be held for ever."""
        self._row = row
        self._lock = threading.Lock()
        self.reset_active(row)

    def add(self, **amounts: float) -> None:
        """`counters.add(queries_total=1, texts_total=batch)`."""
        with self._lock:
            for name, amount in amounts.items():
                self._table[self._row, self._indices[name]] += amount

    def observe(self, phase: str, seconds: float) -> None:
        """One more time that this phase took so long."""
        bound = BOUNDS[bisect.bisect_left(BOUNDS, seconds)]
        with self._lock:
            self._table[self._row, self._indices[_cell(phase, bound)]] += 1
            self._table[self._row, self._indices[_cell(phase, None)]] += seconds

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Observes how long the block takes, unless it fails."""
        begun = time.monotonic()
        yield
        self.observe(phase, time.monotonic() - begun)

    def error(self, error: BaseException) -> None:
        name = type(error).__name__
        with self._lock:
            self._table[self._row, self._indices[name if name in _ERRORS else "other"]] += 1

    def refused(self, reason: str) -> None:
        """One more connection or request was refused: see `_REFUSALS`."""
        with self._lock:
            self._table[self._row, self._indices[f"refused {reason}"]] += 1

    def refusals(self, reason: str) -> int:
        return int(self.total(f"refused {reason}"))

    def measure(self, **states: float) -> None:
        """How much there is to do, and is being done, as this process sees it now."""
        for name, value in states.items():
            self._table[self._row, self._indices[name]] = value

    def beat(self) -> None:
        """This process is alive."""
        self._table[self._row, self._indices[_ALIVE]] = time.monotonic()

    def heartbeat(self, row: int) -> float:
        """When the process of that row last said that it is alive."""
        return float(self._table[row, self._indices[_ALIVE]])

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        self.add(sessions_total=1, active=1)
        try:
            yield
        finally:
            self.add(active=-1)

    def reset_active(self, row: int) -> None:
        """Forgets the sessions of a worker that died."""
        self._table[row, self._indices[_ACTIVE]] = 0

    @property
    def active(self) -> int:
        return int(self._table[:, self._indices[_ACTIVE]].sum())

    def total(self, name: str) -> float:
        return float(self._table[:, self._indices[name]].sum())

    def text(self, gauges: Iterable[Gauge] = ()) -> str:
        """All of it in Prometheus' text format; the caller adds what is measured at the time of asking."""
        lines: list[str] = []
        for name, meaning in self._meanings.items():
            lines += _family(name, "counter", meaning, [({}, self.total(name))])
        errors_seen = [({"class": name}, self.total(name)) for name in _ERRORS]
        lines += _family("errors_total", "counter", "Errors by class.", errors_seen)
        refused = [({"reason": name}, self.total(f"refused {name}")) for name in _REFUSALS]
        lines += _family("refusals_total", "counter", "Connections and requests refused, by reason.", refused)
        lines += self._histograms()
        for gauge in (Gauge.single("sessions_active", "Conversations going on.", self.active), *gauges):
            lines += _family(gauge.name, "gauge", gauge.meaning, gauge.samples)
        return "\n".join(lines) + "\n"

    def _histograms(self) -> Iterator[str]:
        if not self._phases:
            return
        yield from _family("phase_seconds", "histogram", "Seconds that each phase of the work took.", [])
        for phase in self._phases:
            labels, count = {"phase": phase}, 0.0
            for bound in BOUNDS:
                count += self.total(_cell(phase, bound))
                yield _sample("phase_seconds_bucket", {**labels, "le": _number(bound)}, count)
            yield _sample("phase_seconds_sum", labels, self.total(_cell(phase, None)))
            yield _sample("phase_seconds_count", labels, count)


def _cell(phase: str, bound: float | None) -> str:
    """The name of a histogram's bucket, or of its sum."""
    return f"phase {phase} {bound}"


def _family(name: str, kind: str, meaning: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    yield f"# HELP comet_{name} {meaning}"
    yield f"# TYPE comet_{name} {kind}"
    for labels, value in samples:
        yield _sample(name, labels, value)


def _sample(name: str, labels: Labels, value: float) -> str:
    escaped = ((key, re.sub(r'["\\]', r"\\\g<0>", text).replace("\n", "\\n")) for key, text in labels.items())
    shown = ",".join(f'{key}="{text}"' for key, text in escaped)
    return f"comet_{name}{'{' + shown + '}' if shown else ''} {_number(value)}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


def parse(text: str) -> dict[str, list[tuple[Labels, float]]]:
    """The samples of a page by their full names, as `Counters.text` writes them. Raises ConfigurationError."""
    found: dict[str, list[tuple[Labels, float]]] = {}
    for line in text.split("\n"):
        if not line or line.startswith("#"):
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            raise ConfigurationError("this is not a page of metrics of a Comet server or dealer: give its --metrics")
        labels = {name: re.sub(r"\\(.)", _unescaped, value) for name, value in _LABEL.findall(sample[2] or "")}
        found.setdefault(sample[1], []).append((labels, float(sample[3])))
    return found


_SAMPLE = re.compile(r"(\w+)(?:\{((?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})? ([-+]?(?:Inf|NaN|[\d.]+(?:e[-+]?\d+)?))")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


Page = Callable[[], tuple[int, str]]
"""What is answered: a status of HTTP, and a text."""


def pages(
    counters: Counters, row: int, gauges: Callable[[], Iterable[Gauge]], troubles: Callable[[], Iterable[str]]
) -> dict[str, Page]:
    """What `MetricsEndpoint` answers.

    row       of whoever lets connections in, and says that it is alive
    gauges    what is measured at the time of asking
    troubles  reasons for which a peer that came now could not be served
    """

    def not_alive() -> list[str]:
        late = time.monotonic() - counters.heartbeat(row) >= _ALIVE_SECONDS
        return ["no connections are let in any more"] if late else []

    def told(reasons: list[str]) -> tuple[int, str]:
        return (503, "\n".join(reasons) + "\n") if reasons else (200, "ok\n")

    return {
        "/metrics": lambda: (200, counters.text(gauges())),
        "/healthz": lambda: told(not_alive()),
        "/readyz": lambda: told([*not_alive(), *troubles()]),
    }


class MetricsEndpoint:
    """Plain HTTP: GET of a few pages. It needs no TLS because it tells no secret, but give it an inner address."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT

            def do_GET(self) -> None:
                page = pages.get(self.path.split("?")[0])
                status, text = page() if page is not None else (404, f"see {', '.join(pages)}\n")
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Scrapes are not news."""

        try:
            socketserver.TCPServer.allow_reuse_address = True
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigurationError(f"cannot serve metrics at {host}:{port}: {reason}; choose another") from error
        self._server.daemon_threads = True
        address = self._server.server_address
        self.address: tuple[str, int] = (str(address[0]), int(address[1]))

        self._thread: threading.Thread | None = None

    def serve_forever(self) -> None:
        self._server.serve_forever(poll_interval=0.1)

    def start(self) -> None:
        """Serves in a thread, until `close`."""
        self._thread = threading.Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
