"""How far a long command is: a bar with the time left on a terminal, plain lines where nobody is watching."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_SOON = 10.0
"""Seconds, or per cent: earlier than both, an estimate of the time left is of no use."""
_EARLY = 0.01
"""Where lines are printed, these are at least ten seconds apart: from this part on, an estimate is of use."""


class Tick(Protocol):
    """Is told how much is done, of how much in all (0: nobody knows), and a note such as the loss."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


def silent(done: int, total: int, note: str = "") -> None:
    """A Tick that tells nobody."""


class Watcher:
    """Is told what a long function does. This one keeps it to itself: use `Shown`, or a subclass of your own."""

    def say(self, line: str) -> None:
        """Something that people want to know, such as how long the rest will take."""

    def stage(self, what: str) -> contextlib.AbstractContextManager[Tick]:
        """Something that takes long begins. The Tick is told how far it is, if anybody knows."""
        return contextlib.nullcontext(silent)


class Shown(Watcher):
    """Shows all of it on standard error."""

    def say(self, line: str) -> None:
        _plain(line)

    def stage(self, what: str) -> contextlib.AbstractContextManager[Tick]:
        return bar(what, begun=True)


@contextlib.contextmanager
def doing(what: str) -> Iterator[None]:
    """Says what is being done, before it is. For what cannot say how far it is, such as importing torch."""
    with bar(what, begun=True):
        yield


def _plain(line: str) -> None:
    Console(stderr=True, width=200, highlight=False).print(line, markup=False, soft_wrap=True)


def _live(console: Console, *columns: ProgressColumn) -> Progress:
    """Lines that are printed meanwhile appear above it. Where standard output is no terminal, they are data, and go
    where they should."""
    shown = sys.stdout.isatty()
    return Progress(*columns, console=console, transient=True, speed_estimate_period=300.0, redirect_stdout=shown)


@contextlib.contextmanager
def bar(
    what: str,
    *,
    every: float = 10.0,
    shown: Callable[[int], str] | None = str,
    say: Callable[[str], None] | None = None,
    begun: bool = False,
) -> Iterator[Tick]:
    """On standard error, since results go to standard output. It may run full and begin again.

    every  seconds from line to line, where there is no terminal
    shown  how an amount is written, such as `human_bytes`; None: in per cent, since its unit means nothing to people
    say    is given the lines instead, on a terminal too: for a program that writes a log
    begun  whether to say what begins, before anybody knows how much it is
    """
    console = Console(stderr=True)
    if say is not None or not console.is_terminal:
        if begun:
            (say or _plain)(what)
        yield _lines(what, every, shown, say or _plain)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        _TimeLeft(),
    )
    with _live(console, *columns) as progress:
        task = progress.add_task(what, total=None, visible=begun, count="", note="")
        last = 0

        def tick(done: int, total: int, note: str = "") -> None:
            nonlocal last
            if done < last:
                progress.reset(task)
            last = done
            count, going = _count(done, total, shown), done < total or not total
            progress.update(task, completed=done, total=total or None, count=count, note=note, visible=going)

        yield tick


class _TimeLeft(TimeRemainingColumn):
    def render(self, task: Task) -> Text:
        early = task.percentage < _SOON and (task.elapsed or 0.0) < _SOON
        return Text() if early or task.time_remaining is None else super().render(task) + Text(" left")


def _count(done: int, total: int, shown: Callable[[int], str] | None) -> str:
    if not total:
        return ""
    return f"{shown(done)}/{shown(total)}" if shown is not None else f"{100 * done // total} %"


def _lines(what: str, every: float, shown: Callable[[int], str] | None, say: Callable[[str], None]) -> Tick:
    """A line after every so many seconds, and one at the end of what took longer."""
    pace, printed = Pace(), 0.0

    def tick(done: int, total: int, note: str = "") -> None:
        nonlocal printed
        now, spent = time.monotonic(), pace.spent(done)
        if not spent:
            printed = now
        if now - printed < every and (done < total or spent < every):
            return
        printed = now
        parts = [f"{what} {_count(done, total, shown)}".rstrip(), *([note] if note else []), _clock(spent)]
        if _EARLY * total <= done < total:
            parts.append(pace.left(done, total))
        say(", ".join(parts))

    return tick


class Pace:
    """How fast something is, and how long the rest will take at that pace. It may begin again."""

    def __init__(self) -> None:
        self._began, self._first, self._last = 0.0, 0, -1

    def spent(self, done: int) -> float:
        """Seconds since it began, with so much done by now."""
        now = time.monotonic()
        if self._last < 0 or done < self._last:
            self._began, self._first = now, done
        self._last = done
        return now - self._began

    def left(self, done: int, total: int) -> str:
        return f"{_clock(self.spent(done) / max(1, done - self._first) * (total - done))} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
