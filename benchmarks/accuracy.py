"""What the unified forms cost in accuracy: one task's whole recipe, and the tables of what was measured.

python benchmarks/accuracy.py run ENCODER GLUE WORK --task MRPC [--seed 1] [--epochs 3] [--results DIR]
python benchmarks/accuracy.py paper ENCODER GLUE WORK --task CoLA [--attention smu] [--results DIR]
python benchmarks/accuracy.py tables [DIR] [--markdown]

The recipe of `run`: fine-tune the encoder unmodified; unify that into the certified form and fine-tune it through the
protocol's own steps (3 by default), distilled from the unmodified one, or with --no-distil without it; then evaluate
the same weights with 0 to 4 steps, by minimax and by plain Newton from the paper's constant. That of `paper`: take the
unmodified model in the paper's form (s-GeLU with Softmax* or s-Softmax*, not certified), fine-tune it with exact
functions, which calibrates it, then through its calibrated rules. A stage whose result exists is skipped, one that
broke off is resumed. Needs the extra [train]. Results are one JSON file per stage.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from comet_mpc.cli.main import app as comet
from comet_mpc.models.tasks import TASKS

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
    steps: Annotated[int, typer.Option(help="Steps of activations and scores.")] = 3,
    limit: Rows = None,
    distil: Annotated[bool, typer.Option(help="Learn from the unmodified model too, not from labels alone.")] = True,
    sweep: Annotated[bool, typer.Option(help="Evaluate with 0 to 4 steps as well.")] = True,
    results: Path = RESULTS,
) -> None:
    """Every stage of one task's recipe."""
    recipe = Recipe(encoder, glue, work, task, seed, limit, results, batch)
    plain = recipe.unmodified(epochs, rate)
    name = f"certified-{steps}" + ("" if distil else "-undistilled")
    start = recipe.unify(f"unified-{steps}", plain, "--steps", steps)
    teacher = ["--teacher", plain, "--dropout", 0] if distil else []  # noise would only hide the teacher's states
    model = recipe.finetune(name, start, unified_epochs, unified_rate, *teacher)
    if not sweep:
        return
    for rule in ("minimax", "newton"):
        for count in range(5):
            other = f"{name}-eval-{rule}-{count}"
            recipe.stage(other, "eval", model, "--task", task, "--data", glue, "--rule", rule, "--steps", count)


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


NAME = re.compile(
    rf"(?P<encoder>.+?)-(?P<task>{'|'.join(name.lower() for name in TASKS)})-seed(?P<seed>\d+)"
    r"(?:-(?P<stage>.+?))??(?:-eval-(?P<rule>minimax|newton)-(?P<count>\d+))?$"
)


@dataclass
class Grid:
    """A table, for a terminal or for a page."""

    title: str
    columns: list[str]
    note: str = ""
    rows: list[list[str]] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [self.columns, ["---", *("---:" for _ in self.columns[1:])], *self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{self.title}**\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")

    def table(self) -> Table:
        found = Table(title=self.title, caption=self.note or None, title_justify="left", caption_justify="left")
        for i, column in enumerate(self.columns):
            found.add_column(column, justify="left" if i == 0 else "right")
        for row in self.rows:
            found.add_row(*row)
        return found


PAPER = "exact: with exact functions; a number: through so many steps."

Scores = dict[str, dict[int, float]]
"""By task and seed."""


@dataclass
class Measured:
    """All results of a directory, by encoder."""

    trained: dict[str, dict[str, Scores]] = field(default_factory=dict)
    """By encoder and stage."""
    stepped: dict[tuple[str, str, str], dict[str, dict[int, list[float]]]] = field(default_factory=dict)
    """By encoder, stage and task: rule, then steps; one number per seed."""
    protocol: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Results inside the protocol, or in its fixed point, by name."""

    def add(self, name: str, result: dict[str, Any]) -> None:
        if "logit_difference" in result:
            self.protocol[name] = result
            return
        parts = NAME.match(name)
        if parts is None:
            return
        task = next(known for known in TASKS if known.lower() == parts["task"])
        encoder, stage = parts["encoder"], parts["stage"] or ""
        if parts["rule"]:
            score = next(iter(result["scores"].values()))
            place = self.stepped.setdefault((encoder, stage, task), {}).setdefault(parts["rule"], {})
            place.setdefault(int(parts["count"]), []).append(score)
        elif "best" in result:
            place_of = self.trained.setdefault(encoder, {}).setdefault(stage, {}).setdefault(task, {})
            place_of[int(parts["seed"])] = result["best"]


def shown(values: Iterable[float], signed: bool = False) -> str:
    """Mean, and standard deviation where there are several."""
    found = list(values)
    if not found:
        return ""
    text = f"{mean(found):+.2f}" if signed else f"{mean(found):.2f}"
    return text if len(found) == 1 else f"{text} ± {stdev(found):.2f}"


def paired(first: Scores, second: Scores, task: str) -> list[float]:
    """second - first, seed by seed."""
    seeds = sorted(first.get(task, {}).keys() & second.get(task, {}).keys())
    return [second[task][seed] - first[task][seed] for seed in seeds]


def compare(title: str, stages: dict[str, Scores], base: str, note: str) -> Grid:
    """One row per task: the base and every other stage with its difference; then means over tasks that have both."""
    others = [name for name in stages if name != base]
    grid = Grid(title, ["task", base, *(part for name in others for part in (name, "difference"))], note)
    for task in TASKS:
        if not any(task in scores for scores in stages.values()):
            continue
        row = [f"{task} ({TASKS[task].metric.replace('_', '/')})", shown(stages[base].get(task, {}).values())]
        for name in others:
            row += [shown(stages[name].get(task, {}).values())]
            row += [shown(paired(stages[base], stages[name], task), signed=True)]
        grid.rows.append(row)
    last = ["mean over tasks", ""]
    for name in others:
        means = [mean(found) for task in TASKS if (found := paired(stages[base], stages[name], task))]
        last += ["", f"{mean(means):+.2f} ({len(means)} of {len(TASKS)} tasks)" if means else ""]
    return Grid(grid.title, grid.columns, grid.note, [*grid.rows, last])


def grids(measured: Measured) -> list[Grid]:
    found = []
    dev = "Scores on GLUE's dev sets, which also chose the best epoch; ± is the standard deviation over seeds."
    for encoder, stages in measured.trained.items():
        if "unmodified" in stages:
            kept = {name: stages[name] for name in sorted(stages) if re.fullmatch(r"unmodified|certified-\d+", name)}
            kept = {"unmodified": kept.pop("unmodified"), **kept}
            found.append(compare(f"{encoder}: what the certified form costs", kept, "unmodified", dev))
            for kind, form in (("smu", "s-GeLU with s-Softmax*"), ("relu", "s-GeLU with Softmax*")):
                forms = {name: stages[name] for name in sorted(stages) if name.startswith(f"paper-{kind}-")}
                if forms:
                    known = stages["unmodified"].items()
                    tried = {task: scores for task, scores in known if any(task in other for other in forms.values())}
                    title = f"{encoder}: the paper's {form}, not certified"
                    found.append(compare(title, {"unmodified": tried, **forms}, "unmodified", PAPER))
    for encoder, stages in measured.trained.items():
        for name in sorted(stages):
            if f"{name}-undistilled" in stages:
                both = {"from labels alone": stages[f"{name}-undistilled"], "distilled too": stages[name]}
                found.append(compare(f"{encoder}, {name}: what distillation gives", both, "from labels alone", dev))
    if measured.stepped:
        found.append(_steps(measured))
    if measured.protocol:
        found.append(_protocol(measured))
    return found


def _steps(measured: Measured) -> Grid:
    columns = ["checkpoint", "task", "rule", *(f"{count} steps" for count in range(5))]
    grid = Grid(
        "The same weights with other steps of activations and scores", columns,
        "newton: plain steps from the paper's constant. Only the number trained with was trained for.",
    )  # fmt: skip
    for (encoder, stage, task), rules in sorted(measured.stepped.items()):
        for rule, counts in sorted(rules.items()):
            cells = [shown(counts.get(count, [])) for count in range(5)]
            grid.rows.append([f"{encoder} {stage}".strip(), task, rule, *cells])
    return grid


def _protocol(measured: Measured) -> Grid:
    differences = ["logits: median", "99 %", "largest"]
    columns = ["result", "task", "rows", "fixed point", "real numbers", "labels agree", *differences]
    grid = Grid(
        "Inside the protocol, and by its fixed-point twin, beside real arithmetic on the same rows", columns,
        "Logits: the largest difference of an example.",
    )  # fmt: skip
    for name, result in sorted(measured.protocol.items()):
        scores = [f"{next(iter(result[part].values())):.2f}" for part in ("scores", "plain_scores")]
        agreement = f"{result['agreement']:.1%}" if "agreement" in result else ""
        found = [f"{value:.4f}" for value in result["logit_difference"].values()]
        grid.rows.append([name, result["task"], str(result["examples"]), *scores, agreement, *found])
    return grid


@app.command()
def tables(
    directory: Annotated[Path, typer.Argument(help="Directory of results.")] = RESULTS,
    secure: Annotated[Path, typer.Option(help="Directory of results inside the protocol.")] = RESULTS.parent / "secure",
    markdown: Annotated[bool, typer.Option("--markdown", help="For a page instead of a terminal.")] = False,
) -> None:
    """Prints what was measured."""
    measured = Measured()
    for path in (*sorted(directory.glob("*.json")), *sorted(secure.glob("*.json"))):
        measured.add(path.stem, json.loads(path.read_text()))
    found = grids(measured)
    if not found:
        typer.echo(f"there are no results in {directory}", err=True)
        raise typer.Exit(1)
    for grid in found:
        if markdown:
            typer.echo(grid.markdown())
        else:
            Console(width=140).print(grid.table(), "")


if __name__ == "__main__":
    app()
