"""Fine-tuning and evaluation of the plain model. Needs torch.

Training goes through what will be served: activations and scores by the protocol's coefficients (`mode="steps"`), the
task's loss, optionally a teacher's logits and hidden states, and for forms that are not certified a penalty on
arguments near the top of their interval. After every evaluation interval the state is saved and the best checkpoint
kept, so that a crash loses at most one interval; a loss that is not finite stops the run and leaves both as they were.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer
from torch import Tensor

from comet_mpc.checkpoint import CometConfig, load_checkpoint, save_checkpoint
from comet_mpc.errors import ConfigurationError, NotFinite
from comet_mpc.tasks import Example, Task
from comet_mpc.unified import Mode, UnifiedModel

__all__ = [
    "Batch",
    "Encoded",
    "Recipe",
    "encode",
    "evaluate",
    "finetune",
    "load_model",
    "load_tokenizer",
    "observe",
    "predict",
    "quantiles",
]


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


def load_tokenizer(directory: Path) -> Tokenizer:
    path = Path(directory) / "tokenizer.json"
    if not path.exists():
        raise ConfigurationError(f"{path} is missing: a checkpoint needs its tokenizer")
    tokenizer = Tokenizer.from_file(str(path))
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


def predict(model: UnifiedModel, data: Encoded, *, size: int = 64) -> npt.NDArray[np.float64]:
    """Logits of all examples, in their order, in the model's present mode."""
    padding, was = model.config.encoder.padding, model.training
    order = sorted(range(len(data)), key=lambda row: len(data.ids[row]))
    out = np.empty((len(data), len(model.config.encoder.labels)))
    model.eval()
    with torch.no_grad():
        for at in range(0, len(order), size):
            rows = order[at : at + size]
            batch = _batch(data, rows, padding)
            out[rows] = model(batch.ids, batch.mask, _types(model, batch))[0].double().numpy()
    model.train(was)
    return out


def observe(model: UnifiedModel, data: Encoded, *, most: int = 20_000) -> dict[str, npt.NDArray[np.float64]]:
    """What every inverse square root is taken of, site by site: a sample per batch, its extremes always included."""
    seen: dict[str, list[npt.NDArray[np.float64]]] = {}

    def look(site: str, t: Tensor) -> None:
        flat = t.detach().double().numpy().reshape(-1)
        kept = flat[:: max(1, len(flat) // most)]
        seen.setdefault(site, []).append(np.concatenate([kept, [flat.min(), flat.max()]]))

    model.probe = look
    predict(model, data)
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
    """Mean squared distance of hidden states over tokens, relative to the teacher's size; layers are matched evenly."""
    weight = mask[:, :, None].float()
    total = torch.zeros(())
    for i, state in enumerate(mine):
        other = theirs[round(i * (len(theirs) - 1) / (len(mine) - 1))]
        total = total + ((state - other).square() * weight).sum() / (other.square() * weight).sum()
    return total / len(mine)


def _loss(model: UnifiedModel, teacher: UnifiedModel | None, batch: Batch, task: Task, recipe: Recipe) -> Tensor:
    excess: list[Tensor] = []

    def watch(site: str, t: Tensor) -> None:
        rule = model.rule(*site.rsplit(".", 1)) if "." in site else None
        if rule is not None:
            excess.append(F.relu(t / (0.9 * rule.high) - 1.0).mean())

    certified = model.config.activation.normalised and model.config.attention.cosine
    model.probe = watch if model.config.sites and not certified and recipe.penalty else None
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


def _rates(recipe: Recipe, steps: int) -> Iterator[float]:
    warm = max(1, int(recipe.warmup * steps))
    for step in range(steps):
        yield recipe.rate * min((step + 1) / warm, max(0.0, (steps - step) / max(1, steps - warm)))


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
) -> dict[str, Any]:
    """Trains, evaluates as it is served, and keeps the best checkpoint in `out`. Resumes from out/state.pt.

    Returns the best score, the history and the time taken.
    """
    torch.manual_seed(recipe.seed)
    model = UnifiedModel.from_tensors(config, tensors, dropout=recipe.dropout).use(recipe.mode)
    if teacher is not None:
        teacher.eval().use("exact")
    optimiser, progress = _optimiser(model, recipe), _Progress()
    per_epoch = math.ceil(len(train) / recipe.batch)
    steps = math.ceil(per_epoch * recipe.epochs)
    rates = list(_rates(recipe, steps))
    every = max(1, per_epoch // recipe.evaluations)
    out.mkdir(parents=True, exist_ok=True)
    state_path = out / "state.pt"
    settings = json.dumps([asdict(recipe), msgspec.to_builtins(config), len(train), teacher is not None])
    if state_path.exists():
        state = torch.load(state_path, weights_only=True)
        if state["settings"] != settings:
            raise ConfigurationError(f"{state_path} belongs to a run with other settings: remove it to start anew")
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"])
        progress = _Progress(**json.loads(state["progress"]))
        say(f"resumed at step {progress.step} of {steps}")
    began, done = time.monotonic() - progress.seconds, progress.step
    model.train()
    running = 0.0
    while progress.step < steps:
        epoch, at = divmod(progress.step, per_epoch)
        batches = _epoch(train, recipe.batch, np.random.default_rng([recipe.seed, epoch]))
        for rows in batches[at : at + steps - progress.step]:
            for group in optimiser.param_groups:
                group["lr"] = rates[progress.step] * group["factor"]
            batch = _batch(train, rows, config.encoder.padding)
            batch = _hide(batch, recipe.token_dropout) if recipe.token_dropout else batch
            loss = _loss(model, teacher, batch, task, recipe)
            value = loss.item()
            if not math.isfinite(value):
                raise NotFinite(
                    f"the loss is {value} at step {progress.step}: stopped; {out} keeps the last good state"
                )
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            progress.step += 1
            running += (value - running) / min(progress.step - done, 50)
            progress.seconds = time.monotonic() - began
            left = progress.seconds / progress.step * (steps - progress.step)
            if progress.step % max(1, per_epoch // 10) == 0:
                say(f"step {progress.step}/{steps} loss {running:.3f} {progress.seconds:.0f} s, {left:.0f} s left")
            if progress.step % every == 0 or progress.step == steps:
                _checkpoint(
                    model, optimiser, progress, task, dev, out, settings, tokenizer, say, per_epoch, recipe.mode
                )
    result = {"best": progress.best, "history": progress.history, "seconds": round(progress.seconds, 1), "steps": steps}
    state_path.unlink(missing_ok=True)
    return result


def _checkpoint(
    model: UnifiedModel,
    optimiser: torch.optim.AdamW,
    progress: _Progress,
    task: Task,
    dev: Encoded,
    out: Path,
    settings: str,
    tokenizer: bytes,
    say: Callable[[str], None],
    per_epoch: int,
    mode: Mode,
) -> None:
    """Evaluates as served, keeps the best, saves what is needed to resume."""
    certifiable = model.config.activation.normalised and model.config.attention.cosine
    scores = evaluate(model.use("served" if certifiable and mode != "exact" else mode), dev, task)
    model.use(mode)
    main = next(iter(scores.values()))
    progress.history.append({"epoch": round(progress.step / per_epoch, 2), **scores})
    say(f"epoch {progress.step / per_epoch:.2f}: " + ", ".join(f"{k} {v:.2f}" for k, v in scores.items()))
    if math.isfinite(main) and main > progress.best:
        progress.best = main
        config = model.certified_config() if certifiable else model.config
        save_checkpoint(out, config, model.tensors())
        if tokenizer:
            (out / "tokenizer.json").write_bytes(tokenizer)
    partial = out / ".state.partial"
    torch.save(
        {
            "settings": settings,
            "model": model.state_dict(),
            "optimiser": optimiser.state_dict(),
            "random": torch.get_rng_state(),
            "progress": json.dumps(asdict(progress)),
        },
        partial,
    )
    partial.replace(out / "state.pt")


def load_model(directory: Path) -> UnifiedModel:
    """A Comet checkpoint as a torch model."""
    config, tensors = load_checkpoint(directory)
    return UnifiedModel.from_tensors(config, tensors)
