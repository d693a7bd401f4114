"""The version, the changelog and the hooks before a commit agree with the project."""

from __future__ import annotations

import re
import tomllib

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
    assert hooks == checks == {"ruff check", "ruff format", "mypy", "lint-imports"}
