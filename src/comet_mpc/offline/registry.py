"""Sources, and preparers of kinds of randomness, by name: loaded when one is first used, since a client needs few."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Found = TypeVar("Found")


@cache
def load(name: str) -> Any:
    """module.Class below `comet_mpc.offline`: one object of the class for all who name it."""
    module, _, called = name.rpartition(".")
    return getattr(import_module(f"comet_mpc.offline.{module}"), called)()


class Registry(MutableMapping[Key, Found], Generic[Key, Found]):
    """Objects, or the names that `load` finds them by."""

    def __init__(self, entries: dict[Key, str] | None = None) -> None:
        self.entries: dict[Key, Any] = {**(entries or {})}

    def __getitem__(self, key: Key) -> Found:
        entry = self.entries[key]
        found: Found = load(entry) if isinstance(entry, str) else entry
        return found

    def __setitem__(self, key: Key, entry: Found | str) -> None:
        self.entries[key] = entry

    def __delitem__(self, key: Key) -> None:
        del self.entries[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


PAIR: Registry[Any, Any] = Registry()
"""Of `pair`, each by itself: one may prepare several kinds. `kinds.register` fills these two."""
DEALER: Registry[type[Any], Any] = Registry()
"""Of `dealer`, by kind."""
