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
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from comet_mpc import errors
from comet_mpc.errors import ConfigurationError

__all__ = ["Counters", "JsonFormatter", "MetricsEndpoint", "log_as_json"]

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
    "refused_quota_total": "Runs refused because the client's queries of the day were used up.",
    "refused_busy_total": "Connections refused because all workers were occupied.",
}
_ERRORS = (*errors.__all__, "other")
_ACTIVE = "active"
_PLACES = {name: place for place, name in enumerate((*_COUNTERS, _ACTIVE, *_ERRORS))}
_TIMEOUT = 5.0


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
        for name, value in {"sessions_active": float(self.active), **gauges}.items():
            lines += [f"# TYPE comet_{name} gauge", f"comet_{name} {_number(value)}"]
        return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


class MetricsEndpoint:
    """Plain HTTP: GET /metrics. It needs no TLS because it tells no secret, but give it an inner address."""

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = _TIMEOUT

            def do_GET(self) -> None:
                known = self.path.split("?")[0] == "/metrics"
                body = text().encode() if known else b"see /metrics\n"
                self.send_response(200 if known else 404)
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
