"""The `comet` command."""

from typing import Annotated

import typer

from comet_mpc import __version__

app = typer.Typer(help="Two-party private Transformer inference.", no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"comet {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Two-party private Transformer inference."""
