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
from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.options import Spread
from comet_mpc.cli.tables import origin, write_json
from comet_mpc.models.checkpoint import USUAL_RULE, RuleName
from comet_mpc.models.tasks import find_task
from comet_research.bench.published_models import ACCURACY_TABLES, UNMODIFIED, Row

RESULTS = Path(__file__).parent / "results" / "accuracy"
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

Encoder = Annotated[Path, typer.Argument(help="A Hugging Face checkpoint.")]
Glue = Annotated[Path, typer.Argument(help="Directory of GLUE tasks.")]
Work = Annotated[Path, typer.Argument(help="For checkpoints.")]
Rows = Annotated[int | None, typer.Option(help="Take only so many training rows.")]
Length = Annotated[int | None, typer.Option(help="Cut texts after so many tokens.")]
Passes = Annotated[float | None, typer.Option(help="Of the unmodified model, and of the other form.")]


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
        RuleName, typer.Option(help="Of activations and scores: minimax, or a polynomial's degree.")
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
    import accuracy_stages as stages  # torch is an extra

    task = find_task(task).name
    plain = stages.unmodified_training(task).but(
        epochs=epochs, rate=rate, batch=batch, limit=limit, spread=spread, length=length
    )
    other = stages.form_training(task).but(
        epochs=unified_epochs, rate=unified_rate, batch=batch, limit=limit, spread=spread, length=length,
        fit_tokens=fit_tokens, label_weight=label_weight, hidden_weight=hidden_weight,
    )  # fmt: skip
    recipe = stages.Recipe(encoder, glue, work, task, seed, plain, other, results)
    by = str(steps) if rule == "minimax" else rule
    name = f"certified-{by}" + ("" if distil else "-undistilled")
    model = recipe.another(Row(name, name, {"rule": rule, "steps": steps}), distil=distil)
    if not sweep:
        return
    recipe.sweep(name, model)


@app.command()
def table(
    number: Annotated[str, typer.Argument(help="1, 2 or 5.")],
    encoder: Encoder,
    glue: Glue,
    work: Work,
    task: Annotated[list[str] | None, typer.Option(help="Only this task. May be given again.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Default: 1. May be given again.")] = None,
    form: Annotated[list[str] | None, typer.Option(help="Only the row of this stage. May be given again.")] = None,
    limit: Annotated[int | None, typer.Option(help="Training rows, instead of 2000.")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say how long it takes.")] = False,
    results: Path = RESULTS,
) -> None:
    """The rows of a table of the paper that are not there yet. Says first how long they take on this machine."""
    import accuracy_stages as stages

    if number not in ACCURACY_TABLES:
        raise typer.BadParameter(f"unknown table {number!r}: choose from {', '.join(ACCURACY_TABLES)}")
    rows = ACCURACY_TABLES[number].rows
    if unknown := set(form or ()) - {row.stage for row in rows}:
        known = ", ".join(row.stage for row in rows)
        raise typer.BadParameter(f"unknown row {sorted(unknown)[0]!r}: choose from {known}")
    rows = tuple(row for row in rows if not form or row.stage in form)
    wanted = list(stages.wanted(encoder, glue, work, rows, task, seed, limit, results))
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
    import accuracy_stages as stages

    found = stages.distributions(model, glue, task, rows, name or model.name)
    task, taken = found[0]["task"], found[0]["rows"]
    command = f"python research/benchmarks/accuracy.py distributions {model.name} GLUE --task {task} --rows {rows}"
    path = results / f"distributions-{name or model.name}-{task.lower()}.json"
    write_json(path, [each | origin() | {"command": command} for each in found])
    typer.echo(f"wrote {path}: {len(found)} sites, {taken} rows")


if __name__ == "__main__":
    app()
