"""Shares of products of what the client knows with what the server knows, by homomorphic encryption.

The client uploads encryptions of its factor, the server multiplies them by its own, adds a mask (minus which is its
share) and sends the masked product back. Nobody else is needed. The client learns its share and nothing else
(`lattice.py` says why), the server sees ciphertexts only.

Matrix products pack a block of the client's factor into one polynomial and a block of the server's into another, such
that entries of the product are coefficients of theirs (Cheetah, Huang et al. 2022; Iron, Hao et al. 2022):

    x̂ = Σ x[i, j]·X^(i·D + K-1-j),   ŷ = Σ y[o, j]·X^(o·K + j),   (x·yᵀ)[i, o] = coefficient i·D + o·K + K-1 of x̂·ŷ

for blocks of 8192/D rows, K inputs and D/K outputs. ŷ has D coefficients only, which makes its transform cheap.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from comet_mpc.channel import Channel
from comet_mpc.errors import PeerError, RangeError, ShapeError
from comet_mpc.lattice import (
    DEGREE,
    Bytes,
    PublicKey,
    Residues,
    Scheme,
    SecretKey,
    Stream,
    choose_scheme,
    multiply_short,
    read_uploads,
    respond,
    scale_words,
)
from comet_mpc.seeds import SEED_BYTES, new_seed
from comet_mpc.share import CLIENT, SERVER, Words

__all__ = ["Homomorphic", "Job", "MatrixJob", "Tiling", "centred", "choose_tiling", "matrix_products"]

Item = TypeVar("Item")
Made = TypeVar("Made")
Integers = NDArray[np.int64]

_BYTES_PER_SECOND = 1e7
"""What a second of the server's time is worth on the wire, where block shapes are chosen."""
_TRANSFORM, _MULTIPLY = 7e-6, 6e-6
"""Seconds for one prime: to transform a short polynomial, to multiply a ciphertext by it and add."""
_CHUNK = 8
"""Output blocks that a thread works on at a time: about 4 MB of sums."""


class Job(ABC):
    """One upload and its answer. Both sizes are known to both sides beforehand."""

    upload_bytes: int
    response_bytes: int

    @abstractmethod
    def upload(self, engine: Homomorphic) -> list[Bytes | bytes]:
        """Client: what is sent."""

    @abstractmethod
    def answer(self, engine: Homomorphic, data: memoryview) -> list[Bytes]:
        """Server: what is sent back; keeps its share."""

    @abstractmethod
    def finish(self, engine: Homomorphic, data: memoryview) -> None:
        """Client: keeps its share."""


class Homomorphic:
    """One party's side: keys, threads, and the conversation. Set-up costs the client's public key, 215 kB, once."""

    def __init__(self, channel: Channel, party: int, *, threads: int | None = None) -> None:
        self.channel = channel
        self.party = party
        self.threads = len(os.sched_getaffinity(0)) if threads is None else threads
        self.stream = Stream()
        self.noise = 0.0
        """Client: the largest noise seen so far, in steps between messages; decryption fails at ½."""
        if party == CLIENT:
            self._secret = SecretKey()
            _, sent = self._secret.public_key()
            channel.exchange([sent], 0)
        else:
            data = channel.exchange([], PublicKey.SIZE)
            with closing_on_fault(channel):
                self._public = PublicKey.decode(data)

    @property
    def secret(self) -> SecretKey:
        if self.party != CLIENT:
            raise ShapeError("only the client has the secret key")
        return self._secret

    @property
    def public(self) -> PublicKey:
        if self.party != SERVER:
            raise ShapeError("only the server uses the public key")
        return self._public

    def parallel(self, function: Callable[[Item], Made], items: Sequence[Item]) -> Iterable[Made]:
        """function over items, on all threads, in order."""
        if self.threads <= 1 or len(items) <= 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(function, items))

    def run(self, jobs: Sequence[Job]) -> None:
        """All jobs, one after the other; the next upload travels along with an answer. len(jobs) + 1 rounds."""
        if not jobs:
            return
        if self.party == CLIENT:
            self.channel.exchange(jobs[0].upload(self), 0)
            for job, after in zip(jobs, [*jobs[1:], None], strict=True):
                outgoing = after.upload(self) if after else []
                data = self.channel.exchange(outgoing, job.response_bytes)
                with closing_on_fault(self.channel):
                    job.finish(self, data)
        else:
            data = self.channel.exchange([], jobs[0].upload_bytes)
            for job, after in zip(jobs, [*jobs[1:], None], strict=True):
                with closing_on_fault(self.channel):
                    answer = job.answer(self, data)
                data = self.channel.exchange(answer, after.upload_bytes if after else 0)


class closing_on_fault:  # noqa: N801 (a statement, like contextlib's)
    """Closes the channel if what the peer sent turns out to be wrong: nothing can follow it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, PeerError):
            self._channel.close()


@dataclass(frozen=True)
class Tiling:
    """How a product (rows, inputs)·(outputs, inputs)ᵀ is cut into blocks, and how it is encrypted."""

    rows: int
    inputs: int
    outputs: int
    stride: int
    block_inputs: int
    scheme: Scheme

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
        return sum(self.scheme.response_bytes(self.positions(r, o).size) for o, r in self.answers())

    def answers(self) -> list[tuple[int, int]]:
        """The blocks (of outputs, of rows) in the order of the response."""
        rows, _, outputs = self.blocks
        return [(o, r) for o in range(outputs) for r in range(rows)]

    def extent(self, r: int, o: int) -> tuple[int, int]:
        """Rows and outputs of a block: fewer in the last one."""
        rows = min(self.block_rows, self.rows - r * self.block_rows)
        return rows, min(self.block_outputs, self.outputs - o * self.block_outputs)

    def positions(self, r: int, o: int) -> Residues:
        """The coefficients that hold a block of the product, row by row."""
        rows, outputs = self.extent(r, o)
        places = np.arange(rows)[:, None] * self.stride + np.arange(outputs) * self.block_inputs
        return (places + self.block_inputs - 1).astype(np.uint32).reshape(-1)

    def pack_left(self, x: Words) -> Words:
        """(rows, inputs) -> polynomials (row blocks, input blocks, 8192)."""
        row_blocks, input_blocks, _ = self.blocks
        padded = np.zeros((row_blocks * self.block_rows, input_blocks * self.block_inputs), np.uint64)
        padded[: self.rows, : self.inputs] = x
        blocks = padded.reshape(row_blocks, self.block_rows, input_blocks, self.block_inputs)
        out = np.zeros((row_blocks, input_blocks, DEGREE // self.stride, self.stride), np.uint64)
        out[:, :, : self.block_rows, : self.block_inputs] = blocks.transpose(0, 2, 1, 3)[..., ::-1]
        return out.reshape(row_blocks, input_blocks, DEGREE)

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
def choose_tiling(rows: int, inputs: int, outputs: int, width: int, bits: int) -> Tiling:
    """The cheapest blocks for words mod 2^width times integers |y| <= 2^(bits-1), by bytes and server time."""
    if min(rows, inputs, outputs) < 1:
        raise ShapeError(f"an empty product: ({rows}, {inputs})·({outputs}, {inputs})ᵀ")
    best: tuple[float, Tiling] | None = None
    for stride in (2**k for k in range(1, 14)):
        for block_inputs in {min(2**k, inputs) for k in range(stride.bit_length())}:
            per_output = stride // block_inputs * inputs  # coefficients of ŷ that meet in one output
            try:
                scheme = choose_scheme(width, 2.0 ** (bits - 1) * math.sqrt(per_output))
            except RangeError:
                continue
            tiling = Tiling(rows, inputs, outputs, stride, block_inputs, scheme)
            r, i, o = tiling.blocks
            sent = r * i * scheme.upload_bytes + r * o * scheme.response_bytes(tiling.block_rows)
            seconds = scheme.limbs * i * o * (_TRANSFORM + r * _MULTIPLY)
            cost = sent + _BYTES_PER_SECOND * seconds
            if best is None or cost < best[0]:
                best = cost, tiling
    if best is None:
        raise RangeError(f"no modulus is large enough for words of {width} bits times integers of {bits}")
    return best[1]


def centred(words: Words, width: int) -> Integers:
    """Words mod 2^width as the integers nearest to zero."""
    shift = np.uint64(64 - width)
    return (words << shift).view(np.int64) >> np.int64(shift)


class MatrixJob(Job):
    """x·yᵀ mod 2^width for the client's x (rows, inputs) and the server's integers y (outputs, inputs)."""

    def __init__(self, tiling: Tiling, width: int, *, x: Words | None = None, y: Integers | None = None) -> None:
        self.tiling, self.width = tiling, width
        self.upload_bytes, self.response_bytes = tiling.upload_bytes, tiling.response_bytes
        self._x, self._y = x, y
        self.share = np.empty((tiling.rows, tiling.outputs), np.uint64)
        """This party's share afterwards; bits above `width` are not specified."""

    def upload(self, engine: Homomorphic) -> list[Bytes | bytes]:
        assert self._x is not None
        seed = new_seed()
        polynomials = self.tiling.pack_left(self._x).reshape(-1, DEGREE)
        scheme, width = self.tiling.scheme, self.width

        def one(index: int) -> Bytes:
            return engine.secret.encrypt_words(scheme, polynomials[index], width, seed, index)

        self._x = None
        return [seed, *engine.parallel(one, range(len(polynomials)))]

    def answer(self, engine: Homomorphic, data: memoryview) -> list[Bytes]:
        assert self._y is not None
        tiling, y = self.tiling, self._y
        row_blocks, input_blocks, output_blocks = tiling.blocks
        uploads = np.stack(read_uploads([tiling.scheme] * (row_blocks * input_blocks), data))
        left = uploads.reshape(row_blocks, input_blocks, *uploads.shape[1:])

        def some(first: int) -> list[Bytes]:
            last = min(output_blocks, first + _CHUNK)
            sums = multiply_short(tiling.scheme, left, tiling.pack_right(y, first, last))
            return [
                self._respond(engine, sums[o - first, r], r, o) for o in range(first, last) for r in range(row_blocks)
            ]

        answers = engine.parallel(some, range(0, output_blocks, _CHUNK))
        self._y = None
        return [response for part in answers for response in part]

    def _respond(self, engine: Homomorphic, ciphertext: Residues, r: int, o: int) -> Bytes:
        positions = self.tiling.positions(r, o)
        masks = engine.stream.words(positions.size)
        self._keep(r, o, np.uint64(0) - masks)
        scaled = scale_words(self.tiling.scheme, masks, self.width)
        return respond(self.tiling.scheme, ciphertext, engine.public, scaled, positions, engine.stream)

    def _keep(self, r: int, o: int, words: Words) -> None:
        rows, outputs = self.tiling.extent(r, o)
        row, output = r * self.tiling.block_rows, o * self.tiling.block_outputs
        self.share[row : row + rows, output : output + outputs] = words.reshape(rows, outputs)

    def finish(self, engine: Homomorphic, data: memoryview) -> None:
        received, place = np.frombuffer(data, np.uint8), 0
        for o, r in self.tiling.answers():
            positions = self.tiling.positions(r, o)
            size = self.tiling.scheme.response_bytes(positions.size)
            response = received[place : place + size]
            words, noise = engine.secret.decrypt_words(self.tiling.scheme, response, positions, self.width)
            engine.noise = max(engine.noise, noise)
            self._keep(r, o, words)
            place += size


def matrix_products(
    engine: Homomorphic,
    shape: tuple[int, int, int],
    width: int,
    bits: int,
    *,
    batch: int = 1,
    x: Words | None = None,
    y: Integers | None = None,
) -> Words:
    """Shares of x·yᵀ mod 2^width, (batch, rows, outputs), for shape = (rows, inputs, outputs).

    The client gives x (batch, rows, inputs), the server integers y (batch, outputs, inputs) with |y| <= 2^(bits-1), a
    public bound. batch + 1 rounds. Reveals nothing.
    """
    rows, inputs, outputs = shape
    if engine.party == CLIENT:
        if x is None or x.shape != (batch, rows, inputs):
            raise ShapeError(f"the client's factor is not of shape {(batch, rows, inputs)}")
    elif y is None or y.shape != (batch, outputs, inputs):
        raise ShapeError(f"the server's factor is not of shape {(batch, outputs, inputs)}")
    elif y.size and max(-int(y.min()), int(y.max())) > 2 ** (bits - 1):
        raise RangeError(f"a factor of the server's exceeds the public bound of {bits} bits")
    tiling = choose_tiling(rows, inputs, outputs, width, bits)
    jobs = [
        MatrixJob(tiling, width, x=None if x is None else x[b], y=None if y is None else y[b]) for b in range(batch)
    ]
    engine.run(jobs)
    return np.stack([job.share for job in jobs])
