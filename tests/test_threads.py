"""Work on all cores: in order, little ahead, and no threads within threads."""

from __future__ import annotations

import threading
import time

import pytest

from comet_mpc.threads import in_order
from support.waiting import PATIENCE


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_order_whatever_takes_longest(threads: int) -> None:
    def slow(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number**2

    assert list(in_order(slow, range(40), threads)) == [number**2 for number in range(40)]
    assert list(in_order(slow, [], threads)) == []


def test_two_threads_work_at_once() -> None:
    meeting = threading.Barrier(2, timeout=PATIENCE)
    assert sorted(in_order(lambda _: meeting.wait(), range(2), 2)) == [0, 1]


def test_work_is_only_a_little_ahead_of_who_takes_it() -> None:
    begun: list[int] = []
    results = in_order(begun.append, range(100), 2)
    next(results)
    assert len(begun) <= 6
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 6


def test_within_it_everything_is_done_by_one_thread() -> None:
    def inner(_: int) -> set[int]:
        return set(in_order(lambda _: threading.get_ident(), range(8), 2))

    assert all(len(used) == 1 for used in in_order(inner, range(4), 2))
    assert threading.get_ident() not in set(in_order(lambda _: threading.get_ident(), range(8), 2))


def test_an_error_is_raised_where_its_result_is_due() -> None:
    def refuse(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    results = in_order(refuse, range(8), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
