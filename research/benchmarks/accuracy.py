"""What other forms cost in accuracy: every row by one recipe. `comet-lab report` makes tables of the results.

python research/benchmarks/accuracy.py run ENCODER GLUE WORK --task MRPC [--rule quadratic] [--seed 1] [--epochs 3]
python research/benchmarks/accuracy.py table 1 ENCODER GLUE WORK [--task MRPC] [--seed 1 --seed 2] [--estimate]
python research/benchmarks/accuracy.py distributions MODEL GLUE --task MRPC

The recipe: fine-tune the encoder unmodified; put that into another form and fine-tune it, distilled from the unmodified
one, or with --no-distil without it. The epoch is chosen on rows held out of train.tsv (a tenth, 1000 at most, drawn by
seed 0), and dev.tsv is scored once. `run` makes the certified form, through the protocol's own steps (3 by default) or
the root's polynomial (--rule); then it evaluates the same weights with 0 to 4 steps, by minimax and by plain Newton
from the paper's constant. `table` makes the rows of the paper's tables 1, 2 and 5 (`bench.published_models`), and
says first how long that takes here. They are many, so every one of them has a short training of its own, the same for
all: one pass over 2,000 rows. A stage whose result exists is skipped, one that broke off is resumed. Needs the extra
[train]. Results are one JSON file per stage. `distributions` records what GeLU and LayerNorm of a trained model get,
layer by layer, on rows of dev.tsv: takes seconds.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from comet_mpc.cli.inputs import load_any, read_rows, read_task
from comet_mpc.cli.main import app as comet
from comet_mpc.cli.options import Spread
from comet_mpc.cli.tables import origin, write_json
from comet_mpc.cli.train import HELD_OUT_SEED, rows_held_out, unified
from comet_mpc.models.checkpoint import USUAL_RULE, load_checkpoint
from comet_mpc.models.hugging_face import need
from comet_mpc.models.tasks import TASKS, find_task
from comet_research.bench.published_models import ACCURACY_TABLES, UNMODIFIED, Row, short_stage

RESULTS = Path(__file__).parent / "results" / "accuracy"
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def command(*arguments: object) -> None:
    """Runs a `comet` command in this process."""
    words = [str(argument) for argument in arguments]
    sys.argv = ["comet", *words]
    typer.echo(f"$ comet {' '.join(words)}")
    comet(["--debug", *words], standalone_mode=False)


Encoder = Annotated[Path, typer.Argument(help="A Hugging Face checkpoint.")]
Glue = Annotated[Path, typer.Argument(help="Directory of GLUE tasks.")]
Work = Annotated[Path, typer.Argument(help="For checkpoints.")]
Rows = Annotated[int | None, typer.Option(help="Take only so many training rows.")]
Length = Annotated[int | None, typer.Option(help="Cut texts after so many tokens.")]
Passes = Annotated[float | None, typer.Option(help="Of the unmodified model, and of the other form.")]


@dataclass(frozen=True)
class Training:
    """How long and how fast."""

    epochs: float
    rate: float
    batch: int = 32
    limit: int | None = None
    spread: bool = False
    """Rows of the limit from all over the file, not its first."""
    length: int | None = None
    fit_tokens: int = 8192
    """Where another form begins: how many tokens its layers are fitted to."""
    label_weight: float = 1.0
    hidden_weight: float = 1.0
    """How much labels and the teacher's hidden states count, beside the teacher's answers."""

    def but(self, **given: Any) -> Training:
        """The same, but for what is given."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


def unmodified_training(task: str) -> Training:
    """SST-2 has 67,349 rows: some of them do."""
    return Training(3.0, 1e-4, limit=10_000 if task == "SST-2" else None)


def form_training(task: str) -> Training:
    """Of another form, as it would be served.

    RTE has few rows, so its other form begins nearer to the teacher, and learns longer. Before training, the labels of
    rows held out agree with the teacher's on 84 % if layers were fitted to 8,192 tokens, and on 90 % with 65,536 (seed
    1). MRPC does not gain by a third epoch (77.9 of rows held out, 78.4 after 2).
    """
    usual = unmodified_training(task).but(epochs=2.0, rate=5e-5)
    return usual.but(epochs=3.0, fit_tokens=65_536) if task == "RTE" else usual


TABLE_ROWS = 2000


def table_training(task: str, limit: int | None = None) -> Training:
    """Of the rows of a table, which are many: one pass over 2,000 training rows, the same for all of them.

    CoLA's and STS-B's files are in order of their sources (STS-B begins with 2,000 captions), the others in none.
    In so short a time the teacher's hidden states teach most. Labels and answers have larger and noisier gradients:
    if all count the same, they lead away from the start.
    """
    ordered = task in ("CoLA", "STS-B")
    return Training(
        1.0, 5e-5, batch=16, limit=limit or TABLE_ROWS, spread=ordered, label_weight=0.0, hidden_weight=100.0
    )


@dataclass
class Recipe:
    """The stages of one encoder, task and seed. short: other forms are trained as the rows of a table are."""

    encoder: Path
    glue: Path
    work: Path
    task: str
    seed: int
    plain: Training
    other: Training
    results: Path
    short: bool = False

    def __post_init__(self) -> None:
        self.label = f"{self.encoder.name}-{self.task.lower()}-seed{self.seed}"
        self.base = self.work / self.label

    def result(self, stage: str) -> Path:
        return self.results / f"{self.label}-{stage}.json"

    def stage(self, name: str, *arguments: object) -> Path:
        """A command whose result is a file; skipped if that exists."""
        if not self.result(name).exists():
            command(*arguments, "--json", self.result(name))
        return self.base / name

    def unify(self, name: str, source: Path, *options: object) -> Path:
        if not (self.base / name / "config.json").exists():
            command("unify", source, self.base / name, *options)
        return self.base / name

    def start(self) -> Path:
        """The encoder with a new head."""
        return self.unify("start", self.encoder, "--form", "unmodified", "--task", self.task, "--seed", self.seed)

    def finetune(self, name: str, start: Path, how: Training, *options: object) -> Path:
        common = ["--task", self.task, "--data", self.glue, "--seed", self.seed, "--batch", how.batch]
        for option, value in (("--limit", how.limit), ("--length", how.length)):
            common += [] if value is None else [option, value]
        common += ["--spread"] if how.spread else []
        rest = ("--epochs", how.epochs, "--rate", how.rate)
        return self.stage(name, "finetune", start, self.base / name, *common, *options, *rest)

    def unmodified(self) -> Path:
        """The teacher, made again if its checkpoint is not there: a result alone teaches nothing."""
        if not (self.base / "unmodified" / "config.json").exists():
            self.result("unmodified").unlink(missing_ok=True)
        return self.finetune("unmodified", self.start(), self.plain)

    def another(self, stage: str, unify: tuple[object, ...], options: tuple[object, ...] = (), *, distil: bool) -> Path:
        """The unmodified model in another form."""
        plain = self.unmodified()
        start = self.unify(f"unified-{stage.removeprefix('certified-').removesuffix('-undistilled')}", plain, *unify)
        teacher = tuple[object, ...]()
        if distil:  # dropout's noise would only hide the teacher's states
            teacher = ("--teacher", plain, "--dropout", 0, "--fit-tokens", self.other.fit_tokens)
            teacher += ("--label-weight", self.other.label_weight, "--hidden-weight", self.other.hidden_weight)
        return self.finetune(self.named(stage), start, self.other, *teacher, *options)

    def named(self, stage: str) -> str:
        return short_stage(stage) if self.short else stage

    def row(self, row: Row) -> Path:
        return self.unmodified() if row is UNMODIFIED else self.another(row.stage, row.unify, row.finetune, distil=True)

    def row_result(self, row: Row) -> Path:
        return self.result(row.stage if row is UNMODIFIED else self.named(row.stage))

    def seconds(self, how: Training) -> float:
        """About how long that takes here: a few updates of the certified form, of which nothing is kept."""
        training, start = need("comet_mpc.train"), self.start()
        config, tensors = load_checkpoint(start)
        task = read_task(self.task, self.glue, config)
        rows, dev = (
            read_rows(start, config, self.glue, task, split, limit, how.length or 0, spread=how.spread)
            for split, limit in (("train", how.limit), ("dev", None))
        )
        rows, _ = training.hold_out(rows, rows_held_out(rows), HELD_OUT_SEED)
        recipe = training.Recipe(epochs=how.epochs, batch=how.batch)
        student, teacher = (
            training.UnifiedModel.from_tensors(*model) for model in (unified(config, tensors), (config, tensors))
        )
        return float(training.estimated_seconds(student, task, rows, dev, recipe, teacher))


@app.command()
def run(
    encoder: Encoder,
    glue: Glue,
    work: Work,
    task: str = "MRPC",
    seed: int = 1,
    epochs: Passes = None,
    unified_epochs: Passes = None,
    rate: Annotated[float | None, typer.Option(help="Of the unmodified model.")] = None,
    unified_rate: Annotated[float | None, typer.Option(help="Of the other form.")] = None,
    batch: Annotated[int | None, typer.Option(help="Rows per update.")] = None,
    rule: Annotated[
        str, typer.Option(help="Of activations and scores: minimax, or a polynomial's degree.")
    ] = USUAL_RULE,
    steps: Annotated[int, typer.Option(help="Steps of activations and scores, with --rule minimax.")] = 3,
    fit_tokens: Annotated[int | None, typer.Option(help="That the other form's layers are first fitted to.")] = None,
    label_weight: Annotated[float | None, typer.Option(help="How much labels count in the other form.")] = None,
    hidden_weight: Annotated[float | None, typer.Option(help="How much the teacher's hidden states count.")] = None,
    limit: Rows = None,
    spread: Spread = False,
    length: Length = None,
    distil: Annotated[bool, typer.Option(help="Learn from the unmodified model too, not from labels alone.")] = True,
    sweep: Annotated[bool, typer.Option(help="Evaluate with 0 to 4 steps as well.")] = True,
    results: Path = RESULTS,
) -> None:
    """Every stage of one task's recipe, in the certified form."""
    task = find_task(task).name
    plain = unmodified_training(task).but(
        epochs=epochs, rate=rate, batch=batch, limit=limit, spread=spread, length=length
    )
    other = form_training(task).but(
        epochs=unified_epochs, rate=unified_rate, batch=batch, limit=limit, spread=spread, length=length,
        fit_tokens=fit_tokens, label_weight=label_weight, hidden_weight=hidden_weight,
    )  # fmt: skip
    recipe = Recipe(encoder, glue, work, task, seed, plain, other, results)
    by = str(steps) if rule == "minimax" else rule
    name = f"certified-{by}" + ("" if distil else "-undistilled")
    model = recipe.another(name, ("--rule", rule, "--steps", steps), distil=distil)
    if not sweep:
        return
    for kind in ("minimax", "newton"):
        for count in range(5):
            evaluated = f"{name}-eval-{kind}-{count}"
            recipe.stage(evaluated, "eval", model, "--task", task, "--data", glue, "--rule", kind, "--steps", count)


@app.command()
def table(
    number: Annotated[str, typer.Argument(help="1, 2 or 5.")],
    encoder: Encoder,
    glue: Glue,
    work: Work,
    task: Annotated[list[str] | None, typer.Option(help="Only this task. May be given again.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Default: 1. May be given again.")] = None,
    form: Annotated[list[str] | None, typer.Option(help="Only the row of this stage. May be given again.")] = None,
    limit: Annotated[int | None, typer.Option(help=f"Training rows, instead of {TABLE_ROWS}.")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say how long it takes.")] = False,
    results: Path = RESULTS,
) -> None:
    """The rows of a table of the paper that are not there yet. Says first how long they take on this machine."""
    if number not in ACCURACY_TABLES:
        raise typer.BadParameter(f"unknown table {number!r}: choose from {', '.join(ACCURACY_TABLES)}")
    rows = ACCURACY_TABLES[number].rows
    if unknown := set(form or ()) - {row.stage for row in rows}:
        known = ", ".join(row.stage for row in rows)
        raise typer.BadParameter(f"unknown row {sorted(unknown)[0]!r}: choose from {known}")
    rows = tuple(row for row in rows if not form or row.stage in form)
    wanted = list(_wanted(encoder, glue, work, rows, task, seed, limit, results))
    seconds, sizes = 0.0, dict[tuple[str, bool], float]()
    for recipe, row in wanted:
        which = recipe.task, row is UNMODIFIED
        if which not in sizes:
            sizes[which] = recipe.seconds(recipe.plain if row is UNMODIFIED else recipe.other)
            what = "unmodified" if row is UNMODIFIED else "a row"
            typer.echo(f"{recipe.task}: {what} takes about {_in_hours(sizes[which])}", err=True)
        seconds += sizes[which]
    typer.echo(f"table {number}: {len(wanted)} rows are missing, which take about {_in_hours(seconds)} here")
    if estimate:
        return
    for recipe, row in wanted:
        typer.echo(f"{recipe.label}: {row.name}")
        recipe.row(row)


def _in_hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{math.ceil(seconds / 60)} min"


def _wanted(
    encoder: Path, glue: Path, work: Path, rows: tuple[Row, ...], tasks: list[str] | None, seeds: list[int] | None,
    limit: int | None, results: Path,
) -> Iterator[tuple[Recipe, Row]]:  # fmt: skip
    """What has no result, task by task."""
    for name in [find_task(task).name for task in tasks or TASKS]:
        for seed in seeds or [1]:
            trainings = unmodified_training(name), table_training(name, limit)
            recipe = Recipe(encoder, glue, work, name, seed, *trainings, results, short=True)
            yield from ((recipe, row) for row in rows if not recipe.row_result(row).exists())


@app.command()
def distributions(
    model: Annotated[Path, typer.Argument(help="A Comet checkpoint, or a Hugging Face classifier.")],
    glue: Glue,
    task: str = "MRPC",
    rows: Annotated[int, typer.Option(min=1, help="Of dev.tsv.")] = 256,
    name: Annotated[str | None, typer.Option(help="What to call the model. Default: its directory.")] = None,
    results: Path = RESULTS.parent / "paper",
) -> None:
    """What activations and LayerNorms get, as the paper's appendix draws it: histograms, layer by layer."""
    training, (config, tensors) = need("comet_mpc.train"), load_any(model)
    chosen = read_task(task, glue, config)
    data = read_rows(model, config, glue, chosen, "dev", rows)
    seen = training.inputs_seen(training.UnifiedModel.from_tensors(config, tensors).use("exact"), data)
    shown = training.quantiles(seen)
    label = f"{name or model.name}-{chosen.name.lower()}"
    found = []
    for site, values in seen.items():
        low, high = np.quantile(values, (0.0005, 0.9995))
        density, edges = np.histogram(values, bins=80, range=(float(low), float(high)), density=True)
        middles = edges[:-1] + np.diff(edges) / 2
        curve = [(float(f"{x:.4g}"), float(f"{y:.3g}")) for x, y in zip(middles, density, strict=True)]
        what = "activation" if site.endswith("activation") else "LayerNorm"
        found.append(
            {"record": "distribution", "model": name or model.name, "task": chosen.name, "rows": len(data),
             "site": site, "what": what, "quantiles": shown[site], "curve": curve}
        )  # fmt: skip
    command = (
        f"python research/benchmarks/accuracy.py distributions {model.name} GLUE --task {chosen.name} --rows {rows}"
    )
    write_json(results / f"distributions-{label}.json", [each | origin() | {"command": command} for each in found])
    typer.echo(f"wrote {results / f'distributions-{label}.json'}: {len(found)} sites, {len(data)} rows")


if __name__ == "__main__":
    app()
