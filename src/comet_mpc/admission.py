"""Which programs a dealer deals for: read strictly, with sizes that can be, within what it is ready to spend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from comet_mpc.correlations import (
    BitProducts,
    ClientMask,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    SquareSums,
    WeightProduct,
    WeightScale,
    decode_correlations,
)
from comet_mpc.dealing import CHUNK, Dealing
from comet_mpc.errors import ForeignRandomness

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


def admit_program(data: bytes | bytearray, key: bytes, limits: ProgramLimits) -> Dealing:
    """A program from outside, ready to be dealt; `ForeignRandomness` if it is not one or asks for too much."""
    try:
        program = decode_correlations(bytes(data))
        for place, entry in enumerate(program):
            if any(not 1 <= size <= _LARGEST_SIZE for size in _sizes(entry)):
                raise ForeignRandomness(f"correlation {place} has a size that cannot be")
            if isinstance(entry, Monomials) and len(entry.terms) > _MOST_TERMS:
                raise ForeignRandomness(f"correlation {place} has more than {_MOST_TERMS} monomials")
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
