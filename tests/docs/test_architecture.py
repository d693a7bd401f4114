"""The page on architecture says what the code is: its packages, and the way of a query through them."""

from __future__ import annotations

import re
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from docs_pages import SOURCE, first_line

from comet_mpc import Client
from support.documents import ROOT, Service, page_of

PAGE = page_of(ROOT / "docs" / "explanation" / "architecture.md")


def layers() -> list[list[str]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    assert contract["exhaustive"]
    return [re.findall(r"\w+", layer) for layer in contract["layers"]]


def listed(heading: str, part: int = 0) -> list[str]:
    """The modules of a numbered list under a heading; part: the first list, or the second."""
    text = "\n".join(line for _, line in PAGE.prose).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lists = re.findall(r"(?:^\d+\. .*\n(?:^ .*\n)*)+", text + "\n", re.MULTILINE)
    return re.findall(r"^\d+\. `([\w.]+)`", lists[part], re.MULTILINE)


def entered(action: Callable[[], object]) -> list[str]:
    """The modules of the package that this thread enters, each once, in order."""
    seen: dict[str, None] = {}
    thread = threading.get_ident()

    def profile(frame: FrameType, event: str, _: object) -> None:
        package, _dot, module = str(frame.f_globals.get("__name__")).partition(".")
        if event == "call" and package == "comet_mpc" and threading.get_ident() == thread:
            seen.setdefault(module)

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return list(seen)


def test_the_picture_is_the_contract() -> None:
    (picture,) = (block.text for block in PAGE.blocks if re.search(r"^ +cli$", block.text, re.MULTILINE))
    drawn = [re.findall(r"[a-z]+", line) for line in picture.splitlines()]
    assert [layer for layer in drawn if layer] == layers()


def test_every_module_says_in_a_line_what_it_is() -> None:
    """The reference lists these lines (`scripts/docs_pages.py`)."""
    for path in SOURCE.rglob("*.py"):
        assert first_line(path), f"{path} has no docstring"


def test_no_package_has_more_than_14_modules() -> None:
    for package in {path.parent for path in SOURCE.rglob("*.py")}:
        assert len([path for path in package.glob("*.py") if path.stem != "__init__"]) <= 14, package


@pytest.mark.parametrize("heading", ["One query, from text to label", "One preparation"])
def test_every_module_on_the_way_exists(heading: str) -> None:
    for part in range(2 if "query" in heading else 1):
        names = listed(heading, part)
        assert len(names) == len(set(names)) > 5, "a module is entered once"
        for name in names:
            assert (SOURCE / f"{name.replace('.', '/')}.py").is_file(), name


def test_a_preparation_and_a_query_go_the_way_that_is_described(demo_service: Service, tmp_path: Path) -> None:
    with Client(f"127.0.0.1:{demo_service.port}", keys=demo_service.keys, cache=tmp_path, ready=0) as client:
        preparation = entered(lambda: client.prepare(1))
        query = entered(lambda: client.classify(["the film is good"]))
    for heading, way in (("One preparation", preparation), ("One query, from text to label", query)):
        described = listed(heading)
        assert [module for module in way if module in described] == described
