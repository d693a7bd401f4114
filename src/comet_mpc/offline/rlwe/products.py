"""Shares of products of what the client knows with what the server knows, by homomorphic encryption.

The client uploads encryptions of its factor, the server multiplies them by its own, keeps one half of the product's
ciphertext and sends the other. Nobody else is needed. The client learns its share and nothing else, whatever it has
uploaded (`scheme` says why); the server sees ciphertexts only.
"""

from __future__ import annotations

import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import cast

import numpy as np

from comet_mpc.engine.seeds import SEED_BYTES, new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import PeerError, RangeError, ShapeError
from comet_mpc.net.channel import Channel
from comet_mpc.offline.allocation import give_back
from comet_mpc.offline.rlwe.defined import define_words, read_defined, until_even
from comet_mpc.offline.rlwe.packing import MOST_LIMBS, Packing, PackingKeys, multiply_turned, packing_keys
from comet_mpc.offline.rlwe.public_key import PublicKey, common_seed, make_public_key, respond, upload_seed
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    Bytes,
    Residues,
    SecretKey,
    Stream,
    by_rows,
    multiply_short,
    read_uploads,
    round_words,
)
from comet_mpc.offline.rlwe.tiling import Factor, Tiling, choose_tiling
from comet_mpc.offline.streaming import Request, Sizes, Work, converse
from comet_mpc.processors import cores
from comet_mpc.threads import Item, Made, in_order

_MESSAGE = 1 << 21
"""Bytes of small uploads that travel together: a round for each would take longer than they do."""
_CHUNK = 8
"""Output blocks that a thread works on at a time, unless it packs them: about 4 MB of sums."""


class Job(ABC):
    """One upload and its answer. Both sizes are known to both sides beforehand."""

    upload_bytes: int
    response_bytes: int

    def drawn_seed(self) -> bytes:
        """Client: the seed that it sends with this upload, and with no other."""
        return new_seed()

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
    """One party's side of a connection: keys, threads, and the conversation.

    Set-up: seeds, and a public key with its proof, 1.5 MB.
    """

    def __init__(self, channel: Channel, party: int, *, threads: int | None = None) -> None:
        self.channel = channel
        self.party = party
        self.threads = cores() if threads is None else threads
        self.stream = Stream()
        self.packing = Packing.NONE
        """How responses of matrix products can be packed."""
        own = new_seed()
        theirs = channel.exchange([own], len(own)).tobytes()
        self._common = common_seed(own, theirs) if party == CLIENT else common_seed(theirs, own)
        if party == CLIENT:
            self._secret = SecretKey()
            channel.exchange([make_public_key(self._secret, self._common)], 0)
        else:
            data = channel.exchange([], PublicKey.SIZE)
            with closing_on_fault(channel):
                self._public = PublicKey.decode(data, self._common)

    def set_up_packing(self, packing: Packing = Packing.TURNS, limbs: int = MOST_LIMBS) -> None:
        """The client's keys for packed responses of so many primes, unless there are keys."""
        if self.packing >= packing:
            return
        if self.party == CLIENT:
            sent = new_seed()
            self.channel.exchange([sent, *packing_keys(self._secret, packing, self.public_seed(sent), limbs)], 0)
        else:
            data = self.channel.exchange([], packing.bytes_for(limbs))
            with closing_on_fault(self.channel):
                self._packing_keys = PackingKeys(*self.read_seed(data), packing, limbs)
        self.packing = packing

    def public_seed(self, sent: bytes) -> bytes:
        """Of an upload, from what the client has drawn for it."""
        return upload_seed(self._common, sent)

    def read_seed(self, upload: memoryview) -> tuple[bytes, memoryview]:
        """An upload's public seed, and what comes after what was sent for it."""
        return self.public_seed(bytes(upload[:SEED_BYTES])), upload[SEED_BYTES:]

    @property
    def packing_keys(self) -> PackingKeys:
        if self.party != SERVER or not self.packing:
            raise ShapeError("keys to pack responses are the server's, and must be set up")
        return self._packing_keys

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

    def parallel(self, function: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """function over items, on all threads, in order."""
        return list(in_order(function, items, self.threads))

    def side_by_side(self, function: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """The same, if there are enough items for all threads; else one by one, each of which uses all of them."""
        return list(in_order(function, items, self.threads if len(items) >= self.threads else 1))

    def requests(self, jobs: Sequence[Job]) -> list[Request]:
        """All jobs, small ones in one message (`together`)."""
        return [_Together(self, jobs[part]) for part in together([job.upload_bytes for job in jobs])]

    def run(self, jobs: Sequence[Job]) -> None:
        """All jobs, and nothing else meanwhile. Rounds: 2, unless they exceed the window of `streaming`."""
        converse(self.channel, self.party, [Work(iter([self.requests(jobs)]))])


def together(sizes: Sequence[int]) -> list[slice]:
    """Which uploads of these sizes travel in one message: as many as make up a few megabytes."""
    parts: list[slice] = []
    start = size = 0
    for place, more in enumerate(sizes):
        if place > start and size + more > _MESSAGE:
            parts.append(slice(start, place))
            start, size = place, 0
        size += more
    return [*parts, slice(start, len(sizes))] if sizes else []


def run_sizes(sizes: Sequence[tuple[int, int]]) -> list[Sizes]:
    """Of `Homomorphic.requests` of jobs with these uploads and responses."""
    return [
        Sizes(CLIENT, *(sum(column) for column in zip(*sizes[part], strict=True)))
        for part in together([upload for upload, _ in sizes])
    ]


class _Together(Request):
    """Several jobs in one message each way."""

    def __init__(self, engine: Homomorphic, jobs: Sequence[Job]) -> None:
        self._engine, self._jobs = engine, jobs
        self._sizes = Sizes(CLIENT, sum(job.upload_bytes for job in jobs), sum(job.response_bytes for job in jobs))

    @property
    def sizes(self) -> Sizes:
        return self._sizes

    def ask(self) -> list[Bytes | bytes]:
        engine = self._engine
        return list(chain.from_iterable(engine.side_by_side(lambda job: job.upload(engine), self._jobs)))

    def answer(self, question: memoryview) -> list[Bytes]:
        engine, given = self._engine, self._cut(question, [job.upload_bytes for job in self._jobs])
        answers = engine.side_by_side(lambda one: one[0].answer(engine, one[1]), given)
        give_back()  # what this took is many times what stays of it
        return list(chain.from_iterable(answers))

    def finish(self, answer: memoryview) -> None:
        engine, given = self._engine, self._cut(answer, [job.response_bytes for job in self._jobs])
        engine.side_by_side(lambda one: one[0].finish(engine, one[1]), given)

    def _cut(self, data: memoryview, sizes: Sequence[int]) -> list[tuple[Job, memoryview]]:
        """What is each job's of a message."""
        ends = list(accumulate(sizes))
        return [(job, data[end - size : end]) for job, size, end in zip(self._jobs, sizes, ends, strict=True)]


class closing_on_fault:  # noqa: N801 (a statement, like contextlib's)
    """Closes the channel if what the peer sent turns out to be wrong: nothing can follow it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, PeerError):
            self._channel.close()


class MatrixJob(Job):
    """x·yᵀ mod 2^width for the client's x (rows, inputs) and the server's integers y (outputs, inputs).

    And x ⊙ z for every vector z of the server's that the tiling provides for. Of a tiling that defines x the client
    gives none, and finds it here afterwards.
    """

    def __init__(
        self,
        tiling: Tiling,
        width: int,
        *,
        x: Words | None = None,
        y: Factor | Callable[[], Factor] | None = None,
        scales: Sequence[Factor] = (),
    ) -> None:
        """y: itself, or what makes it when it is needed: a job may wait for a while, and weights are large"""
        self.tiling, self.width = tiling, width
        self.x = np.empty(0, np.uint64) if x is None else x
        """The client's factor, afterwards also where its ciphertexts define it."""
        self.upload_bytes, self.response_bytes = tiling.upload_bytes, tiling.response_bytes
        self._y, self._scales = y, scales
        self._adding = threading.Lock()
        self.shares = [np.zeros((part.rows, part.outputs), np.uint64) for part in tiling.sections()]
        """This party's shares afterwards, of the product and of every scaling; bits above `width` are not specified."""

    @property
    def share(self) -> Words:
        """Of the product."""
        return self.shares[0]

    def upload(self, engine: Homomorphic) -> list[Bytes | bytes]:
        tiling, width = self.tiling, self.width
        if tiling.defines:
            return until_even(lambda: self._defined(engine))
        sent = self.drawn_seed()
        seed = engine.public_seed(sent)
        polynomials = tiling.pack_left(self.x).reshape(-1, DEGREE)

        def one(index: int) -> Bytes:
            return engine.secret.encrypt_words(tiling.scheme, polynomials[index], width, seed, index)

        return [sent, *engine.parallel(one, range(len(polynomials)))]

    def _defined(self, engine: Homomorphic) -> list[Bytes | bytes]:
        """An upload that defines x."""
        sent, tiling, width = self.drawn_seed(), self.tiling, self.width
        seed = engine.public_seed(sent)
        row_blocks, input_blocks, _ = tiling.blocks

        def one(index: int) -> tuple[Words, Bytes]:
            return define_words(engine.secret, tiling.scheme, width, seed, index)

        made = engine.parallel(one, range(row_blocks * input_blocks))
        self.x = tiling.unpack_left(np.stack([words for words, _ in made])) & np.uint64(2**width - 1)
        return [sent, *(rest for _, rest in made)]

    def answer(self, engine: Homomorphic, data: memoryview) -> list[Bytes]:
        assert self._y is not None
        right: list[Factor] = [self._y() if callable(self._y) else self._y]
        right += [cast("Factor", np.diag(scale)) for scale in self._scales]
        tiling, scheme, row_blocks = self.tiling, self.tiling.scheme, self.tiling.blocks[0]
        left = self._left(engine, data)
        parts = [section.cut(y) for section, y in zip(tiling.sections(), right, strict=True)]
        group, made = tiling.group_blocks, tiling.turned_scheme if tiling.turns else scheme
        chunk = group if tiling.levels else _CHUNK

        def some(task: tuple[int, int, int]) -> list[Bytes]:
            number, part, first = task
            section = tiling.sections()[number]
            last = min(section.blocks[2], first + chunk)
            met = section.met(first, last)
            right = section.pack_right(parts[number][part], first, last)[:, met]
            some_left = np.ascontiguousarray(left[:, :, :, met])
            if tiling.turns:
                sums = multiply_turned(made, some_left, right, tiling.levels, plain_limbs=scheme.limbs)
            else:
                sums = multiply_short(scheme, some_left, right, group)
            if tiling.levels:
                rows = sums if tiling.turns else np.moveaxis(sums, 1, 0)
                merges = tiling.levels - tiling.turns
                whole = [
                    engine.packing_keys.pack(made, tiling.answer_scheme, np.ascontiguousarray(row), merges)
                    for row in rows
                ]
                return [self._respond(engine, row, number, part, r, first // group) for r, row in enumerate(whole)]
            return [
                self._respond(engine, sums[o - first, r], number, part, r, o)
                for o in range(first, last)
                for r in range(row_blocks)
            ]

        tasks = [
            (number, part, first)
            for number, section in enumerate(tiling.sections())
            for part in range(tiling.parts)
            for first in range(0, section.blocks[2], chunk)
        ]
        answers = engine.parallel(some, tasks)
        self._y = None
        return [response for some_answers in answers for response in some_answers]

    def _left(self, engine: Homomorphic, data: memoryview) -> Residues:
        """Uploads as they are multiplied: (row blocks, limbs, 1024 rows, input blocks, …), or turned ones."""
        tiling = self.tiling
        row_blocks, input_blocks, _ = tiling.blocks
        count, (seed, packed) = row_blocks * input_blocks, engine.read_seed(data)
        if tiling.defines:
            uploads = read_defined(tiling.scheme, self.width, count, seed, packed)
        else:
            uploads = read_uploads([tiling.scheme] * count, seed, packed)
        if not tiling.turns:
            return by_rows(np.stack(uploads).reshape(row_blocks, input_blocks, *uploads[0].shape))
        rows = [uploads[r * input_blocks : (r + 1) * input_blocks] for r in range(row_blocks)]
        return engine.packing_keys.turn(
            tiling.scheme, tiling.turned_scheme, rows, tiling.levels, tiling.turns, parallel=engine.parallel
        )

    def _respond(self, engine: Homomorphic, ciphertext: Residues, number: int, part: int, r: int, g: int) -> Bytes:
        positions = self.tiling.sections()[number].positions(r, g)
        scheme = self.tiling.sections()[number].answer_scheme
        sent, kept = respond(scheme, ciphertext, engine.public, positions, engine.stream)
        self._add(number, part, r, g, round_words(kept, self.width))
        return sent

    def _add(self, number: int, part: int, r: int, g: int, words: Words) -> None:
        section = self.tiling.sections()[number]
        shifted = words.reshape(section.extent(r, g)) << np.uint64(part * section.part_bits)
        with self._adding:
            self.shares[number][section.place(r, g)] += shifted

    def finish(self, engine: Homomorphic, data: memoryview) -> None:
        received, start = np.frombuffer(data, np.uint8), 0
        for number, section in enumerate(self.tiling.sections()):
            scheme = section.answer_scheme
            for part, (g, r) in itertools.product(range(self.tiling.parts), section.answers()):
                response = received[start : (start := start + scheme.response_bytes)]
                phases = engine.secret.phase(scheme, response, section.positions(r, g))
                self._add(number, part, r, g, round_words(phases, self.width))


def check_bits(y: Factor, bits: int) -> None:
    """Refuses factors of the server's for which the modulus was not chosen."""
    if y.size and max(-int(y.min()), int(y.max())) > 2 ** (bits - 1):
        raise RangeError(
            f"a factor of the server's exceeds the public bound of {bits} bits: give it fewer fraction bits"
        )


def check_lengths(y: Factor, length: float) -> None:
    """The same for rows of which the length is bounded."""
    squares = np.einsum("...i,...i->...", y, y, dtype=np.float64)  # without a copy of y
    if y.size and math.sqrt(squares.max()) > length:
        raise RangeError(
            f"a row of a weight of the server's is longer than the public bound of 2^{math.log2(length):.0f}: give the "
            "weight fewer fraction bits"
        )


def matrix_products(
    engine: Homomorphic,
    shape: tuple[int, int, int],
    width: int,
    bits: int,
    *,
    batch: int = 1,
    x: Words | None = None,
    y: Factor | None = None,
) -> Words:
    """Shares of x·yᵀ mod 2^width, (batch, rows, outputs), for shape = (rows, inputs, outputs).

    The client gives x (batch, rows, inputs), the server integers y (batch, outputs, inputs) with |y| <= 2^(bits-1), a
    public bound. As many rounds as `Homomorphic.run`. Reveals nothing.
    """
    if engine.party == SERVER and y is not None:
        check_bits(y, bits)
    tiling = choose_tiling(*shape, width, bits, engine.packing)
    return np.stack([job.share for job in run_products(engine, tiling, width, batch=batch, x=x, y=y)])


def run_products(
    engine: Homomorphic,
    tiling: Tiling,
    width: int,
    *,
    batch: int = 1,
    x: Words | None = None,
    y: Factor | None = None,
    scales: Sequence[Factor] = (),
) -> list[MatrixJob]:
    """The jobs of `product_jobs`, done. As many rounds as `Homomorphic.run`. Reveals nothing."""
    jobs = product_jobs(engine.party, tiling, width, batch=batch, x=x, y=y, scales=scales)
    engine.run(jobs)
    return jobs


def product_jobs(
    party: int,
    tiling: Tiling,
    width: int,
    *,
    batch: int = 1,
    x: Words | None = None,
    y: Factor | Callable[[], Factor] | None = None,
    scales: Sequence[Factor] = (),
) -> list[MatrixJob]:
    """A batch of products as the tiling says. The server's factors are within its public bounds.

    y: all of them, or what makes the one of a batch of one when it is needed
    """
    rows, inputs, outputs = tiling.rows, tiling.inputs, tiling.outputs
    if party == CLIENT:
        if (x is None) != tiling.defines or (x is not None and x.shape != (batch, rows, inputs)):
            raise ShapeError(f"the client's factor is not of shape {(batch, rows, inputs)}")
    elif callable(y):
        if batch != 1 or len(scales) != tiling.diagonals:
            raise ShapeError("a factor that is made when it is needed is that of a batch of one")
        return [MatrixJob(tiling, width, y=y, scales=scales)]
    elif y is None or y.shape != (batch, outputs, inputs) or len(scales) != tiling.diagonals:
        raise ShapeError(f"the server's factor is not of shape {(batch, outputs, inputs)}")
    assert not callable(y)
    return [
        MatrixJob(tiling, width, x=None if x is None else x[b], y=None if y is None else y[b], scales=scales)
        for b in range(batch)
    ]
