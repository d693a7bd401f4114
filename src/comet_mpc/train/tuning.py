"""`finetune`: a model trained for a task, calibrated, and scored once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from comet_mpc.engine.share import Reals
from comet_mpc.errors import ConfigurationError
from comet_mpc.models.checkpoint import FITTED, ActivationChoice, AttentionChoice, CometConfig, RuleName, Tensors
from comet_mpc.models.stored.checkpoints import load_checkpoint, save_config
from comet_mpc.models.tasks import Task
from comet_mpc.progress import Watcher
from comet_mpc.train.batches import Encoded, answered, first_rows, hold_out, predict
from comet_mpc.train.calibration import MARGIN, calibrate_in_memory, calibration_rows
from comet_mpc.train.estimate import estimated_seconds
from comet_mpc.train.loop import Course, Recipe, train_rows
from comet_mpc.train.model import Mode, UnifiedModel
from comet_mpc.train.reading import Data, Model, read_model, tokenizer_of
from comet_mpc.train.steps import through_rules
from comet_mpc.units import about

RESUMABLE = "It can be stopped and resumed."
_MOST_HELD_OUT = 1000
_HELD_OUT_SEED = 0
"""The same rows for every run of a task, so that no teacher has seen what judges its student."""


class HeldOut(msgspec.Struct, frozen=True):
    """Rows for training that only chose the best checkpoint, and the seed that drew them."""

    rows: int
    seed: int


class Tuned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fine-tuning went, and by which recipe."""

    task: str
    metric: str
    best: float
    """The best score on the rows that chose the checkpoint."""
    scores: dict[str, float]
    """Of the checkpoint, calibrated, on the rows for evaluation."""
    history: list[dict[str, float]]
    seconds: float
    """Of training alone."""
    updates: int
    seed: int
    rows: int
    spread: bool
    held_out: HeldOut
    rate: float
    batch: int
    rule: str
    steps: int
    mode: Mode
    distilled: bool
    activation: ActivationChoice
    attention: AttentionChoice
    fit_tokens: int
    label_weight: float
    logit_weight: float
    hidden_weight: float
    teacher_scores: dict[str, float] | None = None
    learnt: dict[str, list[float]] | None = None
    """α and μ of every layer, where they were trained."""


@dataclass(frozen=True)
class Lesson:
    """Rows to learn from, to choose the best checkpoint by, and to evaluate with."""

    task: Task
    train: Encoded
    judge: Encoded
    dev: Encoded
    taught: Reals | None
    """What the teacher says to the last of them."""
    judged: Reals | None
    """What it says to those that choose."""

    @staticmethod
    def prepare(
        task: Task, rows: tuple[Encoded, Encoded], held: int, teacher: UnifiedModel | None, watcher: Watcher
    ) -> Lesson:
        """held: rows that only choose; 0: those for evaluation do"""
        train, dev = rows
        train, judge = hold_out(train, held, _HELD_OUT_SEED) if held else (train, dev)
        if teacher is None:
            if task.plain or task.kind == "embedding":
                raise ConfigurationError(
                    "there is nothing to learn from: give rows with labels, or a model with --teacher"
                )
            return Lesson(task, train, judge, dev, None, None)
        teacher.eval().use("exact")
        with watcher.stage("asking the original model") as tick:
            taught, judged = predict(teacher, dev, tick=tick), predict(teacher, judge, tick=tick)
        if task.plain or task.kind == "embedding":
            judge = answered(judge, judged, task)
        return Lesson(task, train, judge, answered(dev, taught, task) if task.plain else dev, taught, judged)

    def without_labels(self) -> Lesson:
        """The same, but the teacher's answers alone choose the best checkpoint."""
        assert self.judged is not None
        return replace(self, judge=answered(self.judge, self.judged, self.task))

    def seconds(self, start: Model, recipe: Recipe, teacher: UnifiedModel | None, watcher: Watcher) -> float:
        """About how long `learn` takes here."""
        with watcher.stage("measuring how fast this machine trains"):
            net = UnifiedModel.from_tensors(start.config, start.tensors)
            return estimated_seconds(net, self.task, self.train, self.judge, self.dev, recipe, teacher)

    def learn(
        self,
        start: Model,
        out: Path,
        recipe: Recipe,
        teacher: UnifiedModel | None,
        tokenizer: bytes | None,
        watcher: Watcher,
    ) -> Learnt:
        """Trains in `out`, or goes on there; then calibrates the best checkpoint, once, and scores it, once."""
        course = train_rows(
            start.config, start.tensors, self.task, self.train, self.judge, out, recipe, teacher=teacher,
            tokenizer=tokenizer, watcher=watcher,
        )  # fmt: skip
        return self.finished(out, recipe, course, watcher)

    def finished(self, out: Path, recipe: Recipe, course: Course, watcher: Watcher) -> Learnt:
        """The checkpoint in `out`, calibrated once and scored once."""
        config, tensors = load_checkpoint(out)
        rules = through_rules(config, recipe.through)
        computed = {"smu", FITTED} & {config.activation.kind, config.attention.kind}
        if computed and not rules and not any(site.seen for site in config.sites.values()):
            rows = first_rows(self.train, calibration_rows(config))
            config = calibrate_in_memory(config, tensors, rows, MARGIN, watcher).config
        # a form that is not certified and was trained with exact functions is scored with them
        exact = recipe.mode == "exact" and not config.certifiable
        with watcher.stage("evaluating") as tick:
            net = UnifiedModel.from_tensors(config, tensors).use("exact" if exact else "served", rules)
            answers = predict(net, self.dev, tick=tick)
        config = msgspec.structs.replace(config, scores=self.task.score(answers, self.dev.labels))
        save_config(out, config)
        return Learnt(course, config, tensors, answers)


@dataclass(frozen=True)
class Learnt:
    """How training went, the best checkpoint as it was saved, and its answers to the rows for evaluation."""

    course: Course
    config: CometConfig
    tensors: Tensors
    answers: Reals


def finetune(
    model: Path | str,
    data: Data | Path | str,
    out: Path | str,
    recipe: Recipe | None = None,
    *,
    teacher: Path | str | None = None,
    held_out: int | None = None,
    rule: Literal[RuleName, "newton"] | None = None,
    steps: int | None = None,
    watcher: Watcher | None = None,
) -> Tuned:
    """Trains a Comet model for a task, with the steps that the protocol computes, and keeps the best checkpoint.

    The checkpoint is calibrated, scored once on the rows for evaluation, and compared with the teacher. Call it again
    with the same arguments to resume what was stopped.

    model     a Comet checkpoint to start from (`unify`)
    out       directory of the run
    teacher   a Comet or Hugging Face model to learn from
    held_out  rows for training that only choose the best checkpoint (a tenth, 1000 at most). 0: those for evaluation do
    rule      another rule of activations and scores than the model's; newton, like fewer than two steps, is for
              experiments: what comes out cannot be served
    steps     another number of steps than the model's
    """
    watcher, data, out, recipe = watcher or Watcher(), Data.of(data), Path(out), recipe or Recipe()
    if not recipe.task_weight and (teacher is None or not (recipe.hidden_weight or recipe.logit_weight)):
        raise ConfigurationError("there is nothing to learn from: with --label-weight 0, give a model with --teacher")
    start = read_model(model, watcher)
    task = data.task_for(start.config)
    rows = data.both(start, task, watcher)
    held = rows_held_out(rows[0]) if held_out is None else held_out
    start = start.but(task=task.name, length=data.longest(start.config, task))
    kind, count = rule or start.config.rule, start.config.steps if steps is None else steps
    recipe = replace(recipe, through=_experiment(start.config, kind, count))
    if recipe.through is None and (rule is not None or steps is not None):
        start = start.but(rule=kind, steps=count or start.config.steps, sites={})
    tutor = None if teacher is None else _tutor(teacher, start.config, watcher)
    lesson = Lesson.prepare(task, rows, held, tutor, watcher)
    if not (out / "training.json").exists():
        seconds = lesson.seconds(start, recipe, tutor, watcher)
        passes = f"{len(lesson.train)} rows, {recipe.epochs:g} epochs"
        watcher.say(f"{passes}: {about(seconds)} on this machine. {RESUMABLE}")
    made = lesson.learn(start, out, recipe, tutor, tokenizer_of(start, certified=False), watcher)
    return Tuned(
        task=task.name, metric=task.metric, best=made.course.best, scores=made.config.scores,
        history=made.course.history, seconds=made.course.seconds, updates=made.course.steps, seed=recipe.seed,
        rows=len(lesson.train), spread=data.spread, held_out=HeldOut(held, _HELD_OUT_SEED), rate=recipe.rate,
        batch=recipe.batch, rule=kind, steps=count, mode=recipe.mode, distilled=tutor is not None,
        activation=start.config.activation, attention=start.config.attention,
        fit_tokens=recipe.fit_tokens if recipe.fit and tutor is not None else 0, label_weight=recipe.task_weight,
        logit_weight=recipe.logit_weight, hidden_weight=recipe.hidden_weight,
        teacher_scores=None if lesson.taught is None else task.score(lesson.taught, lesson.dev.labels),
        learnt=_learnt(made.config, made.tensors),
    )  # fmt: skip


def rows_held_out(train: Encoded) -> int:
    """So many rows are not learnt from, but choose the best checkpoint."""
    return min(_MOST_HELD_OUT, len(train) // 10)


def _experiment(config: CometConfig, kind: str, steps: int) -> str | None:
    """The name of steps that nothing serves (`steps.through_rules`)."""
    few = kind == "minimax" and steps <= (1 if config.certifiable else 0)
    return f"{kind}-{steps}" if few or kind == "newton" else None


def _tutor(teacher: Path | str, config: CometConfig, watcher: Watcher) -> UnifiedModel:
    """A classifier with the student's labels, in its own form."""
    found = read_model(teacher, watcher)
    theirs = found.config
    if (theirs.encoder.labels, theirs.head) != (config.encoder.labels, config.head) or found.headless:
        raise ConfigurationError(
            f"{teacher} has the labels {', '.join(theirs.encoder.labels) or 'none'} ({theirs.head.kind}), "
            f"but a teacher of this model needs {', '.join(config.encoder.labels) or 'none'} ({config.head.kind})"
        )
    if theirs.encoder.vocabulary != config.encoder.vocabulary:
        raise ConfigurationError(f"{teacher} has another vocabulary, but teacher and model must read the same tokens")
    return UnifiedModel.from_tensors(theirs, found.tensors)


def _learnt(config: CometConfig, tensors: Tensors) -> dict[str, list[float]] | None:
    parts = ["activation.alpha", "activation.mu"] if config.activation.trainable else []
    parts += ["attention.mu"] if config.attention.trainable else []
    layers = range(config.encoder.layers)
    return {part: [float(tensors[f"layers.{i}.{part}"]) for i in layers] for part in parts} or None
