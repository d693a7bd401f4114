"""Which form of a model stays near enough to the original: forms are fitted, from the cheapest on, and compared with it
on rows that they were not fitted to."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from comet_mpc.engine.share import Reals
from comet_mpc.errors import TaskDataError
from comet_mpc.files import atomic_write
from comet_mpc.functions.rule import Rule
from comet_mpc.models.certify import fitted_attention_rules
from comet_mpc.models.checkpoint import FITTED
from comet_mpc.models.stored.checkpoints import checkpoint_digest
from comet_mpc.models.tasks import Task
from comet_mpc.progress import Watcher
from comet_mpc.train.batches import Batch, Encoded, answered, predict
from comet_mpc.train.estimate import Clock, proof_seconds, tokens_of
from comet_mpc.train.fitting.layers import Fitting
from comet_mpc.train.model import UnifiedModel
from comet_mpc.train.reading import Model
from comet_mpc.units import counted

NEAR_ENOUGH = 98.0
"""In per cent, of labels that agree with the original's, or a mean cosine with its embeddings: a form that reaches it
is taken, and no dearer one is tried."""
TRAIN_BELOW = 95.0
"""If the nearest form is not as near as this, it is trained."""
_ROWS = 64
_MEASURED = 8
"""One batch in so many is fitted to measure how long all of them take."""


@dataclass(frozen=True)
class Fitted:
    """A form that was fitted, and how near it is on the rows held out, in per cent."""

    model: Model
    nearness: float


def nearness(task: Task, answers: Reals, originals: Reals, rows: Encoded) -> float:
    """Labels that agree, correlation of scores or mean cosine of embeddings, in per cent."""
    plain = replace(task, plain=True)
    found = plain.score(answers, answered(rows, originals, plain).labels)
    return found.get("accuracy", next(iter(found.values())))


def fitting_batches(model: UnifiedModel, rows: Encoded, tokens: int) -> list[Batch]:
    """About so many tokens from all over the rows, texts of similar length together.

    Raises TaskDataError if there are fewer than a layer has inputs.
    """
    generator = torch.Generator().manual_seed(0)
    chosen, count = [], 0
    for row in torch.randperm(len(rows), generator=generator).tolist():
        chosen.append(row)
        count += len(rows.ids[row])
        if count >= tokens:
            break
    hidden = model.config.encoder.hidden
    if count < hidden:
        needed = -(-hidden * len(rows) // count)
        raise TaskDataError(
            f"too few rows to fit: {counted(len(rows), 'row')} with {counted(count, 'token')}; for a model of this "
            f"size (hidden size {hidden}) about {needed} such rows are needed, and ten times as many are better"
        )
    chosen.sort(key=lambda row: len(rows.ids[row]))
    return [rows.batch(chosen[at : at + _ROWS], model) for at in range(0, len(chosen), _ROWS)]


@dataclass(frozen=True)
class Search:
    """The forms to try, in order, and what they are fitted to and compared with."""

    starts: tuple[Model, ...]
    teacher: UnifiedModel
    task: Task
    batches: list[Batch]
    judge: Encoded
    originals: Reals
    """The original's answers to the rows of `judge`."""

    @property
    def tokens(self) -> int:
        return _count(self.batches)

    def seconds(self, dev: Encoded, clock: Clock = time.monotonic) -> float:
        """About how long it takes to fit one form, to compare it, to prove it and to evaluate it, here."""
        start = self.starts[0]
        net = UnifiedModel.from_tensors(start.config, start.tensors).use("steps")
        few = self.batches[_MEASURED // 2 :: _MEASURED] or self.batches[-1:]
        began = clock()
        fitting = Fitting(net, self.teacher, few, clock)
        next(iter(fitting.run()))
        layer, part = clock() - began - fitting.solving, _count(few) / _count(self.batches)
        began = clock()
        with torch.no_grad():
            for batch in few:
                net(*batch.inputs)
        forward = (clock() - began) / _count(few)
        layers = start.config.encoder.layers
        return (
            layers * (layer / part + fitting.solving)
            + forward * (tokens_of(self.judge) + tokens_of(dev))
            + proof_seconds(start.config, start.tensors, clock)
        )

    def run(self, out: Path, watcher: Watcher) -> Fitted:
        """The first form that is near enough, or else the nearest. Goes on where it was stopped."""
        best: Fitted | None = None
        for start in self.starts:
            made = _fitted(start, self.teacher, self.batches, out, watcher)
            with watcher.stage("comparing with the original") as tick:
                net = UnifiedModel.from_tensors(made.config, made.tensors).use("steps", _rules(made))
                found = nearness(self.task, predict(net, self.judge, tick=tick), self.originals, self.judge)
            watcher.say(
                f"{form_name(made)} functions: {found:.2f} % near the original on {counted(len(self.judge), 'row')}"
            )
            if best is None or found > best.nearness:
                best = Fitted(made, found)
            if found >= NEAR_ENOUGH:
                break
        assert best is not None
        return best


def _rules(model: Model) -> dict[str, Rule]:
    """Of the sums of weights, which depend on the model."""
    return fitted_attention_rules(model.config, model.tensors) if model.config.attention.kind == FITTED else {}


def form_name(model: Model) -> str:
    """As `--rule` names it."""
    activation = model.config.activation
    return model.config.rule if activation.kind != "fitted" else "fitted" if activation.degree == 2 else "near"


def _fitted(start: Model, teacher: UnifiedModel, batches: list[Batch], out: Path, watcher: Watcher) -> Model:
    net = UnifiedModel.from_tensors(start.config, start.tensors).use("steps")
    state = _State.of(out / f"fit-{form_name(start)}.pt", start, teacher, batches)
    done = state.load(net)
    with watcher.stage(f"fitting {form_name(start)} functions") as tick:
        for layers in Fitting(net, teacher, batches).run(done, tick):
            state.save(net, layers)
        state.save(net, start.config.encoder.layers + 1)
    return start._replace(tensors=net.tensors())


@dataclass(frozen=True)
class _State:
    """A file with what is fitted so far, of this very run."""

    path: Path
    settings: str

    @staticmethod
    def of(path: Path, start: Model, teacher: UnifiedModel, batches: list[Batch]) -> _State:
        tokens = torch.cat([batch.ids.flatten() for batch in batches])
        model = checkpoint_digest(start.config, start.tensors)
        places = torch.arange(1, len(tokens) + 1)
        return _State(path, f"{model} {len(tokens)} {int((tokens * places).sum())} {_digest(teacher)}")

    def load(self, net: UnifiedModel) -> int:
        """How many layers are fitted; one more than there are: the head, too."""
        if not self.path.exists():
            return 0
        found: dict[str, Any] = torch.load(self.path, weights_only=True)
        if found["settings"] != self.settings:
            return 0
        net.load_state_dict(found["model"], strict=False)
        return int(found["layers"])

    def save(self, net: UnifiedModel, layers: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = {name: value for name, value in net.state_dict().items() if not name.startswith("embeddings.")}
        with atomic_write(self.path) as file:
            torch.save({"settings": self.settings, "layers": layers, "model": kept}, file)


def forget(out: Path) -> None:
    """Removes what is only needed to go on with a fit."""
    for path in out.glob("fit-*.pt"):
        path.unlink()


def _digest(model: UnifiedModel) -> str:
    return checkpoint_digest(model.config, model.tensors())


def _count(batches: list[Batch]) -> int:
    return sum(int(batch.mask.sum()) for batch in batches)
