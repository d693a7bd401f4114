"""The `comet` command."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer.core import TyperGroup

from comet_mpc import __version__
from comet_mpc.cli import plan, service, train
from comet_mpc.cli.tables import (
    demo_tables,
    model_tables,
    operations_table,
    profile_tables,
    to_json,
    truncation_table,
    write_json,
)
from comet_mpc.engine.costs import Network
from comet_mpc.errors import CometError, ConfigurationError
from comet_mpc.lab.bench import cases
from comet_mpc.lab.bench.models import ModelCase, measure_model
from comet_mpc.lab.bench.operations import measure
from comet_mpc.lab.bench.profile import ProfileCase, profile_query
from comet_mpc.lab.bench.truncation import SHIFTS, check_truncation
from comet_mpc.lab.bench.workers import Crew, identity
from comet_mpc.lab.demo import SENTENCES, demo_model, run_demo
from comet_mpc.models.transformer import SHAPES, EncoderShape
from comet_mpc.net.identity import issue, make_authority
from comet_mpc.offline.dealer.server import run_dealer

__all__ = ["app"]


class _Commands(TyperGroup):
    """Shows an error of ours as one line, without a traceback unless asked for."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CometError as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"comet: {error}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Commands,
    help="Two-party private Transformer inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(help="Measurements.", no_args_is_help=True)
keys = typer.Typer(help="Certificates.", no_args_is_help=True)
app.add_typer(bench, name="bench")
app.add_typer(keys, name="keys")
plan.register(app)
service.register(app)
train.register(app)

JsonOption = Annotated[
    str | None, typer.Option("--json", metavar="FILE|-", help="Write the records as JSON, to a file or to stdout (-).")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"comet {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    """Two-party private Transformer inference."""


@contextlib.contextmanager
def _progress(what: str, total: int) -> Iterator[tuple[Progress, Any]]:
    """A bar on stderr, if somebody is looking."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress, progress.add_task(what, total=total)


@contextlib.contextmanager
def _crew() -> Iterator[Crew]:
    """A crew that is also ended in order when this process is asked to terminate."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with Crew() as crew:
            yield crew
    finally:
        signal.signal(signal.SIGTERM, before)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _report(records: Any, json: str | None, *shown: Any) -> None:
    """The tables, and JSON where it is wanted; with JSON on stdout, nothing else goes there."""
    if json == "-":
        typer.echo(to_json(records), nl=False)
        return
    console = _console()
    for each in shown:
        console.print(each, highlight=False)
    if json is not None:
        write_json(Path(json), records)


@bench.command("ops")
def bench_ops(
    operation: Annotated[list[str] | None, typer.Option(help="Only this operation; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=16, help="Steps of the minimax rule.")] = 3,
    tokens: Annotated[int, typer.Option(min=1, max=256, help="Tokens of a BERT-base layer.")] = 128,
    repeat: Annotated[int, typer.Option(min=1, help="Runs per case, with a bundle each; times are medians.")] = 1,
    json: JsonOption = None,
) -> None:
    """Single operations by several methods, between a dealer and two parties in processes of their own.

    Bytes and rounds are measured on the channels and must equal the plan; errors are against float64.
    """
    try:
        chosen = cases.choose(operation or [], method or [], tokens=tokens, steps=steps)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error
    records = []
    with _progress("starting", len(chosen)) as (progress, task), _crew() as crew:
        for case in chosen:
            progress.update(task, description=f"{case.operation} by {case.method}")
            records.append(measure(crew, case, repeat))
            progress.advance(task)
    _report(records, json, operations_table(records, _console().width))


def _shape(name: str, layers: int | None) -> EncoderShape:
    if name not in SHAPES:
        raise typer.BadParameter(f"unknown shape {name!r}: choose one of {', '.join(SHAPES)}", param_hint="--shape")
    return replace(SHAPES[name], layers=layers or SHAPES[name].layers)


@bench.command("model")
def bench_model(
    shape: Annotated[str, typer.Option(help=f"One of {', '.join(SHAPES)}.")] = "bert-base",
    tokens: Annotated[int, typer.Option(min=2, max=1024, help="Tokens per text, padding included.")] = 128,
    batch: Annotated[int, typer.Option(min=1, max=64, help="Texts at once.")] = 1,
    layers: Annotated[int | None, typer.Option(min=1, help="Only so many layers.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=16, help="Steps of 1/sqrt.")] = 3,
    source: service.SourceOption = "dealer",
    network: Annotated[str | None, typer.Option(help="RATE/RTT, for example 200mbit/10ms; else loopback.")] = None,
    json: JsonOption = None,
) -> None:
    """A whole model with random weights, end to end, between a dealer, a server and a client."""
    size = _shape(shape, layers)
    link = Network.parse(network) if network else None
    console = Console(stderr=True)
    status = console.status(f"{shape} between three processes") if console.is_terminal else contextlib.nullcontext()
    with status, _crew() as crew:
        record = measure_model(crew, ModelCase(shape, size, tokens, steps, batch, link, source=source or "dealer"))
    _report([record], json, *model_tables(record))


@bench.command("profile")
def bench_profile(
    model: Annotated[Path | None, typer.Option(help="A Comet checkpoint; else the bundled one.")] = None,
    shape: Annotated[str | None, typer.Option(help=f"Random weights of this shape: {', '.join(SHAPES)}.")] = None,
    tokens: Annotated[int, typer.Option(min=2, max=1024, help="Tokens per text, with --shape.")] = 128,
    layers: Annotated[int | None, typer.Option(min=1, help="Only so many layers, with --shape.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=16, help="Steps of 1/sqrt, with --shape.")] = 3,
    repeat: Annotated[int, typer.Option(min=1, max=100, help="Queries; the fastest counts.")] = 5,
    json: JsonOption = None,
) -> None:
    """Where the time of a query goes, its randomness prepared: bytes at the channel's rate, compute, latency."""
    if model is not None and shape is not None:
        raise typer.BadParameter("name either a checkpoint or a shape", param_hint="--shape")
    random = ModelCase(shape, _shape(shape, layers), tokens, steps) if shape is not None else None
    case = ProfileCase(None if model is None else str(model), random)
    with _crew() as crew:
        record = profile_query(crew, case, repeat)
    _report([msgspec.to_builtins(record) | {"ratio": record.ratio}], json, *profile_tables(record))


@bench.command("truncation")
def bench_truncation(
    values: Annotated[int, typer.Option(min=len(SHIFTS), help="How many in all, divided among the shifts.")] = 10**8,
    json: JsonOption = None,
) -> None:
    """Whether truncation is exact: random values up to 2^61 in size through the two-party protocol.

    Fails if one wraps around, is off by more than a unit in the last place, or if the mean error is above 0.01 units.
    """
    with _progress("truncating", values) as (progress, task):
        records = check_truncation(values, progress=lambda count: progress.advance(task, count))
    _report(records, json, truncation_table(records))
    if not all(record.exact for record in records):
        raise CometError("truncation is not exact: see the table")


@app.command("demo")
def demo(
    text: Annotated[list[str] | None, typer.Argument(help="Your own sentences; else some about films.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Another Comet checkpoint than the bundled one (sentiment of film reviews).")
    ] = None,
    source: service.SourceOption = "pair",
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per text, in a list, instead of the tables.")
    ] = False,
) -> None:
    """Private predictions between a client and a server on this machine: answers, costs, and what is seen.

    With --source dealer a third process prepares the randomness.
    """
    with service.showing_preparation(not json) as progress:
        result = run_demo(demo_model(model), text or SENTENCES, source or "pair", progress)
    _report(result, "-" if json else None, *demo_tables(result))


@app.command("deal")
def deal(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 lets the system choose.")],
    directory: Annotated[Path, typer.Option("--keys", metavar="DIR", help="dealer.pem, dealer.key, authority.pem.")],
) -> None:
    """Run the dealer: it prepares the randomness of others' computations, until SIGINT or SIGTERM.

    It never sees an input or a weight but knows every mask, so whoever runs it must not be one of the parties: a dealer
    run by the server's operator gives no privacy.
    """
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise typer.BadParameter(f"{listen!r} is not HOST:PORT", param_hint="--listen")
    run_dealer(
        host.strip("[]"),
        int(port),
        identity(directory, "dealer"),
        started=lambda address: typer.echo(f"dealing at {address[0]}:{address[1]}"),
    )


@keys.command("make")
def keys_make(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address under which server and dealer are reached; may be repeated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite.")] = False,
) -> None:
    """An authority and certificates for a client, a server and a dealer.

    Give each party its own .pem and .key and authority.pem, and keep authority.key away from all of them.
    """
    hosts = host or ["localhost", "127.0.0.1", "::1"]
    make_authority(directory, "Comet authority", force=force)
    for role in ("client", "server", "dealer"):
        made = issue(directory, role, role, () if role == "client" else hosts, force=force)
        typer.echo(f"{role}: {made.certificate} and {made.key}")
    typer.echo(f"all: {directory / 'authority.pem'} (keep authority.key to yourself)")
