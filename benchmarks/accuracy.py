"""What the unified forms cost in accuracy: one task's whole recipe, and the tables of what was measured.

python benchmarks/accuracy.py run ENCODER GLUE WORK --task MRPC [--seed 1] [--epochs 3] [--results DIR]
python benchmarks/accuracy.py tables [DIR]

The recipe: fine-tune the encoder unmodified; unify that into the certified form and fine-tune it through the protocol's
own steps (3 by default), distilled from the unmodified one, or with --no-distil without it; then evaluate the same
weights with 0 to 4 steps, by minimax and by plain Newton from the paper's constant. A stage whose result exists is
skipped, one that broke off is resumed. Needs the extra [train]. Results are one JSON file per stage.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from comet_mpc.unify_cli import register

RESULTS = Path(__file__).parent / "results" / "accuracy"
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
comet = typer.Typer(pretty_exceptions_enable=False)
register(comet)


def command(*arguments: object) -> None:
    """Runs a `comet` command in this process."""
    words = [str(argument) for argument in arguments]
    sys.argv = ["comet", *words]
    typer.echo(f"$ comet {' '.join(words)}")
    comet(words, standalone_mode=False)


@app.command()
def run(
    encoder: Annotated[Path, typer.Argument(help="A Hugging Face checkpoint.")],
    glue: Annotated[Path, typer.Argument(help="Directory of GLUE tasks.")],
    work: Annotated[Path, typer.Argument(help="For checkpoints.")],
    task: str = "MRPC",
    seed: int = 1,
    epochs: float = 3.0,
    unified_epochs: float = 4.0,
    rate: float = 1e-4,
    unified_rate: float = 2e-4,
    batch: int = 32,
    steps: Annotated[int, typer.Option(help="Steps of activations and scores.")] = 3,
    limit: Annotated[int | None, typer.Option(help="Take only so many training rows.")] = None,
    distil: Annotated[bool, typer.Option(help="Learn from the unmodified model too, not from labels alone.")] = True,
    sweep: Annotated[bool, typer.Option(help="Evaluate with 0 to 4 steps as well.")] = True,
    results: Path = RESULTS,
) -> None:
    """Every stage of one task's recipe."""
    label = f"{encoder.name}-{task.lower()}-seed{seed}"
    base = work / label
    common = ["--task", task, "--data", glue, "--seed", seed, "--batch", batch]
    common += [] if limit is None else ["--limit", limit]

    def stage(name: str, *arguments: object) -> Path:
        path = results / f"{label}-{name}.json"
        if not path.exists():
            command(*arguments, "--json", path)
        return base / name

    if not (base / "start" / "config.json").exists():
        command("unify", encoder, base / "start", "--form", "unmodified", "--task", task, "--seed", seed)
    plain = stage(
        "unmodified", "finetune", base / "start", base / "unmodified", *common, "--epochs", epochs, "--rate", rate
    )
    name = f"certified-{steps}" + ("" if distil else "-undistilled")
    start = base / f"unified-{steps}"
    if not (start / "config.json").exists():
        command("unify", plain, start, "--steps", steps)
    teacher = ["--teacher", plain, "--dropout", 0] if distil else []  # noise would only hide the teacher's states
    model = stage(
        name, "finetune", start, base / name, *common, *teacher, "--epochs", unified_epochs, "--rate", unified_rate
    )
    if not sweep:
        return
    for rule in ("minimax", "newton"):
        for count in range(5):
            other = f"{name}-eval-{rule}-{count}"
            stage(other, "eval", model, "--task", task, "--data", glue, "--rule", rule, "--steps", count)


@app.command()
def tables(directory: Annotated[Path, typer.Argument(help="Directory of results.")] = RESULTS) -> None:
    """Prints what was measured."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))}
    trained = Table("run", "rows", "metric", "best", "by epoch", "seconds", title="Fine-tuning")
    steps = Table(
        "checkpoint", "rule", *(f"{count} steps" for count in range(5)), title="The same weights, other steps"
    )
    evaluated: dict[tuple[str, str], dict[int, float]] = {}
    for name, result in found.items():
        if "history" in result and "metric" in result:
            curve = " / ".join(f"{entry[result['metric']]:.1f}" for entry in result["history"])
            row = (str(result["rows"]), result["metric"], f"{result['best']:.2f}", curve, f"{result['seconds']:.0f}")
            trained.add_row(name, *row)
        elif "rule" in result:
            score = next(iter(result["scores"].values()))
            evaluated.setdefault((name.split("-eval-")[0], result["rule"]), {})[result["steps"]] = score
    for (name, rule), scores in evaluated.items():
        steps.add_row(name, rule, *(f"{scores[count]:.2f}" if count in scores else "" for count in range(5)))
    console = Console(width=140)
    console.print(trained)
    console.print(steps)


if __name__ == "__main__":
    app()
