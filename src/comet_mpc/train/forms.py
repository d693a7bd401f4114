"""`unify`: a model in another form, which says what stands in the place of GeLU, softmax and the pooler's function.

certified   what the protocol computes, with ranges that are proved from the weights: the form that is served
paper       the paper's own functions, for research
unmodified  GeLU and softmax
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import numpy as np

from comet_mpc.errors import ConfigurationError
from comet_mpc.models.certify import certify
from comet_mpc.models.checkpoint import (
    FITTED,
    NEAR,
    USUAL_RULE,
    ActivationChoice,
    AttentionChoice,
    CometConfig,
    FormRuleName,
    Tensors,
    chosen_rule,
)
from comet_mpc.models.fold import in_form
from comet_mpc.models.heads import Head, Kind, Pooler, usual_head
from comet_mpc.models.stored.checkpoints import checkpoint_digest, save_checkpoint
from comet_mpc.models.tasks import find_task
from comet_mpc.progress import Watcher
from comet_mpc.train.estimate import proof_seconds
from comet_mpc.train.reading import Model, read_model, tokenizer_of
from comet_mpc.units import about

FormName = Literal["certified", "paper", "unmodified"]

_PRIVATE_POOLERS: dict[Pooler, Pooler] = {"tanh": "algebraic", "relu": "smu"}
"""What the protocol computes in the place of a pooler's function."""
_USUAL_POOLERS = {private: usual for usual, private in _PRIVATE_POOLERS.items()}
_CHOICES = {
    "certified": (ActivationChoice(), AttentionChoice()),
    "paper": (
        ActivationChoice(mu=1 / math.sqrt(2), normalised=False),
        AttentionChoice(kind="relu", power=1, cosine=False, mu=0.0, floor=1.0),
    ),
    "unmodified": (
        ActivationChoice(kind="gelu", normalised=False),
        AttentionChoice(kind="softmax", power=1, cosine=False),
    ),
}

_FITTED = {
    FITTED: (ActivationChoice(kind=FITTED), AttentionChoice(kind=FITTED, power=4)),
    NEAR: (ActivationChoice(kind=FITTED, degree=4), AttentionChoice(kind=FITTED, power=8)),
}

_Choice = TypeVar("_Choice", ActivationChoice, AttentionChoice)


@dataclass(frozen=True)
class Form:
    """A form by its name. What is not None replaces a part of it."""

    name: FormName = "certified"
    rule: FormRuleName | None = None
    """Approximation rule of activations and attention scores."""
    steps: int | None = None
    """Of the rule minimax."""
    activation: Literal["gelu", "smu"] | None = None
    attention: Literal["softmax", "relu", "smu"] | None = None
    alpha: float | None = None
    mu: float | None = None
    """Of the activation."""
    attention_mu: float | None = None
    floor: float | None = None
    """Added to the denominators of attention."""
    power: int | None = None
    """Of attention's scores."""
    trainable: bool | None = None
    """Train α and μ, layer by layer."""
    pooler: Literal["tanh", "algebraic"] | None = None

    def __post_init__(self) -> None:
        if self.name != "certified":
            if self.rule in _FITTED:
                raise ConfigurationError("fitted functions are in the certified form only: leave out --form or --rule")
            return
        others = (self.activation, self.attention, self.alpha, self.mu, self.attention_mu, self.floor, self.power)
        if self.rule in _FITTED and any(other is not None for other in others):
            raise ConfigurationError(
                "fitted functions have parameters of their own: leave out --activation, --attention, --alpha, --mu, "
                "--attention-mu, --floor and --power, or take another --rule"
            )
        if self.trainable:
            raise ConfigurationError(
                "α and μ that are trained layer by layer cannot be certified, because all layers share one public "
                "rule: use --form paper, or set them with --alpha, --mu and --attention-mu"
            )
        if self.pooler == "tanh":
            raise ConfigurationError("tanh has no protocol: the certified form has the algebraic pooler")

    def choices(self) -> tuple[ActivationChoice, AttentionChoice]:
        """Its activation and its attention."""
        if self.rule is not None and self.rule in _FITTED:
            return _FITTED[self.rule]
        activation, attention = _CHOICES[self.name]
        activation = _changed(activation, kind=self.activation, alpha=self.alpha, mu=self.mu, trainable=self.trainable)
        attention = _changed(
            attention, kind=self.attention, mu=self.attention_mu, floor=self.floor, power=self.power,
            trainable=self.trainable,
        )  # fmt: skip
        if self.name == "paper" and attention.kind == "smu":
            mu = 0.5 if self.attention_mu is None else self.attention_mu
            attention = _changed(attention, mu=mu, floor=self.floor or 0.0)
        if activation.kind != "smu":  # there is nothing to train then
            activation = _changed(activation, trainable=False)
        if attention.kind != "smu":
            attention = _changed(attention, trainable=False)
        return activation, attention

    def pooler_of(self, found: Pooler) -> Pooler:
        """The pooler for a model that has this one."""
        others = _PRIVATE_POOLERS if self.name == "certified" else _USUAL_POOLERS
        return self.pooler or others.get(found, found)

    def applied(
        self,
        config: CometConfig,
        tensors: Tensors,
        *,
        labels: tuple[str, ...] | None = None,
        head: Head | None = None,
        seed: int = 0,
    ) -> tuple[CometConfig, Tensors]:
        """A model in this form, neither certified nor trained yet. labels, head: other ones than it has, made anew.

        seed: for the random weights of a new head
        """
        activation, attention = self.choices()
        head = head or config.head
        certified = self.name == "certified"
        rule, steps = chosen_rule(self.rule, self.steps) if certified else (self.rule or "minimax", self.steps or 4)
        if rule in _FITTED:  # which leaves roots to a pooler, if it has one
            rule = USUAL_RULE
        return in_form(
            config, tensors, activation=activation, attention=attention,
            pooler=self.pooler_of(config.pooler) if head.kind == "label" else "none",
            labels=config.encoder.labels if labels is None else labels, head=head, rule=rule, steps=steps, seed=seed,
        )  # fmt: skip


def _changed(choice: _Choice, **given: object) -> _Choice:
    """The choice, but for what is not None."""
    return msgspec.structs.replace(choice, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Unified:
    """A model in another form, as it was written."""

    config: CometConfig
    untrained: tuple[str, ...]
    """Parts of the head that are new, with random weights."""
    digest: str
    """Of the checkpoint."""


def unify(
    model: Path | str,
    out: Path | str,
    form: Form | None = None,
    *,
    task: str | None = None,
    labels: Sequence[str] = (),
    head: Kind | None = None,
    seed: int = 0,
    image_size: int | None = None,
    watcher: Watcher | None = None,
) -> Unified:
    """Turns a Hugging Face model, or a Comet model, into a Comet checkpoint in `out`, by default in the certified form.

    Its weights stay; its non-linear functions become those of the form. In the certified form the tops of all ranges
    are proved from the weights, for every text. Train it afterwards (`finetune`).

    model   a directory, or a name on the hub
    task    make a new head for the labels of this task of GLUE
    labels  make a new head for these labels
    head    what to make of a text, if not what the model was made for
    seed    for the random weights of a new head
    image_size  in pixels, if not that which a model of images was trained with: a smaller one costs less
    """
    form, watcher = form or Form(), watcher or Watcher()
    if task and labels:
        raise ConfigurationError("give --task or --labels, not both")
    if head == "embedding" and (task or labels):
        raise ConfigurationError("an embedding has no labels: leave out --task and --labels")
    given = find_task(task).labels if task else tuple(labels)
    found = _with_head(model, head, "label" if task else None, bool(given), watcher, image_size)
    config, tensors = found.config, found.tensors
    wanted = config.head if head in (None, config.head.kind) else usual_head(head or "label")
    names = () if wanted.kind == "embedding" else given or config.encoder.labels
    if not names and wanted.kind != "embedding":
        raise ConfigurationError("a head for labels needs their names: give --labels A,B,…")
    certified = form.name == "certified"
    tokenizer = tokenizer_of(found, certified=certified)
    config, made = form.applied(config, tensors, labels=names, head=wanted, seed=seed)
    config = msgspec.structs.replace(config, task=find_task(task).name if task else config.task)
    if certified:
        config = _proved(config, made, watcher)
    save_checkpoint(Path(out), config, made, tokenizer=tokenizer)
    parts = [part for part in ("pooler", "classifier") if f"{part}.weight" in made]
    new = tuple(part for part in parts if not _kept(f"{part}.weight", tensors, made))
    return Unified(config, new, checkpoint_digest(config, made, tokenizer or b""))


def _with_head(
    source: Path | str, head: Kind | None, usual: Kind | None, labelled: bool, watcher: Watcher, size: int | None
) -> Model:
    """The model, read as what is wanted of it: one that was made for embeddings may get labels."""
    found = read_model(source, watcher, head or usual, image_size=size)
    if labelled and found.config.head.kind == "embedding":
        found = read_model(source, watcher, head or "label").but(head=usual_head(head or "label"))
    return found


def _proved(config: CometConfig, tensors: Tensors, watcher: Watcher) -> CometConfig:
    """With certified ranges. Says first how long that takes."""
    with watcher.stage("proving the ranges: layers") as tick:
        watcher.say(f"proving the ranges: this takes {about(proof_seconds(config, tensors))}")
        return certify(config, tensors, told=tick)


def _kept(name: str, before: Tensors, after: Tensors) -> bool:
    return name in before and np.array_equal(before[name], after[name])
