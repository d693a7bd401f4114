"""The command `comet-lab`. A subcommand's module is imported when it is called."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from comet_mpc.cli.main import Commands
from comet_mpc.processors import settle_threads


class _Lab(Commands):
    program = "comet-lab"
    package = "comet_research.cli"
    listed = {  # noqa: RUF012  its type is the base class's
        "bench": ("bench.bench", "Measure", "Measure time, traffic and errors on this machine."),
        "paper": (
            "paper.paper_command",
            "Measure",
            "Run the paper's own form inside the protocol. Not certified.",
        ),
        "report": ("report.report_command", "Measure", "Turn recorded results into one page of tables and drawings."),
    }


app = typer.Typer(
    cls=_Lab,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Measure Comet, compare it with other systems and with the paper, and report the results."""


def run() -> None:
    settle_threads(os.environ)  # numeric libraries choose their threads when a subcommand imports them
    app()
