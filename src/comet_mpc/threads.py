"""Work on all cores of a process: native kernels let other threads run meanwhile. Small matrices take one thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits

from comet_mpc.processors import blas_threads_chosen, cores

Item = TypeVar("Item")
Made = TypeVar("Made")

_AHEAD = 2
"""Results for each thread that nobody has taken yet."""


class _Here(threading.local):
    busy = False
    """Whether this thread works for `in_order`."""


_here = _Here()


def _enter() -> None:
    _here.busy = True


@contextlib.contextmanager
def small_matrices() -> Iterator[None]:
    """Within it numpy multiplies with one thread, unless the environment says otherwise.

    Several wait for each other after every product, by spinning: for matrices of a few hundred rows that takes longer
    than the product, and on a busy machine many times as long.
    """
    with threadpool_limits(None if blas_threads_chosen(os.environ) else 1, user_api="blas"):
        yield


def in_order(function: Callable[[Item], Made], items: Sequence[Item], threads: int | None = None) -> Iterator[Made]:
    """function over items on so many threads (all cores), in order, and only a little ahead of whoever takes results.

    Within such a function it is one item after the other: its caller keeps all threads busy.
    """
    count = min(cores() if threads is None else threads, len(items))
    if count <= 1 or _here.busy:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(count, initializer=_enter)
    try:
        due: deque[Future[Made]] = deque()
        for item in items:
            if len(due) >= _AHEAD * count:
                yield due.popleft().result()
            due.append(pool.submit(function, item))
        while due:
            yield due.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)  # after an error, or if nobody takes the rest
