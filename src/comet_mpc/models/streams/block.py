"""Pre-normalised blocks: x + part(LayerNorm(x)), part by part, as in vision Transformers and in decoders.

What is added up is a *stream* of rows that no LayerNorm ever scales, so it is held as LayerNorm wants it from the first
block to the last: v = C(x)·d/2^k, C z = z - mean(z). LayerNorm sees nothing else of x. The server has centred the last
matrix of every part, and its bias, and multiplied them by d/2^k; and so is what the stream begins with. With RMSNorm
nothing is centred. γ and β are in the matrices that follow: W·(γ⊙n + β) + b = (W·diag(γ))·n + (W·β + b).

The stream grows by what the parts add, so its norm is bounded by a sum over the depth (not by a product). It keeps the
same fraction bits in one ring, from which the truncations before the openings are free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from comet_mpc.engine import Given, Weight
from comet_mpc.engine.parts import Block
from comet_mpc.engine.share import SERVER, Share, ring_width
from comet_mpc.functions.layer_norm import SUMMANDS, largest_norm, normalise
from comet_mpc.functions.rule import InverseRule
from comet_mpc.models.blocks import Frame, LayerRules, Part, Ready, Sizes, Total
from comet_mpc.models.heads import ROWS, WEIGHTS

STREAM = ROWS + WEIGHTS
"""Fraction bits of the stream: as many as any product that is added to it."""
_DEEPEST = 7  # bits: 128 parts may each be off by a little (`Session.matmul`)


@dataclass(frozen=True)
class Stream(Total):
    """The rows v that a part adds to.

    top  ‖v‖ of every row of the model, for every input
    """

    rows: Share
    top: float

    @property
    def ring(self) -> int:
        return ring_width(STREAM, self.top)

    @property
    def rows_ring(self) -> int:
        """What is normalised is not skipped to: no more than the part itself needs."""
        return 0

    def narrower(self, fraction: int, weight: Weight) -> int:
        return self.ring - (STREAM - fraction - weight.fraction)

    def skip(self, frame: Frame, rows: Given, gamma: str, bias: str) -> Ready:
        """v + b. There is no γ."""
        shift = frame.weights.get(bias)
        if shift is None:
            return Ready(self.rows)
        values = None if shift.values is None else shift.values * 2.0**-shift.fraction
        added = frame.session.private(SERVER, shift.shape, STREAM, self.top, values, self.rows.width)
        return Ready((self.rows + added).bounded(self.top))

    def linear(self, frame: Frame, rows: Given, matrix: str, bias: str) -> Ready:
        """v + M·n + b."""
        begun = self.skip(frame, rows, "", bias).share
        return Ready(self.with_product(frame, rows, matrix, begun))

    def with_product(self, frame: Frame, rows: Given, weight: str, skip: Share) -> Share:
        precision = SUMMANDS + _DEEPEST
        product = frame.session.linear(rows, frame.weights[weight], bound=self.top, precision=precision)
        return (product.lift(STREAM) + skip).bounded(self.top)


def into_stream(rows: Share, top: float) -> Share:
    """Rows v with at most `STREAM` fraction bits, as blocks take them. top: as in `Stream`"""
    lifted = rows.lift(STREAM)
    return lifted.narrow(min(lifted.width, ring_width(STREAM, top)))


@dataclass(frozen=True)
class PreNormBlock:
    """x -> x + part(LayerNorm(x)), part by part."""

    name: Block
    parts: tuple[Part, ...]

    @property
    def prefix(self) -> str:
        """Of its weights' names."""
        return f"{self.name.kind}.{self.name.index}."

    def weights(self) -> Sizes:
        """All its weights, by their whole names, in the order in which they are used."""
        return {self.prefix + name: size for part in self.parts for name, size in part.weights().items()}

    def run(self, frame: Frame, stream: Share, rules: LayerRules, top: float) -> Share:
        """The stream (batch, tokens, hidden) after the block, from that before it (`into_stream`).

        If its attention is that of the first tokens only, one row a text comes out, (batch, 1, hidden).
        rules.variances: of the LayerNorm before each part. top: as in `Stream`
        """
        for part, rule in zip(self.parts, rules.variances, strict=True):
            total = Stream(stream, top)
            rows = normalised(frame, stream, rule, part.ring(frame, rules, total, self.prefix))
            stream = part.run(frame, rows, rules, total, self.prefix)
        return stream


def normalised(frame: Frame, stream: Share, rule: InverseRule, width: int, hurried: bool = False) -> Share:
    """LayerNorm of the stream: rows with `ROWS` fraction bits in a ring of `width`, zero where they are padding.

    hurried: as in `functions.layer_norm.normalise`
    """
    top = largest_norm(stream.shape[-1], rule)
    bounded = stream.bounded(min(stream.bound, top))
    keep = frame.padding(rule)
    return normalise(
        frame.session, bounded, rule, epsilon=frame.epsilon, fraction=ROWS, width=width, keep=keep, hurried=hurried
    )


def stream_top(hidden: int, last: InverseRule) -> float:
    """‖v‖ of every row, if the last LayerNorm's interval holds the stream's end: it only grows."""
    return math.ceil(largest_norm(hidden, last))
