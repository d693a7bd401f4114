"""Which form of a model stays near enough to the original: forms are fitted and certified, from the cheapest on, and
compared with it as they are served, on rows that they were not fitted to."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from comet_mpc.engine.share import Reals
from comet_mpc.errors import CheckpointError, RuleError, TaskDataError
from comet_mpc.files import atomic_write
from comet_mpc.models.checkpoint import CometConfig
from comet_mpc.models.stored.checkpoints import checkpoint_digest
from comet_mpc.models.tasks import Task
from comet_mpc.progress import Watcher
from comet_mpc.train.batches import Batch, Encoded, answered, predict
from comet_mpc.train.calibration import MARGIN, calibrate_in_memory
from comet_mpc.train.estimate import Clock, proof_seconds, tokens_of
from comet_mpc.train.fitting.layers import Fitting
from comet_mpc.train.model import UnifiedModel
from comet_mpc.train.reading import Model
from comet_mpc.units import counted

NEAR_ENOUGH = 98.0
"""In per cent, of labels that agree with the original's, or a mean cosine with its embeddings: a form that reaches it
is taken, and no dearer one is tried."""
TRAIN_BELOW = NEAR_ENOUGH
"""If the nearest form is not as near as this, it is trained."""
_ROWS = 64
_MEASURED = 8
"""One batch in so many is fitted to measure how long all of them take."""


@dataclass(frozen=True)
class Fitted:
    """A form that was fitted, with certified ranges, and how near it is on the rows held out, in per cent."""

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
    looked_at: Encoded
    """Rows that low ends of ranges are set from."""
    judge: Encoded
    originals: Reals
    """The original's answers to the rows of `judge`."""

    @property
    def tokens(self) -> int:
        return _count(self.batches)

    def seconds(self, dev: Encoded, clock: Clock = time.monotonic) -> tuple[float, ...]:
        """About how long it takes here to fit every form, to prove it and to compare it; of the first also to evaluate
        it in the end."""
        rows = tokens_of(self.looked_at) + tokens_of(self.judge)
        return tuple(
            self._form_seconds(start, rows if place else rows + tokens_of(dev), clock)
            for place, start in enumerate(self.starts)
        )

    def _form_seconds(self, start: Model, evaluated: int, clock: Clock) -> float:
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
        fitted = start.config.encoder.layers * (layer / part + fitting.solving)
        return fitted + forward * evaluated + proof_seconds(start.config, start.tensors, clock)

    def run(self, out: Path, watcher: Watcher) -> Fitted:
        """The first form that is near enough, or else the nearest. Goes on where it was stopped.

        A form whose ranges cannot be certified is not served, so it is left out, unless there is no other.
        """
        tried: list[Fitted] = []
        refused: CheckpointError | RuleError | None = None
        for start in self.starts:
            made = _fitted(start, self.teacher, self.batches, out, watcher)
            try:
                made = made._replace(config=self._certified(made, watcher))
            except (CheckpointError, RuleError) as error:
                watcher.say(f"{form_name(made)} functions cannot be certified: {error}")
                refused = error
                continue
            found = self.nearness(made, watcher)
            watcher.say(
                f"{form_name(made)} functions: {found:.2f} % near the original on {counted(len(self.judge), 'row')}"
            )
            tried.append(Fitted(made, found))
            if found >= NEAR_ENOUGH:
                break
        if not tried:
            assert refused is not None
            raise refused
        best = max(tried, key=lambda each: each.nearness)  # the cheaper one, if two are as near
        if len(self.starts) > 1:
            watcher.say(_reason(best, tried))
        return best

    def _certified(self, made: Model, watcher: Watcher) -> CometConfig:
        return calibrate_in_memory(made.config, made.tensors, self.looked_at, MARGIN, watcher).config

    def nearness(self, made: Model, watcher: Watcher) -> float:
        """Of a form with certified ranges, as it is served."""
        with watcher.stage("comparing with the original") as tick:
            net = UnifiedModel.from_tensors(made.config, made.tensors).use("served")
            return nearness(self.task, predict(net, self.judge, tick=tick), self.originals, self.judge)


def _reason(best: Fitted, tried: list[Fitted]) -> str:
    """Which form is taken, and why."""
    name, others = form_name(best.model), [each for each in tried if each is not best]
    if best.nearness >= NEAR_ENOUGH:
        dearer = "no dearer ones are needed" if best is tried[0] else "the cheaper ones were not near enough"
        return f"taking {name} functions: they are at least {NEAR_ENOUGH:g} % near, and {dearer}"
    if not others:
        return f"taking {name} functions: the only ones that can be certified"
    compared = ", ".join(f"{form_name(each.model)} {each.nearness:.2f} %" for each in others)
    return f"taking {name} functions: none are {NEAR_ENOUGH:g} % near, and these are the nearest ({compared})"


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
        model, rows = checkpoint_digest(start.config, start.tensors), sha256()
        for batch in batches:
            rows.update(batch.ids.numpy().tobytes())
        return _State(path, f"{model} {rows.hexdigest()} {_digest(teacher)}")

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
    """Removes what is only needed to go on with a fit, or with training that failed."""
    for path in (*out.glob("fit-*.pt"), *out.glob("state.pt")):
        path.unlink()


def _digest(model: UnifiedModel) -> str:
    return checkpoint_digest(model.config, model.tensors())


def _count(batches: list[Batch]) -> int:
    return sum(int(batch.mask.sum()) for batch in batches)
