"""What an operator may see of a service: counters in memory that its processes share, and log lines in JSON.

Neither contains a text, a share, a mask or a weight: counts, bytes, seconds, names of certificates and of errors.
Every worker has a row of counters of its own, so nobody waits for a lock of another process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from comet_mpc import errors
from comet_mpc.errors import ConfigurationError

__all__ = ["Counters", "JsonFormatter", "MetricsEndpoint", "Page", "log_as_json", "refusal_reason"]

_COUNTERS = {
    "sessions_total": "Client sessions begun.",
    "queries_total": "Runs of a program that were completed.",
    "texts_total": "Texts in them.",
    "online_bytes_total": "Bytes sent and received in the online phase, frame headers included.",
    "online_seconds_total": "Seconds spent in the online phase.",
    "rounds_total": "Rounds of the online phase.",
    "offline_bytes_total": "Bytes of preparing randomness: corrections from the dealer, or both ways with clients.",
    "offline_seconds_total": "Seconds spent on that.",
    "bundles_prepared_total": "Bundles of randomness prepared.",
    "setup_bytes_total": "Bytes of public packages and masked weights sent to clients.",
}
_REFUSALS = {
    "half_open": "its address has too many connections that have not shown who they are",
    "handshake_timeout": "it did not finish its TLS handshake in time",
    "handshake_failed": "it broke off its TLS handshake, or spoke something else",
    "certificate": "its certificate was not accepted, or is revoked",
    "role": "its certificate does not entitle it to what it asked for",
    "connections": "this client has too many connections",
    "busy": "there was no process or place for it in time",
    "quota": "the client's queries of the day were used up",
    "room": "the server has no disk, memory or room for it",
    "randomness": "the bundle that it named is spent, or another's",
    "mismatch": "it runs another version, model or program",
    "request": "it asked for something that makes no sense",
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
    (errors.PeerError, "request"),
)
_ERRORS = (*errors.__all__, "other")
_ACTIVE, _ALIVE = "active", "alive"
_PLACES = {
    name: place
    for place, name in enumerate((*_COUNTERS, _ACTIVE, _ALIVE, *_ERRORS, *(f"refused {name}" for name in _REFUSALS)))
}
_TIMEOUT = 5.0


def refusal_reason(error: errors.CometError) -> str:
    """The word for it in the metrics."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "other")


class Counters:
    """One row per worker in shared memory; made before the workers are forked."""

    def __init__(self, rows: int = 1) -> None:
        self._memory = mmap.mmap(-1, max(1, rows * len(_PLACES) * 8))
        self._table = np.frombuffer(self._memory, np.float64).reshape(rows, len(_PLACES))
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
                self._table[self._row, _PLACES[name]] += amount

    def error(self, error: BaseException) -> None:
        name = type(error).__name__
        with self._lock:
            self._table[self._row, _PLACES[name if name in _ERRORS else "other"]] += 1

    def refused(self, reason: str) -> None:
        """One more connection or request was refused: see `_REFUSALS`."""
        with self._lock:
            self._table[self._row, _PLACES[f"refused {reason}"]] += 1

    def refusals(self, reason: str) -> int:
        return int(self.total(f"refused {reason}"))

    def beat(self) -> None:
        """This process is alive."""
        self._table[self._row, _PLACES[_ALIVE]] = time.monotonic()

    def heartbeat(self, row: int) -> float:
        """When the process of that row last said that it is alive."""
        return float(self._table[row, _PLACES[_ALIVE]])

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        self.add(sessions_total=1, active=1)
        try:
            yield
        finally:
            self.add(active=-1)

    def reset_active(self, row: int) -> None:
        """Forgets the sessions of a worker that died."""
        self._table[row, _PLACES[_ACTIVE]] = 0

    @property
    def active(self) -> int:
        return int(self._table[:, _PLACES[_ACTIVE]].sum())

    def total(self, name: str) -> float:
        return float(self._table[:, _PLACES[name]].sum())

    def text(self, **gauges: float) -> str:
        """All of it in Prometheus' text format; the caller adds what is measured at the time of asking."""
        lines = []
        for name, meaning in _COUNTERS.items():
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

    def serve_forever(self) -> None:
        self._server.serve_forever(poll_interval=0.5)

    def close(self) -> None:
        self._server.server_close()


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, and the fields of `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "process": record.process,
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            entry.update(fields)
        if record.exc_info and record.exc_info[0] is not None:
            entry["error"] = record.exc_info[0].__name__
            entry["where"] = _where(record.exc_info[2])
        return json.dumps(entry, ensure_ascii=True)


def _where(trace: Any) -> str:
    """Places only: the message of an unforeseen error might quote a value."""
    places = []
    while trace is not None:
        code = trace.tb_frame.f_code
        places.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " > ".join(places[-6:])


def log_as_json(level: int = logging.INFO) -> None:
    """Sends this package's log to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("comet_mpc")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
