"""Every planted fault still applies to the code, and names tests that there are. `scripts/mutants` runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mutants.planting import DoesNotApply, Mutant, read_mutants

ROOT = Path(__file__).parents[2]
ALL = read_mutants()
RECORD = ROOT / "research" / "benchmarks" / "results" / "mutants.json"


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_its_guards_are_there(mutant: Mutant) -> None:
    """If this fails, the code has moved on: give the mutant the text that stands there now."""
    assert mutant.planted(ROOT) != (ROOT / mutant.file).read_text()
    assert mutant.guards
    assert mutant.missing_guards(ROOT) == []
    assert mutant.fault.endswith(".")


def test_there_are_enough_of_them_and_all_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL) >= 25
    assert sum(bool(mutant.survives) for mutant in ALL) <= 1


def test_a_mutant_whose_text_is_gone_says_so(tmp_path: Path) -> None:
    for text in ("nothing of it", "here\nhere\n"):
        (tmp_path / "the file").write_text(text)
        with pytest.raises(DoesNotApply, match="times in the file"):
            Mutant("one", "It is none.", "the file", "here", "there", ()).planted(tmp_path)


def test_the_record_has_every_mutant_and_no_survivor_that_is_not_explained() -> None:
    """If this fails, run scripts/mutants --json research/benchmarks/results/mutants.json."""
    found = {one["name"]: one["outcome"] for one in json.loads(RECORD.read_text())["mutants"]}
    assert found.keys() == {mutant.name for mutant in ALL}
    assert set(found.values()) <= {"caught", "survived"}
    assert {name for name, outcome in found.items() if outcome == "survived"} <= {
        mutant.name for mutant in ALL if mutant.survives
    }
