"""The tables and pictures of the documents are what the records say."""

from __future__ import annotations

from pathlib import Path

import pytest

from comet_research.report.documents import BLOCKS, PICTURES, drawn, rewritten
from comet_research.report.records import read_results
from support.documents import ROOT

RESULTS = read_results(ROOT / "research" / "benchmarks" / "results")
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_what_the_records_say(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == rewritten(text, RESULTS, page.name), "run comet-lab report --docs docs"


def test_a_number_that_was_changed_by_hand_is_found() -> None:
    text = (ROOT / "docs" / "explanation" / "costs.md").read_text("utf-8")
    number = next(line for line in text.splitlines() if line.startswith("| bert-base"))
    assert rewritten(text.replace(number, number.replace("MB", "kB")), RESULTS) == text


def test_every_block_is_somewhere() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    assert {name for name in BLOCKS if f"<!-- results: {name} -->" in text} == set(BLOCKS)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_what_the_records_say_and_are_shown(name: str) -> None:
    path = ROOT / "docs" / "pictures" / f"{name}.svg"
    assert path.read_text("utf-8") == drawn(name, RESULTS), "run comet-lab report --docs docs"
    text = (ROOT / "README.md").read_text("utf-8") + "".join(page.read_text("utf-8") for page in PAGES)
    assert f"pictures/{name}.svg)" in text
