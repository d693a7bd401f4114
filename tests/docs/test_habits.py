"""The version, the changelog and the hooks before a commit agree with the project."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

import comet_mpc
from support.documents import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(version for version in versions if version != "Unreleased") == PROJECT["version"]
    assert comet_mpc.__version__ == PROJECT["version"]


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
    listed = subprocess.run(["git", "ls-files", "-sz"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("this is no clone: git does not say what belongs to the project")
    found = 0
    for mode, _, _, name in (entry.split(maxsplit=3) for entry in listed.split("\0") if entry):
        with (ROOT / name).open("rb") as file:
            first = file.readline().decode(errors="replace").rstrip()
        if mode != "100755" and not first.startswith("#!"):
            continue
        found += 1
        assert mode == "100755", f"{name} begins as a script does, but cannot be executed"
        if re.fullmatch(r"#!.*\bpython3?", first):
            assert name.endswith(".py"), f"{name}: without a suffix neither ruff nor mypy sees it"
            assert name.split("/")[0] in typed, f"{name}: mypy does not look there"
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
