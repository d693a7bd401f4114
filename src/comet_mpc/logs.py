"""Log lines in JSON, for operators: no text, share, mask or weight; names of certificates and of errors."""

from __future__ import annotations

import json
import logging
import time
import traceback
from types import TracebackType


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


def _where(trace: TracebackType | None) -> str:
    """Places only: the message of an unforeseen error might quote a value."""
    frames = [f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{line}" for frame, line in traceback.walk_tb(trace)]
    return " > ".join(frames[-6:])


def log_as_json(level: int = logging.INFO) -> None:
    """Sends this package's log to standard error as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("comet_mpc")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
