"""Data sets of one's own: a directory or one file, with labels, scores, tags or plain texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from comet_mpc.errors import TaskDataError
from comet_mpc.models.own_data import own_task, read_split
from comet_mpc.models.tasks import Example, token_tags, words_of
from support.toy_model import toy_tokenizer

LABELS = ("ham", "spam")


def csv_file(path: Path, rows: int = 20, header: str = "number,text,label", form: str = '{0},"text, {0}",{1}') -> Path:
    path.write_text("\n".join([header, *(form.format(i, LABELS[i % 2]) for i in range(rows))]) + "\n")
    return path


def test_every_fifth_row_of_a_file_is_for_evaluation(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "mail.csv")
    task = own_task(path, LABELS)
    assert (task.columns, task.plain, task.pairs, task.metric) == (("text", "label"), False, False, "accuracy")
    train, dev = (read_split(path, task, split) for split in ("train", "dev"))
    assert [row.first for row in dev] == ["text, 4", "text, 9", "text, 14", "text, 19"]
    assert [row.label for row in dev] == [0, 1, 0, 1]
    assert len(train) == 16
    assert not {row.first for row in train} & {row.first for row in dev}
    assert read_split(path, task, "train", 3) == train[:3]


def test_rows_of_a_limit_can_come_from_all_over_the_file(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "mail.csv")
    task = own_task(path, LABELS)
    train = read_split(path, task, "train")
    assert read_split(path, task, "train", 4, spread=True) == train[::4]
    assert read_split(path, task, "train", 5, spread=True) == [train[at] for at in (0, 3, 6, 9, 12)]
    for enough in (len(train), 100):
        assert read_split(path, task, "train", enough, spread=True) == train


def test_columns_with_other_names_are_named(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "mail.csv", header="number,body,kind")
    with pytest.raises(TaskDataError, match=r"which column has the texts.*Its columns: number, body, kind"):
        own_task(path, LABELS)
    task = own_task(path, LABELS, texts=("body",), answer="kind")
    assert read_split(path, task, "dev")[1] == Example("text, 9", None, 1.0)
    with pytest.raises(TaskDataError, match="no column 'colour'"):
        own_task(path, LABELS, texts=("body",), answer="colour")
    assert own_task(path, LABELS, texts=("body",)).plain


def test_pairs_with_scores(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "pairs.tsv", header="sentence1\tsentence2\tscore", form="a {0}\tb {0}\t{0}.5")
    task = own_task(path, ("score",))
    assert (task.pairs, task.regression, task.metric) == (True, True, "pearson_spearman")
    assert read_split(path, task, "dev")[0] == Example("a 4", "b 4", 4.5)
    similar = own_task(path, (), "embedding")
    assert (similar.kind, similar.plain, similar.metric) == ("embedding", False, "pearson_spearman")
    assert read_split(path, similar, "dev")[0] == Example("a 4", "b 4", 4.5)


def test_plain_texts(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(["", *(f'text "{i}", and more' for i in range(10))]))
    for labels, kind, metric in ((LABELS, "label", "accuracy"), ((), "embedding", "cosine")):
        task = own_task(path, labels, kind)  # type: ignore[arg-type]
        assert (task.plain, task.metric) == (True, metric)
        assert [row.first for row in read_split(path, task, "dev")] == ['text "4", and more', 'text "9", and more']
    with pytest.raises(TaskDataError, match="has 3 rows: at least 10 are needed"):
        read_split(csv_file(tmp_path / "short.csv", rows=3), own_task(tmp_path / "short.csv", LABELS), "train")


@pytest.mark.parametrize(
    ("label", "index"), [("spam", 1), ("SPAM", 1), ("1", 1), ("0", 0), ("2", None), ("eggs", None), ("", None)]
)
def test_labels_by_name_in_any_case_or_by_number(tmp_path: Path, label: str, index: int | None) -> None:
    path = csv_file(tmp_path / "mail.csv", form=f"{{0}},text,{label}")
    task = own_task(path, LABELS)
    if index is None:
        with pytest.raises(TaskDataError, match="row 2: the label is not one of ham, spam"):
            read_split(path, task, "train")
    else:
        assert read_split(path, task, "train")[0].label == index


def test_a_row_of_the_wrong_width_is_named(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "mail.csv")
    path.write_text(path.read_text().replace('3,"text, 3",spam', '3,"text, 3"'))
    with pytest.raises(TaskDataError, match="row 5: 2 columns, expected 3"):
        read_split(path, own_task(path, LABELS), "train")


def test_tags_go_to_the_first_token_of_a_word(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence1\ttags\nthe film, is good\tO B-X O O\n")
    task = own_task(tmp_path, ("O", "B-X"), "tokens")
    (row,) = read_split(tmp_path, task, "dev")
    assert row.tags == (0, 1, 0, 0)
    encoding = toy_tokenizer().encode(row.first)
    assert encoding.tokens == ["[CLS]", "the", "film", "[UNK]", "is", "good", "[SEP]"]
    assert token_tags(row, words_of(encoding)) == {1: 0, 2: 1, 4: 0, 5: 0}
    (tmp_path / "dev.tsv").write_text("sentence1\ttags\nthe film is good\tO B-X O\n")
    with pytest.raises(TaskDataError, match="row 2: 3 tags for 4 words"):
        read_split(tmp_path, task, "dev")
