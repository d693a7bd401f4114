"""How long training will take on this machine: a few updates are measured, and the rest is arithmetic."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import torch

from comet_mpc.models.certify import certify, universal_rules
from comet_mpc.models.checkpoint import FITTED, CometConfig, Tensors
from comet_mpc.models.tasks import Task
from comet_mpc.train.batches import Encoded, first_rows
from comet_mpc.train.calibration import calibration_rows, rounds_neurons
from comet_mpc.train.fitting.layers import can_fit
from comet_mpc.train.loop import Recipe, update_loss
from comet_mpc.train.model import UnifiedModel

_PART = 8
"""The optimiser is measured on one parameter in so many."""
_EVALUATED = 64
"""Rows that are evaluated at once."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Speed:
    """Seconds on this machine."""

    update: float
    """For a token, paddings included, forward and back, the teacher's forward included."""
    forward: float
    """For a token that is only evaluated."""
    step: float
    """Of the optimiser, after every batch."""


@dataclass(frozen=True)
class Work:
    """What there is to do. Tokens are counted with paddings."""

    trained: float
    """Tokens of all updates."""
    updates: float
    evaluated: float
    """Tokens that are only evaluated. Least squares count as tokens that take as long."""

    def seconds(self, speed: Speed) -> float:
        return self.trained * speed.update + self.updates * speed.step + self.evaluated * speed.forward


def estimated_seconds(
    model: UnifiedModel,
    task: Task,
    train: Encoded,
    judge: Encoded,
    dev: Encoded,
    recipe: Recipe,
    teacher: UnifiedModel | None,
    clock: Clock = time.monotonic,
) -> float:
    """About how long `finetune` will take here, from a few updates of which nothing is kept. Takes seconds."""
    batches = sorted(train.shuffled(recipe.batch, np.random.default_rng(recipe.seed)), key=partial(_padded, train))
    chosen = [batches[len(batches) * part // 8] for part in (1, 2, 4, 6)]
    model.use(recipe.mode).train()
    if teacher is not None:
        teacher.eval().use("exact")

    def update(rows: list[int]) -> None:
        update_loss(model, teacher, train.batch(rows, model), task, recipe).backward()

    def forward(rows: list[int]) -> None:
        with torch.no_grad():
            model(*train.batch(rows, model).inputs)

    updates = per_token([(_padded(train, rows), partial(update, rows)) for rows in chosen], clock)
    model.zero_grad(set_to_none=True)
    model.eval()
    forwards = per_token([(_padded(train, rows), partial(forward, rows)) for rows in chosen], clock)
    speed = Speed(updates, forwards, _step(model, clock))
    proof = proof_seconds(model.config, model.tensors(), clock) if model.config.certifiable else 0.0
    return work_of(model, train, judge, dev, recipe, teacher).seconds(speed) + proof


def work_of(
    model: UnifiedModel, train: Encoded, judge: Encoded, dev: Encoded, recipe: Recipe, teacher: UnifiedModel | None
) -> Work:
    """Fitting to the teacher, updates, evaluations; in the end calibration and scores."""
    config = model.config
    epoch = train.shuffled(recipe.batch, np.random.default_rng(recipe.seed))
    evaluated = float(max(1, math.ceil(recipe.epochs * recipe.evaluations)) * tokens_of(judge) + tokens_of(dev))
    if {"smu", FITTED} & {config.activation.kind, config.attention.kind}:
        evaluated += (3 if rounds_neurons(config) else 1) * tokens_of(first_rows(train, calibration_rows(config)))
    if teacher is not None and recipe.fit and can_fit(model, teacher):
        fitted = min(recipe.fit_tokens, sum(map(len, train.ids)))
        evaluated += 2 * fitted + _fit_work(config, fitted)
    return Work(recipe.epochs * sum(_padded(train, rows) for rows in epoch), recipe.epochs * len(epoch), evaluated)


def proof_seconds(config: CometConfig, tensors: Tensors, clock: Clock = time.monotonic) -> float:
    """For proving the ranges of a model in the certified form: its first layer is proved, the others take as long.

    What comes before the layers is done once. So are the rules of LayerNorms, as far as anybody knows: layers have
    similar ranges, and a rule that was made is kept.
    """
    layers, marks = config.encoder.layers, list[float]()
    universal_rules(config)  # made once for all models of this form, and kept
    first = msgspec.structs.replace(config, encoder=msgspec.structs.replace(config.encoder, layers=1))
    began = clock()
    certify(first, tensors, told=lambda done, total: marks.append(clock()))
    return clock() - began + (layers - 1) * (marks[1] - marks[0])


def per_token(work: Sequence[tuple[int, Callable[[], object]]], clock: Clock = time.monotonic) -> float:
    """Seconds for a token. The first one warms up, and does not count."""
    tokens, seconds = 0, 0.0
    for place, (count, run) in enumerate(work):
        began = clock()
        run()
        if place:
            tokens, seconds = tokens + count, seconds + clock() - began
    return seconds / max(1, tokens)


def _padded(data: Encoded, rows: Sequence[int]) -> int:
    return len(rows) * max(len(data.ids[row]) for row in rows)


def tokens_of(data: Encoded) -> int:
    """Of rows that are evaluated, shortest first."""
    order = sorted(range(len(data)), key=lambda row: len(data.ids[row]))
    return sum(_padded(data, order[at : at + _EVALUATED]) for at in range(0, len(order), _EVALUATED))


def _fit_work(config: CometConfig, tokens: int) -> float:
    """Of the least squares of all layers: squares of their inputs, and one solution in double precision."""
    e = config.encoder
    squares = e.hidden**2 + e.intermediate**2
    cubes = (e.hidden**3 + e.intermediate**3) / 3
    one = 2 * (4 * e.hidden**2 + 2 * e.hidden * e.intermediate)  # of a layer, for a token
    return 2 * (2 * tokens * squares + 2 * cubes) / one


def _step(model: UnifiedModel, clock: Clock) -> float:
    """Of the optimiser, on numbers of which nothing is kept."""
    count = sum(parameter.numel() for parameter in model.parameters())
    weights = torch.nn.Parameter(torch.zeros(max(1, count // _PART)))
    weights.grad = torch.zeros_like(weights)
    optimiser = torch.optim.AdamW([weights], fused=True)
    return _PART * per_token([(1, optimiser.step)] * 3, clock)
