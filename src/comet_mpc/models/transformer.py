"""The secure Transformer: a post-LayerNorm encoder and its head, in the certified form.

A layer, in terms of the normalised rows n of the LayerNorm before it (its γ and β are folded into what follows):

    q, k, v = W·n + b                    n + m is given to the server once; one message for all that is made of it
    x       = Wo·attention(q, k, v) + bo + (γ⊙n + β)
    n       = normalise(x)
    x       = W2·f(W1·n + b1) + b2 + (γ⊙n + β)        row j of W1 divided by its bound B_j, column j of W2 multiplied
    n       = normalise(x)

The last layer computes no row that its head does not read. If that is the first token's, only k and v are made of all
rows; if it is a mean, the last LayerNorm gives the mean of its rows, and not the rows.

m is the padding mask, and rows of padding are zero. n has mean 0, so a matrix whose rows have the mean b/d makes
W·n + b·m of n + m: v's rows of padding are zero too, as attention wants them, and nothing is paid for it (`fold`).

Each x is centred before it is opened: Wo, W2 and the biases at the server, once; γ⊙n by its mean, one number a row
(`functions.layer_norm.Centred`).

What is added up has the same fraction bits in the same ring, so sums need no truncation before they are opened, and
most truncations that remain are free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.parts import Block
from comet_mpc.engine.share import CLIENT, SERVER, Share, ring_width
from comet_mpc.errors import ShapeError
from comet_mpc.functions.activation import smu_rule, tanh_like_rule
from comet_mpc.functions.attention import LARGEST_SOFTNESS, AttentionForm, certified_form, fitted_form
from comet_mpc.functions.layer_norm import (
    SUMMANDS,
    largest_norm,
    layer_norm_rule,
    normalise,
    padding_bits,
    wide_layer_norm_rule,
)
from comet_mpc.functions.neurons import Neurons, Quartics, SmuNeurons, Square
from comet_mpc.functions.rule import InverseRule, Smu
from comet_mpc.models.blocks import SLACK, Attention, FeedForward, Frame, LayerRules, PostNormBlock
from comet_mpc.models.heads import ROWS, WEIGHTS, Head, HeadRules, Pooler, Reads, coarsened, head_weights, respond
from comet_mpc.models.streams.block import PreNormBlock

Reals = npt.NDArray[np.float64]

ANSWER_BITS = 8
"""Fraction bits of an answer as it is revealed, unless the operator says otherwise."""
_NO_CLAIM = 2.0**20  # a public gain that says nothing: bounds come from the rules


@dataclass(frozen=True)
class EncoderShape:
    """The public dimensions of a model."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    labels: int = 2
    symbols: int = 0
    """Columns of a one-hot input (words and types) if the embedding table stays at the server, else 0."""
    positions: int = 0
    """Rows of the server's position table, with `symbols`."""
    buckets: int = 0
    """Relative position buckets (MPNet), each with a bias of its own on every head's scores; 0 for none."""
    stream: bool = False
    """Whether blocks are pre-normalised (`streams`). Then the input is an image's patches, of `symbols` numbers, and
    the first row of `positions` is [CLS]."""
    constants: int = 0
    """Private numbers of a head by which its scores are weighed (`functions.weighing`)."""
    neurons: int = 0
    """Private numbers of a neuron (`functions.neurons`)."""
    head: Head = field(default_factory=Head)
    pooler: Pooler = "algebraic"

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ShapeError(f"{self.heads} heads do not divide {self.hidden} hidden units")
        if self.buckets and not 4 <= self.buckets <= 256:
            raise ShapeError(f"{self.buckets} relative position buckets: there must be 4 to 256, or none")


SHAPES = {
    "minilm": EncoderShape(6, 384, 12, 1536),
    "bert-base": EncoderShape(12, 768, 12, 3072),
    "roberta-base": EncoderShape(12, 768, 12, 3072),
    "mpnet": EncoderShape(12, 768, 12, 3072, buckets=32),
    "bert-large": EncoderShape(24, 1024, 16, 4096),
}


@dataclass(frozen=True)
class EncoderRules:
    """The public rules of a model."""

    layers: tuple[LayerRules, ...]
    head: HeadRules
    answer_bits: int = ANSWER_BITS
    """Fraction bits of the answers that are revealed: every further one tells more about the weights."""
    epsilon: float = 1e-12
    embeddings: InverseRule | None = None
    """For the variance of embeddings, where the table stays at the server."""
    last: InverseRule | None = None
    """Of the LayerNorm behind pre-normalised blocks."""


def certified_rules(
    shape: EncoderShape,
    steps: int,
    *,
    rule: str = "minimax",
    row_steps: int | None = None,
    variance: tuple[float, float] = (2.0**-5, 2.0**6),
    value_bound: float = 32.0,
    pooler_bound: float = 16.0,
) -> EncoderRules:
    """Universal coefficients for activations and scores, by a rule of that name; the same ranges of row quantities for
    all layers."""
    form = Smu(1.0 / 16.0)
    variances = layer_norm_rule(shape.hidden, *variance, row_steps)
    neurons = SmuNeurons(form, smu_rule(form, SLACK, steps, name=rule))
    attention = certified_form(steps, row_steps=row_steps, name=rule)
    return _rules(
        shape, neurons, attention, (variances, variances), value_bound, tanh_like_rule(pooler_bound, row_steps)
    )


_BEHIND_QUARTICS = (2.0**-3, 2.0**14)
"""Variances there, as in MiniLM."""


def fitted_rules(
    shape: EncoderShape,
    *,
    near: bool = False,
    variance: tuple[float, float] = (2.0**-5, 2.0**6),
    value_bound: float = 32.0,
    pooler_bound: float = 16.0,
) -> EncoderRules:
    """Fitted functions, and the same ranges of row quantities for all layers.

    Quartics are large at their bounds, so what is proved of the LayerNorm behind them is far above what occurs.
    """
    variances = layer_norm_rule(shape.hidden, *variance)
    behind = wide_layer_norm_rule(shape.hidden, *_BEHIND_QUARTICS) if near else variances
    pooler = tanh_like_rule(pooler_bound)
    neurons, form = (Quartics(), fitted_form(power=8)) if near else (Square(), fitted_form())
    return _rules(shape, neurons, form, (variances, behind), value_bound, pooler)


def _rules(
    shape: EncoderShape,
    neurons: Neurons,
    attention: AttentionForm,
    variances: tuple[InverseRule, InverseRule],
    value_bound: float,
    pooler: InverseRule,
) -> EncoderRules:
    layer = LayerRules(
        neurons=neurons,
        attention=attention,
        variances=variances,
        value_bound=value_bound,
        query_bound=query_bound(attention),
    )
    return EncoderRules(layers=(layer,) * shape.layers, head=HeadRules(pooler=pooler))


def query_bound(form: AttentionForm) -> float:
    """|q| and |k|, as their norms' rule takes them."""
    if form.norms is None:
        return 1.0
    return math.sqrt(form.norms.high - (LARGEST_SOFTNESS if form.soft else 0.0))


def encoder_block(shape: EncoderShape, index: int, reads: Reads | None = None) -> PostNormBlock:
    """A layer of an encoder, and what is made of its rows; None: another layer reads them."""
    parts = (
        Attention(shape.hidden, shape.heads, shape.buckets, first=reads == "first", constants=shape.constants),
        FeedForward(shape.hidden, shape.intermediate, shape.neurons),
    )
    return PostNormBlock(Block("layer", index), parts, reads)


def encoder_blocks(shape: EncoderShape) -> tuple[PostNormBlock, ...]:
    """The layers of an encoder. The last one computes no row that its head does not read."""
    last = shape.layers - 1
    return *(encoder_block(shape, i) for i in range(last)), encoder_block(shape, last, shape.head.reads)


def stream_blocks(shape: EncoderShape) -> tuple[PreNormBlock, ...]:
    """The same where they are pre-normalised."""
    blocks = (encoder_block(shape, i, shape.head.reads if i + 1 == shape.layers else None) for i in range(shape.layers))
    return tuple(PreNormBlock(block.name, block.parts) for block in blocks)


def encoder_weights(shape: EncoderShape) -> dict[str, tuple[int, ...]]:
    """Names and shapes of everything the server holds, in the order in which it is used."""
    d = shape.hidden
    names: dict[str, tuple[int, ...]] = {}
    if shape.symbols:
        names["embeddings.weight"], names["embeddings.positions"] = (d, shape.symbols), (shape.positions, d)
    for block in stream_blocks(shape) if shape.stream else encoder_blocks(shape):
        names |= block.weights()
    return names | head_weights(shape.head, shape.pooler, d, shape.labels)


def _fraction(name: str) -> int:
    """Fraction bits of a weight: queries, keys and `up` are divided by their bounds and small, biases are few."""
    if name.endswith(("softness", "constants", "offsets")):
        return 24
    if name.endswith(("bias", "threshold", "positions", "qkv.weight")):
        return 20
    if name.endswith("down.weight"):  # multiplied by the neurons' bounds: some encoders have a few very large ones
        return WEIGHTS - 2
    return 18 if name.endswith(("up.weight", "embeddings.weight")) else WEIGHTS


def encode_weights(shape: EncoderShape, values: Mapping[str, npt.ArrayLike]) -> dict[str, Weight]:
    """The server's weights in fixed point, every name and shape accounted for."""
    return in_order(shape, {name: encode_weight(name, value) for name, value in values.items()})


def in_order(shape: EncoderShape, encoded: Mapping[str, Weight]) -> dict[str, Weight]:
    """Weights in fixed point as a program names them, every name and shape accounted for."""
    expected = encoder_weights(shape)
    if expected.keys() != encoded.keys():
        raise ShapeError(f"weights do not fit the model: {sorted(expected.keys() ^ encoded.keys())[:5]}")
    for name, size in expected.items():
        if encoded[name].shape != size:
            raise ShapeError(f"weight {name} has shape {encoded[name].shape}, expected {size}")
    return {name: encoded[name] for name in expected}


def encode_weight(name: str, values: npt.ArrayLike) -> Weight:
    """One of them. Those of a sum that is centred keep what their columns add up to, which is zero."""
    fraction = _fraction(name)
    if name.endswith(("output.weight", "down.weight", "second.weight")):
        values = _rounded_columns(np.asarray(values, np.float64) * 2.0**fraction) * 2.0**-fraction
    return Weight.encode(name, values, fraction, _NO_CLAIM)


def _rounded_columns(matrix: Reals) -> Reals:
    """Rounded to whole numbers up or down, and nearly always to the nearest, so that no column's sum is rounded more
    than once."""
    rounded = np.rint(matrix)
    excess = rounded.sum(axis=0) - np.rint(matrix.sum(axis=0))
    order = np.argsort((rounded - matrix).T.astype(np.float32), axis=1).T  # from those that were rounded down most
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(len(matrix))[:, None], axis=0)
    return np.asarray(rounded - (rank >= len(matrix) - excess) + (rank < -excess))


def public_weights(shape: EncoderShape) -> dict[str, Weight]:
    """What a client knows of the weights: names, shapes and scales."""
    return {name: Weight(name, size, _fraction(name), _NO_CLAIM) for name, size in encoder_weights(shape).items()}


def encoder_frame(
    session: Session,
    mask: Share,
    rules: EncoderRules,
    weights: Mapping[str, Weight],
    averages: Share | None = None,
) -> Frame:
    """What an encoder's blocks have in common. mask and averages: (batch, tokens)"""
    return Frame(session, mask, weights, rules.epsilon, averages)


def input_rows(session: Session, values: Reals | None, shape: tuple[int, ...]) -> Share:
    """The client's normalised embeddings, (batch, tokens, hidden), zero where a row is padding."""
    return session.private(CLIENT, shape, ROWS, math.sqrt(shape[-1]), values)


def embed_privately(
    session: Session,
    symbols: Share,
    mask: Share,
    shape: EncoderShape,
    rules: EncoderRules,
    weights: Mapping[str, Weight],
) -> Share:
    """Normalised embeddings from one-hot rows (batch, tokens, symbols) and the server's tables (`fold.fold_tables`).

    One message, client to server, of as many bits a symbol and token as a sum of rows of the tables needs: 26 to 34,
    as large as they may get. Reveals nothing.
    """
    if rules.embeddings is None or symbols.shape[-1] != shape.symbols or symbols.shape[1] > shape.positions:
        raise ShapeError(f"{symbols.shape} does not fit private embeddings of {shape.symbols} symbols")
    with session.part("embeddings"):
        table, places = weights["embeddings.weight"], weights["embeddings.positions"]
        keep = padding_bits(session, mask, rules.embeddings)
        top = largest_norm(shape.hidden, rules.embeddings)
        ring = ring_width(table.fraction, top)
        summed = session.linear(session.give(symbols.narrow(ring)), table, bound=top, precision=SUMMANDS)
        tokens = symbols.shape[1]
        values = None if places.values is None else places.values[:tokens] * 2.0**-places.fraction
        position = session.private(SERVER, (tokens, shape.hidden), summed.fraction, top, values, ring)
        return normalise(
            session,
            summed + position,
            rules.embeddings,
            epsilon=rules.epsilon,
            fraction=ROWS,
            width=encoder_blocks(shape)[0].ring(encoder_frame(session, mask, rules, weights), rules.layers[0]),
            keep=keep,
        )


def input_symbols(session: Session, values: Reals | None, shape: tuple[int, ...]) -> Share:
    """The client's one-hot rows, (batch, tokens, symbols)."""
    return session.private(CLIENT, shape, 0, 1.0, values)


def input_mask(session: Session, values: Reals | None, shape: tuple[int, ...]) -> Share:
    """The client's padding mask, (batch, tokens): 1 for a token, 0 for padding."""
    return session.private(CLIENT, shape, 0, 1.0, values)


def forward(
    session: Session,
    rows: Share,
    mask: Share,
    shape: EncoderShape,
    rules: EncoderRules,
    weights: Mapping[str, Weight],
    averages: Share | None = None,
) -> Share:
    """The answers (`heads`) from normalised embeddings (batch, tokens, hidden) and a mask (batch, tokens).

    averages: the weights of a mean over the tokens, if the head takes one
    """
    if len(rows.shape) != 3 or rows.shape[-1] != shape.hidden or mask.shape != rows.shape[:2]:
        raise ShapeError(f"expected (batch, tokens, {shape.hidden}) and its mask, got {rows.shape} and {mask.shape}")
    blocks, frame = encoder_blocks(shape), encoder_frame(session, mask, rules, weights, averages)
    rings = [block.ring(frame, own) for block, own in zip(blocks, rules.layers, strict=True)]
    for block, own, ring in zip(blocks, rules.layers, [*rings[1:], rules.head.ring(shape.hidden)], strict=True):
        with session.part(block.name):
            rows = block.run(frame, rows, own, ring)
    with session.part("head"):
        how, bits = (shape.head, shape.pooler, rules.head), rules.answer_bits
        return coarsened(session, respond(session, rows, *how, weights, bits), bits)
