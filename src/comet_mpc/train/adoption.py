"""`adopt`: a trained model in the certified form, fitted and, if need be, trained to answer as before."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from comet_mpc.errors import CheckpointError, ConfigurationError, NotFinite, RuleError
from comet_mpc.files import atomic_write
from comet_mpc.models.checkpoint import FITTED, NEAR, FormRuleName
from comet_mpc.models.fold import fold
from comet_mpc.models.heads import Kind
from comet_mpc.models.public import PublicModel
from comet_mpc.models.served import public_part
from comet_mpc.models.stored.checkpoints import checkpoint_digest, save_checkpoint
from comet_mpc.offline.sources import PAIR
from comet_mpc.progress import Watcher
from comet_mpc.train.batches import Encoded, answered, first_rows
from comet_mpc.train.calibration import CALIBRATION_ROWS
from comet_mpc.train.forms import Form
from comet_mpc.train.loop import Course, Recipe
from comet_mpc.train.model import UnifiedModel
from comet_mpc.train.nearest import TRAIN_BELOW, Fitted, Search, fitting_batches, forget, form_name
from comet_mpc.train.reading import Data, Model, read_model, tokenizer_of
from comet_mpc.train.tuning import RESUMABLE, Learnt, Lesson, rows_held_out
from comet_mpc.units import about

_UPDATES = 400
"""Of training that nobody asked for, or whose passes nobody has counted."""
USUAL_RECIPE = Recipe(epochs=0.0, batch=16, rate=1e-5, dropout=0.0, fit_tokens=20_000, embedding_rate=0.0)
"""epochs 0: as many as give `_UPDATES`."""
_TRIED: tuple[FormRuleName, ...] = (FITTED, NEAR)
"""Forms from the cheapest on: the first that is near enough is taken."""
_PROGRESS = "fitting.json"


class AnswerCosts(msgspec.Struct, frozen=True):
    """Of a private answer to one text of the usual size, planned: bytes and rounds are exact."""

    tokens: int
    online_bytes: int
    rounds: int
    offline_bytes: int
    source: str


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """An adopted model beside the original, on rows that neither fitting nor training nor choosing has seen."""

    record: str = "adoption"
    model: str
    rule: str
    steps: int
    estimated_seconds: float
    fitting_seconds: float
    fitted_tokens: int
    nearness: float
    """Of the form that was chosen, as it is served, before any training, on the rows held out."""
    training_seconds: float
    updates: int
    """0: it was not trained."""
    adopted: dict[str, float]
    """The scores of the adopted model."""
    kind: Kind
    images: bool = False
    """It takes images."""
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


class _Result(msgspec.Struct, frozen=True):
    """Of a run that is finished."""

    rule: str
    nearness: float
    seconds: float
    course: Course


class _Progress(msgspec.Struct, frozen=True):
    """What a directory's run is, and its result."""

    settings: dict[str, str]
    result: _Result | None = None

    @staticmethod
    def of(out: Path, settings: dict[str, str]) -> _Progress:
        """Takes possession of the directory, or finds what is in it already."""
        path, own = out / _PROGRESS, _Progress(settings)
        if not path.exists():
            if (out / "config.json").exists():
                raise ConfigurationError(f"{out} holds a checkpoint of something else: choose another directory")
            own.save(out)
            return own
        found = msgspec.json.decode(path.read_bytes(), type=_Progress)
        other = sorted(name for name, value in settings.items() if found.settings.get(name) != value)
        if other:
            raise ConfigurationError(
                f"{out} belongs to a run with other settings ({', '.join(other)}): choose another directory"
            )
        return found

    def save(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        with atomic_write(out / _PROGRESS) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


@dataclass(frozen=True)
class PreparedAdoption:
    """An adoption before any work.

    each      about how long fitting, proving and comparing take here, form by form
    learning  about how long training takes here, if it is needed or wanted
    """

    model: Model
    tokenizer: bytes | None
    """None: the model takes images."""
    search: Search
    teacher: UnifiedModel
    lesson: Lesson
    recipe: Recipe
    trained: bool | None
    """Whether to train; None: if no form is near enough."""
    each: tuple[float, ...]
    learning: float

    @property
    def seconds(self) -> float:
        """About how long it takes at most."""
        return sum(self.each) + self.learning

    @property
    def summary(self) -> str:
        """What there is to do, and how long it takes."""
        lesson, search = self.lesson, self.search
        names = [form_name(start) for start in search.starts]
        more = [
            f", and {about(seconds)} more for {name} functions if the others are not near enough"
            for name, seconds in zip(names[1:], self.each[1:], strict=True)
        ]
        if self.learning:
            when = "" if self.trained else f" if none are {TRAIN_BELOW:g} % near"
            more.append(f", and {about(self.learning)} more to train{when}")
        what = "rows" if self.model.config.encoder.image is None else "images"
        return (
            f"{len(lesson.train)} {what}, of which {search.tokens} tokens to fit to (no labels needed), "
            f"{len(lesson.judge)} to compare with the original, {len(lesson.dev)} to evaluate: this takes "
            f"{about(self.each[0])} on this machine{''.join(more)}. {RESUMABLE}"
        )

    def run(self, out: Path, watcher: Watcher | None = None) -> Adoption:
        """Fits in `out`, and trains if that is needed or wanted, or goes on there."""
        watcher, lesson = watcher or Watcher(), self.lesson
        progress = _Progress.of(out, self._settings())
        if (result := progress.result) is not None:
            watcher.say(f"{out} holds this run, finished after {result.course.steps} updates: nothing to do")
            made = lesson.finished(out, self.recipe, result.course, watcher)
        else:
            result, made = self._made(out, watcher)
            msgspec.structs.replace(progress, result=result).save(out)
            forget(out)
        return self._report(out, result, made, watcher)

    def _settings(self) -> dict[str, str]:
        rows, recipe = hashlib.sha256(), asdict(self.recipe) | {"trained": self.trained}
        for part in (self.lesson.train, self.lesson.judge):
            rows.update(part.content())
        return {
            "model": checkpoint_digest(self.model.config, self.model.tensors),
            "rows": rows.hexdigest(),
            "recipe": json.dumps(recipe),
            "rules": ",".join(form_name(start) for start in self.search.starts),
        }

    def _made(self, out: Path, watcher: Watcher) -> tuple[_Result, Learnt]:
        began = time.monotonic()
        fitted = self.search.run(out, watcher)
        seconds = time.monotonic() - began
        made = self._trained(fitted, out, watcher)
        if made is None:
            start = fitted.model
            save_checkpoint(out, start.config, start.tensors, tokenizer=self.tokenizer)
            made = self.lesson.finished(out, self.recipe, Course(best=fitted.nearness), watcher)
        return _Result(form_name(fitted.model), fitted.nearness, seconds, made.course), made

    def _trained(self, fitted: Fitted, out: Path, watcher: Watcher) -> Learnt | None:
        """None: it is not trained, or not nearer to the original for that, so that the fit is taken."""
        if self.trained is False or (self.trained is None and fitted.nearness >= TRAIN_BELOW):
            return None
        start, lesson, asked = fitted.model.but(sites={}), self.lesson, bool(self.trained)
        recipe = self.recipe
        if not asked:
            lesson, recipe = lesson.without_labels(), replace(recipe, task_weight=0.0)
        why = "as you asked" if asked else f"less than {TRAIN_BELOW:g} % near"
        passes = f"{recipe.epochs:.3g} passes over the rows"
        watcher.say(f"training ({why}): {passes} take {about(self.learning)} on this machine. {RESUMABLE}")
        try:
            made = lesson.learn(start, out, recipe, self.teacher, self.tokenizer, watcher)
        except (CheckpointError, NotFinite, RuleError) as error:
            if asked:
                raise
            watcher.say(f"taking the fitted model: training failed: {error}")
            return None
        found = self.search.nearness(start._replace(config=made.config, tensors=made.tensors), watcher)
        watcher.say(f"trained: {found:.2f} % near the original, {fitted.nearness:.2f} % before")
        if asked or found >= fitted.nearness:
            return made
        watcher.say("taking the fitted model: it is nearer")
        return None

    def _report(self, out: Path, result: _Result, made: Learnt, watcher: Watcher) -> Adoption:
        lesson, task = self.lesson, self.lesson.task
        with watcher.stage("planning what an answer costs"):
            _, values, logits = fold(made.config, made.tensors)
            public = public_part(out, made.config, made.tensors, values, logits)
            costs = _costs(public, lesson.dev)
        assert lesson.taught is not None
        theirs = answered(lesson.dev, lesson.taught, task).labels
        return Adoption(
            model=self.model.directory.name, rule=result.rule, steps=made.config.steps, estimated_seconds=self.seconds,
            fitting_seconds=result.seconds, fitted_tokens=self.search.tokens, nearness=result.nearness,
            training_seconds=made.course.seconds, updates=made.course.steps,
            adopted=made.config.scores, kind=task.kind, images=self.model.config.encoder.image is not None,
            task=task.name, metric=task.metric, labelled=not task.plain,
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
    head: Kind | None = None,
    rule: FormRuleName | None = None,
    steps: int | None = None,
    trained: bool | None = None,
    image_size: int | None = None,
    watcher: Watcher | None = None,
) -> Adoption:
    """Converts a trained model for private serving, into `out`.

    Its non-linear functions become those that the protocol computes, layer by layer fitted to what the original
    computes on your texts, and its ranges are calibrated and proved, once. It is compared with the original, and
    trained if it is not near enough. Call it again with the same arguments to resume what was stopped.

    model    a directory with a Hugging Face model, or its name on the hub
    labels   better names for the model's labels, in its own order
    head     what to make of a text, if not what the model was made for: an encoder without a head gives embeddings
    rule     form of activations and scores, if not the first that is near enough
    steps    steps of 1/sqrt in its place
    trained  train it in any case, or in no case
    image_size  in pixels, if not that which a model of images was trained with: a smaller one costs less
    """
    watcher = watcher or Watcher()
    prepared = prepare_adoption(
        model, data, recipe, labels=labels, head=head, rule=rule, steps=steps, trained=trained, image_size=image_size,
        watcher=watcher,
    )  # fmt: skip
    watcher.say(prepared.summary)
    return prepared.run(Path(out), watcher)


def prepare_adoption(
    model: Path | str,
    data: Data | Path | str,
    recipe: Recipe = USUAL_RECIPE,
    *,
    labels: Sequence[str] = (),
    head: Kind | None = None,
    rule: FormRuleName | None = None,
    steps: int | None = None,
    trained: bool | None = None,
    image_size: int | None = None,
    watcher: Watcher | None = None,
) -> PreparedAdoption:
    """All of `adopt` before its work, with an estimate of how long that takes. Arguments are those of `adopt`."""
    watcher, data = watcher or Watcher(), Data.of(data)
    found = _original(model, tuple(labels), head, image_size, watcher)
    tokenizer = tokenizer_of(found, certified=True)
    task = data.task_for(found.config)
    rows = data.both(found, task, watcher)
    found = found.but(task=task.name, length=data.longest(found.config, task))
    teacher = UnifiedModel.from_tensors(found.config, found.tensors)
    lesson = Lesson.prepare(task, rows, max(1, rows_held_out(rows[0])), teacher, watcher)
    passes = recipe.epochs or _UPDATES / -(-len(lesson.train) // recipe.batch)
    recipe = replace(recipe, epochs=passes, fit=False)
    names = (rule,) if rule or steps else _TRIED
    forms = (Form(rule=name, steps=steps).applied(found.config, found.tensors) for name in names)
    starts = tuple(Model(found.directory, *form) for form in forms)
    assert lesson.judged is not None
    batches = fitting_batches(teacher, lesson.train, recipe.fit_tokens)
    looked_at = first_rows(lesson.train, CALIBRATION_ROWS)
    search = Search(starts, teacher, task, batches, looked_at, lesson.judge, lesson.judged)
    with watcher.stage("measuring how fast this machine is"):
        each = search.seconds(lesson.dev)
    learning = 0.0 if trained is False else lesson.seconds(starts[-1], recipe, teacher, watcher)
    return PreparedAdoption(found, tokenizer, search, teacher, lesson, recipe, trained, each, learning)


def _original(
    source: Path | str, labels: tuple[str, ...], head: Kind | None, size: int | None, watcher: Watcher
) -> Model:
    """A model that was trained already, in its own form, perhaps with better names for its labels."""
    found = read_model(source, watcher, head, image_size=size)
    config, directory = found.config, found.directory
    if config.activation.kind != "gelu" or config.attention.kind != "softmax":
        raise ConfigurationError(f"{directory} does not have GeLU and softmax any more: serve it, or fine-tune it")
    if found.headless:
        raise ConfigurationError(
            f"{directory} is an encoder without a head: for embeddings, add `--head embedding` (from Python: "
            "head='embedding'); for labels, train a head in the clear first (`comet unify --form unmodified "
            "--labels A,B` and `comet finetune`)"
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
