"""Which programs a dealer deals for: read strictly, with sizes that can be, within what it is ready to spend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from comet_mpc.engine.correlations import (
    BitProducts,
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    SquareSums,
    TableTransfers,
    WeightProduct,
    WeightScale,
    correction_widths,
    decode_correlations,
)
from comet_mpc.engine.share import WORD
from comet_mpc.engine.tables import MOST_ENTRIES
from comet_mpc.errors import ForeignRandomness
from comet_mpc.offline.dealer.bundles import CHUNK, Dealing

__all__ = ["ProgramLimits", "admit_program"]

_LARGEST_SIZE = 1 << 40
_MOST_TERMS = (1 << 16) - 2  # each array of a correlation has its own stream of the seed: `dealing._stream`


@dataclass(frozen=True)
class ProgramLimits:
    """What a dealer spends on one program at most."""

    program_bytes: int = 1 << 24
    """Of its description."""
    correction_bytes: int = 1 << 36
    """They are streamed, so this bounds time, not memory."""
    held_words: int = 1 << 25
    """Of masks that must be in memory at once, a whole matrix for example."""


def _sizes(entry: Correlation) -> tuple[int, ...]:
    match entry:
        case Mask(shape=shape) | ClientMask(shape=shape) | Monomials(shape=shape):
            return shape
        case BitProducts(count=count):
            return (count,)
        case SquareSums(rows=rows, columns=columns):
            return rows, columns
        case MatrixProduct(batch=batch, m=m, k=k, n=n):
            return batch, m, k, n
        case WeightProduct(rows=rows, inputs=inputs, outputs=outputs):
            return rows, inputs, outputs
        case WeightScale(rows=rows, size=size):
            return rows, size
        case TableTransfers(count=count, entries=entries, sizes=sizes):
            return count, entries, *sizes


def _held(entry: Correlation, program: Sequence[Correlation]) -> int:
    """Words that `Dealing` holds at once for a correlation, beyond a few chunks."""
    match entry:
        case Monomials(masks=masks, shape=shape):
            shapes = [named.shape for index in masks if isinstance(named := program[index], Mask)]
            return sum(math.prod(own) for own in shapes if own != shape)
        case SquareSums(columns=columns):
            return columns
        case MatrixProduct(k=k, n=n):
            return k * n
        case WeightProduct(rows=rows, inputs=inputs):
            return rows * (inputs + max(1, CHUNK // inputs))
        case WeightScale(size=size):
            return size
        case _:
            return 0


def _check_references(correlations: Sequence[Correlation]) -> None:
    """Masks are named before they are used, and what is made of them has their size."""

    def mask(index: int, place: int, kind: type[Mask] | type[ClientMask], count: int | None = None) -> None:
        if not 0 <= index < place or not isinstance(correlations[index], kind):
            raise ForeignRandomness(f"correlation {place} refers to {index}, which is not a mask before it")
        named = correlations[index]
        assert isinstance(named, Mask | ClientMask)
        if count is not None and math.prod(named.shape) != count:
            raise ForeignRandomness(f"correlation {place} does not have the size of mask {index}")

    for place, entry in enumerate(correlations):
        widths = [width for _, width in correction_widths(entry)]
        if isinstance(entry, Mask | ClientMask):
            widths = [entry.width]
        if any(not 1 <= width <= WORD for width in widths) or any(c < 0 for c, _ in correction_widths(entry)):
            raise ForeignRandomness(f"correlation {place} has a ring width or size that cannot be")
        match entry:
            case Mask(width=width, shift=shift, out_width=out) if not (0 <= shift <= width - 2 and 1 <= out <= WORD):
                raise ForeignRandomness(f"correlation {place}: a mask of {width} bits cannot be shifted by {shift}")
            case Monomials(masks=masks, shape=shape, terms=terms):
                for index in masks:
                    mask(index, place, Mask)
                shapes = [entry.shape for i in masks if isinstance(entry := correlations[i], Mask)]
                if np.broadcast_shapes(*shapes) != shape or not terms:
                    raise ForeignRandomness(f"correlation {place}: the masks do not broadcast to its shape")
                if any(len(t.powers) != len(masks) or len(t.carries) != len(masks) for t in terms):
                    raise ForeignRandomness(f"correlation {place}: a monomial does not fit its masks")
                if any(p < 0 or p > 64 for t in terms for p in (*t.powers, *t.carries)):
                    raise ForeignRandomness(f"correlation {place}: a power is out of range")
            case SquareSums(mask=index, rows=rows, columns=columns):
                mask(index, place, Mask, rows * columns)
            case MatrixProduct(left=left, right=right, batch=batch, m=m, k=k, n=n):
                mask(left, place, Mask, batch * m * k)
                mask(right, place, Mask, batch * k * n)
            case WeightProduct(mask=index, rows=rows, inputs=inputs):
                mask(index, place, ClientMask, rows * inputs)
            case WeightScale(mask=index, rows=rows, size=size):
                mask(index, place, ClientMask, rows * size)
            case TableTransfers(entries=entries, sizes=sizes):
                if not 2 <= entries <= MOST_ENTRIES or entries & (entries - 1) or not 1 <= sum(sizes) <= WORD // 8:
                    raise ForeignRandomness(f"correlation {place} has tables that cannot be")


def admit_program(data: bytes | bytearray, key: bytes, limits: ProgramLimits) -> Dealing:
    """A program from outside, ready to be dealt; `ForeignRandomness` if it is not one or asks for too much."""
    try:
        program = decode_correlations(bytes(data))
        for place, entry in enumerate(program):
            if any(not 1 <= size <= _LARGEST_SIZE for size in _sizes(entry)):
                raise ForeignRandomness(f"correlation {place} has a size that cannot be")
            if isinstance(entry, Monomials) and len(entry.terms) > _MOST_TERMS:
                raise ForeignRandomness(f"correlation {place} has more than {_MOST_TERMS} monomials")
        _check_references(program)
        dealing = Dealing(program, key)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ForeignRandomness(f"the program cannot be read: {error}") from error
    if dealing.correction_bytes > limits.correction_bytes:
        raise ForeignRandomness(
            f"the program needs {dealing.correction_bytes} bytes of corrections, "
            f"this dealer allows {limits.correction_bytes}"
        )
    held = max((_held(entry, program) for entry in program), default=0)
    if held > limits.held_words:
        raise ForeignRandomness(
            f"the program needs {held} words in memory at once, this dealer allows {limits.held_words}"
        )
    return dealing
