"""The stages of `accuracy.py`: an encoder fine-tuned unmodified, then in other forms. Needs the extra [train]."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import typer

from comet_mpc import train
from comet_mpc.cli.tables import in_words, record
from comet_mpc.engine.share import Reals
from comet_mpc.models.tasks import TASKS, find_task
from comet_mpc.progress import Shown, Watcher
from comet_mpc.train.batches import Encoded, Samples, predict, quantiles, sample
from comet_mpc.train.model import UnifiedModel
from comet_mpc.train.reading import Model, read_model
from comet_mpc.train.tuning import Lesson, rows_held_out
from comet_research.bench.published_models import UNMODIFIED, Row, short_stage

PROGRAM = "python research/benchmarks/accuracy.py"


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

    def rows(self, how: Training) -> train.Data:
        return train.Data(self.glue, self.task, how.limit, how.spread, how.length or 0)

    def unify(self, name: str, source: Path, form: train.Form, task: str | None = None) -> Path:
        out = self.base / name
        if not (out / "config.json").exists():
            train.unify(source, out, form, task=task, seed=self.seed if task else 0, watcher=Shown())
        return out

    def start(self) -> Path:
        """The encoder with a new head."""
        return self.unify("start", self.encoder, train.Form("unmodified"), self.task)

    def finetune(self, name: str, start: Path, how: Training, row: Row, teacher: Path | None = None) -> Path:
        """A stage whose result is a file; skipped if that exists."""
        out = self.base / name
        if self.result(name).exists():
            return out
        recipe = train.Recipe(
            epochs=how.epochs, batch=how.batch, rate=how.rate, seed=self.seed, mode="exact" if row.exact else "steps"
        )
        if teacher is not None:  # dropout's noise would only hide the teacher's states
            recipe = replace(
                recipe, dropout=0.0, fit_tokens=how.fit_tokens, task_weight=how.label_weight,
                hidden_weight=how.hidden_weight,
            )  # fmt: skip
        made = train.finetune(
            start, self.rows(how), out, recipe, teacher=teacher, rule=row.rule, steps=row.steps, watcher=Shown()
        )
        typer.echo(f"{self.label}, {name}: {in_words(made.scores)}, after {made.seconds:.0f} s")
        record(self.result(name), made, PROGRAM)
        return out

    def evaluate(self, name: str, model: Path, kind: Literal["minimax", "newton"], steps: int) -> None:
        if not self.result(name).exists():
            data = train.Data(self.glue, self.task)
            record(self.result(name), train.evaluate(model, data, rule=kind, steps=steps, watcher=Shown()), PROGRAM)

    def sweep(self, name: str, model: Path) -> None:
        """Scores with 0 to 4 steps, by minimax and by plain Newton."""
        kinds: tuple[Literal["minimax", "newton"], ...] = ("minimax", "newton")
        for kind in kinds:
            for count in range(5):
                self.evaluate(f"{name}-eval-{kind}-{count}", model, kind, count)

    def unmodified(self) -> Path:
        """The teacher, made again if its checkpoint is not there: a result alone teaches nothing."""
        if not (self.base / "unmodified" / "config.json").exists():
            self.result("unmodified").unlink(missing_ok=True)
        return self.finetune("unmodified", self.start(), self.plain, UNMODIFIED)

    def another(self, row: Row, *, distil: bool) -> Path:
        """The unmodified model in another form."""
        plain = self.unmodified()
        form = row.stage.removeprefix("certified-").removesuffix("-undistilled")
        start = self.unify(f"unified-{form}", plain, train.Form(**row.form))
        return self.finetune(self.named(row.stage), start, self.other, row, plain if distil else None)

    def named(self, stage: str) -> str:
        return short_stage(stage) if self.short else stage

    def row(self, row: Row) -> Path:
        return self.unmodified() if row is UNMODIFIED else self.another(row, distil=True)

    def row_result(self, row: Row) -> Path:
        return self.result(row.stage if row is UNMODIFIED else self.named(row.stage))

    def seconds(self, how: Training) -> float:
        """About how long that takes here: a few updates of the certified form, of which nothing is kept."""
        start = read_model(self.start(), Watcher())
        data = self.rows(how)
        task = data.task_for(start.config)
        rows = data.both(start, task, Watcher())
        student = Model(start.directory, *train.Form().applied(start.config, start.tensors))
        teacher = UnifiedModel.from_tensors(start.config, start.tensors)
        lesson = Lesson.prepare(task, rows, rows_held_out(rows[0]), None, Watcher())
        return lesson.seconds(student, train.Recipe(epochs=how.epochs, batch=how.batch), teacher, Watcher())


def wanted(
    encoder: Path, glue: Path, work: Path, rows: tuple[Row, ...], tasks: list[str] | None, seeds: list[int] | None,
    limit: int | None, results: Path,
) -> Iterator[tuple[Recipe, Row]]:  # fmt: skip
    """What has no result, task by task."""
    for name in [find_task(task).name for task in tasks or TASKS]:
        for seed in seeds or [1]:
            trainings = unmodified_training(name), table_training(name, limit)
            recipe = Recipe(encoder, glue, work, name, seed, *trainings, results, short=True)
            yield from ((recipe, row) for row in rows if not recipe.row_result(row).exists())


def distributions(model: Path, glue: Path, task: str, rows: int, name: str) -> list[dict[str, Any]]:
    """What activations and LayerNorms get on rows of dev.tsv, site by site: quantiles and a histogram."""
    original, where = read_model(model, Shown()), train.Data(glue, task, rows)
    chosen = where.task_for(original.config)
    data = where.rows(original, chosen, "dev", Shown())
    seen = inputs_seen(UnifiedModel.from_tensors(original.config, original.tensors).use("exact"), data)
    shown = quantiles(seen)
    found = []
    for site, values in seen.items():
        low, high = np.quantile(values, (0.0005, 0.9995))
        density, edges = np.histogram(values, bins=80, range=(float(low), float(high)), density=True)
        middles = edges[:-1] + np.diff(edges) / 2
        curve = [(float(f"{x:.4g}"), float(f"{y:.3g}")) for x, y in zip(middles, density, strict=True)]
        what = "activation" if site.endswith("activation") else "LayerNorm"
        found.append(
            {"record": "distribution", "model": name, "task": chosen.name, "rows": len(data),
             "site": site, "what": what, "quantiles": shown[site], "curve": curve}
        )  # fmt: skip
    return found


def inputs_seen(model: UnifiedModel, data: Encoded, *, most: int = 100_000) -> dict[str, Reals]:
    """What activations and LayerNorms get, in any form of model, by site: a sample per batch, its extremes included."""
    seen: Samples = {}

    def watch(part: Any, site: str, *, made: bool = False) -> Any:
        return part.register_forward_hook(
            lambda _, given, result: sample(seen, site, result if made else given[0], most)
        )

    layers: Any = model.layers
    hooks = [watch(layer.up, f"layers.{i}.activation", made=True) for i, layer in enumerate(layers)]
    for name in ("attention_norm", "output_norm"):
        hooks += [watch(getattr(layer, name), f"layers.{i}.{name}") for i, layer in enumerate(layers)]
    try:
        predict(model, data)
    finally:
        for hook in hooks:
            hook.remove()
    return {site: np.concatenate(parts) for site, parts in seen.items()}
