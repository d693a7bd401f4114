"""The site of the documents: every page is in its navigation, it builds strictly, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs_pages import GENERATED, PROJECT, api, command_line, commands, modules, moved, training

import comet_mpc
from support.documents import ROOT
from support.waiting import PATIENCE

NAV = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"[\w/-]+\.md", NAV)
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted([*pages, *PROJECT.values()])


def test_every_place_for_generated_text_has_a_generator() -> None:
    found = re.findall(r"<!-- generated: (\S+) -->", "".join(p.read_text() for p in (ROOT / "docs").rglob("*.md")))
    assert sorted(found) == sorted(GENERATED)


def test_the_reference_has_every_command_and_option() -> None:
    text = command_line()
    for name, command in commands():
        section = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help" and not parameter.hidden:
                assert parameter.opts[0] in section, f"{name} {parameter.opts[0]}"


def test_the_reference_has_every_public_name_and_module() -> None:
    headings = set(re.findall(r"^## (\w+)$", api(), re.MULTILINE))
    assert {"Client", "Session", "plan_program", "Network"} <= headings <= set(comet_mpc.__all__)
    assert "### Client.classify" in api()
    assert "comet-mpc[train]" in training() or "## finetune\n" in training()
    assert "- `engine.session`: " in modules()


def test_links_that_leave_the_documents_lead_to_pages_of_the_site_or_become_text() -> None:
    text = "[a](../../CHANGELOG.md) [b](../../examples/read_a_plan.py) [c](../../deploy) [d](serve.md#stop) [e](#x)"
    assert moved(text, ROOT / "docs/how-to/page.md", "how-to/page.md") == (
        "[a](../project/changelog.md) [b](../examples/read_a_plan.md) c [d](serve.md#stop) [e](#x)"
    )


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?(https?:[^\">\s]+)", page.read_text("utf-8"))
        assert not loaded, f"{page.name} loads {loaded}"
    assert "first private answer" in (tmp_path / "search" / "search_index.json").read_text("utf-8")
