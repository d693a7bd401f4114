"""The changes that CONTRIBUTING lists touch as few files as it says, and nobody else knows of what they add."""

from __future__ import annotations

import re

import pytest

from support.documents import ROOT

PRODUCT = ROOT / "src" / "comet_mpc"
MOST = {
    "a rule": 3,
    "an operation": 3,
    "a kind of randomness": 5,
    "a source of randomness": 4,
    "a transport": 3,
    "a family of models": 5,
    "a metric": 2,
}
"""Files that a change may touch."""


def listed() -> dict[str, list[str]]:
    """What CONTRIBUTING says, by change."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("### What a change touches")[2].partition("###")[0]
    rows = re.findall(r"^- (an? [^:]+): (.+(?:\n  .+)*)", section, re.MULTILINE)
    return {change: re.findall(r"`([^`]+)`", files) for change, files in rows}


@pytest.mark.parametrize("change", MOST)
def test_a_change_touches_few_files_and_they_exist(change: str) -> None:
    files = listed()[change]
    assert 1 < len(files) <= MOST[change]
    assert any(name.startswith("tests/") for name in files)
    for name in files:
        if "NEW" not in name:
            assert (ROOT / name if name.startswith("tests/") else PRODUCT / name).is_file(), name


def test_every_change_of_the_list_is_counted() -> None:
    assert listed().keys() == MOST.keys()


# fmt: off
EXAMPLES = {
    # an operation, its registry and the method of Session that makes it
    r"\bSquareSum\b": {"engine/ops/square_sum.py", "engine/ops/__init__.py", "engine/session.py"},
    # a source, its registry, the two faces that export it, and a docstring
    r"\bPairSource\b": {
        "offline/pair/source.py", "offline/sources.py", "offline/__init__.py", "__init__.py",
        "service/hosting/server.py",
    },
    r"\bTlsTransport\b": {"net/transport.py", "service/connection.py"},
    r"[\"\']mpnet[\"\']": {"models/hugging_face.py", "models/checkpoint.py", "models/transformer.py"},
    r"[\"\']matthews[\"\']": {"models/tasks.py"},
}
# fmt: on
"""Something that was added in such a way, and the files that know it by name."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_only_these_files_know_it_by_name(name: str) -> None:
    found = {
        path.relative_to(PRODUCT).as_posix() for path in PRODUCT.rglob("*.py") if re.search(name, path.read_text())
    }
    assert found
    assert found <= EXAMPLES[name], found - EXAMPLES[name]


def test_another_package_adds_a_kind_and_its_operations_in_a_folder() -> None:
    """The look-ups of the laboratory: description, two preparers, operations, and the lines that register them."""
    folder = ROOT / "research" / "src" / "comet_research" / "look_up"
    assert {"kind.py", "pair.py", "dealer.py", "operation.py", "__init__.py"} <= {
        path.name for path in folder.iterdir()
    }
    assert len(re.findall(r"^(?:OPERATIONS\.)?register\(", (folder / "__init__.py").read_text(), re.MULTILINE)) == 2
