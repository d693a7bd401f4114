"""The texts of `comet query`: from the command line, one per line of a file, or a column of a CSV file."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from comet_mpc.errors import ConfigurationError
from comet_mpc.models.runs import Text
from comet_mpc.units import counted

_LONGEST_FIELD = 1 << 27
"""Characters of one field of a CSV file."""


@dataclass(frozen=True)
class Texts:
    """What is to be asked, by number: of the argument, the line or the row, from 1 on. Blank ones are left out.

    header, rows  of a CSV file, as they were read
    """

    by_number: dict[int, Text]
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def read_texts(
    given: Sequence[str] | None,
    file: Path | None,
    table: Path | None = None,
    columns: Sequence[str] = (),
    *,
    pairs: bool = False,
) -> Texts:
    """From one of the three places. `-` as the only text, or as the file, is standard input.

    columns  of the CSV file; two of them make a pair of texts of each row
    pairs    two texts that are given one after the other belong together, or the two of a line, with a tab between
    """
    if sum((bool(given), file is not None, table is not None)) > 1:
        raise ConfigurationError("give texts, --file or --csv, and only one of them")
    if table is not None:
        return _said(_read_table(table, columns), "row")
    if given and list(given) != ["-"]:
        if pairs and len(given) % 2:
            raise ConfigurationError(f"pairs of texts need an even number of texts, got {len(given)}")
        parts = zip(given[::2], given[1::2], strict=True) if pairs else given
        return Texts(dict(enumerate(parts, start=1)))
    if not given and file is None:
        raise ConfigurationError("there is no text: give some, or --file FILE (- for standard input), or --csv FILE")
    lines = _content(file).splitlines()
    texts: dict[int, Text] = {
        number: _pair(line, number) if pairs else line for number, line in enumerate(lines, start=1) if line.strip()
    }
    return _said(Texts(texts, rows=[[line] for line in lines]), "line")


def _pair(line: str, number: int) -> tuple[str, str]:
    first, *rest = line.split("\t")
    if len(rest) != 1:
        raise ConfigurationError(f"line {number} is no pair of texts with a tab between them")
    return first, rest[0]


def _content(file: Path | None) -> str:
    where = "standard input" if file is None or str(file) == "-" else str(file)
    try:
        data = sys.stdin.buffer.read() if file is None or str(file) == "-" else file.read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"cannot read the texts: {where}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigurationError(f"{where}, line {line}: this is not UTF-8; save the file in that encoding") from error


def _said(texts: Texts, what: str) -> Texts:
    """Standard error says how many were blank."""
    if not texts.by_number:
        raise ConfigurationError("there is no text to classify")
    if blank := len(texts.rows) - len(texts.by_number):
        typer.echo(f"{counted(blank, f'blank {what} is', f'blank {what}s are')} left out", err=True)
    return texts


def delimiter(path: Path) -> str:
    """Commas separate fields, or tabs if the name ends in .tsv."""
    return "\t" if path.suffix == ".tsv" else ","


def _read_table(path: Path, columns: Sequence[str]) -> Texts:
    """A file with a header, and the texts of its rows."""
    if not 1 <= len(columns) <= 2:
        raise ConfigurationError("name the column of the texts with --column; for pairs of texts, name two")
    before = csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(io.StringIO(_content(path), newline=""), delimiter=delimiter(path), strict=True)
    try:
        header, rows = next(reader, []), []
        for row in reader:
            if row and len(row) != len(header):
                raise ConfigurationError(
                    f"{path}, line {reader.line_num}: {counted(len(row), 'field')}, but the header has {len(header)}"
                )
            if row:
                rows.append(row)
    except csv.Error as error:
        raise ConfigurationError(f"{path}, line {reader.line_num}: {error}") from error
    finally:
        csv.field_size_limit(before)
    for column in columns:
        if header.count(column) != 1:
            raise ConfigurationError(
                f"{path} has {counted(header.count(column), 'column')} {column!r}: it has {', '.join(header)}"
            )
    places = [header.index(column) for column in columns]
    texts: dict[int, Text] = {}
    for number, row in enumerate(rows, start=1):
        first, *rest = (row[place] for place in places)
        if any(part.strip() for part in (first, *rest)):
            texts[number] = (first, rest[0]) if rest else first
    return Texts(texts, header, rows)
