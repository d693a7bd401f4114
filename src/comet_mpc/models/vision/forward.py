"""The secure vision Transformer: patches of an image and [CLS] as the rows of a stream, pre-normalised blocks, a head.

    v   = P·u + p          u a patch's pixels, which the client gives once; p its position, and the bias: the server's
    v_0 = p_0              [CLS], all of it the server's
    v   = v + part(normalise(v))       part by part (`streams`)
    answers from normalise(v)          of [CLS] alone

The matrix P stays at the server, as all weights: it is one product more, about a hundredth of a model's. A pixel is a
byte of 8 fraction bits, so nothing is rounded before the first product.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.share import CLIENT, SERVER, Reals, Share, concatenate, ring_width
from comet_mpc.errors import ShapeError
from comet_mpc.functions.layer_norm import SUMMANDS
from comet_mpc.models.blocks import Frame
from comet_mpc.models.heads import coarsened, respond
from comet_mpc.models.images.format import PIXEL
from comet_mpc.models.streams.block import STREAM, into_stream, normalised, stream_top
from comet_mpc.models.transformer import EncoderRules, EncoderShape, stream_blocks


def input_pixels(session: Session, values: Reals | None, shape: tuple[int, int, int]) -> Share:
    """The client's patches, (batch, patches, numbers)."""
    return session.private(CLIENT, shape, PIXEL, 1.0, values)


def embed_patches(
    session: Session, pixels: Share, shape: EncoderShape, rules: EncoderRules, weights: Mapping[str, Weight]
) -> Share:
    """The stream to begin with, (batch, 1 + patches, hidden). One message, client to server. Reveals nothing."""
    batch, patches, numbers = pixels.shape
    if numbers != shape.symbols or patches + 1 != shape.positions:
        raise ShapeError(f"{pixels.shape} does not fit {shape.positions - 1} patches of {shape.symbols} numbers")
    with session.part("embeddings"):
        table, places = weights["embeddings.weight"], weights["embeddings.positions"]
        top = image_top(shape, rules)
        ring = ring_width(PIXEL + table.fraction, top)
        product = session.linear(session.give(pixels.narrow(ring)), table, bound=top, precision=SUMMANDS)
        bits = int(product.fraction)
        values = None if places.values is None else places.values * 2.0**-places.fraction
        first, rest = (None, None) if values is None else (values[:1], values[1:])
        summed = product + session.private(SERVER, (patches, shape.hidden), bits, top, rest, product.width)
        begun = None if first is None else np.repeat(first[None], batch, axis=0)
        start = session.private(SERVER, (batch, 1, shape.hidden), bits, top, begun, product.width)
        return into_stream(concatenate([start, summed.bounded(top)], axis=-2), top)


def image_top(shape: EncoderShape, rules: EncoderRules) -> float:
    """‖v‖ of every row, to the end."""
    if rules.last is None:
        raise ShapeError("pre-normalised blocks end in a LayerNorm, which needs its rule")
    return stream_top(shape.hidden, rules.last)


def image_frame(session: Session, rules: EncoderRules, weights: Mapping[str, Weight]) -> Frame:
    """All images have as many patches: there is no padding."""
    return Frame(session, None, weights, rules.epsilon)


def see(
    session: Session, pixels: Share, shape: EncoderShape, rules: EncoderRules, weights: Mapping[str, Weight]
) -> Share:
    """The answers (`heads`) from pixels."""
    frame, top = image_frame(session, rules, weights), image_top(shape, rules)
    stream = embed_patches(session, pixels, shape, rules, weights)
    for block, own in zip(stream_blocks(shape), rules.layers, strict=True):
        with session.part(block.name):
            stream = block.run(frame, stream, own, top)
    with session.part("head"):
        assert rules.last is not None  # `image_top` has asked
        rows = normalised(frame, stream[:, :1], rules.last, rules.head.ring(shape.hidden))
        how, bits = (shape.head, shape.pooler, rules.head), rules.answer_bits
        return coarsened(session, respond(session, rows[:, 0], *how, weights, bits), bits)


def one_layer(
    session: Session, batch: int, shape: EncoderShape, rules: EncoderRules, weights: Mapping[str, Weight]
) -> Share:
    """A layer that stands for all of them, in a plan."""
    top, size = image_top(shape, rules), (batch, shape.positions, shape.hidden)
    stream = into_stream(session.private(CLIENT, size, STREAM, top), top)
    frame = image_frame(session, rules, weights)
    return stream_blocks(shape)[0].run(frame, stream, rules.layers[0], top)
