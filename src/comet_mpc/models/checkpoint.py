"""What a Comet checkpoint says: which model it is, its non-linear steps, and the public rules for them. No torch.

That is the section `comet` of config.json, and the names of the tensors, which are the same for all architectures
(`tensor_shapes`). `stored` reads and writes the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from comet_mpc.errors import CheckpointError, RuleError
from comet_mpc.functions.inverse_rule import MinimaxRule
from comet_mpc.functions.root_rule import RootRule
from comet_mpc.functions.rule import InverseRule, Rule
from comet_mpc.functions.rules import SERVING, STORED
from comet_mpc.models.heads import Head, Pooler
from comet_mpc.models.images.format import ImageFormat

Tensor = npt.NDArray[np.float32]
Tensors = dict[str, Tensor]

if TYPE_CHECKING:
    RuleName = Literal["minimax", "linear", "quadratic", "cubic", "quartic", "quintic"]
    """The rule of activations and scores. When a program runs, every rule is one that is registered and may serve."""
else:
    RuleName = Literal[tuple(SERVING)]
FITTED: Literal["fitted"] = "fitted"
"""Functions that are fitted to a model, neuron by neuron and head by head, in the place of a rule."""
NEAR: Literal["near"] = "near"
"""The same, nearer to the original, for about as much as a quadratic root takes."""
FormRuleName = Literal[RuleName, "fitted", "near"]
"""How activations and scores are computed."""
USUAL_RULE: RuleName = "quadratic"
"""The cheapest that keeps a model's accuracy (docs/explanation/accuracy.md)."""
USUAL_STEPS = 3
_TEXTS = ("bert", "distilbert", "roberta", "mpnet")


def chosen_rule(rule: FormRuleName | None, steps: int | None) -> tuple[FormRuleName, int]:
    """The usual rule if none is given, or steps of 1/sqrt if their number is."""
    return rule or (USUAL_RULE if steps is None else "minimax"), steps or USUAL_STEPS


Positive = Annotated[int, msgspec.Meta(gt=0, le=1 << 24)]
Real = Annotated[float, msgspec.Meta(ge=0.0, lt=float(2**20))]


Label = Annotated[str, msgspec.Meta(max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*\Z")]
"""It comes from the server and is shown at the client: nothing in it may steer a terminal, or turn what is read."""


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unknown fields are an error: a checkpoint of a newer format is not half understood."""


class Encoder(_Strict, frozen=True, kw_only=True):
    """Sizes of an encoder, and the labels of the classifier on top."""

    architecture: Literal["bert", "distilbert", "roberta", "mpnet", "vit", "dinov2"]
    vocabulary: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
    """Words that it knows; 0 if it takes images."""
    positions: Positive
    """Of tokens; of an image, as many as it has patches, and [CLS] before them."""
    types: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)]
    hidden: Positive
    layers: Annotated[int, msgspec.Meta(gt=0, le=1024)]
    heads: Positive
    intermediate: Positive
    epsilon: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]
    padding: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
    """The id of the padding token."""
    buckets: Annotated[int, msgspec.Meta(ge=0, le=1 << 16)] = 0
    """Relative position buckets (MPNet), 0 for none."""
    labels: Annotated[tuple[Label, ...], msgspec.Meta(max_length=1 << 16)] = ("0", "1")
    """Names of the classes; exactly one name: a regression; none: embeddings."""
    image: ImageFormat | None = None
    """What it is given of an image. None: it takes texts."""

    def __post_init__(self) -> None:
        if (self.image is None) != (self.architecture in _TEXTS) or (self.image is None) != (self.vocabulary > 0):
            raise ValueError(f"{self.architecture}: a model takes texts, and has a vocabulary, or images of a format")
        if self.image is not None and self.positions != 1 + self.image.patches:
            raise ValueError(f"{self.positions} positions do not fit {self.image.patches} patches and [CLS]")

    @property
    def first_position(self) -> int:
        """RoBERTa and MPNet count positions from the padding id on."""
        return self.padding + 1 if self.architecture in ("roberta", "mpnet") else 0

    @property
    def stream(self) -> bool:
        """Its blocks are pre-normalised (`streams`): what a LayerNorm gives is never added to."""
        return self.image is not None

    @property
    def longest(self) -> int:
        """Most tokens of one text."""
        return self.positions - self.first_position


class ActivationChoice(_Strict, frozen=True, kw_only=True):
    """GeLU, or smu(x) = (1+α)/2·x + ½·sqrt((1-α)²·x² + μ²); normalised: of x/B_j, where B_j bounds neuron j.

    Or fitted: a polynomial of that degree of its own for every neuron, s·Σ c_k·(x/s)^k, s and c_k among the tensors.
    """

    kind: Literal["gelu", "smu", "fitted"] = "smu"
    degree: Literal[2, 4] = 2
    alpha: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.0
    mu: Real = 0.0625
    normalised: bool = True
    trainable: bool = False
    """α and μ are tensors, one pair per layer."""


class AttentionChoice(_Strict, frozen=True, kw_only=True):
    """Softmax, or f(s)^p / Σ f(s)^p with f = ReLU or smu; cosine: s = cos(q, k) - c with a threshold c per head.

    Or fitted: ((a·z + b)² + g)² with numbers of its own for every head, power 4, of soft cosines
    z = q·k/sqrt((|q|² + c)·(|k|² + c')); or (((a·z + b)² + g)² + h)², power 8.
    """

    kind: Literal["softmax", "relu", "smu", "fitted"] = "smu"
    power: Literal[1, 2, 4, 8] = 2
    cosine: bool = True
    mu: Real = 0.125
    floor: Real = 0.0
    """Added to every denominator: with μ = 0 a row may have no positive score at all."""
    trainable: bool = False


class Site(_Strict, frozen=True, kw_only=True, omit_defaults=True):
    """One place where 1/sqrt(t) or sqrt(t) is taken, and the public rule for it.

    The two oldest kinds of rules have a field each, named as they are stored; others are `numbers` of a `kind`.
    """

    minimax: MinimaxRule | None = msgspec.field(default=None, name=MinimaxRule.stored_as)
    root: RootRule | None = None
    kind: str = ""
    numbers: dict[str, Any] = {}
    certified_high: bool
    """No input whatsoever exceeds the interval's top: proved from the weights, checked on loading."""
    certified_low: bool
    seen: tuple[float, ...] = ()
    """t on calibration data: smallest, 1 %, median, 99 %, largest."""

    def __post_init__(self) -> None:
        if [self.minimax is None, self.root is None, not self.kind].count(False) != 1:
            raise ValueError("a site needs exactly one rule")
        if self.kind and self.kind not in STORED:
            raise ValueError(f"unknown kind of rule {self.kind!r}: it may need a package that registers it")
        if self.kind:
            msgspec.convert(self.numbers, STORED[self.kind])

    @staticmethod
    def of(rule: Rule, *, certified_high: bool, certified_low: bool, seen: tuple[float, ...] = ()) -> Site:
        if not rule.stored_as:
            raise CheckpointError("no checkpoint stores this kind of rule")
        own = {MinimaxRule.stored_as: "minimax", RootRule.stored_as: "root"}.get(rule.stored_as)
        stored = {own: rule} if own else {"kind": rule.stored_as, "numbers": msgspec.to_builtins(rule)}
        return Site(**stored, certified_high=certified_high, certified_low=certified_low, seen=seen)

    @property
    def rule(self) -> Rule:
        return self.minimax or self.root or msgspec.convert(self.numbers, STORED[self.kind])

    @property
    def inverse(self) -> InverseRule:
        """The rule, where one of sqrt(t) will not do."""
        try:
            return self.rule.inverse()
        except RuleError as error:
            raise CheckpointError(str(error)) from error


class CometConfig(_Strict, frozen=True, kw_only=True):
    """Section `comet` of config.json."""

    format: Literal[1] = 1
    encoder: Encoder
    activation: ActivationChoice
    attention: AttentionChoice
    pooler: Pooler = "algebraic"
    head: Head = Head()
    rule: str = "minimax"
    """Of activations and scores, by its name (`rules`)."""
    steps: Annotated[int, msgspec.Meta(ge=1, le=16)] = 4
    row_steps: Annotated[int, msgspec.Meta(ge=0, le=15)] = 0
    """For quantities of which there is one per row: variances, norms, denominators. 0: as few as their errors allow."""
    emphasis: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.25
    task: str = ""
    length: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 0
    """Tokens per text that it was trained with, 0: not said."""
    scores: dict[str, float] = {}
    """Of the dev set, by metric, after it was fine-tuned in this form; none: it was not."""
    sites: dict[str, Site] = {}

    def __post_init__(self) -> None:
        if self.rule not in SERVING:
            raise ValueError(f"unknown rule {self.rule!r}: choose one of {', '.join(SERVING)}")
        activation, attention = self.activation, self.attention
        if activation.kind == "fitted" and (activation.trainable or not activation.normalised):
            raise ValueError("a fitted activation is normalised, and has no α and μ")
        if (attention.kind == "fitted") != (attention.power in (4, 8)):
            raise ValueError(f"attention of kind {attention.kind!r} with scores to the power {attention.power}")
        if attention.kind == "fitted" and (attention.trainable or attention.floor or not attention.cosine):
            raise ValueError("fitted attention takes (soft) cosines, and has no μ and no floor")

    @property
    def fine_tuned(self) -> bool:
        return bool(self.scores)

    @property
    def certifiable(self) -> bool:
        """In a form whose ranges follow from the weights."""
        return self.activation.normalised and self.attention.cosine

    @property
    def certified(self) -> bool:
        """Every argument of every inverse square root has a top that holds for all inputs."""
        return (
            self.activation.kind in ("smu", "fitted")
            and self.activation.normalised
            and self.attention.kind in ("smu", "fitted")
            and self.attention.cosine
            and self.pooler in ("algebraic", "smu", "none")
            and bool(self.sites)
            and all(site.certified_high for site in self.sites.values())
        )


def tensor_shapes(config: CometConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint, in order.

    A LayerNorm is named by what it follows. With pre-normalised blocks `embeddings.norm` is the one before the first
    layer, `layers.i.attention_norm` that before its neurons, and `layers.i.output_norm` that before the next layer, or
    the last of all. An image's patches have their bias in the positions, of which the first row is all of [CLS].
    """
    e = config.encoder
    d, m = e.hidden, e.intermediate
    if d % e.heads:
        raise CheckpointError(f"hidden size {d} is not a multiple of {e.heads} heads")
    if (config.head.kind == "embedding") == bool(e.labels) or (config.head.kind != "label" and config.pooler != "none"):
        raise CheckpointError(
            f"a head for {config.head.kind} does not go with {len(e.labels)} labels and the pooler {config.pooler}"
        )
    first = {"embeddings.words": (e.vocabulary, d)}
    if e.image is not None:
        first = {"embeddings.patches": (d, e.image.numbers)}
        if config.head.reads != "first":
            raise CheckpointError("a model of images answers from [CLS] alone, not from a mean or for every patch")
    shapes: dict[str, tuple[int, ...]] = {**first, "embeddings.positions": (e.positions, d)}
    if e.types:
        shapes["embeddings.types"] = (e.types, d)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (d,), (d,)

    def linear(name: str, rows: int, columns: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (rows, columns), (rows,)

    norm("embeddings.norm")
    if e.buckets:
        shapes["relative_positions"] = (e.buckets, e.heads)
    for i in range(e.layers):
        layer = f"layers.{i}"
        for part in ("query", "key", "value", "attention_output"):
            linear(f"{layer}.{part}", d, d)
        norm(f"{layer}.attention_norm")
        linear(f"{layer}.up", m, d)
        linear(f"{layer}.down", d, m)
        norm(f"{layer}.output_norm")
        if config.activation.kind == "fitted":
            shapes[f"{layer}.neurons.scale"] = (m,)
            shapes[f"{layer}.neurons.coefficients"] = (m, config.activation.degree + 1)
        if config.attention.kind == "fitted":
            numbers = config.attention.power.bit_length()  # a, b and one for every further square
            shapes[f"{layer}.scores"], shapes[f"{layer}.softness"] = (e.heads, numbers), (e.heads, 2)
        elif config.attention.cosine:
            shapes[f"{layer}.thresholds"] = (e.heads,)
        if config.activation.trainable:
            shapes[f"{layer}.activation.alpha"], shapes[f"{layer}.activation.mu"] = (), ()
        if config.attention.trainable:
            shapes[f"{layer}.attention.mu"] = ()
    if config.pooler != "none":
        linear("pooler", d, d)
    if e.labels:
        linear("classifier", len(e.labels), d)
    return shapes
