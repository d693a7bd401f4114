"""`comet-lab bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console

from comet_mpc.cli.options import (
    Batch,
    JsonFile,
    Layers,
    NetworkName,
    ShapeName,
    ShapeRule,
    SourceName,
    Steps,
    find_shape,
    group,
)
from comet_mpc.cli.tables import report, write_json
from comet_mpc.engine.costs import Network
from comet_mpc.errors import CometError, ConfigurationError
from comet_mpc.models.checkpoint import chosen_rule
from comet_mpc.offline.sources import DEALER, find_source
from comet_mpc.progress import bar
from comet_mpc.units import human_bytes
from comet_research.bench import cases
from comet_research.bench.models import ModelCase, measure_model
from comet_research.bench.operations import measure
from comet_research.bench.profile import ProfileCase, profile_query
from comet_research.bench.published import TABLES, PublishedRecord, measure_appendix, measure_table
from comet_research.bench.rules import measure_rules
from comet_research.bench.truncation import SHIFTS, check_truncation
from comet_research.cli.tables import model_tables, operations_table, profile_tables, rules_table, with_origin
from comet_research.crew import Crew
from comet_research.peers.compare import SYSTEMS, PeerRecord, compare
from comet_research.peers.environments import default_place
from comet_research.peers.inputs import TASKS
from comet_research.peers.trials import TrialRecord, run_trials
from comet_research.report.costs import peer_grids, trial_grid, truncation_grid
from comet_research.report.grid import Grid
from comet_research.report.published import appendix_grid, cost_grids
from comet_research.report.records import Results, results_of

Tokens = Annotated[int, typer.Option(min=2, max=1024, help="With --shape: tokens per text, padding included.")]
Environments = Annotated[
    Path | None, typer.Option("--environments", metavar="DIR", help="Where virtual environments are kept.")
]

bench = group("Measure time, traffic and errors on this machine.")


@bench.command()
def ops(
    operation: Annotated[list[str] | None, typer.Option(help="Only this operation. May be given again.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method. May be given again.")] = None,
    steps: Annotated[int, typer.Option(min=1, max=16, help="Steps of 1/sqrt by the minimax method.")] = 3,
    tokens: Annotated[int, typer.Option(min=1, max=256, help="Tokens; other sizes are those of BERT-base.")] = 128,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each. Times are their medians.")] = 1,
    source: SourceName = DEALER.name,
    json: JsonFile = None,
) -> None:
    """Measure single operations and a whole layer, each by several methods.

    Two parties and, with --source dealer, a dealer run in processes of their own. Bytes and rounds are counted on the
    channels and must equal the plan. Errors are differences to the exact function in float64.
    """
    try:
        chosen = cases.choose(operation or [], method or [], tokens=tokens, steps=steps)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error
    records = []
    with bar("measuring") as tick, Crew() as crew:
        for done, case in enumerate(chosen):
            tick(done, len(chosen), f"{case.operation} by {case.method}")
            records.append(measure(crew, case, repeat, find_source(source)))
    report(with_origin(records), json, operations_table(records, Console().width))


@bench.command()
def model(
    shape: ShapeName = "bert-base",
    tokens: Tokens = 128,
    batch: Batch = 1,
    layers: Layers = None,
    rule: ShapeRule = None,
    steps: Steps = None,
    source: SourceName = DEALER.name,
    network: NetworkName = None,
    json: JsonFile = None,
) -> None:
    """Measure a whole model with random weights.

    A client, a server and, with --source dealer, a dealer run in processes of their own, on the loopback device unless
    --network names a slower one.
    """
    name = shape or "bert-base"
    link = Network.parse(network) if network else None
    by, count = chosen_rule(rule, steps)
    case = ModelCase(
        name, find_shape(name, layers), tokens, count, batch, link,
        source=find_source(source).name, rule=by,
    )  # fmt: skip
    with bar(f"measuring {name}", shown=human_bytes) as tick, Crew() as crew:
        tick(0, 0)
        crew.tick = tick
        record = measure_model(crew, case)
    report(with_origin([record]), json, *model_tables(record))


@bench.command()
def profile(
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A Comet checkpoint. Default: the model that comes with Comet.")
    ] = None,
    shape: ShapeName = None,
    tokens: Tokens = 128,
    layers: Layers = None,
    rule: ShapeRule = None,
    steps: Steps = None,
    repeat: Annotated[int, typer.Option(min=1, max=100, help="Queries. The fastest one is shown.")] = 5,
    json: JsonFile = None,
) -> None:
    """Measure where the time of one query goes: bytes, compute and latency.

    Its randomness is prepared before, by a dealer.
    """
    if model is not None and shape is not None:
        raise typer.BadParameter("name a checkpoint or a shape, not both", param_hint="--shape")
    by, count = chosen_rule(rule, steps)
    random = ModelCase(shape, find_shape(shape, layers), tokens, count, rule=by) if shape is not None else None
    with bar("profiling") as tick, Crew() as crew:
        tick(0, 0)
        record = profile_query(crew, ProfileCase(None if model is None else str(model), random), repeat)
    report(with_origin([msgspec.to_builtins(record) | {"ratio": record.ratio}]), json, *profile_tables(record))


@bench.command()
def rules(json: JsonFile = None) -> None:
    """Compare the rules for 1/sqrt: their errors over an interval, and what each costs by plan.

    Errors are those of the plaintext fixed-point twin. Takes about a minute.
    """
    with bar("evaluating rules") as tick:
        records = measure_rules(tick)
    report(with_origin(records), json, rules_table(records))


@bench.command()
def peers(
    system: Annotated[list[str] | None, typer.Option(help="Only this system. May be given again.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only this operation, or layer. May be given again.")] = None,
    tokens: Annotated[int, typer.Option(min=2, max=512, help="Tokens; other sizes are those of BERT-base.")] = 128,
    place: Environments = None,
    json: JsonFile = None,
) -> None:
    """Run the same operations and one encoder layer by CrypTen, by SPU and by Comet.

    Their environments are made the first time, which takes some minutes. With 128 tokens everything but SPU CHEETAH
    takes about five minutes; CHEETAH takes half an hour on two cores. A run that broke off goes on if --json names
    the same file.
    """
    chosen = _among("system", system, SYSTEMS), _among("operation", task, TASKS)
    with bar("measuring") as tick:
        records = _resumed(
            json, PeerRecord, lambda known: compare(*chosen, tokens, place or default_place(), known, tick)
        )
    _report(records, json, peer_grids)


R = TypeVar("R")


def _resumed(json: Path | None, kind: type[R], measured: Callable[[list[R]], Iterable[R]]) -> list[dict[str, Any]]:
    """What a run that broke off has left in the file, and what is measured beyond that, each kept as it comes."""
    file = json if json is not None and str(json) != "-" else None
    records: list[dict[str, Any]] = []
    if file is not None and file.exists():
        records = msgspec.json.decode(file.read_bytes(), type=list[dict[str, Any]])
    for one in measured(msgspec.convert(records, list[kind])):  # type: ignore[valid-type]
        records += with_origin([one])
        write_json(file, records)
    return records


def _report(records: list[dict[str, Any]], json: Path | None, grids: Callable[[Results], list[Grid]]) -> None:
    """As `comet-lab report` shows them."""
    report(records, json, *(grid.table() for grid in grids(results_of(records))))


@bench.command()
def trials(
    values: Annotated[int, typer.Option(min=1000, help="Random values for each function.")] = 10_000_000,
    place: Environments = None,
    json: JsonFile = None,
) -> None:
    """Count how often CrypTen's functions give wrong results, with Comet's plug-in and without.

    All inputs are inside the stated ranges. CrypTen's environment is made the first time, which takes minutes; ten
    million values take about ten minutes on two cores. A run that broke off goes on if --json names the same file.
    """
    with bar("trying") as tick:
        records = _resumed(json, TrialRecord, lambda known: run_trials(values, place or default_place(), known, tick))
    _report(records, json, lambda results: [trial_grid(results)])


@bench.command()
def paper(
    table: Annotated[str, typer.Argument(help="3, 4 or appendix.")],
    tokens: Annotated[int, typer.Option(min=4, max=256, help="Tokens; other sizes are those of BERT-base.")] = 128,
    json: JsonFile = None,
) -> None:
    """Measure a table of the Comet paper again, on this engine: its numbers beside ours.

    Table 3 compares rules for 1/sqrt in the unified model, with a dealer; table 4 compares with look-up tables, without
    a third party. With 128 tokens they take two and eight minutes on two cores. A run that broke off goes on if --json
    names the same file. Tables 1, 2 and 5 train models: python research/benchmarks/accuracy.py table.
    """
    if table not in (*TABLES, "appendix"):
        raise typer.BadParameter(
            f"unknown table {table!r}: choose from {', '.join(TABLES)}, appendix. Tables 1, 2 and 5 train models: "
            "see python research/benchmarks/accuracy.py table --help"
        )
    with bar(f"measuring table {table}") as tick, Crew() as crew:
        if table == "appendix":
            _report(with_origin(measure_appendix(crew, tokens)), json, lambda results: [appendix_grid(results)])
        else:
            records = _resumed(json, PublishedRecord, lambda known: measure_table(crew, table, tokens, known, tick))
            _report(records, json, cost_grids)


def _among(what: str, names: list[str] | None, known: Iterable[str]) -> list[str]:
    """All that are known, or those that are named."""
    for name in names or []:
        if name not in known:
            raise typer.BadParameter(f"unknown {what} {name!r}: choose from {', '.join(known)}")
    return names or list(known)


@bench.command()
def truncation(
    values: Annotated[int, typer.Option(min=len(SHIFTS), help="How many values, divided among the shifts.")] = 10**8,
    json: JsonFile = None,
) -> None:
    """Check that truncation is exact, on random values up to 2^61.

    Fails if a value wraps around or is off by more than one unit in the last place, or if the mean error is above
    0.01 units.
    """
    with bar("truncating") as tick:
        records = check_truncation(values, progress=tick)
    _report(with_origin(records), json, lambda results: [truncation_grid(results)])
    if not all(record.exact for record in records):
        raise CometError("truncation is not exact: see the table")
