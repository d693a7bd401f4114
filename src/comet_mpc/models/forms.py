"""The forms of a model: what stands in the place of GeLU, softmax and the pooler's function.

certified   what the protocol computes, with ranges that are proved from the weights: the form that is served
paper       the paper's own functions, for research
unmodified  GeLU and softmax
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from comet_mpc.errors import ConfigurationError
from comet_mpc.models.checkpoint import ActivationChoice, AttentionChoice, CometConfig, RuleName, Tensors, chosen_rule
from comet_mpc.models.fold import in_form
from comet_mpc.models.heads import Head, Pooler

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

_Choice = TypeVar("_Choice", ActivationChoice, AttentionChoice)


@dataclass(frozen=True)
class Form:
    """A form by its name. What is not None replaces a part of it."""

    name: FormName = "certified"
    rule: RuleName | None = None
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
            return
        if self.trainable:
            raise ConfigurationError(
                "α and μ that are trained layer by layer cannot be certified, because all layers share one public "
                "rule: use --form paper, or set them with --alpha, --mu and --attention-mu"
            )
        if self.pooler == "tanh":
            raise ConfigurationError("tanh has no protocol: the certified form has the algebraic pooler")

    def choices(self) -> tuple[ActivationChoice, AttentionChoice]:
        """Its activation and its attention."""
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
        return in_form(
            config, tensors, activation=activation, attention=attention,
            pooler=self.pooler_of(config.pooler) if head.kind == "label" else "none",
            labels=config.encoder.labels if labels is None else labels, head=head, rule=rule, steps=steps, seed=seed,
        )  # fmt: skip


def _changed(choice: _Choice, **given: object) -> _Choice:
    """The choice, but for what is not None."""
    return msgspec.structs.replace(choice, **{name: value for name, value in given.items() if value is not None})
