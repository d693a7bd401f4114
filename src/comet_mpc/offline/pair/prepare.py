"""Correlated randomness without a third party: the two parties prepare it between themselves.

Every correlation of a program becomes products of what the client knows with what the server knows:

    Mask, ClientMask    each party's part from a seed of its own, nothing is sent; but what a matrix product's uploads
                        define is the client's part, and is stored
    BitProducts         oblivious transfer
    TableTransfers      the same, log2 of a table's entries each
    WeightProduct       homomorphic matrix product of the client's mask with the server's weight itself
    WeightScale         more outputs of the product of the same mask; without one, element by element
    MatrixProduct       (A_c + A_s)·(B_c + B_s): two of the four products are crossed, one party's with the other's
    Monomials           Π (a_c + a_s)^p = Σ C(p, j)·(a_c^j)·(a_s^(p-j)): uploads are shared between monomials
    SquareSums          2·Σ a_c·a_s

Monomials and sums of squares in odd rings share uploads, some of which define masks (`elements`).
Correlations of one kind are prepared together, so that small tensors share ciphertexts. The order follows from the
program alone. Nothing is handed out before everything is prepared. Reveals nothing: every step says so for itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from comet_mpc.engine import Weight, kernels
from comet_mpc.engine.correlations import (
    AnyMask,
    BitProducts,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    SquareSums,
    TableTransfers,
    WeightProduct,
    WeightScale,
    program_digest,
    repeated,
)
from comet_mpc.engine.ring import WORD, Ring
from comet_mpc.engine.seeds import expand, new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import ForeignRandomness, ProtocolMismatch, RandomnessError, ShapeError
from comet_mpc.net.channel import Channel
from comet_mpc.offline.ot.extension import Transfers, bit_products, set_up_transfers
from comet_mpc.offline.ot.tables import give_words, read_words
from comet_mpc.offline.pair.arrangement import (
    Products,
    check_weight,
    grouped,
    masks_by_ciphertext,
    matrix_products,
    monomial_plan,
    packing_of,
    scale_plan,
    scales_alone,
    square_plan,
    terms_per_sum,
)
from comet_mpc.offline.pair.costs import watcher
from comet_mpc.offline.pair.crossed import Powers, crossed, server_factor
from comet_mpc.offline.pair.elements import monomial
from comet_mpc.offline.pair.shares import HeldShares, PairRandomness, Prepared, layouts, mask_words
from comet_mpc.offline.pair.units import defined_masks, prepare_units
from comet_mpc.offline.rlwe.products import Homomorphic, MatrixJob, run_products
from comet_mpc.offline.rlwe.slots import SlotPlan, slot_sums
from comet_mpc.offline.rlwe.tiling import Integers, centred
from comet_mpc.offline.source import Progress

_WORDS = Ring(WORD)
"""What is not in an odd ring is computed in this one: narrower rings are its low bits."""


class Preparer:
    """One party's side of a connection on which bundles for one program are prepared, one after the other or together.

    Keys and base transfers are set up with the first bundle and serve the others too. The server gives its weights.
    """

    def __init__(
        self,
        channel: Channel,
        party: int,
        correlations: Sequence[Correlation],
        weights: Mapping[str, Weight] | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        self.channel, self.party, self.correlations = channel, party, tuple(correlations)
        self.weights, self._threads = weights or {}, threads
        self._tools: tuple[Homomorphic, Transfers] | None = None
        if any(isinstance(correlation, Mask) and correlation.shift for correlation in correlations):
            raise RandomnessError(
                "two parties alone cannot truncate and open in one round: plan with the abilities of their source"
            )

    @property
    def fresh(self) -> bool:
        """Whether keys and transfers are still to be set up."""
        return self._tools is None

    def set_up(self) -> None:
        """Keys and base transfers, unless they are there. Otherwise the first bundle begins with them."""
        if self._tools is None:
            engine = Homomorphic(self.channel, self.party, threads=self._threads)
            transfers = set_up_transfers(self.channel, self.party)
            engine.set_up_packing(packing_of(self.correlations))
            self._tools = engine, transfers

    def prepare(self, count: int = 1, progress: Progress | None = None) -> list[Prepared]:
        """The next bundles, together: small tensors of several share ciphertexts. Both parties ask for as many.

        progress: is told how far it is, in proportion to the time that it takes, in bytes
        """
        if progress is not None:
            before, first = self.channel.traffic, self.fresh
            self.channel.watcher = watcher(self.correlations, progress, before, first=first, count=count)
        try:
            return self._prepare(count)
        finally:
            self.channel.watcher = None

    def _prepare(self, count: int) -> list[Prepared]:
        program = repeated(self.correlations, count)
        digest = bytes.fromhex(program_digest(program))
        theirs = self.channel.exchange([digest], len(digest)).tobytes()
        if theirs != digest:
            self.channel.close()
            raise ProtocolMismatch("the program", got=theirs.hex()[:16], expected=digest.hex()[:16])
        self.set_up()
        assert self._tools is not None
        engine, transfers = self._tools
        preparation = _Preparation(self.channel, self.party, program, count, self.weights, engine, transfers)
        preparation.run()
        return [
            Prepared(self.party, seed, self.correlations, preparation.of(copy))
            for copy, seed in enumerate(preparation.seeds)
        ]


def prepare_bundle(
    channel: Channel,
    party: int,
    correlations: Sequence[Correlation],
    weights: Mapping[str, Weight] | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> PairRandomness:
    """One bundle. Both parties call it with the same program, planned for this source; the server with its weights."""
    return Preparer(channel, party, correlations, weights, threads=threads).prepare(progress=progress)[0].open()


class _Preparation:
    def __init__(
        self,
        channel: Channel,
        party: int,
        program: tuple[Correlation, ...],
        copies: int,
        weights: Mapping[str, Weight],
        engine: Homomorphic,
        transfers: Transfers,
    ) -> None:
        self.seeds = [new_seed() for _ in range(copies)]
        size = len(program) // copies
        layout = layouts(party, program[:size])
        self.arrays = HeldShares(lambda place: layout(place % size))
        self._channel, self._party, self._weights = channel, party, weights
        self._program, self._size = program, size
        self._engine, self._transfers = engine, transfers
        self._stored = masks_by_ciphertext(program[: self._size])
        self._by_units = defined_masks(program[: self._size])

    def of(self, copy: int) -> HeldShares:
        """What a copy of the program draws, by its own places; once."""
        return self.arrays.part(copy * self._size, (copy + 1) * self._size)

    def run(self) -> None:
        program, copies = self._program, len(self.seeds)
        pending = iter(matrix_products(program, copies))  # first, since they define masks that others use
        for products in pending:
            match program[products.places[0]]:
                case WeightProduct() as entry:
                    self._weight_products(entry, products)
                case MatrixProduct() as entry:
                    self._matrix_product(entry, products, next(pending))
        for (width, modulus), bits in grouped(program, BitProducts):
            self._bit_products(width, modulus, bits)
        prepare_units(self._engine, program, self._mask, self.arrays.__setitem__)
        for index, correlation in enumerate(program):
            if isinstance(correlation, TableTransfers):
                self._table_transfers(index, correlation)
        for terms, monomials in grouped(program, Monomials):
            self._monomials([term.powers for term in terms], [term.width for term in terms], monomials)
        for (columns, width), sums in grouped(program, SquareSums):
            self._square_sums(columns, width, sums)
        for width, scales in grouped(scales_alone(program, copies), WeightScale):
            self._weight_scales(width, scales)

    def _seed(self, index: int) -> tuple[bytes, int]:
        """That of the copy which a place belongs to, and the place in it."""
        copy, place = divmod(index, self._size)
        return self.seeds[copy], place

    def _mask(self, index: int, shape: tuple[int, ...] | None = None) -> Words:
        """This party's part of a mask, spread to a shape."""
        described = self._program[index]
        if not isinstance(described, AnyMask):
            raise ShapeError(f"correlation {index} is not a mask")
        seed, place = self._seed(index)
        if not described.held_by(self._party):
            own = np.zeros(described.facts.elements, np.uint64)
        elif self._party == CLIENT and (index in self.arrays or place in self._by_units):
            (own,) = self.arrays[index]  # made before it is used
        else:
            own = mask_words(seed, place, described)
            if self._party == CLIENT and place in self._stored:
                self.arrays[index] = (own,)  # no ciphertext has defined it, but the bundle has a place for it
        if shape is not None and math.prod(shape) == own.size:
            return own.reshape(shape)
        own = own.reshape(described.shape)
        return own if shape is None else np.broadcast_to(own, shape)

    def _bit_products(self, width: int, modulus: int, members: list[tuple[int, BitProducts]]) -> None:
        padded = [-(-entry.count // 8) * 8 for _, entry in members]
        bits, shares = bit_products(self._channel, self._transfers, sum(padded), width, modulus)
        start = 0
        for (index, entry), size in zip(members, padded, strict=True):
            own = bits[start // 8 : (start + size) // 8].copy()
            if entry.count % 8:
                own[-1] &= (1 << entry.count % 8) - 1
            self.arrays[index] = (own, shares[start : start + entry.count].copy())  # type: ignore[assignment]
            start += size

    def _table_transfers(self, index: int, entry: TableTransfers) -> None:
        """A word of 64 bits at every place is cut into columns. The client's own share is added to its pads."""
        count, sizes = entry.count, entry.sizes
        shifts = [np.uint64(8 * sum(sizes[:column])) for column in range(len(sizes))]
        if self._party == SERVER:
            places, words = read_words(self._channel, self._transfers, count, entry.entries)
            self.arrays[index] = (places, *(words >> shift for shift in shifts))
            return
        own = expand(*self._seed(index), len(sizes) * count).reshape(len(sizes), count)
        pads = [np.empty(count * entry.entries * size, np.uint8) for size in sizes]
        start = 0
        for words in give_words(self._channel, self._transfers, count, entry.entries):
            stop = start + len(words)
            for column, size in enumerate(sizes):
                shifted = (words >> shifts[column]) + own[column, start:stop, None]
                place = slice(start * entry.entries * size, stop * entry.entries * size)
                pads[column][place] = kernels.pack_words(shifted, size)
            start = stop
        self.arrays[index] = (*own, *pads)  # type: ignore[arg-type]

    def _hand_out(self, counts: Mapping[int, int], shares: Words | Sequence[Words]) -> None:
        """What was prepared together: to each place so many of every array, one after the other."""
        start = 0
        for index, count in counts.items():
            self.arrays[index] = tuple(share[start : start + count].copy() for share in shares)
            start += count

    def _slot_sums(
        self, plan: SlotPlan, count: int, width: int, left: list[Integers], right: list[list[Integers]]
    ) -> Words:
        mine = {"left": left} if self._party == CLIENT else {"right": right}
        return slot_sums(self._engine, self._transfers, plan, count, width, **mine)

    def _monomials(self, powers: list[Powers], widths: list[int], members: list[tuple[int, Monomials]]) -> None:
        width = max(widths)
        masks = [
            np.concatenate([self._mask(entry.masks[i], entry.shape).reshape(-1) for _, entry in members])
            for i in range(len(powers[0]))
        ]
        uploads, sums = crossed(powers)
        left, right = [], []
        if self._party == CLIENT:
            left = [centred(monomial(_WORDS, masks, exponents), width) for exponents in uploads]
        else:
            for term, places in zip(powers, sums, strict=True):
                right.append([centred(_server_factor(masks, term, uploads[place]), width) for place in places])
        count = masks[0].size
        shares = np.stack([monomial(_WORDS, masks, term) for term in powers])  # what each party can compute alone
        if plan := monomial_plan(powers, width):
            mixed = [place for place, entry in enumerate(sums) if entry]
            factors = [right[place] for place in mixed] if right else []
            shares[mixed] += self._slot_sums(plan, count, width, left, factors)
        self._hand_out({index: math.prod(entry.shape) for index, entry in members}, shares)

    def _square_sums(self, columns: int, width: int, members: list[tuple[int, SquareSums]]) -> None:
        masks = np.concatenate([self._mask(e.mask).reshape(e.rows, columns) for _, e in members])
        rows = masks.shape[0]
        terms = terms_per_sum(rows, columns, width)
        groups = -(-columns // terms)
        padded = np.zeros((rows, groups * terms), np.uint64)
        padded[:, :columns] = masks
        factors = padded.reshape(rows * groups, terms).T
        plan = square_plan(terms, width)
        left = [centred(np.ascontiguousarray(x), width) for x in factors]
        right = [[centred(x * np.uint64(2), width) for x in factors]]
        crossed = self._slot_sums(plan, rows * groups, width, left, right)
        total = crossed.reshape(rows, groups).sum(axis=1, dtype=np.uint64) + (masks * masks).sum(
            axis=1, dtype=np.uint64
        )
        self._hand_out({index: entry.rows for index, entry in members}, [total])

    def _weight(self, name: str, shape: tuple[int, ...]) -> Integers:
        weight = self._weights.get(name)
        if weight is None or weight.values is None or weight.shape != shape:
            raise ForeignRandomness(f"the program needs the weight {name} of shape {shape}; the server has it not")
        values = weight.values.astype(np.int64)
        check_weight(values)
        return values

    def _weight_scales(self, width: int, members: list[tuple[int, WeightScale]]) -> None:
        left, right = np.empty(0, np.uint64), np.empty(0, np.int64)
        if self._party == CLIENT:
            left = np.concatenate([self._mask(entry.mask).reshape(-1) for _, entry in members])
        else:
            right = np.concatenate([np.tile(self._weight(e.weight, (e.size,)), e.rows) for _, e in members])
        plan = scale_plan(width)
        count = sum(entry.rows * entry.size for _, entry in members)
        share = self._slot_sums(plan, count, width, [centred(left, width)], [[right]])[0]
        self._hand_out({index: entry.rows * entry.size for index, entry in members}, [share])

    def _run(
        self,
        products: Products,
        x: Callable[[], Words],
        y: Callable[[], Integers],
        scales: Sequence[Integers] = (),
    ) -> list[MatrixJob]:
        """x: the client's factor, unless its ciphertexts define it; y: the server's."""
        tiling, width, batch = products.tiling, products.width, products.batch
        if self._party == SERVER:
            return run_products(self._engine, tiling, width, batch=batch, y=y(), scales=scales)
        return run_products(self._engine, tiling, width, batch=batch, x=None if tiling.defines else x())

    def _define(self, mask: int, words: Words) -> None:
        """A mask of the client's is what its ciphertexts said."""
        self.arrays[mask] = (np.ascontiguousarray(words).reshape(-1),)

    def _weight_products(self, entry: WeightProduct, products: Products) -> None:
        """Of one weight, with the masks of several correlations one below the other."""
        rows, count = entry.rows, len(products.places)
        scales: list[Integers] = []
        for place in products.scales[0] if self._party == SERVER else ():
            scaled = self._program[place]
            assert isinstance(scaled, WeightScale)
            scales.append(self._weight(scaled.weight, (scaled.size,)))
        (job,) = self._run(
            products,
            lambda: np.concatenate([self._mask(mask).reshape(rows, entry.inputs) for mask in products.masks])[None],
            lambda: self._weight(entry.weight, (entry.outputs, entry.inputs))[None],
            scales,
        )
        for copy in range(count):
            cut = slice(copy * rows, (copy + 1) * rows)
            if products.tiling.defines and self._party == CLIENT:
                self._define(products.masks[copy], job.x[cut])
            share, *others = (part[cut] for part in job.shares)
            own = share.T if self._party == SERVER else share
            self.arrays[products.places[copy]] = (np.ascontiguousarray(own).reshape(-1),)
            for place, other in zip(products.scales[copy], others, strict=True):
                self.arrays[place] = (other.reshape(-1).copy(),)

    def _matrix_product(self, entry: MatrixProduct, first: Products, second: Products) -> None:
        """A·B = A_c·B_c + A_c·B_s + (B_cᵀ·A_sᵀ)ᵀ + A_s·B_s."""
        batch, m, k, n, width = entry.batch, entry.m, entry.k, entry.n, entry.width

        def left() -> Words:
            return self._mask(entry.left).reshape(batch, m, k)

        def right() -> Words:
            """(batch, n, k)"""
            mask = self._mask(entry.right)
            whole = mask.reshape(batch, n, k) if entry.transposed else mask.reshape(batch, k, n).transpose(0, 2, 1)
            return np.ascontiguousarray(whole)

        jobs = self._run(first, left, lambda: centred(right(), width))
        if first.tiling.defines and self._party == CLIENT:
            self._define(entry.left, np.stack([job.x for job in jobs]))
        others = self._run(second, right, lambda: centred(left(), width))
        if second.tiling.defines and self._party == CLIENT:
            words = np.stack([job.x for job in others])
            self._define(entry.right, words if entry.transposed else words.transpose(0, 2, 1))
        share = kernels.matmul(np.ascontiguousarray(left()), right(), transpose_right=True, width=width)
        for whole, job, other in zip(share, jobs, others, strict=True):
            whole += job.share + other.share.T
        self.arrays[first.places[0]] = (share.reshape(-1),)


def _server_factor(masks: Sequence[Words], term: Powers, client: Powers) -> Words:
    """Π C(p, j)·a_s^(p - j)."""
    factor, rest = server_factor(term, client)
    return _WORDS.times(monomial(_WORDS, masks, rest), factor)
