"""How far a long command is: a bar with the time left on a terminal, plain lines where nobody is looking."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["Tick", "bar"]

Tick = Callable[[int, int, str], None]
"""Is told (done, of all, a note such as the loss)."""


@contextlib.contextmanager
def bar(what: str, every: float = 10.0) -> Iterator[Tick]:
    """On standard error, since results go to standard output. `every`: seconds from line to line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(what, every)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=300.0) as progress:
        task = progress.add_task(what, total=None, note="")
        yield lambda done, total, note: progress.update(task, completed=done, total=total, note=note)


def _lines(what: str, every: float) -> Tick:
    """A line after every so many seconds, and one at the end of what took longer."""
    console = Console(stderr=True, width=200, highlight=False)
    began: tuple[float, int] | None = None
    printed = 0.0

    def tick(done: int, total: int, note: str) -> None:
        nonlocal began, printed
        now = time.monotonic()
        if began is None:
            began, printed = (now, done), now
        spent = now - began[0]
        if now - printed < every and (done < total or spent < every):
            return
        printed = now
        left = spent / max(1, done - began[1]) * (total - done)
        parts = [f"{what} {done}/{total}", *([note] if note else []), _clock(spent)]
        console.print(", ".join([*parts, *([f"{_clock(left)} left"] if done < total else [])]), markup=False)

    return tick


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
