"""`adopt`: a trained model in the certified form, trained to answer as before, and compared with what it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from comet_mpc.errors import ConfigurationError
from comet_mpc.models.checkpoint import FormRuleName, RuleName
from comet_mpc.models.fold import fold
from comet_mpc.models.heads import Kind
from comet_mpc.models.hugging_face import servable_tokenizer
from comet_mpc.models.public import PublicModel
from comet_mpc.models.served import public_part
from comet_mpc.offline.sources import PAIR
from comet_mpc.progress import Watcher
from comet_mpc.train.batches import Encoded, answered
from comet_mpc.train.forms import Form
from comet_mpc.train.loop import Recipe
from comet_mpc.train.model import UnifiedModel
from comet_mpc.train.reading import Data, Model, read_model
from comet_mpc.train.tuning import RESUMABLE, Lesson, rows_held_out
from comet_mpc.units import about

_UPDATES = 300
"""Small data sets are gone through more often, until there were so many updates."""
EMBEDDING_STEPS = 4
"""Embeddings are the hidden states themselves, which the usual rule moves more than labels (docs/how-to/convert.md)."""
_CHEAPER: RuleName = "quartic"
"""Nearly as good for them, for less than half the bytes."""
USUAL_RECIPE = Recipe(epochs=0.0, batch=16, dropout=0.0)
"""epochs 0: as many as a set of this size needs"""


class AnswerCosts(msgspec.Struct, frozen=True):
    """Of a private answer to one text of the usual size, planned: bytes and rounds are exact."""

    tokens: int
    online_bytes: int
    rounds: int
    offline_bytes: int
    source: str


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """An adopted model beside the original, on rows that neither training nor choosing has seen."""

    record: str = "adoption"
    model: str
    rule: str
    steps: int
    estimated_seconds: float
    training_seconds: float
    updates: int
    adopted: dict[str, float]
    """The scores of the adopted model."""
    kind: Kind
    task: str
    metric: str
    labelled: bool
    rows: int
    held_out: int
    dev_rows: int
    original: dict[str, float]
    """The scores of the original."""
    agreement: dict[str, float]
    """The scores of the adopted model, if the original's answers are right."""
    fingerprint: str
    costs: AnswerCosts


@dataclass(frozen=True)
class PreparedAdoption:
    """An adoption before any training. seconds: about how long `run` takes here."""

    model: Model
    tokenizer: bytes
    start: Model
    teacher: UnifiedModel
    lesson: Lesson
    recipe: Recipe
    seconds: float

    @property
    def summary(self) -> str:
        """What there is to do, and how long it takes."""
        lesson = self.lesson
        how = "the model itself says what is right" if lesson.task.plain else "with labels"
        return (
            f"{len(lesson.train)} rows to learn from ({how}), {len(lesson.judge)} to choose by, {len(lesson.dev)} to "
            f"evaluate: {self.recipe.epochs:g} passes take {about(self.seconds)} on this machine. {RESUMABLE}"
        )

    def run(self, out: Path, watcher: Watcher | None = None) -> Adoption:
        """Trains in `out`, or goes on there."""
        watcher, lesson, task = watcher or Watcher(), self.lesson, self.lesson.task
        made = lesson.learn(self.start, out, self.recipe, self.teacher, self.tokenizer, watcher)
        with watcher.stage("planning what an answer costs"):
            _, values, logits = fold(made.config, made.tensors)
            public = public_part(out, made.config, made.tensors, values, logits)
            costs = _costs(public, lesson.dev)
        assert lesson.taught is not None
        theirs = answered(lesson.dev, lesson.taught, task).labels
        return Adoption(
            model=self.model.directory.name, rule=made.config.rule, steps=made.config.steps,
            estimated_seconds=self.seconds, training_seconds=made.course.seconds, updates=made.course.steps,
            adopted=made.config.scores, kind=task.kind, task=task.name, metric=task.metric, labelled=not task.plain,
            rows=len(lesson.train), held_out=len(lesson.judge), dev_rows=len(lesson.dev),
            original=task.score(lesson.taught, lesson.dev.labels),
            agreement=replace(task, plain=True).score(made.answers, theirs), fingerprint=public.fingerprint,
            costs=costs,
        )  # fmt: skip


def adopt(
    model: Path | str,
    data: Data | Path | str,
    out: Path | str,
    recipe: Recipe = USUAL_RECIPE,
    *,
    labels: Sequence[str] = (),
    rule: FormRuleName | None = None,
    steps: int | None = None,
    watcher: Watcher | None = None,
) -> Adoption:
    """Converts a trained model for private serving, into `out`.

    Its non-linear functions become those that the protocol computes, it is trained to answer as before (with labels and
    its own answers, or with its own answers alone), and its ranges are calibrated and proved, once. Call it again with
    the same arguments to resume what was stopped.

    model   a directory with a Hugging Face model, or its name on the hub
    labels  better names for the model's labels, in its own order
    rule    approximation rule of activations and scores, if not the usual one
    steps   steps of 1/sqrt in its place
    """
    watcher = watcher or Watcher()
    prepared = prepare_adoption(model, data, recipe, labels=labels, rule=rule, steps=steps, watcher=watcher)
    watcher.say(prepared.summary)
    return prepared.run(Path(out), watcher)


def prepare_adoption(
    model: Path | str,
    data: Data | Path | str,
    recipe: Recipe = USUAL_RECIPE,
    *,
    labels: Sequence[str] = (),
    rule: FormRuleName | None = None,
    steps: int | None = None,
    watcher: Watcher | None = None,
) -> PreparedAdoption:
    """All of `adopt` before training, with an estimate of how long that takes. Arguments are those of `adopt`."""
    watcher, data = watcher or Watcher(), Data.of(data)
    found = _original(model, tuple(labels), watcher)
    tokenizer = servable_tokenizer(found.directory, found.config.encoder.vocabulary)
    task = data.task_for(found.config)
    rows = data.both(found, task, watcher)
    found = found.but(task=task.name, length=data.longest(found.config, task))
    teacher = UnifiedModel.from_tensors(found.config, found.tensors)
    lesson = Lesson.prepare(task, rows, max(1, rows_held_out(rows[0])), teacher, watcher)
    near = task.kind == "embedding" and rule is None and steps is None
    if near:
        watcher.say(
            f"embeddings get {EMBEDDING_STEPS} steps of 1/sqrt, which keep them nearer to the original than the usual "
            f"rule; --rule {_CHEAPER} is between the two, and takes less than half the bytes"
        )
    form = Form(rule=rule, steps=EMBEDDING_STEPS if near else steps)
    start = Model(found.directory, *form.applied(found.config, found.tensors))
    passes = recipe.epochs or max(3.0, float(np.ceil(_UPDATES * recipe.batch / len(lesson.train))))
    recipe = replace(recipe, epochs=passes)
    seconds = lesson.seconds(start, recipe, teacher, watcher)
    return PreparedAdoption(found, tokenizer, start, teacher, lesson, recipe, seconds)


def _original(source: Path | str, labels: tuple[str, ...], watcher: Watcher) -> Model:
    """A model that was trained already, in its own form, perhaps with better names for its labels."""
    found = read_model(source, watcher)
    config, directory = found.config, found.directory
    if config.activation.kind != "gelu" or config.attention.kind != "softmax":
        raise ConfigurationError(f"{directory} does not have GeLU and softmax any more: serve it, or fine-tune it")
    if found.headless:
        raise ConfigurationError(
            f"{directory} is an encoder without a head, so it has learnt no task yet: train one in the clear first "
            "(`comet unify --form unmodified --labels A,B` and `comet finetune`), or take it for embeddings "
            "(`comet unify --form unmodified --head embedding`)"
        )
    if not labels:
        return found
    if len(labels) != len(config.encoder.labels):
        raise ConfigurationError(f"{len(labels)} names for a model with {len(config.encoder.labels)} labels")
    return found.but(encoder=msgspec.structs.replace(config.encoder, labels=labels))


def _costs(model: PublicModel, dev: Encoded) -> AnswerCosts:
    usual = float(np.median([len(ids) for ids in dev.ids]))
    bucket = next(size for size in model.buckets() if size >= usual)
    plan = model.plan(1, bucket, PAIR)
    return AnswerCosts(bucket, plan.online_bytes, plan.rounds, PAIR.offline_bytes(plan), PAIR.name)
