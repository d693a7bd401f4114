"""Texts in and answers out, for `comet query`: what is read and left out, and a file that a broken run goes on with."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import typer

from comet_mpc.errors import ConfigurationError
from comet_mpc.service.prediction import Prediction
from comet_mpc.units import counted

__all__ = ["AnswerFile", "entry", "read_texts"]


def read_texts(given: list[str] | None, file: Path | None) -> dict[int, str]:
    """From the command line, or one text per line from a file or standard input; by their numbers, from 1 on.

    Blank lines are left out, and standard error says how many.
    """
    if given and file is not None:
        raise ConfigurationError("give texts or --file, not both")
    if given and given != ["-"]:
        return dict(enumerate(given, start=1))
    if not given and file is None:
        raise ConfigurationError("there is no text: give some, or --file FILE (- for standard input)")
    try:
        content = sys.stdin.read() if file is None or str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read the texts: {error}") from error
    lines = dict(enumerate(content.splitlines(), start=1))
    texts = {number: line for number, line in lines.items() if line.strip()}
    if not texts:
        raise ConfigurationError("there is no text to classify")
    if blank := len(lines) - len(texts):
        typer.echo(f"{counted(blank, 'blank line is', 'blank lines are')} left out", err=True)
    return texts


def entry(text: str, found: Prediction) -> dict[str, Any]:
    """An answer for machines. A regression has a score, and no probabilities."""
    fields = {"text": text, **asdict(found)}
    for name in ("probability", "probabilities") if found.score is not None else ("score",):
        del fields[name]
    return fields


class AnswerFile:
    """One JSON object per line, as the answers come. What is there already is not asked again.

    texts  all of them, by number; `left` are those without an answer
    """

    def __init__(self, path: Path, texts: Mapping[int, str]) -> None:
        self._path, self._texts = path, texts
        whole = 0
        answered = set()
        try:
            data = path.read_bytes() if path.exists() else b""
            for line in data.splitlines(keepends=True):
                if not line.endswith(b"\n"):  # a run was broken off while it wrote
                    break
                found = json.loads(line)
                if texts.get(found["number"]) != found["text"]:
                    raise ConfigurationError(f"{path} has answers to other texts: choose another file")
                answered.add(found["number"])
                whole += len(line)
            self._file = path.open("ab")
            self._file.truncate(whole)
        except OSError as error:
            raise ConfigurationError(f"cannot write the answers to {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigurationError(f"{path} is there and has no answers of `comet query`: choose another") from error
        self.left = {number: text for number, text in texts.items() if number not in answered}

    def add(self, number: int, found: Prediction) -> None:
        line = json.dumps({"number": number, **entry(self._texts[number], found)}, ensure_ascii=False)
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigurationError(f"cannot write the answers to {self._path}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
