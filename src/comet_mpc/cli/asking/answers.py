"""Answers of `comet query` in files: each is on disk as soon as it arrives, so an interrupted command can resume."""

from __future__ import annotations

import csv
import fcntl
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from comet_mpc.cli.asking.texts import Asked, Texts, delimiter
from comet_mpc.errors import ConfigurationError
from comet_mpc.files import atomic_write, sync
from comet_mpc.service.prediction import Answer, Prediction, Tagging


def entry(text: Asked, found: Answer) -> dict[str, Any]:
    """An answer for machines. A regression has a score, and no probabilities."""
    asked = {"image": str(text)} if isinstance(text, Path) else {"text": text}
    fields = {**asked, **asdict(found)}
    if isinstance(found, Prediction):
        for name in ("probability", "probabilities") if found.score is not None else ("score",):
            del fields[name]
    if isinstance(found, Tagging):
        fields["entities"] = [asdict(part) for part in found.entities]
    return fields


def _columns(found: Mapping[str, Any]) -> dict[str, str]:
    """What a row of a CSV file gets of an entry."""
    cut = {_TRUNCATED: json.dumps(found["truncated"])}
    if "vector" in found:
        return {"embedding": json.dumps(found["vector"]), **cut}
    if "entities" in found:
        parts = [{name: part[name] for name in ("text", "label", "start", "end")} for part in found["entities"]]
        return {"entities": json.dumps(parts, ensure_ascii=False), **cut}
    value = "score" if "score" in found else "probability"
    return {"label": found["label"], value: f"{found[value]:.4f}", **cut}


_TRUNCATED = "truncated"
"""Whether the text was longer than the model takes."""


class AnswerFile:
    """One JSON object per line, as the answers come. What is there already is not asked again.

    texts  all of them, by number; `left` are those without an answer
    """

    def __init__(self, path: Path, texts: Mapping[int, Asked]) -> None:
        self._path, self._texts = path, texts
        self.path = path
        """What the user has named."""
        self.truncated = 0
        """How many of the answered texts were cut, those of earlier runs included."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigurationError(f"cannot write the answers to {path}: {error.strerror}") from error
        try:
            answered, whole = self._read()
            self._file.truncate(whole)
        except BaseException:
            self._file.close()
            raise
        self.left = {number: text for number, text in texts.items() if number not in answered}

    @property
    def kept_in(self) -> Path:
        """The file that has the answers so far."""
        return self._path

    def _read(self) -> tuple[set[int], int]:
        """The numbers that have an answer, and the bytes of whole lines."""
        answered, whole = set(), 0
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for line, found in self._lines():
                text = None if "image" in found else found["text"]
                asked = Path(found["image"]) if text is None else tuple(text) if isinstance(text, list) else text
                if self._texts.get(found["number"]) != asked:
                    raise ConfigurationError(f"{self._path} has answers to other texts: choose another --out file")
                answered.add(found["number"])
                self.truncated += found["truncated"]
                whole += len(line)
        except BlockingIOError as error:
            raise ConfigurationError(f"another process is writing to {self._path}: wait until it is done") from error
        except OSError as error:
            raise ConfigurationError(f"cannot read the answers of {self._path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigurationError(
                f"{self._path} exists, and its content is not from `comet query`: choose another --out file"
            ) from error
        return answered, whole

    def _lines(self) -> Iterator[tuple[bytes, Any]]:
        self._file.seek(0)
        for line in self._file:
            if not line.endswith(b"\n"):  # a run was broken off while it wrote
                return
            yield line, json.loads(line)

    def add(self, number: int, found: Answer) -> None:
        line = json.dumps({"number": number, **entry(self._texts[number], found)}, ensure_ascii=False)
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            sync(self._file.fileno())
            self.truncated += found.truncated
        except OSError as error:
            raise ConfigurationError(f"cannot write the answers to {self._path}: {error.strerror}") from error

    def finish(self) -> None:
        """All texts have their answers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


class CsvFile(AnswerFile):
    """The rows that were read, in their order, with the answer in further columns.

    The file appears when the last row is answered. Until then the answers are beside it, in FILE.part.
    """

    def __init__(self, path: Path, texts: Texts) -> None:
        self._target, self._source = path, texts
        complete = path.exists() and self._is_complete()
        if path.exists() and not complete:
            raise ConfigurationError(f"{path} exists, and is not the result for these rows: choose another --out file")
        super().__init__(path.with_name(f"{path.name}.part"), texts.by_number)
        self.path = path
        if complete:  # a run may have ended just before it removed the answers
            self.left = {}
            self._path.unlink()

    def finish(self) -> None:
        if self._target.exists():
            return
        answers = {found["number"]: found for _, found in self._lines()}
        columns = {number: _columns(found) for number, found in answers.items()}
        names = list(next(iter(columns.values()), {}))
        table = io.StringIO(newline="")
        writer = csv.writer(table, delimiter=delimiter(self._target), lineterminator="\n")
        writer.writerow([*self._source.header, *(self._column(name) for name in names)])
        for number, row in enumerate(self._source.rows, start=1):
            found = columns.get(number, {})  # a row without a text has none
            writer.writerow([*row, *(found.get(name, "") for name in names)])
        with atomic_write(self._target, durable=True) as file:
            file.write(table.getvalue().encode())
        self._path.unlink()

    def _column(self, name: str) -> str:
        """A name that the file does not have yet."""
        return f"comet_{name}" if name in self._source.header else name

    def _is_complete(self) -> bool:
        """Whether the file has these rows, with answers."""
        width = len(self._source.header)
        try:
            with self._target.open(encoding="utf-8", newline="") as file:
                header, *rows = csv.reader(file, delimiter=delimiter(self._target), strict=True)
        except (OSError, ValueError, csv.Error):
            return False
        return (
            width < len(header) <= width + 3
            and header[:width] == self._source.header
            and [row[:width] for row in rows] == self._source.rows
            and all(any(rows[number - 1][width:]) for number in self._source.by_number)
        )
