"""The version, the changelog and the hooks before a commit agree with the project."""

from __future__ import annotations

import ast
import os
import re
import tomllib

import comet_mpc
from support.documents import ROOT

FOLDERS = (".ci", "deploy", "docs", "examples", "native", "research", "scripts", "src", "tests")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(version for version in versions if version != "Unreleased") == PROJECT["version"]
    assert comet_mpc.__version__ == PROJECT["version"]


def test_the_laboratory_has_the_same_version() -> None:
    lab = tomllib.loads((ROOT / "research" / "pyproject.toml").read_text())["project"]
    assert lab["version"] == PROJECT["version"]
    assert lab["dependencies"] == [f"comet-mpc=={PROJECT['version']}"]


def test_what_the_metadata_names_is_there() -> None:
    assert (ROOT / PROJECT["readme"]).is_file()
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])


def test_the_hooks_before_a_commit_are_the_checks() -> None:
    hooks = set(
        re.findall(r"entry: \.venv/bin/([\w-]+(?: check| format)?)", (ROOT / ".pre-commit-config.yaml").read_text())
    )
    checks = set(re.findall(r"\$bin/([\w-]+(?: check| format)?)", (ROOT / "scripts" / "check").read_text()))
    assert hooks == checks == {"ruff check", "ruff format", "mypy", "lint-imports", "shellcheck"}


def test_every_script_is_seen_by_a_checker() -> None:
    """shellcheck takes what can be executed and names a shell, ruff and mypy Python by suffix and folder."""
    typed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    found = 0
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()):
        with path.open("rb") as file:
            first = file.readline().decode(errors="replace").rstrip()
        executable = os.access(path, os.X_OK)
        if not executable and not first.startswith("#!"):
            continue
        found += 1
        name = path.relative_to(ROOT)
        assert executable, f"{name} begins as a script does, but cannot be executed"
        if re.fullmatch(r"#!.*\bpython3?", first):
            assert name.suffix == ".py", f"{name}: without a suffix neither ruff nor mypy sees it"
            assert name.parts[0] in typed, f"{name}: mypy does not look there"
        else:
            assert re.fullmatch(r"#!.*sh", first), f"{name}: no checker knows {first}"
    assert found > 5


def test_the_classifiers_name_the_pythons_that_there_are_wheels_for() -> None:
    """3.11 has a wheel of its own; the other is for the stable ABI from 3.12 on."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert versions == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert content["tool"]["scikit-build"]["wheel"]["py-api"] == "cp" + versions[1].replace(".", "")


def outcome_is_ignored(function: ast.FunctionDef) -> bool:
    """Whether it catches an error, does nothing about it, and checks nothing that could fail instead.

    Such a test passes whether or not the error is raised. `pytest.raises` says which of the two it must be.
    """
    for node in (node for node in ast.walk(function) if isinstance(node, ast.Try)):
        for handler in node.handlers:
            if all(ast.unparse(step) in ("pass", "return") for step in handler.body):
                return True
    return False


def checks_nothing(function: ast.FunctionDef, helpers: set[str]) -> bool:
    """Whether nothing in it can fail but by an error that nobody has foreseen."""
    called = {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(function) if isinstance(node, ast.Call)}
    return not called & helpers and not can_fail(function)


def can_fail(tree: ast.AST) -> bool:
    words = ("assert", "raises", "check=True", "warns")
    return any(isinstance(node, ast.Assert) for node in ast.walk(tree)) or any(w in ast.unparse(tree) for w in words)


def functions(text: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]


def test_every_test_can_fail() -> None:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        found = functions(path.read_text())
        helpers = {function.name for function in found if can_fail(function)}
        for function in (function for function in found if function.name.startswith("test_")):
            place = f"{path.relative_to(ROOT)}:{function.lineno}"
            assert not outcome_is_ignored(function), f"{place} passes whether or not something is raised"
            assert not checks_nothing(function, helpers), f"{place} checks nothing"


def test_what_cannot_fail_is_found() -> None:
    """The controls of the test above."""
    (swallows,) = functions("def test():\n try:\n  work()\n except ValueError:\n  return\n assert 1")
    assert outcome_is_ignored(swallows)
    (idle,) = functions("def test():\n    work()")
    assert checks_nothing(idle, set())
    assert not checks_nothing(idle, {"work"})
