"""What the unified forms cost in accuracy: one task's whole recipe. `comet report` makes tables of the results.

python benchmarks/accuracy.py run ENCODER GLUE WORK --task MRPC [--rule quadratic] [--seed 1] [--epochs 3]
python benchmarks/accuracy.py paper ENCODER GLUE WORK --task CoLA [--attention smu] [--results DIR]

The recipe of `run`: fine-tune the encoder unmodified; unify that into the certified form and fine-tune it through the
protocol's own steps (3 by default) or the root's polynomial (--rule), distilled from the unmodified one, or with
--no-distil without it. The epoch is chosen on rows held out of train.tsv (a tenth, 1000 at most, drawn by seed 0),
and dev.tsv is scored once. Then evaluate the same weights with 0 to 4 steps, by minimax and by plain Newton from the
paper's constant. That of `paper`: take the unmodified model in the paper's form (s-GeLU with Softmax* or s-Softmax*,
not certified), fine-tune it with exact functions, which calibrates it, then through its calibrated rules. A stage
whose result exists is skipped, one that broke off is resumed. Needs the extra [train]. Results are one JSON file per
stage.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from comet_mpc.cli.main import app as comet

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


@dataclass
class Recipe:
    """The stages of one encoder, task and seed."""

    encoder: Path
    glue: Path
    work: Path
    task: str
    seed: int
    limit: int | None
    results: Path
    batch: int = 32

    def __post_init__(self) -> None:
        self.label = f"{self.encoder.name}-{self.task.lower()}-seed{self.seed}"
        self.base = self.work / self.label

    def stage(self, name: str, *arguments: object) -> Path:
        """A command whose result is a file; skipped if that exists."""
        path = self.results / f"{self.label}-{name}.json"
        if not path.exists():
            command(*arguments, "--json", path)
        return self.base / name

    def unify(self, name: str, source: Path, *options: object) -> Path:
        if not (self.base / name / "config.json").exists():
            command("unify", source, self.base / name, *options)
        return self.base / name

    def finetune(self, name: str, start: Path, epochs: float, rate: float, *options: object) -> Path:
        common = ["--task", self.task, "--data", self.glue, "--seed", self.seed, "--batch", self.batch]
        common += [] if self.limit is None else ["--limit", self.limit]
        rest = ("--epochs", epochs, "--rate", rate)
        return self.stage(name, "finetune", start, self.base / name, *common, *options, *rest)

    def unmodified(self, epochs: float, rate: float) -> Path:
        start = self.unify("start", self.encoder, "--form", "unmodified", "--task", self.task, "--seed", self.seed)
        return self.finetune("unmodified", start, epochs, rate)


@app.command()
def run(
    encoder: Encoder,
    glue: Glue,
    work: Work,
    task: str = "MRPC",
    seed: int = 1,
    epochs: float = 3.0,
    unified_epochs: float = 2.0,
    rate: float = 1e-4,
    unified_rate: float = 5e-5,
    batch: int = 32,
    rule: Annotated[
        str, typer.Option(help="Of activations and scores: minimax, or a polynomial's degree.")
    ] = "minimax",
    steps: Annotated[int, typer.Option(help="Steps of activations and scores, with --rule minimax.")] = 3,
    limit: Rows = None,
    distil: Annotated[bool, typer.Option(help="Learn from the unmodified model too, not from labels alone.")] = True,
    sweep: Annotated[bool, typer.Option(help="Evaluate with 0 to 4 steps as well.")] = True,
    results: Path = RESULTS,
) -> None:
    """Every stage of one task's recipe."""
    recipe = Recipe(encoder, glue, work, task, seed, limit, results, batch)
    plain = recipe.unmodified(epochs, rate)
    by = str(steps) if rule == "minimax" else rule
    name = f"certified-{by}" + ("" if distil else "-undistilled")
    start = recipe.unify(f"unified-{by}", plain, "--rule", rule, "--steps", steps)
    teacher = ["--teacher", plain, "--dropout", 0] if distil else []  # noise would only hide the teacher's states
    model = recipe.finetune(name, start, unified_epochs, unified_rate, *teacher)
    if not sweep:
        return
    for kind in ("minimax", "newton"):
        for count in range(5):
            other = f"{name}-eval-{kind}-{count}"
            recipe.stage(other, "eval", model, "--task", task, "--data", glue, "--rule", kind, "--steps", count)


@app.command()
def paper(
    encoder: Encoder,
    glue: Glue,
    work: Work,
    task: str = "CoLA",
    seed: int = 1,
    attention: Annotated[str, typer.Option(help="smu: s-Softmax*; relu: Softmax*.")] = "smu",
    epochs: float = 4.0,
    exact_epochs: float = 3.0,
    steps_epochs: float = 2.0,
    rate: float = 1e-4,
    unified_rate: float = 2e-4,
    steps: Annotated[int, typer.Option(help="Steps of activations and scores.")] = 4,
    limit: Rows = None,
    results: Path = RESULTS,
) -> None:
    """The paper's form, for research: nothing serves it. `comet eval --secure --research` runs what comes out."""
    recipe = Recipe(encoder, glue, work, task, seed, limit, results)
    plain = recipe.unmodified(epochs, rate)
    form = ("--form", "paper", "--attention", attention, "--pooler", "algebraic", "--steps", steps)
    start = recipe.unify(f"paper-{attention}", plain, *form)
    teacher = ("--teacher", plain, "--dropout", 0)
    exact = recipe.finetune(f"paper-{attention}-exact", start, exact_epochs, unified_rate, "--exact", *teacher)
    recipe.finetune(f"paper-{attention}-{steps}", exact, steps_epochs, rate, *teacher)


if __name__ == "__main__":
    app()
