"""How matrix products are cut into polynomials for homomorphic encryption, and what that costs.

Matrix products pack a block of the client's factor into one polynomial and a block of the server's into another, such
that entries of the product are coefficients of theirs (Cheetah, Huang et al. 2022; Iron, Hao et al. 2022):

    x̂ = Σ x[i, j]·X^(i·D + K-1-j),   ŷ = Σ y[o, j]·X^(o·K + j),   (x·yᵀ)[i, o] = coefficient i·D + o·K + K-1 of x̂·ŷ

for blocks of 8192/D rows, K inputs and D/K outputs. ŷ has D coefficients only, which makes its transform cheap. Of a
product only every K-th coefficient is wanted, so with `packing.py` K of them are packed into one response. There

    x̂ = Σ x[i, j]·X^(i·D - j),   (x·yᵀ)[i, o] = coefficient i·D + (o mod D/K)·K + ⌊o·K/D⌋ of the packed product.

With D = K the client's polynomials have no gaps. Then they may as well be uniform everywhere and define x (`defined`):
a row's coefficients i·D-K+1 … i·D meet ŷ in coefficient i·D of that row's products only, those of rows beyond the last
one never meet a wanted coefficient, and those of inputs beyond the last one meet zeros of ŷ.

A vector of the server's that scales x element by element is a diagonal matrix. Its outputs come from the same upload,
and of every output block only the input blocks on the diagonal are multiplied.

Wide factors of the server's may be cut in parts, y = y_0 + 2^b·y_1 + …, each of which is multiplied with the same
upload: a product with a short factor has little noise, so it takes a smaller modulus, with room for keys to pack.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.engine.share import Words
from comet_mpc.errors import RangeError, ShapeError
from comet_mpc.offline.rlwe.packing import (
    MAX_LEVELS,
    MOST_LIMBS,
    Packing,
    most_turns,
    packed_scheme,
    packing_noise,
    turning_noise,
)
from comet_mpc.offline.rlwe.scheme import DEGREE, PRIMES, Residues, Scheme, choose_scheme, noise_variance

Integers = NDArray[np.int64]
Factor = NDArray[np.int64] | NDArray[np.int32]
"""The server's. A weight stays as narrow as it is held: only what is packed at a time becomes wider."""

_BYTES_PER_SECOND = 4e6
"""What a second of the server's time is worth on the wire, where block shapes are chosen.

Packing saves bytes and takes time. Since uploads are turned, that is little: a price of 2 MB or 10 MB instead of 4
makes no difference of more than 2 % in the bytes of BERT-base at 128 tokens."""
_STAGE, _MULTIPLY = 1.0e-6, 2.2e-6
"""Seconds for one prime: a stage of the transform of a short polynomial, a ciphertext's product with it."""
_SWITCH = 20e-6
"""Seconds for each of the transforms that a change of keys takes."""
_MOST_TURNED = 160 << 20
"""Bytes that turned uploads of one product may take."""


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
    diagonals: int = 0
    """Vectors of the server's that the same upload is scaled by, beside the product."""
    defines: bool = False
    """The client's factor is what its ciphertexts say."""
    diagonal: bool = False
    """The server's factor is a diagonal matrix."""
    packed_limbs: int | None = None
    """Primes of the modulus that responses are packed with, if fewer than the scheme's."""
    turns: int = 0
    """So many of the levels are done on the uploads, before they are multiplied."""
    turned_limbs: int = 0
    """Primes of the modulus that turned uploads are multiplied in, at most one more than the scheme's."""
    cuts: tuple[int, ...] = ()
    """Bits that the product, and every scaling, is truncated by later, if none of them has to be exact."""

    def sections(self) -> list[Tiling]:
        """The product, and every scaling as a product of its own, in the order of their answers."""
        cuts = self.cuts or (self.scheme.cut,) * (1 + self.diagonals)
        alone = [replace(self, diagonals=0, cuts=(), scheme=replace(self.scheme, cut=cut)) for cut in cuts]
        return [alone[0], *(replace(each, outputs=self.inputs, diagonal=True) for each in alone[1:])]

    @property
    def answer_scheme(self) -> Scheme:
        """Of responses: what the server keeps and sends is modulo its primes."""
        return self.scheme if self.packed_limbs is None else replace(self.scheme, limbs=self.packed_limbs)

    @property
    def turned_scheme(self) -> Scheme:
        """Of products of turned uploads."""
        return replace(self.scheme, limbs=self.turned_limbs)

    @property
    def key_limbs(self) -> int:
        """Primes that keys to pack and turn it must be made for."""
        return max(self.answer_scheme.limbs, self.turned_limbs) if self.levels else 0

    @property
    def turned_bytes(self) -> int:
        """Memory that the turned uploads take."""
        rows, inputs, _ = self.blocks
        return rows * inputs * self.turned_limbs * 8 * DEGREE << self.turns

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
        return SEED_BYTES + rows * inputs * (self.scheme.rest_bytes if self.defines else self.scheme.upload_bytes)

    @property
    def response_bytes(self) -> int:
        return sum(
            self.parts * math.prod(section.groups) * section.scheme.response_bytes for section in self.sections()
        )

    @property
    def seconds(self) -> float:
        """About how long the server computes, on one core."""
        seconds, ways = 0.0, 1 << self.turns
        limbs = self.turned_limbs if self.turns else self.scheme.limbs
        stages = (self.stride << (self.turns > 0)).bit_length() - 1
        for section in self.sections():
            r, i, o = section.blocks
            i = 1 if section.diagonal else i
            seconds += self.parts * limbs * i * o * (stages * _STAGE + r * _MULTIPLY)
            if self.levels:
                kept = self.answer_scheme.limbs
                seconds += self.parts * r * -(-o // ways) * kept * (kept + 3) * _SWITCH
        if self.turns:  # of what a way costs, transforms are two thirds
            rows, inputs, _ = self.blocks
            seconds += rows * inputs * (limbs * (limbs + 2) + (ways - 1) * 3 * (limbs + 1)) * _SWITCH
        return seconds

    @property
    def sent_bytes(self) -> int:
        """By both parties."""
        return self.upload_bytes + self.response_bytes

    @property
    def cost(self) -> float:
        """In bytes: those that are sent, and what the server's time is worth."""
        return self.sent_bytes + _BYTES_PER_SECOND * self.seconds

    @property
    def group_blocks(self) -> int:
        """Blocks of outputs that one response holds."""
        return 1 << self.levels

    @property
    def groups(self) -> tuple[int, int]:
        """Of output blocks that share a response, and blocks of rows."""
        rows, _, outputs = self.blocks
        return -(-outputs // self.group_blocks), rows

    def answers(self) -> list[tuple[int, int]]:
        """The responses (group of output blocks, block of rows) in order."""
        groups, rows = self.groups
        return [(g, r) for g in range(groups) for r in range(rows)]

    def met(self, first: int, last: int) -> slice:
        """The input blocks that output blocks first … last-1 depend on."""
        if not self.diagonal:
            return slice(0, self.blocks[1])
        outputs = min(self.outputs, last * self.block_outputs)
        return slice(first * self.block_outputs // self.block_inputs, -(-outputs // self.block_inputs))

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

    def cut(self, y: Factor) -> list[Factor]:
        """Parts y_k of a factor, |y_k| <= 2^(part_bits-1): y = Σ y_k·2^(k·part_bits), mod 2^64."""
        cut: list[Factor] = []
        for _ in range(self.parts - 1):
            y = y.astype(np.int64, copy=False)
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

    def unpack_left(self, polynomials: Words) -> Words:
        """The inverse of `pack_left`, whatever else the polynomials hold: (…, 8192) -> (rows, inputs)."""
        row_blocks, input_blocks, _ = self.blocks
        cut = self.block_inputs - 1
        if self.levels and cut:
            polynomials = np.concatenate([np.uint64(0) - polynomials[..., -cut:], polynomials[..., :-cut]], axis=-1)
        apart = polynomials.reshape(row_blocks, input_blocks, DEGREE // self.stride, self.stride)
        blocks = apart[:, :, : self.block_rows, : self.block_inputs][..., ::-1].transpose(0, 2, 1, 3)
        whole = blocks.reshape(row_blocks * self.block_rows, input_blocks * self.block_inputs)
        return np.ascontiguousarray(whole[: self.rows, : self.inputs])

    def pack_right(self, y: Factor, first: int, last: int) -> Integers:
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
def choose_tiling(
    rows: int,
    inputs: int,
    outputs: int,
    width: int,
    bits: int,
    packing: Packing = Packing.NONE,
    *,
    length: float | None = None,
    diagonals: int = 0,
    free: bool = False,
    cuts: tuple[int, ...] = (),
    key_limbs: int = MOST_LIMBS,
) -> Tiling:
    """The cheapest blocks for words mod 2^width times integers |y| <= 2^(bits-1), by bytes and server time.

    packing    which keys the server has to pack responses
    length     of a row of y, at most: Σ y² <= length²; without it all of a row may be as large as an entry
    diagonals  how many vectors scale the same factor of the client's
    free       whether the client's factor may be what its ciphertexts say
    cuts       bits that the product and every scaling are truncated by later; if one of them is 0, all are exact
    key_limbs  primes that the keys are made for
    """
    if min(rows, inputs, outputs) < 1:
        raise ShapeError(f"an empty product: ({rows}, {inputs})·({outputs}, {inputs})ᵀ")
    options: list[Tiling] = []
    cut = min(cuts, default=0)
    for stride in (2**k for k in range(1, 14)):
        plain = {min(2**k, inputs) for k in range(stride.bit_length())}
        packs = range(1, min(MAX_LEVELS, stride.bit_length() - 1) + 1) if packing else ()
        blocks = [*((size, 0) for size in plain), *((2**level, level) for level in packs)]
        for (block_inputs, levels), parts in itertools.product(blocks, (1,) if cut else (1, 2)):
            part_bits = -(-bits // parts)
            largest = 2.0 ** (part_bits - 1) + (parts > 1)  # a part above another may get its carry
            row = min(largest * math.sqrt(inputs), math.inf if length is None else length)
            norm = row * math.sqrt(stride // block_inputs)  # of all that meets in one output
            try:
                scheme = choose_scheme(width, norm, packing_noise(len(PRIMES), levels), cut)
            except RangeError:
                continue
            if levels and scheme.limbs == len(PRIMES):
                continue
            how = (parts, part_bits, diagonals, free and stride == block_inputs)
            fewer = packed_scheme(scheme, norm, levels).limbs if levels else None
            tiling = Tiling(rows, inputs, outputs, stride, block_inputs, scheme, levels, *how, packed_limbs=fewer)
            tiling = replace(tiling, cuts=cuts if cut else ())
            options.append(_shortened(tiling, norm))
            if packing >= Packing.TURNS:
                options += _turned(tiling, norm)
    options = [tiling for tiling in options if tiling.key_limbs <= key_limbs]
    if not options:
        raise RangeError(f"no modulus is large enough for words of {width} bits times integers of {bits}")
    best, least = options[0], math.inf
    for tiling in options:
        if tiling.sent_bytes < least and (cost := tiling.cost) < least:
            best, least = tiling, cost
    return best


def _turned(plain: Tiling, norm: float) -> Iterator[Tiling]:
    """The same with turned uploads. Their noise must fit into the modulus, or into one with a prime more."""
    if not plain.levels or plain.stride > DEGREE // 16:
        return
    scheme, levels = plain.scheme, plain.levels
    for turns in range(1, most_turns(levels) + 1):
        for limbs in range(scheme.limbs, min(scheme.limbs + 2, len(PRIMES))):
            scale = math.prod(PRIMES[scheme.limbs : limbs])
            variance = turning_noise(limbs, levels, norm) / scale**2
            try:
                on_top = packing_noise(len(PRIMES), levels) + variance
                fits = choose_scheme(scheme.plain_bits, norm, on_top, scheme.cut)
            except RangeError:
                continue
            if fits.limbs > scheme.limbs:
                continue
            fewer = packed_scheme(scheme, norm, levels, variance).limbs
            made = replace(plain, turns=turns, turned_limbs=limbs, packed_limbs=fewer)
            made = _shortened(made, norm, variance)
            if made.turned_bytes <= _MOST_TURNED:
                yield made
            break


def _shortened(tiling: Tiling, norm: float, variance: float = 0.0) -> Tiling:
    """The same without the low bits of rests for whose loss responses have room. variance: of turned uploads"""
    packed, scheme = tiling.answer_scheme, tiling.scheme
    if not (tiling.defines and scheme.cut):
        return tiling
    scale = 2.0 ** (packed.log_q - scheme.log_q)
    noise = noise_variance(scale * norm, scale**2 * variance + packing_noise(packed.limbs, tiling.levels))
    return replace(tiling, scheme=scheme.shortened(noise, scale * norm, packed.room))


def centred(words: Words, width: int) -> Integers:
    """Words mod 2^width as the integers nearest to zero."""
    shift = np.uint64(64 - width)
    return (words << shift).view(np.int64) >> np.int64(shift)
