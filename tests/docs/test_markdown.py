"""Markdown files: links lead somewhere, lines are short, files that are named exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.documents import ROOT, Page, markdown_files, page_of

PAGES = {path: page_of(path) for path in markdown_files()}
_FILE = re.compile(r"^(?:src|tests|docs|scripts|research|examples|native|comet_mpc|comet_research)/[\w./-]+$")
_MODULE = re.compile(
    r"^(?:comet_research|net|engine|offline|functions|models|train|service|local|cli)(?:\.(?!tsv)[a-z_]+)+$"
)
_SOURCES = {"comet_mpc": ROOT / "src", "comet_research": ROOT / "research" / "src"}


def broken_links(page: Page) -> list[str]:
    """Relative links of a page to a file or heading that is not there."""
    found = []
    for line, target in page.links:
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.path.parent / name).resolve() if name else page.path
        if not path.exists():
            found.append(f"{page.path.name}:{line}: there is no {name}")
        elif anchor and anchor not in (page if path == page.path else page_of(path)).headings:
            found.append(f"{page.path.name}:{line}: {path.name} has no heading for #{anchor}")
    return found


def missing_files(page: Page) -> list[str]:
    """Paths and modules that a page names and that are not there."""
    found: list[str] = []
    if page.path.name == "CHANGELOG.md":  # tells of what was there
        return found
    for line, code in page.code_spans:
        name = code
        if _MODULE.match(code):
            name = ("" if code.startswith("comet_research.") else "comet_mpc/") + code.replace(".", "/")
        path = _SOURCES.get(name.partition("/")[0], ROOT) / name
        if (_FILE.match(code) or _MODULE.match(code)) and not (path.exists() or path.with_suffix(".py").exists()):
            found.append(f"{page.path.name}:{line}: there is no {code}")
    return found


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: str(page.path.relative_to(ROOT)))
def test_a_page_is_in_order(page: Page) -> None:
    assert broken_links(page) == []
    lines = page.path.read_text("utf-8").splitlines()
    assert [f"{page.path.name}:{n}" for n, line in enumerate(lines, start=1) if len(line) > 120] == []
    assert missing_files(page) == []


def test_every_page_is_seen() -> None:
    names = {path.name for path in PAGES}
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "api.md", "glossary.md"} <= names


def test_a_name_of_nothing_is_found() -> None:
    text = "`engine.party` `engine.prty` `offline.pair` `scripts/test` `scripts/tset` `comet_mpc/files.py` `comet plan`"
    page = page_of(Path("page.md"), text)
    assert missing_files(page) == ["page.md:1: there is no engine.prty", "page.md:1: there is no scripts/tset"]


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One heading\n\n[a](#one-heading) [b](#another) [c](missing.md) [d](page.md) [e](https://x.y)\n")
    assert broken_links(page_of(page)) == [
        "page.md:3: page.md has no heading for #another",
        "page.md:3: there is no missing.md",
    ]
