"""`comet-lab report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from comet_mpc.errors import ConfigurationError
from comet_mpc.files import atomic_write
from comet_research.report.documents import write_documents
from comet_research.report.grid import Grid
from comet_research.report.page import make_page, sections
from comet_research.report.records import read_results


def report_command(
    results: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of JSON results.")] = Path(
        "research/benchmarks/results"
    ),
    page: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    docs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the tables of the Markdown files in there anew.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the tables instead of writing a page.")] = False,
) -> None:
    """Turn recorded results into one page of tables and drawings.

    It reads JSON files only and measures nothing. The page is one HTML file that needs no network.
    """
    found = read_results(results)
    if not found:
        raise ConfigurationError(f"there are no results in {results}: commands write them with --json")
    if show:
        console = Console()
        for _, _, parts in sections(found):
            for part in parts:
                if isinstance(part, Grid):
                    console.print(part.table(), "")
    else:
        with atomic_write(page) as file:
            file.write(make_page(found).encode())
        typer.echo(f"wrote {page}")
    if docs is not None:
        changed = write_documents(docs, found)
        typer.echo(f"wrote {', '.join(map(str, changed))}" if changed else f"{docs} is up to date")
