"""What `comet query` asks about: texts from the command line, one per line of a file, or a column of a CSV file; or
image files."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from comet_mpc.errors import ConfigurationError
from comet_mpc.files import as_utf8, read_utf8
from comet_mpc.models.own_data import not_one_column
from comet_mpc.models.tokenizers.texts import Text
from comet_mpc.units import counted

_LONGEST_FIELD = 1 << 27
"""Characters of one field of a CSV file."""


Asked = Text | Path
"""A text, a pair of them, or a file with an image."""


@dataclass(frozen=True)
class Texts:
    """What is to be asked, by number: of the argument, the line or the row, from 1 on. Blank ones are left out.

    header, rows  of a CSV file, as they were read
    """

    by_number: Mapping[int, Asked]
    header: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


def read_texts(
    given: Sequence[str] | None,
    file: Path | None,
    table: Path | None = None,
    columns: Sequence[str] = (),
    *,
    pairs: bool = False,
    images: Sequence[Path] = (),
) -> Texts:
    """From one of the four sources. `-` as the only text, or as the file, is standard input.

    columns  of the CSV file; two of them make a pair of texts of each row
    pairs    two texts that are given one after the other belong together, or the two of a line, with a tab between
    """
    if sum((bool(given), file is not None, table is not None, bool(images))) > 1:
        raise ConfigurationError("give texts, --file, --csv or --image: only one of them")
    if images:
        if pairs or columns:
            raise ConfigurationError("--pairs and --column are for texts: leave them out with --image")
        return Texts(dict(enumerate(images, start=1)))
    if table is not None:
        return _said(_read_table(table, columns), "row", str(table))
    if given and list(given) != ["-"]:
        if pairs and len(given) % 2:
            raise ConfigurationError(f"--pairs needs an even number of texts, got {len(given)}")
        parts = zip(given[::2], given[1::2], strict=True) if pairs else given
        return Texts(dict(enumerate(parts, start=1)))
    if not given and file is None:
        raise ConfigurationError(
            "no text was given. Give texts, --file FILE (- for standard input), --csv FILE or --image FILE"
        )
    lines = _content(file).splitlines()
    texts: dict[int, Text] = {
        number: _pair(line, number) if pairs else line for number, line in enumerate(lines, start=1) if line.strip()
    }
    where = "standard input" if file is None or str(file) == "-" else str(file)
    return _said(Texts(texts, rows=[[line] for line in lines]), "line", where)


def _pair(line: str, number: int) -> tuple[str, str]:
    first, *rest = line.split("\t")
    if len(rest) != 1:
        raise ConfigurationError(f"line {number} is not a pair: expected two texts separated by one tab")
    return first, rest[0]


def _content(file: Path | None) -> str:
    if file is None or str(file) == "-":
        return as_utf8(sys.stdin.buffer.read(), "standard input")
    return read_utf8(file)


def _said(texts: Texts, what: str, where: str) -> Texts:
    """Standard error says how many were blank."""
    if not texts.by_number:
        raise ConfigurationError(
            f"{where} has no texts: " + (f"every {what} is blank" if texts.rows else "it is empty")
        )
    if blank := len(texts.rows) - len(texts.by_number):
        typer.echo(f"skipped {counted(blank, f'blank {what}', f'blank {what}s')}", err=True)
    return texts


def delimiter(path: Path) -> str:
    """Commas separate fields, or tabs if the name ends in .tsv."""
    return "\t" if path.suffix == ".tsv" else ","


def _read_table(path: Path, columns: Sequence[str]) -> Texts:
    """A file with a header, and the texts of its rows."""
    if not 1 <= len(columns) <= 2:
        raise ConfigurationError("name the column with the texts: --column NAME. For pairs of texts, name two")
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
            raise ConfigurationError(not_one_column(path, column, header))
    indices = [header.index(column) for column in columns]
    texts: dict[int, Text] = {}
    for number, row in enumerate(rows, start=1):
        first, *rest = (row[index] for index in indices)
        if any(part.strip() for part in (first, *rest)):
            texts[number] = (first, rest[0]) if rest else first
    return Texts(texts, header, rows)
