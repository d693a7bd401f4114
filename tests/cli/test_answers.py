"""What `comet query` reads and writes: nothing is left out silently, and a broken run is gone on with."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from comet_mpc.cli.asking.answers import AnswerFile, CsvFile, entry
from comet_mpc.cli.asking.query import _answer, _Printed
from comet_mpc.cli.asking.ready import fitting
from comet_mpc.cli.asking.texts import Texts, read_texts
from comet_mpc.cli.asking.work import FileWork, Shown
from comet_mpc.errors import ConfigurationError, PeerClosed
from comet_mpc.service.bundle_pool import Kept
from comet_mpc.service.prediction import Prediction
from support.answers import COST, answer

TEXTS: dict[int, str | tuple[str, str]] = {1: "good", 3: "bad", 4: "long"}


def test_blank_lines_are_counted_and_numbers_are_those_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts"
    file.write_text("good\n\nbad\nlong\n  \n")
    assert read_texts(None, file).by_number == TEXTS
    assert capsys.readouterr().err == "skipped 2 blank lines\n"


def test_a_file_in_another_encoding_is_named_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "texts"
    file.write_bytes("good\n\ncafé\n".encode("latin-1"))
    for lines, table in ((file, None), (None, file)):
        with pytest.raises(ConfigurationError, match=r"texts, line 3: not UTF-8"):
            read_texts(None, lines, table, ["good"])
    file.write_bytes(b"\xef\xbb\xbfgood\r\n")  # as some programs write UTF-8
    assert read_texts(None, file).by_number == {1: "good"}


def test_a_regression_has_a_score_and_no_probability(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(3.25, labels=("similarity",))
    assert found.score == 3.25
    assert entry("good", found)["score"] == 3.25
    assert not {"probability", "probabilities"} & entry("good", found).keys()
    assert "score" not in entry("good", answer(1.0, 2.0))
    _Printed(["good"]).add("good", found)
    shown = capsys.readouterr().out
    assert "3.250" in shown
    assert "score" in shown
    assert "1.000" not in shown


def test_answers_are_printed_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []

    class Client:
        def ask(self, texts: Sequence[str], *, told: Callable[[int, Prediction], None]) -> None:
            assert list(texts) == list(TEXTS.values())
            for place in (2, 0):
                told(place, answer(1.0, 2.0))
                shown.append(capsys.readouterr().out.splitlines())
            raise PeerClosed("gone")

    with pytest.raises(PeerClosed):
        _answer(Client(), Texts(TEXTS), None, None, Shown())  # type: ignore[arg-type]
    assert [line.split()[0] for lines in shown for line in lines] == ["text", "long", "good"]
    ended = capsys.readouterr()
    assert ended.out.startswith("online: ")
    assert "2 of 3 texts were answered" in ended.err


def test_a_cut_text_says_how_many_tokens_were_read(capsys: pytest.CaptureFixture[str]) -> None:
    _Printed(["good"]).add("good", answer(1.0, 2.0, cut=True))
    assert "(cut: 64 of 103 tokens)" in " ".join(capsys.readouterr().out.split())


def test_a_broken_run_keeps_what_was_answered_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    with AnswerFile(path, TEXTS) as file:
        assert file.left == TEXTS
        file.add(3, answer(1.0, 2.0))
    with path.open("ab") as half:
        half.write(b'{"number": 4, "tex')  # the machine stopped here
    with AnswerFile(path, TEXTS) as file:
        assert file.left == {1: "good", 4: "long"}
        file.add(1, answer(3.0, 2.0))
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["number"], one["text"], one["label"]) for one in found] == [(3, "bad", "yes"), (1, "good", "no")]


@pytest.mark.parametrize("content", [b'{"number": 1, "text": "other"}\n', b"no json\n", b"[1]\n", b"[" * 9999 + b"\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "answers"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="choose another"):
        AnswerFile(path, TEXTS)
    assert path.read_bytes() == content


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    with AnswerFile(tmp_path / "answers", TEXTS), pytest.raises(ConfigurationError, match="another process"):
        AnswerFile(tmp_path / "answers", TEXTS)
    with AnswerFile(tmp_path / "answers", TEXTS) as file:
        assert file.left == TEXTS


# CSV ------------------------------------------------------------------------------------------------------------------

TABLE = 'id,text,label\n1,"good, and\nlong",x\n2,,y\n\n3,"a ""bad"" one",z\n'


def table_in(directory: Path, content: str = TABLE, name: str = "in.csv") -> Path:
    path = directory / name
    path.write_text(content, encoding="utf-8")
    return path


def test_a_column_is_read_and_blank_rows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_texts(None, None, table_in(tmp_path), ["text"])
    assert found.by_number == {1: "good, and\nlong", 3: 'a "bad" one'}
    assert found.rows[1] == ["2", "", "y"]
    assert capsys.readouterr().err == "skipped 1 blank row\n"


def test_two_columns_are_pairs_and_tabs_are_seen(tmp_path: Path) -> None:
    path = table_in(tmp_path, "\ufeffone\ttwo\na\tb, c\n", "in.tsv")
    assert read_texts(None, None, path, ["one", "two"]).by_number == {1: ("a", "b, c")}


@pytest.mark.parametrize(
    ("content", "columns", "said"),
    [
        (TABLE, [], "--column"),
        (TABLE, ["txt"], r"in.csv has no column 'txt'. Did you mean 'text'\? Its columns: id, text, label$"),
        (TABLE, ["xyz"], "in.csv has no column 'xyz'. Its columns: id, text, label$"),
        ("a,a\n1,2\n", ["a"], "2 columns named 'a'"),
        ("a,b\n1,2\n1\n", ["a"], "line 3: 1 field, but the header has 2"),
        ('a,b\n1,"2\n', ["a"], "unexpected end of data"),
        ("a,b\n", ["a"], "in.csv has no texts: it is empty"),
        ("a,b\n,x\n", ["a"], "in.csv has no texts: every row is blank"),
        ("", ["a"], "in.csv is empty: the first line must name the columns"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: str, columns: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_texts(None, None, table_in(tmp_path, content), columns)


def test_what_is_no_file_of_texts_is_said_in_plain_words(tmp_path: Path) -> None:
    wide = tmp_path / "wide.csv"
    wide.write_bytes("id,text\n1,good\n".encode("utf-16"))
    for path, said in (
        (tmp_path / "nofile.csv", "no such file: .*nofile.csv"),
        (tmp_path, "is a directory, not a file"),
        (wide, "wide.csv is UTF-16. Convert it to UTF-8: iconv"),
    ):
        for lines, table in ((path, None), (None, path)):
            with pytest.raises(ConfigurationError, match=said):
                read_texts(None, lines, table, ["text"])


def test_truncated_texts_are_marked_and_counted_also_those_of_earlier_runs(tmp_path: Path) -> None:
    texts = Texts({1: "good", 2: "bad", 3: "long"}, ["text"], [["good"], ["bad"], ["long"]])
    with CsvFile(tmp_path / "out.csv", texts) as file:
        file.add(1, answer(2.0, 1.0, cut=True))
    with CsvFile(tmp_path / "out.csv", texts) as file:
        assert file.truncated == 1
        file.add(2, answer(2.0, 1.0))
        file.add(3, answer(2.0, 1.0, cut=True))
        assert file.truncated == 2
        file.finish()
    with (tmp_path / "out.csv").open(newline="") as lines:
        assert [row["truncated"] for row in csv.DictReader(lines)] == ["true", "false", "true"]
    assert entry("good", answer(2.0, 1.0, cut=True))["truncated"] is True


def test_a_result_without_the_column_for_truncated_texts_is_still_a_result(tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    texts = Texts({1: "good"}, ["text"], [["good"]])
    table_in(tmp_path, "text,label,probability\ngood,no,0.7311\n", "out.csv")
    with CsvFile(tmp_path / "out.csv", texts) as file:
        assert file.left == {}


def test_rows_come_out_in_their_order_with_their_answers(tmp_path: Path) -> None:
    """Answers come in any order; a run that breaks off leaves no file that looks finished."""
    texts, out = read_texts(None, None, table_in(tmp_path), ["text"]), tmp_path / "out.csv"
    with CsvFile(out, texts) as file:
        file.add(3, answer(1.0, 2.0))
    assert not out.exists()
    with CsvFile(out, texts) as file:
        assert set(file.left) == {1}
        file.add(1, answer(2.0, 1.0))
        file.finish()
    with out.open(newline="") as lines:
        assert list(csv.reader(lines)) == [
            ["id", "text", "label", "comet_label", "probability", "truncated"],
            ["1", "good, and\nlong", "x", "no", "0.7311", "false"],
            ["2", "", "y", "", "", ""],
            ["3", 'a "bad" one', "z", "yes", "0.7311", "false"],
        ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]
    before = out.read_bytes()
    with CsvFile(out, texts) as file:
        assert file.left == {}
        file.finish()
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


def test_a_regression_writes_scores(tmp_path: Path) -> None:
    texts = Texts({1: "good"}, ["text"], [["good"]])
    with CsvFile(tmp_path / "out.csv", texts) as file:
        file.add(1, answer(3.25, labels=("similarity",)))
        file.finish()
    assert (tmp_path / "out.csv").read_text() == ("text,label,score,truncated\ngood,similarity,3.2500,false\n")


@pytest.mark.parametrize("content", ["other\n", "id,text,label,comet_label,probability\n1,x,x,no,0.5\n", "\0", ""])
def test_another_file_is_not_overwritten(tmp_path: Path, content: str) -> None:
    out = table_in(tmp_path, content, "out.csv")
    with pytest.raises(ConfigurationError, match="choose another"):
        CsvFile(out, read_texts(None, None, table_in(tmp_path), ["text"]))
    assert out.read_text() == content


# How far it is


def shown_lines(show: Shown) -> list[tuple[int, int, str]]:
    lines: list[tuple[int, int, str]] = []
    show.tick = lambda done, total, note="": lines.append((done, total, note))
    return lines


def test_what_is_left_is_left_of_the_file_not_of_one_bundle() -> None:
    """Two runs of 8 texts of 16 tokens and one of a text of 128: the last has a third of the work."""
    work, show = FileWork({(8, 16): 2, (1, 128): 1}), Shown()
    lines = shown_lines(show)
    show.begin(work.total, work.of_bundle)
    show.done(0, "0 of 17 texts")
    show.bytes(500, 1000)
    assert lines[-1] == (round(0.8 * 64), 384, "0 of 17 texts, preparing 500 B/1.00 kB")
    slow = replace(COST, texts=8, offline_seconds=3.0, online_seconds=1.0)
    for _ in range(8):
        work.answered(slow)
    show.done(work.done, "8 of 17 texts")
    show.bytes(1000, 1000)  # three quarters of a run's time were preparation
    assert [line[0] for line in lines[-2:]] == [128, 128 + 96]
    for _ in range(8):
        work.answered(slow)
    show.done(work.done, "16 of 17 texts")
    show.bytes(500, 1000)
    assert lines[-1][:2] == (256 + 48, 384)
    work.answered(replace(COST, bucket=128))
    assert work.done == work.total


class Supply:
    """A client of a server that keeps a few prepared queries."""

    kept = Kept(bundles=3, size=10**9)

    def __init__(self, room: int) -> None:
        self.room = room

    def fitting(self, sizes: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
        found, left = {}, self.room
        for size, count in sizes.items():
            if min(count, left):
                found[size] = min(count, left)
            left -= found.get(size, 0)
        return found

    def check_room(self, sizes: dict[tuple[int, int], int]) -> None:
        if sum(sizes.values()) > self.room:
            raise ConfigurationError("the server keeps too few")


def test_ready_all_prepares_what_can_be_kept_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {(8, 16): 2, (8, 32): 5}
    assert fitting(Supply(7), wanted) == wanted  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
    assert fitting(Supply(3), wanted) == {(8, 16): 2, (8, 32): 1}  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "preparing 3 of 7 queries: the server keeps at most 3 prepared queries (1.00 GB) per client" in said
    assert "The rest is prepared while the texts are answered." in said
    with pytest.raises(ConfigurationError, match="too few"):
        fitting(Supply(0), wanted)  # type: ignore[arg-type]
