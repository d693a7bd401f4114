"""Processes that end with the one that started them, however that ends: nothing is left that holds a port or a lock."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


def forked(run: Callable[[], None], **fields: object) -> int:
    """Has it run in a process that shares this one's memory, and ends with it; the number of that process.

    fields: for the log, should it fail. Raises OSError if there can be no more processes.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        end_with_parent(parent)
        run()
        code = 0
    except BaseException:
        _log.exception("a process of the server failed", extra={"fields": fields})
    finally:
        logging.shutdown()
        os._exit(code)


def end_with_parent(parent: int) -> None:
    """Call it first in a process that `parent` has forked: the kernel kills it when its parent is gone."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)


def ended(pid: int) -> int | None:
    """The status of a process that was forked here; None while it runs."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return status if found else None
