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

from comet_mpc.models.certify import certify
from comet_mpc.models.checkpoint import CometConfig, Tensors
from comet_mpc.models.tasks import Task
from comet_mpc.train.batches import Encoded, first_rows
from comet_mpc.train.calibration import calibration_rows, rounds_neurons
from comet_mpc.train.loop import Recipe, update_loss
from comet_mpc.train.model import UnifiedModel
from comet_mpc.train.warm_start import can_fit

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
class Amount:
    """What there is to do, in tokens with paddings, but for the counts."""

    epoch: int
    batches: int
    """Of an epoch."""
    epochs: float
    evaluations: int
    """In all."""
    judged: int
    """At every evaluation: the rows that choose."""
    after: int
    """Once, in the end: calibration of the best checkpoint, and its scores."""
    fitted: int = 0
    """Tokens that layers are fitted to at first."""
    fit_work: float = 0.0
    """Of the fit beside running both models, in tokens' worth of one forward pass."""


def seconds_of(amount: Amount, speed: Speed, proof: float = 0.0) -> float:
    """proof: of the ranges, once, in the end"""
    fit = amount.fitted * 2 * speed.forward + amount.fit_work * speed.forward
    updates = amount.epochs * (amount.epoch * speed.update + amount.batches * speed.step)
    evaluations = amount.evaluations * amount.judged * speed.forward
    return fit + updates + evaluations + amount.after * speed.forward + proof


def per_token(work: Sequence[tuple[int, Callable[[], object]]], clock: Clock = time.monotonic) -> float:
    """Seconds for a token. The first one warms up, and does not count."""
    tokens, seconds = 0, 0.0
    for place, (count, run) in enumerate(work):
        began = clock()
        run()
        if place:
            tokens, seconds = tokens + count, seconds + clock() - began
    return seconds / max(1, tokens)


def estimated_seconds(
    model: UnifiedModel,
    task: Task,
    train: Encoded,
    dev: Encoded,
    recipe: Recipe,
    teacher: UnifiedModel | None,
    *,
    scored: Encoded | None = None,
    clock: Clock = time.monotonic,
) -> float:
    """About how long `finetune` will take here, from a few updates of which nothing is kept. Takes seconds.

    dev     rows that choose the best checkpoint
    scored  rows that it is scored on in the end
    """
    batches = train.shuffled(recipe.batch, np.random.default_rng(recipe.seed))
    order = sorted(batches, key=lambda rows: _padded(train, rows))
    chosen = [order[len(order) * part // 8] for part in (1, 2, 4, 6)]
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
    model.train()
    speed = Speed(updates, forwards, _step(model, clock))
    proof = proof_seconds(model.config, model.tensors(), clock) if model.config.certifiable else 0.0
    return seconds_of(_amount(model, train, dev, recipe, teacher, batches, scored), speed, proof)


def proof_seconds(config: CometConfig, tensors: Tensors, clock: Clock = time.monotonic) -> float:
    """For proving the ranges of a model in the certified form: its first layer is proved, the others take as long."""
    first = msgspec.structs.replace(config, encoder=msgspec.structs.replace(config.encoder, layers=1))
    began = clock()
    certify(first, tensors)
    return config.encoder.layers * (clock() - began)


def _padded(data: Encoded, rows: Sequence[int]) -> int:
    return len(rows) * max(len(data.ids[row]) for row in rows)


def _tokens(data: Encoded) -> int:
    """Of rows that are evaluated, shortest first."""
    order = sorted(range(len(data)), key=lambda row: len(data.ids[row]))
    return sum(_padded(data, order[at : at + _EVALUATED]) for at in range(0, len(order), _EVALUATED))


def _amount(
    model: UnifiedModel,
    train: Encoded,
    dev: Encoded,
    recipe: Recipe,
    teacher: UnifiedModel | None,
    batches: list[list[int]],
    scored: Encoded | None,
) -> Amount:
    config = model.config
    smu = "smu" in (config.activation.kind, config.attention.kind)
    calibration = _tokens(first_rows(train, calibration_rows(config))) if smu else 0
    fitted = min(recipe.fit_tokens, sum(map(len, train.ids)))
    fits = teacher is not None and recipe.fit and can_fit(model, teacher)
    return Amount(
        epoch=sum(_padded(train, rows) for rows in batches),
        batches=len(batches),
        epochs=recipe.epochs,
        evaluations=max(1, math.ceil(recipe.epochs * recipe.evaluations)),
        judged=_tokens(dev),
        after=(3 if rounds_neurons(config) else 1) * calibration + (_tokens(scored) if scored is not None else 0),
        fitted=fitted if fits else 0,
        fit_work=_fit_work(model, fitted) if fits else 0.0,
    )


def _fit_work(model: UnifiedModel, tokens: int) -> float:
    """Of the least squares of all layers: squares of their inputs, in double precision, and one solution."""
    e = model.config.encoder
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
