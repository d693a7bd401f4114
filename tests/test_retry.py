"""`retry`: the same error again is raised, another one at once, and nothing is tried for longer than was said."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from comet_mpc import retry as module
from comet_mpc.errors import PeerClosed, PeerError, PeerGaveUp, ServerBusy
from comet_mpc.retry import retry


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    return found


def failing(errors: Iterable[Exception]) -> Callable[[], int]:
    """Raises one after the other; then returns how many there were."""
    left, count = iter(errors), 0

    def action() -> int:
        nonlocal count
        for error in left:
            count += 1
            raise error
        return count

    return action


def test_it_is_tried_as_often_as_was_said() -> None:
    assert retry(failing([PeerClosed("1"), PeerGaveUp("2")]), PeerClosed, tries=3) == 2
    with pytest.raises(PeerClosed, match="3"):
        retry(failing([PeerClosed("1"), PeerClosed("2"), PeerClosed("3")]), PeerClosed, tries=3)


def test_another_error_is_raised_at_once() -> None:
    with pytest.raises(PeerError, match="2"):
        retry(failing([PeerClosed("1"), PeerError("2"), PeerClosed("3")]), PeerClosed)


def test_no_try_begins_after_its_time(clock: Clock) -> None:
    assert retry(failing([ServerBusy("")] * 3), ServerBusy, seconds=5.0, pause=2.0) == 3
    assert clock.now == 6.0
    with pytest.raises(ServerBusy):
        retry(failing([ServerBusy("")] * 4), ServerBusy, seconds=5.0, pause=2.0)


def test_what_is_of_no_use_is_not_tried() -> None:
    with pytest.raises(PeerClosed, match="1"):
        retry(failing([PeerClosed("1")]), PeerClosed, unless=lambda: True)
