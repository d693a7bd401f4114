"""What an operator may see of a server or a dealer, by HTTP: counters that its processes share, and whether it is well.

/metrics    counters, for Prometheus
/healthz    200 while connections are let in, else 503: start it again
/readyz     200 if a peer that came now could be served, else 503 and the reasons

No page contains a text, a share, a mask or a weight: counts, bytes, seconds and names of errors. Every process has a
row of counters of its own, so nobody waits for a lock of another process.
"""

from __future__ import annotations

import contextlib
import mmap
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
_WAITING, _WORKING = "waiting", "working"
_COMMON = (_ACTIVE, _ALIVE, _WAITING, _WORKING, *_ERRORS, *(f"refused {name}" for name in _REFUSALS))
"""What is counted beside what somebody names."""
_ALIVE_SECONDS = 5.0
_TIMEOUT = 5.0


def refusal_reason(error: errors.CometError) -> str:
    """The word for it in the metrics."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "other")


class Counters:
    """One row per process in shared memory; made before the processes are forked.

    meanings: of what is counted beside sessions, errors and refusals, by name
    """

    def __init__(self, meanings: Mapping[str, str], rows: int = 1) -> None:
        self._meanings = {"sessions_total": "Conversations begun.", **meanings}
        self._indices = {name: index for index, name in enumerate((*self._meanings, *_COMMON))}
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

    def measure(self, *, waiting: int, working: int) -> None:
        """How much there is to do, and is being done, as this process sees it now."""
        self._table[self._row, self._indices[_WAITING]] = waiting
        self._table[self._row, self._indices[_WORKING]] = working

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

    def text(self, **gauges: float) -> str:
        """All of it in Prometheus' text format; the caller adds what is measured at the time of asking."""
        lines = []
        for name, meaning in self._meanings.items():
            lines += [f"# HELP comet_{name} {meaning}", f"# TYPE comet_{name} counter"]
            lines.append(f"comet_{name} {_number(self.total(name))}")
        lines += ["# HELP comet_errors_total Errors by class.", "# TYPE comet_errors_total counter"]
        lines += [f'comet_errors_total{{class="{name}"}} {_number(self.total(name))}' for name in _ERRORS]
        lines += ["# HELP comet_refusals_total Connections and requests that were refused, by reason."]
        lines += ["# TYPE comet_refusals_total counter"]
        lines += [f'comet_refusals_total{{reason="{name}"}} {self.refusals(name)}' for name in _REFUSALS]
        for name, value in {"sessions_active": float(self.active), **gauges}.items():
            lines += [f"# TYPE comet_{name} gauge", f"comet_{name} {_number(value)}"]
        return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


Page = Callable[[], tuple[int, str]]
"""What is answered: a status of HTTP, and a text."""


def pages(
    counters: Counters, row: int, gauges: Callable[[], Mapping[str, float]], troubles: Callable[[], Iterable[str]]
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
        "/metrics": lambda: (200, counters.text(**gauges())),
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
