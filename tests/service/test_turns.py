"""Whose turn it is: no client waits behind another's many requests, and who stalls is no burden."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from comet_mpc.service.hosting.cores import Cores
from comet_mpc.service.hosting.turns import Slots, Turns

PAIR = Slots(run=4, prepare=3, together=4)


def granted(turns: Turns, now: float = 0.0) -> list[int]:
    return [connection for connection, _ in turns.grant(now)]


def test_runs_go_first_and_a_place_is_left_for_them() -> None:
    turns = Turns(PAIR)
    for connection in range(5):
        turns.ask((connection, 1), f"client {connection}", "prepare", 0.0)
    assert granted(turns) == [0, 1, 2]
    turns.ask((10, 1), "late", "run", 1.0)
    assert granted(turns, 1.0) == [10]
    turns.done((0, 1), 2.0)
    turns.ask((11, 1), "later", "run", 2.0)
    assert granted(turns, 2.0) == [11]  # before the preparations that have waited longer


def test_one_client_never_gets_all_slots() -> None:
    turns = Turns(PAIR)
    for request in range(8):
        turns.ask((0, request), "greedy", "prepare", 0.0)
    assert len(turns.grant(0.0)) == 2
    turns.ask((1, 1), "modest", "prepare", 5.0)
    assert granted(turns, 5.0) == [1]


def test_whoever_has_used_less_goes_before_whoever_asks_all_the_time() -> None:
    turns = Turns(Slots(run=1, prepare=1, together=1))
    turns.ask((0, 0), "polling", "prepare", 0.0)
    assert granted(turns) == [0]
    turns.ask((1, 0), "new", "prepare", 9.0)
    turns.ask((0, 1), "polling", "prepare", 1.0)  # asked before the other did
    turns.done((0, 0), 10.0)
    assert granted(turns, 10.0) == [1]
    turns.done((1, 0), 10.5)
    assert granted(turns, 10.5) == [0]


def test_a_client_that_was_told_to_come_again_has_waited_since_it_first_asked() -> None:
    turns = Turns(Slots(run=1, prepare=1, together=1))
    turns.ask((0, 0), "working", "prepare", 0.0)
    turns.grant(0.0)
    turns.ask((1, 0), "early", "prepare", 1.0)
    assert turns.overdue(31.0, 30.0) == [((1, 0), "prepare")]
    turns.ask((2, 0), "late", "prepare", 31.2)
    turns.ask((1, 1), "early", "prepare", 31.5)
    turns.done((0, 0), 32.0)
    assert granted(turns, 32.0) == [1]


def test_a_place_whose_holder_waits_for_its_peer_is_lent() -> None:
    turns = Turns(Slots(run=2, prepare=1, together=2))
    turns.ask((0, 0), "stalling", "prepare", 0.0)
    turns.ask((1, 0), "good", "prepare", 0.0)
    assert granted(turns) == [0]
    turns.rest((0, 0), True, 3.0)
    assert turns.idle_core_helps
    assert granted(turns, 3.0) == []  # all cores are busy: its peer may be waiting for one
    assert turns.grant(3.1, idle_core=True) == [(1, 0)]
    turns.rest((0, 0), False, 3.5)  # it goes on: there is one too many for a while, and no further one
    turns.ask((2, 0), "third", "prepare", 4.0)
    assert granted(turns, 4.0) == []
    turns.leave(0, 5.0)
    turns.leave(1, 5.0)
    assert granted(turns, 5.0) == [2]


def test_a_place_is_lent_after_a_while_although_all_cores_are_busy() -> None:
    turns = Turns(Slots(run=2, prepare=1, together=2))
    turns.ask((0, 0), "stalling", "prepare", 0.0)
    turns.ask((1, 0), "good", "prepare", 0.0)
    assert granted(turns) == [0]
    turns.rest((0, 0), True, 3.0)
    assert granted(turns, 17.9) == []
    assert granted(turns, 18.0) == [1]


def test_a_connection_that_ends_gives_back_all_that_it_had_or_wanted() -> None:
    turns = Turns(Slots(run=1, prepare=1, together=1))
    for request in range(3):
        turns.ask((0, request), "gone", "run", 0.0)
    turns.grant(0.0)
    turns.leave(0, 1.0)
    assert (turns.waiting("run"), turns.working("run")) == (0, 0)


def test_downloads_begin_one_after_the_other_when_their_client_has_gone_on() -> None:
    turns = Turns(Slots(run=2, prepare=1, together=2))
    for connection in range(4):
        turns.ask((connection, 0), f"client {connection}", "download", 0.0)
    assert granted(turns) == [0]
    turns.done((0, 0), 0.1)  # sent; but the client works on what it got
    assert granted(turns, 0.1) == []
    turns.ask((0, 1), "client 0", "prepare", 0.3)
    assert granted(turns, 0.3) == [0, 1]
    assert granted(turns, 2.0) == []
    assert granted(turns, 2.4) == [2]  # a client that is slow to go on is not waited for


def test_nobody_downloads_while_others_wait_to_prepare_for_a_few_seconds() -> None:
    turns = Turns(Slots(run=2, prepare=1, together=2))
    for connection in range(2):
        turns.ask((connection, 0), f"client {connection}", "prepare", 0.0)
    turns.ask((2, 0), "new", "download", 0.0)
    assert granted(turns) == [0]
    assert turns.overdue(9.0, 5.0) == [((1, 0), "prepare")]  # a download is never refused
    turns.ask((1, 1), "client 1", "prepare", 9.5)
    assert granted(turns, 9.5) == []
    assert granted(turns, 10.0) == [2]


def test_a_download_begins_at_once_where_a_core_is_idle() -> None:
    turns = Turns(Slots(run=2, prepare=1, together=2))
    for connection in range(2):
        turns.ask((connection, 0), f"client {connection}", "prepare", 0.0)
        turns.ask((connection, 1), f"other {connection}", "download", 0.0)
    assert granted(turns) == [0]
    assert turns.grant(0.1, idle_core=True) == [(0, 1)]
    assert turns.grant(0.2, idle_core=True) == [(1, 1)]


def test_a_download_takes_nothing_from_the_share_of_its_client() -> None:
    turns = Turns(Slots(run=1, prepare=1, together=1))
    turns.ask((0, 0), "first", "download", 0.0)
    turns.grant(0.0)
    turns.done((0, 0), 5.0)
    turns.ask((0, 1), "first", "prepare", 5.0)
    turns.ask((1, 1), "second", "prepare", 6.0)
    assert granted(turns, 6.0) == [0]


def test_a_spare_core_is_one_that_was_idle_for_a_while(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr("comet_mpc.service.hosting.cores._STAT", stat)
    ticks = os.sysconf("SC_CLK_TCK")

    def idle(seconds: float) -> None:
        stat.write_text(f"cpu  9 0 9 {round(seconds * ticks)} 0 0 0 0 0 0\ncpu0 0 0 0 0\n")

    idle(100.0)
    cores = Cores(0.0)
    idle(100.5)
    assert not cores.spare(0.05)  # it looks now and then only
    assert not cores.spare(1.0)  # half a core
    idle(101.5)
    assert cores.spare(2.0)
    idle(200.0)
    assert not cores.spare(9.0)  # what was long ago says nothing
    stat.unlink()
    assert cores.spare(10.0)  # nobody is held up where nobody can tell
