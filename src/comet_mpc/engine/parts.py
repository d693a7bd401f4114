"""The parts of a program: a path of names, such as `layer 3/attention/softmax`.

A *block* is a part that a program repeats, known by its kind and its number: `layer 3`. Cost tables add up what the
blocks of a kind have in common, and a choice between two ways holds in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

_SEPARATOR = "/"
PROGRAM = "program"
"""What belongs to no part."""


@dataclass(frozen=True)
class Block:
    """One of several alike parts. kind: a word, such as `layer`"""

    kind: str
    index: int

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """The block of that name; None if it is the name of a part that is not repeated."""
        kind, _, index = name.rpartition(" ")
        return cls(kind, int(index)) if kind.isidentifier() and index.isdecimal() else None


def path(names: Sequence[str]) -> str:
    """A part within parts, the outermost first."""
    return _SEPARATOR.join(names) or PROGRAM


def names(part: str) -> list[str]:
    """The names of a path, the outermost first."""
    return part.split(_SEPARATOR)


def in_all_blocks(names: Sequence[str]) -> list[str]:
    """A path without its blocks: the same for all of a kind."""
    return [name for name in names if Block.parse(name) is None]
