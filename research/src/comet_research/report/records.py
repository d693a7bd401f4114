"""The JSON files of a directory of results, sorted by what they hold. No list of files: what is there is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from comet_mpc.errors import ConfigurationError
from comet_mpc.functions.root_rule import DEGREES
from comet_mpc.models.checkpoint import FITTED
from comet_mpc.models.tasks import TASKS
from comet_mpc.units import counted


@dataclass(frozen=True)
class Record:
    """One result: the file that it is from, relative to the directory, and what it says."""

    source: str
    fields: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return Path(self.source).stem

    def __getitem__(self, key: str) -> Any:
        try:
            return self.fields[key]
        except KeyError:
            raise ConfigurationError(f"{self.source}: a result without {key!r}: run its command again") from None

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)

    @property
    def rule(self) -> str:
        """How 1/sqrt was computed, in words: 3 steps, or the name of a rule with its steps, if it has any."""
        steps, name = self.get("steps"), self.get("rule")
        by = "" if steps is None or name in (*DEGREES, FITTED) else counted(steps, "step")
        return f"{name}, {by}" if name and by else name or by


def sources_of(records: Iterable[Record]) -> list[str]:
    """The files that they are from."""
    return list(dict.fromkeys(record.source for record in records))


_KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("operation", frozenset({"operation", "method", "online_bytes"})),
    ("protocol", frozenset({"logit_difference", "examples"})),
    ("model", frozenset({"model", "layers", "max_logit_difference"})),
    ("plan", frozenset({"model", "digest", "operations"})),
    ("demo", frozenset({"text", "server_saw"})),
    ("profile", frozenset({"model", "replay_seconds"})),
    ("truncation", frozenset({"shift", "wraps"})),
    ("kernel", frozenset({"kernel", "isa", "rate"})),
)
"""What a result must have to be of a kind. Later ones say so themselves (`record`)."""

_RUN = re.compile(rf".+?-(?:{'|'.join(name.lower() for name in TASKS)})-seed\d+")


@dataclass
class Results:
    """Results by kind, in the order of the files' names."""

    directory: Path = Path()
    kinds: dict[str, list[Record]] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    """Files with something that nothing here shows."""

    def add(self, record: Record) -> None:
        kind = _kind(record)
        if kind is not None:
            self.kinds.setdefault(kind, []).append(record)
        elif record.source not in self.strange:
            self.strange.append(record.source)

    def of(self, kind: str) -> list[Record]:
        return self.kinds.get(kind, [])

    def __bool__(self) -> bool:
        return bool(self.kinds)


def _kind(record: Record) -> str | None:
    said = record.get("record")
    if isinstance(said, str):
        return said
    for kind, needed in _KINDS:
        if needed <= record.fields.keys():
            return kind
    return "accuracy" if _RUN.match(record.name) and {"best", "scores"} & record.fields.keys() else None


def _records(path: Path, source: str) -> Iterator[Record]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{source} is not JSON: {error}") from error
    for each in content if isinstance(content, list) else [content]:
        if isinstance(each, dict):
            yield Record(source, each)


def read_results(directory: Path) -> Results:
    """All of them."""
    if not directory.is_dir():
        raise ConfigurationError(f"{directory} is not a directory of results")
    results = Results(directory)
    for path in sorted(directory.rglob("*.json")):
        source = path.relative_to(directory).as_posix()
        for record in _records(path, source):
            results.add(record)
    return results


def results_of(measured: Iterable[Mapping[str, Any]]) -> Results:
    """What is in no file yet."""
    results = Results()
    for fields in measured:
        results.add(Record("", fields))
    return results
