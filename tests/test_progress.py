"""How far a long command is, where nobody is watching."""

from __future__ import annotations

import pytest

from comet_mpc import progress
from comet_mpc.progress import Pace, Shown, Watcher, bar, doing
from comet_mpc.units import about, counted, human_bytes


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_a_line_every_ten_seconds_with_the_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with bar("training") as tick:
        for done in range(5):
            tick(done, 4, f"loss {done}" if done else "")
            clock.now += 6.0
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["training 2/4, loss 2, 0:00:12, 0:00:12 left", "training 4/4, loss 4, 0:00:24"]


def test_a_program_with_a_log_is_given_the_lines(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with bar("loading", say=lines.append) as tick:
        for done in range(3):
            tick(done, 4)
            clock.now += 10.0
    assert lines == ["loading 1/4, 0:00:10, 0:00:30 left", "loading 2/4, 0:00:20, 0:00:20 left"]
    assert capsys.readouterr().err == ""


def test_what_is_done_soon_is_not_mentioned(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with bar("evaluating") as tick:
        tick(0, 2)
        clock.now += 3.0
        tick(2, 2)
    assert capsys.readouterr().err == ""


def test_a_bar_may_begin_again(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with bar("preparing randomness", shown=human_bytes) as tick:
        for _ in range(2):
            tick(0, 2_000_000)
            clock.now += 10.0
            tick(1_000_000, 2_000_000)
            tick(2_000_000, 2_000_000)
    once = [
        "preparing randomness 1.00 MB/2.00 MB, 0:00:10, 0:00:10 left",
        "preparing randomness 2.00 MB/2.00 MB, 0:00:10",
    ]
    assert capsys.readouterr().err.splitlines() == once * 2


def test_the_time_left_is_that_of_the_pace_so_far(clock: Clock) -> None:
    pace = Pace()
    assert pace.spent(10) == 0.0  # what was there before took no time of this
    clock.now += 4.0
    assert pace.left(20, 100) == "0:00:32 left"
    assert pace.spent(0) == 0.0  # it begins again
    clock.now += 2.0
    assert pace.left(50, 100) == "0:00:02 left"


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with bar("measuring") as tick:
        tick(0, 0)
        tick(1, 4, "activation by minimax")
        tick(4, 4)
        tick(2, 4)
    assert "measuring" in capsys.readouterr().err


def test_data_on_standard_output_is_not_drawn_into_the_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`comet query … >answers` at a terminal: standard error is one, standard output is a file."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with bar("answered") as tick:
        tick(1, 4)
        print("an answer")
    with doing("loading"):
        print("another")
    assert capsys.readouterr().out == "an answer\nanother\n"


def test_what_is_being_done_is_said_before_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with doing("loading [model]"):
        shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "loading [model]\n")


def test_work_whose_unit_means_nothing_is_shown_in_per_cent(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with bar("answered", shown=None) as tick:
        tick(0, 4000)
        clock.now += 10.0
        tick(1000, 4000, "3 of 12 texts")
    assert capsys.readouterr().err == "answered 25 %, 3 of 12 texts, 0:00:10, 0:00:30 left\n"


def test_an_estimate_is_no_more_exact_than_it_can_be() -> None:
    assert [about(x) for x in (3.2, 42.0, 100.0, 725.0, 9000.0)] == [
        "a few seconds", "about 40 s", "about 2 min", "about 12 min", "about 2.5 h",
    ]  # fmt: skip


def test_a_watcher_shows_stages_before_they_begin_and_lines(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    watcher = Shown()
    with watcher.stage("fine-tuning") as tick:
        assert capsys.readouterr().err == "fine-tuning\n"
        watcher.say("epoch [1]")
        tick(0, 4)
        clock.now += 12.0
        tick(1, 4)
    assert capsys.readouterr().err == "epoch [1]\nfine-tuning 1/4, 0:00:12, 0:00:36 left\n"
    with Watcher().stage("nobody is told") as tick:
        tick(1, 2)
    assert capsys.readouterr().err == ""


def test_one_is_not_several() -> None:
    assert counted(1, "layer") == "1 layer"
    assert counted(12, "layer") == "12 layers"
    assert counted(0, "more query", "more queries") == "0 more queries"
