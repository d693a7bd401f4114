"""How matrix products are cut into polynomials for homomorphic encryption, and what that costs.

Matrix products pack a block of the client's factor into one polynomial and a block of the server's into another, such
that entries of the product are coefficients of theirs (Cheetah, Huang et al. 2022; Iron, Hao et al. 2022):

    x̂ = Σ x[i, j]·X^(i·D + K-1-j),   ŷ = Σ y[o, j]·X^(o·K + j),   (x·yᵀ)[i, o] = coefficient i·D + o·K + K-1 of x̂·ŷ

for blocks of 8192/D rows, K inputs and D/K outputs. ŷ has D coefficients only, which makes its transform cheap. Of a
product only every K-th coefficient is wanted, so with `packing.py` K of them are packed into one response. There

    x̂ = Σ x[i, j]·X^(i·D - j),   (x·yᵀ)[i, o] = coefficient i·D + (o mod D/K)·K + ⌊o·K/D⌋ of the packed product.

Wide factors of the server's may be cut in parts, y = y_0 + 2^b·y_1 + …, each of which is multiplied with the same
upload: a product with a short factor has little noise, so it takes a smaller modulus, with room for keys to pack.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.engine.share import Words
from comet_mpc.errors import RangeError, ShapeError
from comet_mpc.offline.rlwe.packing import MAX_LEVELS, packing_noise
from comet_mpc.offline.rlwe.scheme import DEGREE, PRIMES, Residues, Scheme, choose_scheme

__all__ = ["Integers", "Tiling", "centred", "choose_tiling"]

Integers = NDArray[np.int64]

_BYTES_PER_SECOND = 1e7
"""What a second of the server's time is worth on the wire, where block shapes are chosen."""
_TRANSFORM, _MULTIPLY = 5.5e-6, 2.5e-6
"""Seconds for one prime: to transform a short polynomial, to multiply a ciphertext by it and add."""
_SWITCH = 20e-6
"""Seconds to change a key, for each of L·(L + 3) transforms."""


@dataclass(frozen=True)
class Tiling:
    """How a product (rows, inputs)·(outputs, inputs)ᵀ is cut into blocks, and how it is encrypted."""

    rows: int
    inputs: int
    outputs: int
    stride: int
    block_inputs: int
    scheme: Scheme
    levels: int = 0
    """Packed if above 0; then block_inputs = 2^levels."""
    parts: int = 1
    part_bits: int = 0
    """The server's factor is cut into so many parts of so many bits."""

    @property
    def block_rows(self) -> int:
        return min(self.rows, DEGREE // self.stride)

    @property
    def block_outputs(self) -> int:
        return self.stride // self.block_inputs

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Of rows, inputs and outputs."""
        return (
            -(-self.rows // self.block_rows),
            -(-self.inputs // self.block_inputs),
            -(-self.outputs // self.block_outputs),
        )

    @property
    def upload_bytes(self) -> int:
        rows, inputs, _ = self.blocks
        return SEED_BYTES + rows * inputs * self.scheme.upload_bytes

    @property
    def response_bytes(self) -> int:
        return self.parts * len(self.answers()) * self.scheme.response_bytes

    @property
    def group_blocks(self) -> int:
        """Blocks of outputs that one response holds."""
        return 1 << self.levels

    def answers(self) -> list[tuple[int, int]]:
        """The responses (group of output blocks, block of rows) in order."""
        rows, _, outputs = self.blocks
        return [(g, r) for g in range(-(-outputs // self.group_blocks)) for r in range(rows)]

    def extent(self, r: int, g: int) -> tuple[int, int]:
        """Rows and outputs of a response: fewer in the last one."""
        rows = min(self.block_rows, self.rows - r * self.block_rows)
        size = self.group_blocks * self.block_outputs
        return rows, min(size, self.outputs - g * size)

    def place(self, r: int, g: int) -> tuple[slice, slice]:
        """Where a response belongs in the product."""
        rows, outputs = self.extent(r, g)
        row, output = r * self.block_rows, g * self.group_blocks * self.block_outputs
        return slice(row, row + rows), slice(output, output + outputs)

    def positions(self, r: int, g: int) -> Residues:
        """The coefficients that hold a part of the product, row by row."""
        rows, outputs = self.extent(r, g)
        o, k = np.arange(outputs), self.block_inputs
        columns = o % self.block_outputs * k + o // self.block_outputs if self.levels else o * k + k - 1
        return (np.arange(rows)[:, None] * self.stride + columns).astype(np.uint32).reshape(-1)

    def cut(self, y: Integers) -> list[Integers]:
        """Parts y_k of a factor, |y_k| <= 2^(part_bits-1): y = Σ y_k·2^(k·part_bits), mod 2^64."""
        cut = []
        for _ in range(self.parts - 1):
            low = centred(y.view(np.uint64), self.part_bits)
            cut.append(low)
            y = (y - low) >> np.int64(self.part_bits)
        return [*cut, y]

    def pack_left(self, x: Words) -> Words:
        """(rows, inputs) -> polynomials (row blocks, input blocks, 8192)."""
        row_blocks, input_blocks, _ = self.blocks
        padded = np.zeros((row_blocks * self.block_rows, input_blocks * self.block_inputs), np.uint64)
        padded[: self.rows, : self.inputs] = x
        blocks = padded.reshape(row_blocks, self.block_rows, input_blocks, self.block_inputs)
        out = np.zeros((row_blocks, input_blocks, DEGREE // self.stride, self.stride), np.uint64)
        out[:, :, : self.block_rows, : self.block_inputs] = blocks.transpose(0, 2, 1, 3)[..., ::-1]
        polynomials = out.reshape(row_blocks, input_blocks, DEGREE)
        if not self.levels:
            return polynomials
        cut = self.block_inputs - 1  # times X^-cut
        return np.concatenate([polynomials[..., cut:], np.uint64(0) - polynomials[..., :cut]], axis=-1)

    def pack_right(self, y: Integers, first: int, last: int) -> Integers:
        """(outputs, inputs) -> short polynomials (output blocks first … last-1, input blocks, stride)."""
        input_blocks, size = self.blocks[1], self.block_outputs
        padded = np.zeros(((last - first) * size, input_blocks * self.block_inputs), np.int64)
        part = y[first * size : last * size]
        padded[: part.shape[0], : self.inputs] = part
        blocks = padded.reshape(last - first, size, input_blocks, self.block_inputs).transpose(0, 2, 1, 3)
        out = np.zeros((last - first, input_blocks, self.stride), np.int64)
        out[..., : size * self.block_inputs] = blocks.reshape(last - first, input_blocks, -1)
        return out


@lru_cache(maxsize=256)
def choose_tiling(rows: int, inputs: int, outputs: int, width: int, bits: int, packed: bool = False) -> Tiling:
    """The cheapest blocks for words mod 2^width times integers |y| <= 2^(bits-1), by bytes and server time.

    packed: whether the server has keys to pack responses.
    """
    if min(rows, inputs, outputs) < 1:
        raise ShapeError(f"an empty product: ({rows}, {inputs})·({outputs}, {inputs})ᵀ")
    options = []
    for stride in (2**k for k in range(1, 14)):
        plain = {min(2**k, inputs) for k in range(stride.bit_length())}
        packs = range(1, min(MAX_LEVELS, stride.bit_length() - 1) + 1) if packed else ()
        blocks = [*((size, 0) for size in plain), *((2**level, level) for level in packs)]
        for (block_inputs, levels), parts in itertools.product(blocks, (1, 2)):
            part_bits = -(-bits // parts)
            largest = 2.0 ** (part_bits - 1) + (parts > 1)  # a part above another may get its carry
            norm = largest * math.sqrt(stride // block_inputs * inputs)  # of all that meets in one output
            try:
                scheme = choose_scheme(width, norm, packing_noise(len(PRIMES), levels))
            except RangeError:
                continue
            if not levels or scheme.limbs < len(PRIMES):
                options.append(Tiling(rows, inputs, outputs, stride, block_inputs, scheme, levels, parts, part_bits))
    if not options:
        raise RangeError(f"no modulus is large enough for words of {width} bits times integers of {bits}")
    return min(options, key=_cost)


def _cost(tiling: Tiling) -> float:
    r, i, o = tiling.blocks
    scheme, limbs = tiling.scheme, tiling.scheme.limbs
    seconds = limbs * i * o * (_TRANSFORM + r * _MULTIPLY)
    if tiling.levels:
        seconds += r * o * limbs * (limbs + 3) * _SWITCH
    responses = r * -(-o // tiling.group_blocks) * scheme.response_bytes
    return r * i * scheme.upload_bytes + tiling.parts * (responses + _BYTES_PER_SECOND * seconds)


def centred(words: Words, width: int) -> Integers:
    """Words mod 2^width as the integers nearest to zero."""
    shift = np.uint64(64 - width)
    return (words << shift).view(np.int64) >> np.int64(shift)
