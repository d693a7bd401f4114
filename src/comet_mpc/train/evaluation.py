"""`evaluate`: the accuracy of a model in the clear. `comet_mpc.local.evaluation` does it inside the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from comet_mpc.errors import CheckpointError, ConfigurationError
from comet_mpc.models.certify import check_ranges
from comet_mpc.models.checkpoint import RuleName
from comet_mpc.models.stored.checkpoints import checkpoint_digest
from comet_mpc.models.tokenizers.files import tokenizer_json
from comet_mpc.progress import Watcher
from comet_mpc.train.batches import predict
from comet_mpc.train.model import Mode, UnifiedModel
from comet_mpc.train.reading import Data, read_model
from comet_mpc.train.steps import other_rules


@dataclass(frozen=True)
class Evaluation:
    """What a model scores, and how it was evaluated."""

    task: str
    metric: str
    rows: int
    mode: Mode
    rule: str
    steps: int
    scores: dict[str, float]
    """By metric, in per cent; the first is the task's."""
    checkpoint: str
    """The digest of what was evaluated."""


def evaluate(
    model: Path | str,
    data: Data | Path | str,
    *,
    mode: Mode = "served",
    rule: Literal[RuleName, "newton"] | None = None,
    steps: int | None = None,
    watcher: Watcher | None = None,
) -> Evaluation:
    """Scores a Comet checkpoint, or a Hugging Face classifier, on the rows for evaluation.

    mode  exact functions, the protocol's `steps`, or as it is `served`: steps within the model's ranges
    rule  another rule of activations and scores than the model's; newton is for experiments
    steps  another number of steps than the model's
    """
    watcher, data = watcher or Watcher(), Data.of(data)
    found = read_model(model, watcher)
    config, tensors = found.config, found.tensors
    task = data.task_for(config)
    if found.headless:
        raise CheckpointError(f"{model} has no classifier: make one with `comet unify --task` and `comet finetune`")
    kind, count = rule or config.rule, config.steps if steps is None else steps
    other = kind != config.rule or (kind == "minimax" and count != config.steps)
    if other and mode == "exact":
        raise ConfigurationError("--mode exact takes no steps: leave out --rule and --steps")
    rules = other_rules(config, kind, count) if other else {}
    if config.certified:
        with watcher.stage("proving the ranges: layers") as tick:
            check_ranges(config, tensors, tick)
    rows = data.rows(found, task, "dev", watcher)
    with watcher.stage("evaluating") as tick:
        net = UnifiedModel.from_tensors(config, tensors).use(mode, rules)
        scores = task.score(predict(net, rows, tick=tick), rows.labels)
    digest = checkpoint_digest(config, tensors, tokenizer_json(found.directory))
    return Evaluation(task.name, task.metric, len(rows), mode, kind, count, scores, digest)
