"""Fine-tuning and evaluation of the plain model. Needs torch.

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
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer
from torch import Tensor

from comet_mpc.errors import ConfigurationError, NotFinite
from comet_mpc.files import atomic_write
from comet_mpc.models.certify import calibrated
from comet_mpc.models.checkpoint import CometConfig, fingerprint, load_checkpoint, save_checkpoint
from comet_mpc.models.tasks import Example, Task
from comet_mpc.progress import Tick
from comet_mpc.train.model import Mode, UnifiedModel
from comet_mpc.train.warm_start import can_fit, fit_to_teacher

__all__ = [
    "Batch",
    "Encoded",
    "Recipe",
    "encode",
    "evaluate",
    "finetune",
    "first_rows",
    "load_model",
    "make_tokenizer",
    "observe",
    "predict",
    "quantiles",
]


_CALIBRATION_ROWS = 128
_FIT_TOKENS = 8192


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
    threshold_rate: float = 30.0
    """Factor of the rate for attention's thresholds, which start at 0 and must cover a range of about 1."""
    fit: bool = True
    """Begin with the matrices after the new steps fitted to the teacher, if that is the same encoder (`fitting`)."""
    token_dropout: float = 0.0
    """Part of the tokens (never the first) that training hides."""


@dataclass(frozen=True)
class Encoded:
    """Tokenised examples."""

    ids: list[list[int]]
    types: list[list[int]]
    labels: npt.NDArray[np.float32]
    truncated: int
    """How many texts were longer than the model takes, and cut."""
    wanted: npt.NDArray[np.float32] | None = None
    """A teacher's logits, if they were computed beforehand (a small student's teacher takes most of the time)."""

    def __len__(self) -> int:
        return len(self.ids)


def first_rows(data: Encoded, count: int) -> Encoded:
    wanted = None if data.wanted is None else data.wanted[:count]
    return replace(data, ids=data.ids[:count], types=data.types[:count], labels=data.labels[:count], wanted=wanted)


@dataclass(frozen=True)
class Batch:
    ids: Tensor
    mask: Tensor
    types: Tensor
    labels: Tensor
    wanted: Tensor | None = None


@dataclass
class _Progress:
    step: int = 0
    best: float = -math.inf
    history: list[dict[str, float]] = field(default_factory=list)
    seconds: float = 0.0


def make_tokenizer(content: bytes) -> Tokenizer:
    """From a tokenizer.json."""
    tokenizer = Tokenizer.from_str(content.decode())
    tokenizer.no_padding()
    return tokenizer


def encode(tokenizer: Tokenizer, examples: list[Example], length: int) -> Encoded:
    """Token ids, each text cut after `length` tokens."""
    texts = [e.first if e.second is None else (e.first, e.second) for e in examples]
    tokenizer.no_truncation()
    truncated = sum(len(found.ids) > length for found in tokenizer.encode_batch(texts))
    tokenizer.enable_truncation(length)
    found = tokenizer.encode_batch(texts)
    labels = np.array([e.label for e in examples], dtype=np.float32)
    return Encoded([f.ids for f in found], [f.type_ids for f in found], labels, truncated)


def _batch(data: Encoded, rows: list[int], padding: int) -> Batch:
    longest = max(len(data.ids[row]) for row in rows)

    def padded(lists: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([lists[row] + [filler] * (longest - len(lists[row])) for row in rows])

    mask = torch.tensor([[1] * len(data.ids[row]) + [0] * (longest - len(data.ids[row])) for row in rows])
    wanted = None if data.wanted is None else torch.tensor(data.wanted[rows])
    return Batch(padded(data.ids, padding), mask, padded(data.types, 0), torch.tensor(data.labels[rows]), wanted)


def _epoch(data: Encoded, size: int, generator: np.random.Generator) -> list[list[int]]:
    """Shuffled batches of texts of similar length."""
    order = generator.permutation(len(data))
    pool = 32 * size
    batches = []
    for at in range(0, len(order), pool):
        rows = sorted(order[at : at + pool].tolist(), key=lambda row: len(data.ids[row]))
        batches += [rows[i : i + size] for i in range(0, len(rows), size)]
    return [batches[i] for i in generator.permutation(len(batches))]


def _silent(done: int, total: int, note: str = "") -> None:
    """A Tick that tells nobody."""


def predict(model: UnifiedModel, data: Encoded, *, size: int = 64, tick: Tick = _silent) -> npt.NDArray[np.float64]:
    """Logits of all examples, in their order, in the model's present mode."""
    padding, was = model.config.encoder.padding, model.training
    order = sorted(range(len(data)), key=lambda row: len(data.ids[row]))
    out = np.empty((len(data), len(model.config.encoder.labels)))
    model.eval()
    tick(0, len(order), "")
    with torch.no_grad():
        for at in range(0, len(order), size):
            rows = order[at : at + size]
            batch = _batch(data, rows, padding)
            out[rows] = model(batch.ids, batch.mask, _types(model, batch))[0].double().numpy()
            tick(min(at + size, len(order)), len(order), "")
    model.train(was)
    return out


def observe(
    model: UnifiedModel, data: Encoded, *, most: int = 20_000, tick: Tick = _silent
) -> dict[str, npt.NDArray[np.float64]]:
    """What every inverse square root is taken of, site by site: a sample per batch, its extremes always included."""
    seen: dict[str, list[npt.NDArray[np.float64]]] = {}

    def look(site: str, t: Tensor) -> None:
        flat = t.detach().double().numpy().reshape(-1)
        kept = flat[:: max(1, len(flat) // most)]
        seen.setdefault(site, []).append(np.concatenate([kept, [flat.min(), flat.max()]]))

    model.probe = look
    predict(model, data, tick=tick)
    model.probe = None
    return {site: np.concatenate(parts) for site, parts in seen.items()}


def quantiles(values: dict[str, npt.NDArray[np.float64]]) -> dict[str, tuple[float, ...]]:
    """Smallest, 1 %, median, 99 % and largest, site by site."""
    return {
        site: tuple(float(q) for q in np.quantile(found, (0, 0.01, 0.5, 0.99, 1))) for site, found in values.items()
    }


def evaluate(model: UnifiedModel, data: Encoded, task: Task) -> dict[str, float]:
    return task.score(predict(model, data), data.labels)


def _types(model: UnifiedModel, batch: Batch) -> Tensor | None:
    return batch.types if model.config.encoder.architecture == "bert" else None


def _task_loss(logits: Tensor, labels: Tensor, task: Task) -> Tensor:
    if task.regression:
        return F.mse_loss(logits[:, 0], labels)
    return F.cross_entropy(logits, labels.long())


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


def _loss(model: UnifiedModel, teacher: UnifiedModel | None, batch: Batch, task: Task, recipe: Recipe) -> Tensor:
    excess: list[Tensor] = []

    def watch(site: str, t: Tensor) -> None:
        if site in model.config.sites:  # the largest of every text: a mean would not feel a few that are far off
            largest = t.flatten(1).amax(1) if t.ndim > 1 else t
            excess.append(F.relu(largest / (0.9 * model.config.sites[site].rule.high) - 1.0).mean())

    model.probe = watch if model.config.sites and not model.config.certifiable and recipe.penalty else None
    logits, hidden = model(batch.ids, batch.mask, _types(model, batch))
    model.probe = None
    loss = recipe.task_weight * _task_loss(logits, batch.labels, task)
    wanted, states = batch.wanted, hidden
    if teacher is not None:
        with torch.no_grad():
            wanted, states = teacher(batch.ids, batch.mask, _types(teacher, batch))
    if wanted is not None:
        if task.regression:
            loss = loss + recipe.logit_weight * F.mse_loss(logits, wanted)
        else:
            heat = recipe.temperature
            soft = F.cross_entropy(logits / heat, torch.softmax(wanted / heat, dim=-1)) * heat**2
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
        factor = recipe.threshold_rate if name.endswith(".thresholds") else factor
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
    recipe: Recipe,
    config: CometConfig,
    tensors: dict[str, npt.NDArray[np.float32]],
    train: Encoded,
    teacher: UnifiedModel | None,
) -> dict[str, Any]:
    """All that a run depends on."""
    rows = hashlib.sha256(json.dumps([train.ids, train.types, train.labels.tolist()]).encode())
    rows.update(b"" if train.wanted is None else train.wanted.tobytes())
    return asdict(recipe) | {
        "model": fingerprint(config, tensors),
        "teacher": None if teacher is None else fingerprint(teacher.config, teacher.tensors()),
        "training data": rows.hexdigest(),
    }


@dataclass
class _Run:
    """A run in its directory."""

    model: UnifiedModel
    task: Task
    train: Encoded
    dev: Encoded
    out: Path
    recipe: Recipe
    teacher: UnifiedModel | None
    tokenizer: bytes
    settings: dict[str, Any]
    progress: _Progress = field(default_factory=_Progress)

    def __post_init__(self) -> None:
        self.optimiser = _optimiser(self.model, self.recipe)
        self.per_epoch = math.ceil(len(self.train) / self.recipe.batch)
        self.steps = math.ceil(self.per_epoch * self.recipe.epochs)
        self.every = max(1, self.per_epoch // self.recipe.evaluations)

    def finished(self) -> dict[str, Any] | None:
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
        result: dict[str, Any] | None = found["result"]
        return result

    def _note(self, result: dict[str, Any] | None) -> None:
        with atomic_write(self.out / "training.json") as file:
            file.write(json.dumps({"settings": self.settings, "result": result}, indent=1).encode() + b"\n")

    def resume(self) -> bool:
        path = self.out / "state.pt"
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"])
        self.progress = _Progress(**json.loads(state["progress"]))
        return True

    def fit(self) -> bool:
        """Begins near the teacher, where that is possible."""
        model, teacher = self.model, self.teacher
        if teacher is None or not self.recipe.fit or not can_fit(model, teacher):
            return False
        batches, tokens = [], 0
        for rows in _epoch(self.train, self.recipe.batch, np.random.default_rng(self.recipe.seed)):
            batch = _batch(self.train, rows, model.config.encoder.padding)
            batches.append((batch.ids, batch.mask, _types(model, batch)))
            tokens += int(batch.mask.sum())
            if tokens >= _FIT_TOKENS:
                break
        fit_to_teacher(model, teacher, batches)
        return True

    def update(self, rows: list[int]) -> float:
        """One step of the optimiser; the loss before it."""
        recipe, step = self.recipe, self.progress.step
        for group in self.optimiser.param_groups:
            group["lr"] = _rate(recipe, step, self.steps) * group["factor"]
        batch = _batch(self.train, rows, self.model.config.encoder.padding)
        batch = _hide(batch, recipe.token_dropout) if recipe.token_dropout else batch
        loss = _loss(self.model, self.teacher, batch, self.task, recipe)
        self._check_finite("loss", loss.item())
        self.optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._check_finite("gradient's norm", norm.item())
        self.optimiser.step()
        self.progress.step += 1
        return loss.item()

    def _check_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise NotFinite(
                f"the {what} is {value} at step {self.progress.step}: stopped. {self.out} keeps the best checkpoint "
                "so far, if there is one; train anew into another directory with a smaller rate"
            )

    def evaluate(self) -> dict[str, float]:
        """Scores as served; keeps the best checkpoint, and what is needed to resume."""
        model, progress, mode = self.model, self.progress, self.recipe.mode
        certifiable = model.config.certifiable
        config = self._calibrated() if certifiable else model.config
        rules = {name: site.rule for name, site in config.sites.items()} if certifiable else {}
        logits = predict(model.use("served" if mode != "exact" else mode, rules), self.dev)
        if not certifiable:  # there a text out of range may give anything: that counts as wrong, and training goes on
            logits = np.nan_to_num(logits, nan=0.0, posinf=0.0, neginf=0.0)
        scores = self.task.score(logits, self.dev.labels)
        model.use(mode)
        main = next(iter(scores.values()))
        self._check_finite(f"{self.task.metric} on the dev set", main)
        progress.history.append({"epoch": round(progress.step / self.per_epoch, 2), **scores})
        if main > progress.best:
            progress.best = main
            save_checkpoint(self.out, config, model.tensors())
            if self.tokenizer:
                (self.out / "tokenizer.json").write_bytes(self.tokenizer)
        self._save_state()
        return scores

    def _calibrated(self) -> CometConfig:
        """With tops proved from the present weights, and low ends from some of the data."""
        seen = quantiles(observe(self.model.use("exact"), first_rows(self.train, _CALIBRATION_ROWS)))
        return calibrated(self.model.certified_config(), self.model.tensors(), seen)

    def _save_state(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random": torch.get_rng_state(),
            "progress": json.dumps(asdict(self.progress)),
        }
        with atomic_write(self.out / "state.pt") as file:
            torch.save(state, file)

    def finish(self) -> dict[str, Any]:
        progress = self.progress
        seconds = round(progress.seconds, 1)
        result = {"best": progress.best, "history": progress.history, "seconds": seconds, "steps": self.steps}
        self._note(result)
        (self.out / "state.pt").unlink(missing_ok=True)
        return result


def finetune(
    config: CometConfig,
    tensors: dict[str, npt.NDArray[np.float32]],
    task: Task,
    train: Encoded,
    dev: Encoded,
    out: Path,
    recipe: Recipe,
    *,
    teacher: UnifiedModel | None = None,
    tokenizer: bytes = b"",
    say: Callable[[str], None] = print,
    tick: Tick = _silent,
) -> dict[str, Any]:
    """Trains, evaluates as it is served, and keeps the best checkpoint in `out`.

    The same run in the same directory goes on where it was broken off, or, if it was finished, gives its result.
    Returns the best score, the history and the time taken.
    """
    torch.manual_seed(recipe.seed)
    model = UnifiedModel.from_tensors(config, tensors, dropout=recipe.dropout).use(recipe.mode)
    if teacher is not None:
        teacher.eval().use("exact")
    settings = _settings(recipe, config, tensors, train, teacher)
    run = _Run(model, task, train, dev, out, recipe, teacher, tokenizer, settings)
    before = run.finished()
    if before is not None:
        say(f"{out} is a finished run of {before['steps']} steps, best {before['best']:.2f}: not trained again")
        return before
    if run.resume():
        say(f"resumed at step {run.progress.step} of {run.steps}")
    elif run.fit():
        say("fitted to the teacher, layer by layer: training begins from there")
    progress = run.progress
    began, done, running = time.monotonic() - progress.seconds, progress.step, 0.0
    tick(progress.step, run.steps, "")
    model.train()
    while progress.step < run.steps:
        epoch, at = divmod(progress.step, run.per_epoch)
        batches = _epoch(train, recipe.batch, np.random.default_rng([recipe.seed, epoch]))
        for rows in batches[at : at + run.steps - progress.step]:
            running += (run.update(rows) - running) / min(progress.step - done, 50)
            progress.seconds = time.monotonic() - began
            tick(progress.step, run.steps, f"loss {running:.3f}")
            if progress.step % run.every == 0 or progress.step == run.steps:
                scores = run.evaluate()
                epochs = progress.step / run.per_epoch
                say(f"epoch {epochs:.2f}: " + ", ".join(f"{name} {value:.2f}" for name, value in scores.items()))
    return run.finish()


def load_model(directory: Path) -> UnifiedModel:
    """A Comet checkpoint as a torch model."""
    config, tensors = load_checkpoint(directory)
    return UnifiedModel.from_tensors(config, tensors)
