"""Faults that are planted on purpose: their descriptions, and how one is put into a copy of the checkout."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MUTANTS", "DoesNotApply", "Mutant", "read_mutants"]

MUTANTS = Path(__file__).with_name("mutants.toml")


class DoesNotApply(Exception):
    """The text that a mutant replaces is not there, or more than once: the description must follow the code."""


@dataclass(frozen=True)
class Mutant:
    """One fault, as `mutants.toml` describes it."""

    name: str
    fault: str
    file: str
    old: str
    new: str
    guards: tuple[str, ...]
    survives: str = ""
    """Why no test can notice it; empty for all that must be noticed."""

    @property
    def native(self) -> bool:
        """Whether the extension must be built for it."""
        return self.file.startswith("native/")

    def planted(self, root: Path) -> str:
        """The file with the fault in it. `old` must stand there exactly once, whole lines of it."""
        text = (root / self.file).read_text()
        if (found := text.count(self.old)) != 1:
            raise DoesNotApply(f"{self.name}: its text is {found} times in {self.file}; mend it in {MUTANTS.name}")
        return text.replace(self.old, self.new)

    def missing_guards(self, root: Path) -> list[str]:
        """Guards that there are not."""
        return [guard for guard in self.guards if not _exists(root, *guard.split("::"))]


def _exists(root: Path, file: str, function: str = "") -> bool:
    path = root / file
    if not path.is_file():
        return False
    return not function or re.search(rf"^def {re.escape(function)}\(", path.read_text(), re.MULTILINE) is not None


def read_mutants(path: Path = MUTANTS) -> list[Mutant]:
    """All of them, in the order of the file."""
    described = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**one, "guards": tuple(one["guards"])}) for one in described]
