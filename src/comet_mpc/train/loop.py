"""The loop of training.

Training goes through what will be served: activations and scores by the protocol's coefficients (`mode="steps"`), the
task's loss, optionally a teacher's logits and hidden states, and for forms that are not certified a penalty on
arguments near the top of their interval. After every evaluation interval the best checkpoint is kept and the state
saved, so that a crash loses at most one interval; a number that is not finite stops the run and leaves both as they
were. `training.json` says what a directory's run is: only the same one is resumed, a finished one is not run again.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from comet_mpc.errors import ConfigurationError, NotFinite
from comet_mpc.files import atomic_write
from comet_mpc.functions.rule import Rule
from comet_mpc.models.checkpoint import CometConfig, Tensors
from comet_mpc.models.stored.checkpoints import checkpoint_digest, save_checkpoint
from comet_mpc.models.tasks import Task
from comet_mpc.progress import Tick, Watcher
from comet_mpc.train.batches import Batch, Encoded, predict
from comet_mpc.train.fitting.layers import can_fit, fit_to_teacher
from comet_mpc.train.model import Mode, UnifiedModel
from comet_mpc.train.steps import through_rules

_SHAPES = (".thresholds", ".alpha", ".mu")


@dataclass(frozen=True)
class Recipe:
    epochs: float = 3.0
    batch: int = 32
    rate: float = 1e-4
    warmup: float = 0.1
    """Part of all steps during which the rate rises; it falls linearly afterwards."""
    decay: float = 0.01
    dropout: float = 0.1
    seed: int = 1
    mode: Mode = "steps"
    task_weight: float = 1.0
    logit_weight: float = 1.0
    """Distillation: cross-entropy against the teacher's probabilities (or squared distance of scores)."""
    hidden_weight: float = 1.0
    """Distillation: squared distance of hidden states, where the sizes agree."""
    temperature: float = 1.0
    penalty: float = 1.0
    """Weight of the penalty on arguments above 0.9 of their interval's top."""
    evaluations: int = 1
    """Per epoch."""
    embedding_rate: float = 1.0
    """Factor of the rate for embeddings: words that training has not seen stay where they are, so others should too."""
    shape_rate: float = 30.0
    """Factor of the rate for numbers that shape a function and must cover a range of about 1: attention's thresholds,
    and α and μ where they are trained."""
    fit: bool = True
    """Begin with the matrices after the new steps fitted to the teacher, if that is the same encoder (`fitting`)."""
    fit_tokens: int = 8192
    """How many tokens of the training rows they are fitted to."""
    token_dropout: float = 0.0
    """Part of the tokens (never the first) that training hides."""
    through: str | None = None
    """An experiment: steps that nothing serves (`steps.through_rules`)."""


@dataclass
class Course:
    """How a run of training went, so far."""

    best: float = -math.inf
    """The best score on the rows that choose a checkpoint."""
    history: list[dict[str, float]] = field(default_factory=list)
    """The scores of every evaluation."""
    seconds: float = 0.0
    steps: int = 0
    """Updates."""


def _task_loss(logits: Tensor, labels: Tensor, task: Task) -> Tensor:
    if task.regression:
        return F.mse_loss(logits[:, 0], labels)
    if task.kind == "tokens":
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten().long(), ignore_index=-100)
    return F.cross_entropy(logits, labels.long())


def _answer_distance(mine: Tensor, theirs: Tensor, mask: Tensor, task: Task, heat: float) -> Tensor:
    """From a teacher's answers: of scores and embeddings the squared distance, of labels the cross-entropy."""
    if task.regression or task.kind == "embedding":
        return F.mse_loss(mine, theirs)
    if task.kind == "tokens":
        mine, theirs = mine[mask.bool()], theirs[mask.bool()]
    return F.cross_entropy(mine / heat, torch.softmax(theirs / heat, dim=-1)) * heat**2


def _distance(mine: list[Tensor], theirs: list[Tensor], mask: Tensor) -> Tensor:
    """Mean squared distance of hidden states over tokens; layers are matched evenly.

    Relative to how much the teacher's coordinate varies from token to token: in some encoders a few that are large and
    the same for all tokens hold most of the length and none of the meaning.
    """
    weight = (mask / mask.sum())[:, :, None].float()
    total = torch.zeros(())
    for i, state in enumerate(mine):
        other = theirs[round(i * (len(theirs) - 1) / (len(mine) - 1))]
        varies = ((other - (other * weight).sum((0, 1))).square() * weight).sum((0, 1))
        off = ((state - other).square() * weight).sum((0, 1))
        total = total + (off / (varies + 0.1 * varies.mean())).mean()
    return total / len(mine)


def update_loss(model: UnifiedModel, teacher: UnifiedModel | None, batch: Batch, task: Task, recipe: Recipe) -> Tensor:
    excess: list[Tensor] = []

    def watch(site: str, t: Tensor) -> None:
        if site in model.config.sites:  # the largest of every text: a mean would not feel a few that are far off
            largest = t.flatten(1).amax(1) if t.ndim > 1 else t
            excess.append(F.relu(largest / (0.9 * model.config.sites[site].rule.high) - 1.0).mean())

    model.probe = watch if model.config.sites and not model.config.certifiable and recipe.penalty else None
    logits, hidden = model(*batch.inputs)
    model.probe = None
    loss = torch.zeros(())
    if recipe.task_weight and not task.plain and task.kind != "embedding":
        loss = recipe.task_weight * _task_loss(logits, batch.labels, task)
    wanted, states = batch.wanted, hidden
    if teacher is not None:
        with torch.no_grad():
            wanted, states = teacher(*batch.inputs)
    if wanted is not None:
        soft = _answer_distance(logits, wanted, batch.mask, task, recipe.temperature)
        loss = loss + recipe.logit_weight * soft
        if teacher is not None and recipe.hidden_weight and states[0].shape == hidden[0].shape:
            loss = loss + recipe.hidden_weight * _distance(hidden, states, batch.mask)
    if excess:
        loss = loss + recipe.penalty * torch.stack(excess).sum()
    return loss


def _optimiser(model: UnifiedModel, recipe: Recipe) -> torch.optim.AdamW:
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        decay = recipe.decay if parameter.ndim >= 2 else 0.0
        factor = recipe.embedding_rate if name.startswith("embeddings.") and parameter.ndim >= 2 else 1.0
        factor = recipe.shape_rate if name.endswith(_SHAPES) else factor
        if not factor:  # no gradient either: of a small encoder, most of an update would be that
            parameter.requires_grad_(False)
            continue
        groups.setdefault((decay, factor), []).append(parameter)
    settings = [{"params": p, "weight_decay": decay, "factor": factor} for (decay, factor), p in groups.items()]
    return torch.optim.AdamW(settings, lr=recipe.rate, fused=True)


def _hide(batch: Batch, part: float) -> Batch:
    """Some tokens as if they were padding; the first stays."""
    kept = (torch.rand(batch.mask.shape) >= part).long()
    kept[:, 0] = 1
    return replace(batch, mask=batch.mask * kept)


def _rate(recipe: Recipe, step: int, steps: int) -> float:
    warm = max(1, int(recipe.warmup * steps))
    return recipe.rate * min((step + 1) / warm, max(0.0, (steps - step) / max(1, steps - warm)))


def _settings(
    recipe: Recipe, config: CometConfig, tensors: Tensors, train: Encoded, teacher: UnifiedModel | None
) -> dict[str, Any]:
    """All that a run depends on."""
    rows = hashlib.sha256(train.content(train.labels.tolist()))
    rows.update(b"" if train.wanted is None else train.wanted.tobytes())
    return asdict(recipe) | {
        "model": checkpoint_digest(config, tensors),
        "teacher": None if teacher is None else checkpoint_digest(teacher.config, teacher.tensors()),
        "training data": rows.hexdigest(),
    }


@dataclass
class _Run:
    """A run in its directory."""

    model: UnifiedModel
    task: Task
    train: Encoded
    judge: Encoded
    """The rows that choose the best checkpoint."""
    out: Path
    recipe: Recipe
    teacher: UnifiedModel | None
    tokenizer: bytes | None
    settings: dict[str, Any]
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """Of an experiment. Its checkpoint has no intervals, so that nothing serves it."""
    progress: Course = field(default_factory=Course)

    def __post_init__(self) -> None:
        self.optimiser = _optimiser(self.model, self.recipe)
        self.per_epoch = math.ceil(len(self.train) / self.recipe.batch)
        self.steps = math.ceil(self.per_epoch * self.recipe.epochs)
        self.every = max(1, self.per_epoch // self.recipe.evaluations)

    def finished(self) -> Course | None:
        """The result if this very run was finished before. Takes possession of the directory otherwise."""
        path = self.out / "training.json"
        if not path.exists():
            if (self.out / "config.json").exists():
                raise ConfigurationError(f"{self.out} holds a checkpoint of something else: choose another directory")
            self._note(None)
            return None
        found = json.loads(path.read_text())
        before = found["settings"]
        other = sorted(name for name in before.keys() | self.settings if before.get(name) != self.settings.get(name))
        if other:
            raise ConfigurationError(
                f"{self.out} belongs to a run with other settings ({', '.join(other)}): choose another directory"
            )
        return None if found["result"] is None else Course(**found["result"])

    def _note(self, result: Course | None) -> None:
        content = {"settings": self.settings, "result": None if result is None else asdict(result)}
        with atomic_write(self.out / "training.json") as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")

    def resume(self) -> bool:
        path = self.out / "state.pt"
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"])
        self.progress = Course(**json.loads(state["progress"]))
        return True

    def fits(self) -> bool:
        """Whether it can begin near the teacher."""
        return self.teacher is not None and self.recipe.fit and can_fit(self.model, self.teacher)

    def fit(self, tick: Tick) -> None:
        """Begins near the teacher."""
        model, teacher = self.model, self.teacher
        assert teacher is not None
        batches, tokens = [], 0
        for rows in self.train.shuffled(self.recipe.batch, np.random.default_rng(self.recipe.seed)):
            batch = self.train.batch(rows, model)
            batches.append(batch)
            tokens += int(batch.mask.sum())
            if tokens >= self.recipe.fit_tokens:
                break
        fit_to_teacher(model, teacher, batches, tick)

    def update(self, rows: list[int]) -> float:
        """One step of the optimiser; the loss before it."""
        recipe, step = self.recipe, self.progress.steps
        for group in self.optimiser.param_groups:
            group["lr"] = _rate(recipe, step, self.steps) * group["factor"]
        batch = self.train.batch(rows, self.model)
        batch = _hide(batch, recipe.token_dropout) if recipe.token_dropout else batch
        loss = update_loss(self.model, self.teacher, batch, self.task, recipe)
        self._check_finite("loss", loss.item())
        self.optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._check_finite("gradient's norm", norm.item())
        self.optimiser.step()
        self.progress.steps += 1
        return loss.item()

    def _check_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise NotFinite(
                f"the {what} is {value} at step {self.progress.steps}: stopped. {self.out} keeps the best checkpoint "
                "so far, if there is one; train again in another directory, with a smaller rate"
            )

    def evaluate(self) -> dict[str, float]:
        """Scores through the steps that are served; keeps the best checkpoint, and what is needed to resume.

        A checkpoint in the certified form gets its ranges when training has ended, in one proof.
        """
        model, progress, mode = self.model, self.progress, self.recipe.mode
        certifiable = model.config.certifiable
        logits = predict(model.use(mode if certifiable or mode == "exact" else "served", self.rules), self.judge)
        if not certifiable:  # there a text out of range may give anything: that counts as wrong, and training goes on
            logits = np.nan_to_num(logits, nan=0.0, posinf=0.0, neginf=0.0)
        scores = self.task.score(logits, self.judge.labels)
        model.use(mode, self.rules)
        main = next(iter(scores.values()))
        self._check_finite(f"{self.task.metric} of the rows that judge", main)
        progress.history.append({"epoch": round(progress.steps / self.per_epoch, 2), **scores})
        if main > progress.best:
            progress.best = main
            sites = {} if self.rules or certifiable else model.config.sites
            config = msgspec.structs.replace(model.config, scores=scores, sites=sites)
            save_checkpoint(self.out, config, model.tensors(), tokenizer=self.tokenizer)
        self._save_state()
        return scores

    def _save_state(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random": torch.get_rng_state(),
            "progress": json.dumps(asdict(self.progress)),
        }
        with atomic_write(self.out / "state.pt") as file:
            torch.save(state, file)

    def finish(self) -> Course:
        self.progress.seconds = round(self.progress.seconds, 1)
        self._note(self.progress)
        (self.out / "state.pt").unlink(missing_ok=True)
        return self.progress


def train_rows(
    config: CometConfig,
    tensors: Tensors,
    task: Task,
    train: Encoded,
    judge: Encoded,
    out: Path,
    recipe: Recipe,
    *,
    teacher: UnifiedModel | None = None,
    tokenizer: bytes | None = None,
    watcher: Watcher | None = None,
) -> Course:
    """Trains, evaluates on the rows of `judge`, and keeps the best checkpoint in `out`, without ranges yet.

    The same run in the same directory goes on where it was broken off, or, if it was finished, gives its result.
    """
    watcher = watcher or Watcher()
    torch.manual_seed(recipe.seed)
    rules = through_rules(config, recipe.through)
    model = UnifiedModel.from_tensors(config, tensors, dropout=recipe.dropout).use(recipe.mode, rules)
    if teacher is not None:
        teacher.eval().use("exact")
    settings = _settings(recipe, config, tensors, train, teacher)
    run = _Run(model, task, train, judge, out, recipe, teacher, tokenizer, settings, rules)
    before = run.finished()
    if before is not None:
        watcher.say(f"{out} holds this run, finished after {before.steps} steps, best {before.best:.2f}: nothing to do")
        return before
    if run.resume():
        watcher.say(f"resumed at step {run.progress.steps} of {run.steps}")
    elif run.fits():
        with watcher.stage("fitting to the teacher: layers") as tick:
            run.fit(tick)
    with watcher.stage("fine-tuning: updates") as tick:
        _updates(run, watcher, tick)
    return run.finish()


def _updates(run: _Run, watcher: Watcher, tick: Tick) -> None:
    """All that are left of a run."""
    recipe, progress = run.recipe, run.progress
    began, done, running = time.monotonic() - progress.seconds, progress.steps, 0.0
    tick(progress.steps, run.steps, "")
    run.model.train()
    while progress.steps < run.steps:
        epoch, at = divmod(progress.steps, run.per_epoch)
        batches = run.train.shuffled(recipe.batch, np.random.default_rng([recipe.seed, epoch]))
        for rows in batches[at : at + run.steps - progress.steps]:
            running += (run.update(rows) - running) / min(progress.steps - done, 50)
            progress.seconds = time.monotonic() - began
            tick(progress.steps, run.steps, f"loss {running:.3f}")
            if progress.steps % run.every == 0 or progress.steps == run.steps:
                scores = run.evaluate()
                epochs = progress.steps / run.per_epoch
                shown = ", ".join(f"{name} {value:.2f}" for name, value in scores.items())
                watcher.say(f"epoch {epochs:.2f}: {shown}")
