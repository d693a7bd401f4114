"""Tables of scores: what the unified forms cost in accuracy, and how far the protocol is from real arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import mean, stdev

from comet_mpc.models.tasks import TASKS
from comet_mpc.units import counted
from comet_research.report.grid import Grid
from comet_research.report.records import Record, Results

_NAME = re.compile(
    rf"(?P<encoder>.+?)-(?P<task>{'|'.join(name.lower() for name in TASKS)})-seed(?P<seed>\d+)"
    r"(?:-(?P<stage>.+?))??(?:-eval-(?P<rule>[a-z][a-z0-9]*)-(?P<count>\d+))?$"
)
_UNMODIFIED = "unmodified"
_OLDER = "dev.tsv chose the epoch"
_NOTE = "± is the standard deviation over seeds. The mean difference is over the tasks that have both."

Key = tuple[int, object, object]
"""What two scores must have in common to be compared: the seed, the number of training rows and that of a batch."""
Scores = dict[str, dict[Key, float]]
"""By task."""


@dataclass(frozen=True)
class TrainedModel:
    """A score and what it is of. rule, steps: those it was evaluated with, if others than it was trained with.
    held_out: rows held out of the training set chose the epoch; in older records the dev set did."""

    record: Record
    encoder: str
    task: str
    seed: int
    stage: str
    rule: str | None
    steps: int | None
    score: float
    held_out: bool

    @property
    def key(self) -> Key:
        return self.seed, self.record.get("rows"), self.record.get("batch")

    @property
    def trained(self) -> bool:
        """With what it is evaluated with."""
        return self.rule is None and "best" in self.record.fields

    @property
    def difference(self) -> float | None:
        """From the teacher that it learnt from, if there was one."""
        taught = (self.record.get("teacher_scores") or {}).get(TASKS[self.task].metric)
        return None if taught is None else self.score - float(taught)


def runs(results: Results) -> list[TrainedModel]:
    """Every trained or evaluated model whose file has the name of a recipe."""
    found = []
    for record in results.of("accuracy"):
        parts = _NAME.match(record.name)
        if parts is None:
            continue
        task = next(known for known in TASKS if known.lower() == parts["task"])
        steps = None if parts["count"] is None else int(parts["count"])
        score = _score(record, task)
        if score is not None:
            where = (parts["encoder"], task, int(parts["seed"]), parts["stage"] or "")
            found.append(TrainedModel(record, *where, parts["rule"], steps, score, _held_out(record)))
    return found


def _held_out(record: Record) -> bool:
    return bool((record.get("held_out") or {}).get("rows"))


def _score(record: Record, task: str) -> float | None:
    """On the dev set, by the task's metric. Where rows held out chose the epoch, `best` is theirs."""
    scores = record.get("scores") or {}
    served = scores.get("served", scores)
    if "best" in record.fields and not _held_out(record):
        return float(record["best"])
    values = [value for value in (served.get(TASKS[task].metric), *served.values()) if isinstance(value, float | int)]
    return float(values[0]) if values else None


@dataclass
class Trained:
    """One encoder's trained stages, by one recipe."""

    encoder: str
    held_out: bool
    stages: dict[str, Scores] = field(default_factory=dict)
    sources: dict[str, list[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.encoder if self.held_out else f"{self.encoder}, {_OLDER}"

    def differences(self, stage: str, base: str, task: str) -> list[float]:
        """stage - base, seed by seed, where both were trained alike."""
        one, other = (self.stages.get(name, {}).get(task, {}) for name in (stage, base))
        return [one[key] - other[key] for key in sorted(one.keys() & other.keys(), key=str)]

    def mean_loss(self, stage: str, base: str) -> tuple[float, int] | None:
        """stage - base on the mean over tasks, and over how many."""
        means = [mean(found) for task in TASKS if (found := self.differences(stage, base, task))]
        return (mean(means), len(means)) if means else None

    def losses_by_seed(self, stage: str, base: str) -> list[float]:
        """The same seed by seed: of the seeds that all these tasks have."""
        by_seed: dict[int, list[float]] = {}
        tasks = [task for task in TASKS if self.differences(stage, base, task)]
        for task in tasks:
            one, other = self.stages[stage][task], self.stages[base][task]
            for key in one.keys() & other.keys():
                by_seed.setdefault(key[0], []).append(one[key] - other[key])
        return [mean(lost) for lost in by_seed.values() if len(lost) == len(tasks)]

    def mean_difference(self, stage: str, base: str) -> str:
        found = self.mean_loss(stage, base)
        return f"{found[0]:+.2f} ({found[1]} of {len(TASKS)})" if found else ""

    def rows(self, stage: str, base: str, tasks: list[str]) -> list[list[str]]:
        """The scores, and the differences below them."""
        scores = self.stages[stage]
        first = [stage, *(shown(scores.get(task, {}).values()) for task in tasks), ""]
        if stage == base:
            return [first]
        differences = [shown(self.differences(stage, base, task), signed=True) for task in tasks]
        return [first, [f"less {base}", *differences, self.mean_difference(stage, base)]]

    def grid(self, title: str, stages: Iterable[str], base: str, note: str) -> Grid:
        names = [base, *(name for name in stages if name != base)]
        tasks = [task for task in TASKS if any(task in self.stages[name] for name in names[1:] or names)]
        rows = [row for name in names for row in self.rows(name, base, tasks)]
        sources = [source for name in names for source in self.sources[name]]
        return Grid(title, ["form", *tasks, "mean difference"], rows, note, sources=sources)


def trained(results: Results) -> list[Trained]:
    """Every encoder; one that was trained by two recipes twice, since their rows do not compare."""
    encoders: dict[tuple[str, bool], Trained] = {}
    for run in runs(results):
        if run.trained:
            encoder = encoders.setdefault((run.encoder, run.held_out), Trained(run.encoder, run.held_out))
            encoder.stages.setdefault(run.stage, {}).setdefault(run.task, {})[run.key] = run.score
            encoder.sources.setdefault(run.stage, []).append(run.record.source)
    return list(encoders.values())


def shown(values: Iterable[float], signed: bool = False) -> str:
    """Mean, and standard deviation where there are several."""
    found = list(values)
    if not found:
        return ""
    text = f"{mean(found):+.2f}" if signed else f"{mean(found):.2f}"
    return text if len(found) == 1 else f"{text}±{stdev(found):.2f}"


_PAPER = re.compile(r"paper-(?P<form>.+)-(?P<how>exact|\d+)$")
_FORMS: Mapping[str, str] = {"smu": "s-GeLU with s-Softmax*", "relu": "s-GeLU with Softmax*"}


def form_grids(results: Results) -> list[Grid]:
    """For each encoder: certified beside unmodified; the paper's forms; with and without a teacher."""
    grids = []
    for encoder in trained(results):
        stages = sorted(encoder.stages)
        certified = [name for name in stages if name.startswith("certified") and not name.endswith("-undistilled")]
        if _UNMODIFIED in stages:
            grids.append(encoder.grid(f"{encoder.name}: what the certified form costs", certified, _UNMODIFIED, _NOTE))
            for form in sorted({found["form"] for name in stages if (found := _PAPER.match(name))}):
                these = [name for name in stages if (found := _PAPER.match(name)) and found["form"] == form]
                title = f"{encoder.name}: the paper's {_FORMS.get(form, form)}, not certified"
                note = "exact: with exact functions; a number: through so many steps."
                grids.append(encoder.grid(title, these, _UNMODIFIED, note))
        for name in certified:
            if f"{name}-undistilled" in stages:
                title = f"{encoder.name}, {name}: what distillation gives"
                grids.append(encoder.grid(title, [name], f"{name}-undistilled", "undistilled: from labels alone."))
    return grids


def summary_grid(results: Results) -> Grid:
    """Every encoder, unmodified and as it is served."""
    grid = Grid("Scores on GLUE's dev sets", ["encoder", "form", *TASKS, "mean difference"], left=2, note=_NOTE)
    for encoder in trained(results):
        for name in sorted(encoder.stages, key=lambda name: (name != _UNMODIFIED, name)):
            if name == _UNMODIFIED or (name.startswith("certified") and not name.endswith("-undistilled")):
                means = [shown(encoder.stages[name].get(task, {}).values()) for task in TASKS]
                difference = "" if name == _UNMODIFIED else encoder.mean_difference(name, _UNMODIFIED)
                grid.rows.append([encoder.name, name, *means, difference])
                grid.sources += encoder.sources[name]
    return grid


def step_grid(results: Results) -> Grid:
    """The same weights by other rules and with other numbers of steps."""
    found: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    sources = []
    for run in runs(results):
        if run.rule is not None and run.steps is not None:
            key = (f"{run.encoder} {run.stage}".strip(), run.task, run.rule)
            found.setdefault(key, {}).setdefault(run.steps, []).append(run.score)
            sources.append(run.record.source)
    counts = sorted({count for by_count in found.values() for count in by_count})
    columns = ["checkpoint", "task", "rule", *(counted(n, "step") for n in counts)]
    rows = [[*key, *(shown(by_count.get(n, [])) for n in counts)] for key, by_count in sorted(found.items())]
    note = "newton: plain steps from the paper's constant. Only the number trained with was trained for."
    return Grid("The same weights with other steps of activations and scores", columns, rows, note, 3, sources)


def protocol_grid(results: Results) -> Grid:
    """Inside the protocol, and by its fixed-point twin (names that end in `twin`)."""
    columns = ["result", "task", "rows", "fixed point", "real", "labels", "median", "99 %", "largest"]
    grid = Grid(
        "Inside the protocol, and by its fixed-point twin, beside real arithmetic on the same rows", columns, left=2,
        note="labels: how many agree. median, 99 %, largest: over the rows, the largest difference of a logit.",
    )  # fmt: skip
    for record in sorted(results.of("protocol"), key=lambda record: record.name):
        scores = [f"{next(iter(record[part].values())):.2f}" for part in ("scores", "plain_scores")]
        agreement = f"{record['agreement']:.1%}" if record.get("agreement") is not None else ""
        differences = [f"{value:.4f}" for value in record["logit_difference"].values()]
        grid.rows.append([record.name, record["task"], str(record["examples"]), *scores, agreement, *differences])
        grid.sources.append(record.source)
    return grid
