"""A decoder: pre-normalised blocks of causal attention and a feed-forward part, run window by window.

A layer, in terms of the normalised rows n of its stream (RMSNorm or LayerNorm; γ and β are in the weights):

    q, k, v = W·n                   times a head's own scale; v's bias is in what it is multiplied by next
    x       = x + Wo·attend(q, k, v) + bo                                            (`causal`)
    x       = x + W2·(h²⊙u) + M·n + b2,  h = Wg·n + bg,  u = Wu·n                    gated: SwiGLU
    x       = x + W2·h² + M·n + b2,      h = Wg·n + bg                               plain: GELU

An activation is a quadratic of every neuron's own, p(g) = c0 + c1·g + c2·g² = c2·(g + c1/2c2)² + γ. Its square is
opened as h², in a scale of the neuron's own; γ⊙u, or nothing of a plain one, is linear in n, and with W2 it is the one
matrix M. So all of its numbers stay with the server, and one opening does.

What is public: the sizes, the rules, and where they are tied the embedding table and the last norm's γ: the client
embeds tokens itself, is told the last hidden states, and makes logits of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.parts import Block
from comet_mpc.engine.polynomial import variables
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import CLIENT, WORD, Reals, Share, concatenate
from comet_mpc.engine.share import decode as decode_words
from comet_mpc.engine.windows import Window
from comet_mpc.errors import ShapeError
from comet_mpc.functions.layer_norm import plain_normalise
from comet_mpc.functions.rule import InverseRule
from comet_mpc.models.blocks import Frame, Sizes
from comet_mpc.models.heads import ROWS, coarsened, shifted
from comet_mpc.models.streams.block import Stream, into_stream, normalised, stream_top
from comet_mpc.models.streams.causal import (
    CONTEXT,
    ROTATION,
    CausalForm,
    Reading,
    Scores,
    attend,
    plain_attend,
    reopened,
    rotated,
    rotation,
)

H, U = variables("h u")

Turns = tuple[Reals, Reals]
"""Cosines and sines of a window's positions."""

_ACTIVE = 20  # fraction bits of an activation: most are far below the bound that they are divided by
_NEURON = 13  # of what it is a polynomial of
_PROJECTED = 18  # of the weights of q, k, v, h and u, which are divided by their bounds
_ADDED = 12  # of the matrices whose products are added to the stream
_GIVEN = 56  # bits of the ring of normalised rows: what a free cut leaves in Z_2^64
_ROUNDED = 1.0 + 2.0**-6
_NO_CLAIM = 2.0**20
HIDDEN_BITS = 8
"""Fraction bits of the last hidden states as they are told, unless the operator says otherwise."""


@dataclass(frozen=True)
class DecoderShape:
    """The public dimensions of a decoder.

    groups  heads of keys and values; every one serves heads/groups heads of queries
    theta   of rotary positions; 0: positions are learnt, and in the rows that the client gives
    gated   whether neurons are multiplied by others (SwiGLU)
    centred whether rows are normalised by LayerNorm, and not by RMSNorm
    """

    layers: int
    hidden: int
    heads: int
    groups: int
    size: int
    intermediate: int
    vocabulary: int
    positions: int
    theta: float = 10000.0
    gated: bool = True
    centred: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.groups or self.size % 2:
            raise ShapeError(f"{self.groups} groups do not divide {self.heads} heads, or their size {self.size} is odd")


DECODERS = {
    "stories15m": DecoderShape(6, 288, 6, 6, 48, 768, 32000, 256),
    "smollm2": DecoderShape(30, 576, 9, 3, 64, 1536, 49152, 8192, theta=100000.0),
    "gpt2": DecoderShape(12, 768, 12, 12, 64, 3072, 50257, 1024, theta=0.0, gated=False, centred=True),
}


@dataclass(frozen=True)
class DecoderLayerRules:
    """The public rules of a layer: of the norm before each part, and of attention."""

    variances: tuple[InverseRule, InverseRule]
    attention: CausalForm


@dataclass(frozen=True)
class DecoderRules:
    """The public rules of a decoder. Upper ends hold for every input."""

    layers: tuple[DecoderLayerRules, ...]
    last: InverseRule
    """Of the last norm, whose interval holds the end of the stream."""
    epsilon: float = 1e-5
    hidden_bits: int = HIDDEN_BITS


def layer_weights(shape: DecoderShape, index: int) -> Sizes:
    """Names and shapes of what the server holds for a layer, in the order in which it is used."""
    d, m, prefix = shape.hidden, shape.intermediate, f"layer.{index}."
    rows = (shape.heads + 2 * shape.groups) * shape.size
    sizes: Sizes = {"qkv.weight": (rows, d), "scores": (2, shape.heads), "output.weight": (d, shape.heads * shape.size)}
    if shape.centred:
        sizes |= {"qk.bias": ((shape.heads + shape.groups) * shape.size,), "output.bias": (d,)}
    sizes |= {"up.weight": ((2 if shape.gated else 1) * m, d), "up.bias": (m,), "down.weight": (d, m)}
    if shape.gated:
        sizes["beside.weight"] = (d, d)
    if shape.centred:
        sizes["down.bias"] = (d,)
    return {prefix + name: size for name, size in sizes.items()}


def decoder_weights(shape: DecoderShape) -> Sizes:
    return {name: size for i in range(shape.layers) for name, size in layer_weights(shape, i).items()}


def fraction_of(name: str) -> int:
    """Fraction bits of a weight."""
    if name.endswith(("scores", "bias")):
        return 24
    if name.endswith("down.weight"):  # multiplied by the neurons' bounds, which are large
        return _ADDED - 4
    if name.endswith("output.weight"):
        return _ADDED - 3
    return _PROJECTED if name.endswith(("qkv.weight", "up.weight")) else _ADDED


def public_weights(shape: DecoderShape) -> dict[str, Weight]:
    """What a client knows of the weights: names, shapes and scales."""
    return {name: Weight(name, size, fraction_of(name), _NO_CLAIM) for name, size in decoder_weights(shape).items()}


def encode_weights(shape: DecoderShape, values: Mapping[str, npt.ArrayLike]) -> dict[str, Weight]:
    """The server's weights in fixed point, every name and shape accounted for."""
    expected = decoder_weights(shape)
    if expected.keys() != values.keys():
        raise ShapeError(f"weights do not fit the model: {sorted(expected.keys() ^ values.keys())[:5]}")
    encoded = {name: Weight.encode(name, values[name], fraction_of(name), _NO_CLAIM) for name in expected}
    for name, weight in encoded.items():
        if weight.shape != expected[name]:
            raise ShapeError(f"weight {name} has shape {weight.shape}, expected {expected[name]}")
    return encoded


def input_rows(session: Session, values: Reals | None, window: Window, shape: DecoderShape, top: float) -> Share:
    """The client's rows of a window, (1, positions, hidden), as the stream holds them."""
    size = (1, window.size, shape.hidden)
    return into_stream(session.private(CLIENT, size, ROWS, largest_input(top), values), top)


def largest_input(top: float) -> float:
    """|v| of what the client gives at most. top: of the stream"""
    return min(top, 2.0**12)


def top_of(shape: DecoderShape, rules: DecoderRules) -> float:
    """‖v‖ of every row of the stream."""
    return stream_top(shape.hidden, rules.last)


def decode(
    session: Session,
    rows: Share,
    window: Window,
    shape: DecoderShape,
    rules: DecoderRules,
    weights: Mapping[str, Weight],
    places: Sequence[int] | None = None,
) -> Share:
    """The last hidden states of a window's positions, (1, positions, hidden), normalised, with the digits to be told.

    Keys and values of all positions are kept in the session. Reveals nothing.
    places: of all positions up to the window's end where in the text they are, negative for those that were dropped
    (drafts that did not hold): later ones read none of these. Without it every position counts. It is public, and the
    plan is the same.
    """
    if rows.shape != (1, window.size, shape.hidden):
        raise ShapeError(f"expected rows (1, {window.size}, {shape.hidden}), got {rows.shape}")
    reading, turns = _placed(window, places, shape)
    frame, top = Frame(session, None, weights, rules.epsilon), top_of(shape, rules)
    for index, own in enumerate(rules.layers):
        with session.part(Block("layer", index)):
            rows = _attention(frame, rows, reading, turns, shape, own, index, top)
            rows = _feed_forward(frame, rows, shape, own, index, top)
    with session.part("head"):
        states = normalised(frame, rows, rules.last, _GIVEN, hurried=True)
        return coarsened(session, states, rules.hidden_bits)


def _placed(window: Window, places: Sequence[int] | None, shape: DecoderShape) -> tuple[Reading, Turns | None]:
    """What the rows of a window read, and how theirs are turned."""
    found = np.arange(window.stop) if places is None else np.asarray(places, np.int64)
    own = found[window.first :]
    if found.shape != (window.stop,) or np.any(own < 0) or np.any(own >= shape.positions):
        raise ShapeError(f"expected places in the text of {window.stop} positions, the last {window.size} of them kept")
    turns = rotation(own, shape.size, shape.theta) if shape.theta else None
    return Reading(window, None if np.all(found >= 0) else found >= 0), turns


def _attention(
    frame: Frame,
    stream: Share,
    reading: Reading,
    turns: Turns | None,
    shape: DecoderShape,
    rules: DecoderLayerRules,
    index: int,
    top: float,
) -> Share:
    window = reading.window
    session, weights, prefix = frame.session, frame.weights, f"layer.{index}."
    total = Stream(stream, top)
    rows = normalised(frame, stream, rules.variances[0], _GIVEN, hurried=True)
    with session.part("linear"):
        given = session.give(rows)
        qkv = session.linear(given, weights[prefix + "qkv.weight"], bound=1.0, precision=ROTATION + 3)
    q, k, v = _heads(session, qkv, shape, weights.get(prefix + "qk.bias"))
    if turns is not None:
        q, k = rotated(q, *turns), rotated(k, *turns)
    context = attend(
        session, q, k, v, rules.attention, _scores(weights[prefix + "scores"], shape), reading,
        name=f"layer {index}", width=total.narrower(CONTEXT, weights[prefix + "output.weight"]),
    )  # fmt: skip
    with session.part("linear"):
        merged = context.transpose(1, 0, 2).reshape(1, window.size, shape.heads * shape.size)
        skip = total.skip(frame, given, "", prefix + "output.bias").result()
        return total.with_product(frame, session.give(merged), prefix + "output.weight", skip)


def _scores(weight: Weight, shape: DecoderShape) -> Scores:
    if weight.values is None:
        return Scores(None, shape.heads)
    b, c = weight.values * 2.0**-weight.fraction
    return Scores((b, c), shape.heads)


def _heads(session: Session, qkv: Share, shape: DecoderShape, bias: Weight | None) -> tuple[Share, Share, Share]:
    """(heads, positions, size) each. Keys and values that serve several heads are repeated."""
    _, count, _ = qkv.shape
    ends = np.cumsum([shape.heads, shape.groups, shape.groups]) * shape.size
    both, v = qkv[0, :, : ends[1]], qkv[0, :, ends[1] :]
    if bias is not None:
        both = shifted(session, both, bias, 1.0)
    parts = both[:, : ends[0]], both[:, ends[0] :], v
    q, k, v = (part.reshape(count, part.shape[1] // shape.size, shape.size).transpose(1, 0, 2) for part in parts)
    times = shape.heads // shape.groups
    return q, _repeated(k, times), _repeated(v, times)


def _repeated(x: Share, times: int) -> Share:
    if times == 1:
        return x
    groups, count, size = x.shape
    own = x.reshape(groups, 1, count, size)
    return concatenate([own] * times, axis=1).reshape(groups * times, count, size)


def _feed_forward(
    frame: Frame, stream: Share, shape: DecoderShape, rules: DecoderLayerRules, index: int, top: float
) -> Share:
    session, weights, prefix = frame.session, frame.weights, f"layer.{index}."
    total = Stream(stream, top)
    rows = normalised(frame, stream, rules.variances[1], _GIVEN, hurried=True)
    with session.part("linear"):
        given = session.give(rows)
        up = session.linear(given, weights[prefix + "up.weight"], bound=1.0, precision=_NEURON)
        skip = total.skip(frame, given, "", prefix + "down.bias").result()
        if shape.gated:
            skip = total.with_product(frame, given, prefix + "beside.weight", skip)
    width = total.narrower(_ACTIVE, weights[prefix + "down.weight"])
    active = _active(session, up, weights[prefix + "up.bias"], shape, width)
    with session.part("linear"):
        return total.with_product(frame, session.give(active), prefix + "down.weight", skip)


def _active(session: Session, up: Share, bias: Weight, shape: DecoderShape, width: int) -> Share:
    """h²⊙u, or h², with `_ACTIVE` fraction bits."""
    m = shape.intermediate
    with session.part("activation"):
        h = shifted(session, up[..., :m], bias, 1.0)
        whole = (3 if shape.gated else 2) * _NEURON
        ring = session.ring(whole, _ROUNDED)
        if not ring.modulus:
            ring = Ring(min(WORD, max(ring.width, width + whole - _ACTIVE)))  # so that the last cut is free
        if not shape.gated:
            (opened,) = reopened(session, (h, _NEURON, ring))
            return session.truncate_to(session.evaluate(H**2, {"h": opened}, bound=_ROUNDED), _ACTIVE, width)
        first, second = reopened(session, (h, _NEURON, ring), (up[..., m:], _NEURON, ring))
        product = session.evaluate(H**2 * U, {"h": first, "u": second}, bound=_ROUNDED)
        return session.truncate_to(product, _ACTIVE, width)


def plain_states(rows: Reals, shape: DecoderShape, rules: DecoderRules, weights: Mapping[str, Reals]) -> list[Reals]:
    """`decode` in real arithmetic, all positions (positions, hidden) at once: the stream after every layer, then the
    last hidden states. Norms are exact."""
    count, found = len(rows), []

    def normal(x: Reals) -> Reals:
        return plain_normalise(x, epsilon=rules.epsilon)

    for i, own in enumerate(rules.layers):
        get = partial(_layer_weight, weights, i)
        n = normal(rows)
        qkv = n @ get("qkv.weight").T
        if (bias := get("qk.bias")) is not None:
            qkv[:, : len(bias)] += bias
        ends = np.cumsum([shape.heads, shape.groups]) * shape.size
        q, k, v = (part.reshape(count, -1, shape.size).swapaxes(0, 1) for part in np.split(qkv, ends, axis=1))
        if shape.theta:
            q, k = (_turned(x, *rotation(np.arange(count), shape.size, shape.theta)) for x in (q, k))
        k, v = (np.repeat(x, shape.heads // shape.groups, axis=0) for x in (k, v))
        context = plain_attend(q, k, v, own.attention, tuple(get("scores")))
        rows = rows + context.swapaxes(0, 1).reshape(count, -1) @ get("output.weight").T
        rows = rows if get("output.bias") is None else rows + get("output.bias")
        n = normal(rows)
        up = n @ get("up.weight").T
        active = (up[:, : shape.intermediate] + get("up.bias")) ** 2
        if shape.gated:
            active, rows = active * up[:, shape.intermediate :], rows + n @ get("beside.weight").T
        rows = rows + active @ get("down.weight").T
        rows = rows if get("down.bias") is None else rows + get("down.bias")
        found.append(rows)
    return [*found, normal(rows)]


def _layer_weight(weights: Mapping[str, Reals], layer: int, name: str) -> Any:
    return weights.get(f"layer.{layer}.{name}")


def _turned(x: Reals, cosines: Reals, sines: Reals) -> Reals:
    half = x.shape[-1] // 2
    return np.asarray(x * cosines + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sines)


def tell(session: Session, states: Share, count: int = 1) -> Reals | None:
    """The hidden states of the last `count` positions, (count, hidden), to the client; None at the server."""
    with session.part("result"):
        told = states[0, -count:]
        words = session.reveal(told, CLIENT)
    return None if words is None else decode_words(words, told.fraction, told.width)
