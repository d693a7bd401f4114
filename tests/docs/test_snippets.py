"""Every command and every snippet of the documents runs, and README's output is what is printed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from comet_mpc.cli.main import app
from comet_research.cli.main import app as lab
from support.documents import (
    ROOT,
    Block,
    Page,
    Runner,
    Service,
    check_command,
    comet_lines,
    free_ports,
    markdown_files,
    masked,
    page_of,
)

PAGES = [page_of(path) for path in markdown_files()]
COMET = typer.main.get_command(app)
COMMANDS = {"comet": COMET, "comet-lab": typer.main.get_command(lab)}


def named(page: Page) -> str:
    return str(page.path.relative_to(ROOT))


def blocks(language: str) -> Iterator[Block]:
    return (block for page in PAGES for block in page.blocks if block.language == language)


@pytest.fixture(scope="module")
def accuracy() -> Any:
    """The command line of research/benchmarks/accuracy.py."""
    spec = importlib.util.spec_from_file_location("accuracy_commands", ROOT / "research" / "benchmarks" / "accuracy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return typer.main.get_command(module.app)


@pytest.mark.service
@pytest.mark.parametrize("page", [page for page in PAGES if any(block.runs for block in page.blocks)], ids=named)
def test_a_page_runs_as_it_stands(page: Page, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    ports = free_ports(7000, 7001, 7002)
    wanted = {flag for block in page.blocks for flag in block.flags} & {"server", "demo-server"}
    if wanted and not page.serves:
        service: Service = request.getfixturevalue("demo_service" if "demo-server" in wanted else "service")
        ports[7001] = service.port
        (tmp_path / "keys").symlink_to(service.keys)
    runner = Runner(tmp_path, ports)
    printed = ""
    try:
        for step in page.steps:
            if step[0].runs:
                printed = runner.run(*step)
            else:
                assert masked(printed) == masked(step[0].text), f"{step[0]}: what is printed now:\n{printed}"
    finally:
        runner.close()


def test_every_command_is_one_that_the_command_line_takes(accuracy: Any) -> None:
    found = 0
    for block in blocks("sh"):
        for line, words in comet_lines(block):
            try:
                if words[0] in COMMANDS:
                    check_command(COMMANDS[words[0]], words[1:])
                elif words[:2] == ["python", "research/benchmarks/accuracy.py"]:
                    check_command(accuracy, words[2:])
                elif words[0] == "python" and words[1].endswith(".py"):
                    assert (ROOT / words[1]).is_file(), f"there is no {words[1]}"
                else:
                    assert not words[0].startswith("scripts/") or (ROOT / words[0]).is_file(), f"no {words[0]}"
                    continue
                found += 1
            except (ValueError, AssertionError) as error:
                pytest.fail(f"{block.path.name}:{line}: {error}")
    assert found > 30


def test_every_command_that_the_text_mentions_exists() -> None:
    found = 0
    for page in PAGES:
        if page.path.name == "CHANGELOG.md":  # tells of what was there
            continue
        for line, code in page.code_spans:
            words = code.split()
            if words[0] in COMMANDS and len(words) > 1:
                found += 1
                try:
                    check_command(COMMANDS[words[0]], words[1:], whole=False)
                except ValueError as error:
                    pytest.fail(f"{page.path.name}:{line}: {error}")
    assert found > 20


@pytest.mark.parametrize(
    "words",
    [["qery", "host:1"], ["query", "--redy", "5"], ["serve"], ["plan", "--tokens", "many"], ["keys", "mak", "keys"]],
)
def test_a_command_that_does_not_exist_is_found(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        check_command(COMET, words)


@pytest.mark.parametrize("words", [["qery"], ["query", "--redy"], ["keys", "mak"]])
def test_a_mention_of_what_does_not_exist_is_found(words: list[str]) -> None:
    with pytest.raises(ValueError, match="has no"):
        check_command(COMET, words, whole=False)


@pytest.mark.service
@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("```python\nfrom comet_mpc import Clinet\n```\n", "Clinet"),
        ("```sh\ncomet plan --shape no-such-shape\n```\n", "no-such-shape"),
        ("```sh\nfalse | true\n```\n", "failed with 1"),
    ],
)
def test_a_broken_snippet_is_found(text: str, match: str, tmp_path: Path) -> None:
    (block,) = page_of(Path("page.md"), text).blocks
    assert block.runs
    with pytest.raises(AssertionError, match=match):
        Runner(tmp_path, {}).run(block)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("```sh norun\ncomet demo\n```\n", "unknown words"),
        ("```\ncomet demo\n```\n", "belong into"),
        ("```console\n$ comet demo\n```\n", "belong into"),
        ("```sh\ncomet demo\n", "does not end"),
    ],
)
def test_a_snippet_cannot_hide(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        page_of(Path("page.md"), text)


def test_every_block_that_runs_and_every_output_is_a_step_in_its_order() -> None:
    for page in PAGES:
        steps = [block for step in page.steps for block in step]
        assert steps == [block for block in page.blocks if block.runs or "output" in block.flags]
    text = "```python\na\n```\n```python\nb\n```\n```python\nc\n```\n```text output\nc\n```\n```python\nd\n```\n"
    texts = [[block.text.strip() for block in step] for step in page_of(Path("page.md"), text).steps]
    assert texts == [["a", "b"], ["c"], ["c"], ["d"]]


def test_an_output_that_is_not_what_is_printed_is_found() -> None:
    assert masked("a  12 ms\n ──── \n") == masked("a 3.14 s\n──\n")
    assert masked("rounds 211  12 ms") != masked("rounds 212  12 ms")
