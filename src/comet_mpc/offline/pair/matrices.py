"""Matrix products of masks, by homomorphic encryption: of the client's with the server's weights, and of both parties'.

    WeightProduct   the client's mask times the server's weight itself
    WeightScale     more outputs of the product of the same mask, if there is one; else see `slot_stages`
    MatrixProduct   (A_c + A_s)·(B_c + B_s): two of the four products are crossed, one party's with the other's

The ciphertexts of the first product that a mask enters may define the client's part of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np

from comet_mpc.engine import kernels
from comet_mpc.engine.correlations import AnyMask, Correlation, MatrixProduct, WeightProduct, WeightScale
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.offline.pair.stages import BATCH, PairPreparer, Stage, Unprepared
from comet_mpc.offline.pair.workbench import WEIGHT_BITS, WEIGHT_LENGTH, Workbench
from comet_mpc.offline.rlwe.packing import MOST_LIMBS, Packing
from comet_mpc.offline.rlwe.products import MatrixJob, product_jobs, run_sizes
from comet_mpc.offline.rlwe.scheme import LEAST_CUT
from comet_mpc.offline.rlwe.tiling import Factor, Integers, Tiling, centred, choose_tiling
from comet_mpc.offline.streaming import Sizes, Steps


class PairMatrices(PairPreparer):
    order = 10  # they define masks that others use

    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        program = unprepared.program
        pending = iter(matrix_products(program, unprepared.copies))
        for products in pending:
            match program[products.indices[0]]:
                case WeightProduct() as entry:
                    yield _WeightProducts((products,), entry)
                case MatrixProduct() as entry:
                    yield _MatrixProduct((products, next(pending)), entry)


@dataclass(frozen=True)
class Products:
    """Homomorphic matrix products of a mask of the client's, uploaded once; the same for every member of a batch."""

    indices: tuple[int, ...]
    """Of the correlations that they are for. Several have rows of one weight's product each, one below the other."""
    masks: tuple[int, ...]
    batch: int
    tiling: Tiling
    width: int
    free: bool
    """Whether the ciphertexts may define the masks."""
    scales: tuple[tuple[int, ...], ...] = ()
    """Indices of the correlations that scale the same masks, for each of `indices`."""

    @property
    def sizes(self) -> list[Sizes]:
        return run_sizes([(self.tiling.upload_bytes, self.tiling.response_bytes)] * self.batch)

    def run(
        self,
        bench: Workbench,
        x: Callable[[], Words],
        y: Callable[[], Factor] | Factor | None,
        scales: Sequence[Factor] = (),
    ) -> Steps[list[MatrixJob]]:
        """x: the client's factor, unless its ciphertexts define it; y: the server's."""
        given = {"y": y, "scales": scales} if bench.party == SERVER else {"x": None if self.tiling.defines else x()}
        jobs = product_jobs(bench.party, self.tiling, self.width, batch=self.batch, **given)
        yield bench.engine.requests(jobs)
        return jobs


@dataclass(frozen=True)
class _Matrices(Stage):
    part = "matrix products"

    uploads: tuple[Products, ...]

    @property
    def prepared(self) -> tuple[int, ...]:
        first = self.uploads[0]
        return (*first.indices, *(index for indices in first.scales for index in indices))

    @property
    def free_masks(self) -> frozenset[int]:
        return frozenset(mask for products in self.uploads if products.free for mask in products.masks)

    @property
    def sizes(self) -> list[list[Sizes]]:
        return [products.sizes for products in self.uploads]

    @property
    def seconds(self) -> float:
        return sum(products.batch * products.tiling.seconds for products in self.uploads)


def _define(bench: Workbench, mask: int, words: Words) -> None:
    """A mask of the client's is what its ciphertexts said."""
    bench.keep(mask, (np.ascontiguousarray(words).reshape(-1),))


@dataclass(frozen=True)
class _WeightProducts(_Matrices):
    """Of one weight, with the masks of several correlations one below the other."""

    entry: WeightProduct

    def run(self, bench: Workbench) -> Steps[None]:
        (products,), entry, rows = self.uploads, self.entry, self.entry.rows
        scales: list[Factor] = []
        for index in products.scales[0] if bench.party == SERVER else ():
            scaled = bench.program[index]
            assert isinstance(scaled, WeightScale)
            scales.append(bench.weight(scaled.weight, (scaled.size,)))
        (job,) = yield from products.run(
            bench,
            lambda: np.concatenate([bench.mask(mask).reshape(rows, entry.inputs) for mask in products.masks])[None],
            lambda: bench.weight(entry.weight, (entry.outputs, entry.inputs)),
            scales,
        )
        for copy, mask in enumerate(products.masks):
            cut = slice(copy * rows, (copy + 1) * rows)
            if products.tiling.defines and bench.party == CLIENT:
                _define(bench, mask, job.x[cut])
            share, *others = (part[cut] for part in job.shares)
            own = share.T if bench.party == SERVER else share
            bench.keep(products.indices[copy], (np.ascontiguousarray(own).reshape(-1),))
            for index, other in zip(products.scales[copy], others, strict=True):
                bench.keep(index, (other.reshape(-1).copy(),))


@dataclass(frozen=True)
class _MatrixProduct(_Matrices):
    """A·B = A_c·B_c + A_c·B_s + (B_cᵀ·A_sᵀ)ᵀ + A_s·B_s."""

    entry: MatrixProduct

    def run(self, bench: Workbench) -> Steps[None]:
        (first, second), entry = self.uploads, self.entry
        batch, m, k, n, width = entry.batch, entry.m, entry.k, entry.n, entry.width

        def left() -> Words:
            mask = bench.mask(entry.left).reshape(batch, m, k)
            return np.tril(mask) if entry.causal else mask

        def right() -> Words:
            """(batch, n, k)"""
            mask = bench.mask(entry.right)
            whole = mask.reshape(batch, n, k) if entry.transposed else mask.reshape(batch, k, n).transpose(0, 2, 1)
            return np.ascontiguousarray(whole)

        def factor(mask: Callable[[], Words]) -> Integers | None:
            return centred(mask(), width) if bench.party == SERVER else None

        jobs = yield from first.run(bench, left, factor(right))
        if first.tiling.defines and bench.party == CLIENT:
            _define(bench, entry.left, np.stack([job.x for job in jobs]))
        others = yield from second.run(bench, right, factor(left))
        if second.tiling.defines and bench.party == CLIENT:
            words = np.stack([job.x for job in others])
            _define(bench, entry.right, words if entry.transposed else words.transpose(0, 2, 1))
        share = kernels.matmul(np.ascontiguousarray(left()), right(), transpose_right=True, width=width)
        for whole, job, other in zip(share, jobs, others, strict=True):
            whole += job.share + other.share.T
        bench.keep(first.indices[0], (share.reshape(-1),))


def matrix_products(program: Sequence[Correlation], copies: int = 1) -> list[Products]:
    """All of them, in the order in which they are prepared. The first that a mask enters may define it.

    copies: how many times the program holds the same one (`repeated`)
    """
    return list(_matrix_products(program, *_packing(tuple(program[: len(program) // copies]))))


def _matrix_products(program: Sequence[Correlation], packing: Packing, key_limbs: int) -> Iterator[Products]:
    riding = _riding(program) if packing else {}
    met: set[int] = set()
    done: set[int] = set()
    alike: dict[WeightProduct, list[int]] = defaultdict(list)
    for index, entry in enumerate(program):
        if isinstance(entry, WeightProduct):
            alike[_nowhere(entry)].append(index)
    for index, entry in enumerate(program):
        match entry:
            case WeightProduct(rows=rows, inputs=inputs, outputs=outputs, width=width) if index not in done:
                fitting = max(1, BATCH // (rows * inputs))
                masked: dict[int, int] = {}  # each mask once
                for other in alike[_nowhere(entry)]:
                    if other not in done and len(masked) < fitting:
                        masked.setdefault(_mask_of(program, other), other)
                masks, indices, scales = tuple(masked), tuple(masked.values()), riding.get(index, ())
                done |= {*indices}
                free = [_free(program, mask, width, met) for mask in masks]
                tiling = choose_tiling(
                    *(rows * len(indices), inputs, outputs, width, WEIGHT_BITS, packing),
                    length=WEIGHT_LENGTH,
                    diagonals=len(scales),
                    free=all(free),
                    cuts=_cuts(entry.cut, *(_cut_of(program, scale) for scale in scales)),
                    key_limbs=key_limbs,
                )
                every = tuple(riding.get(other, ()) for other in indices)
                yield Products(indices, masks, 1, tiling, width, all(free), every)
            case MatrixProduct(left=left, right=right, batch=batch, m=m, k=k, n=n, width=width, cut=cut, causal=causal):
                cuts = _cuts(cut - 1)  # two products are added up
                for mask, shape in ((left, (m, k, n)), (right, (n, k, m))):
                    # a ciphertext cannot define a mask of which it holds only a part
                    free_one = _free(program, mask, width, met) and not (causal and mask == left)
                    # the server's factor is a mask: uniform. An error's bound holds for every mask, a mean over all.
                    length = math.sqrt(k * 4.0**width / (4 if any(cuts) else 12))
                    tiling = choose_tiling(
                        *(*shape, width, width, packing), length=length, free=free_one, cuts=cuts, key_limbs=key_limbs
                    )
                    yield Products((index,), (mask,), batch, tiling, width, free_one)


def _nowhere(entry: WeightProduct) -> WeightProduct:
    """What products that can be prepared together have in common."""
    return msgspec.structs.replace(entry, mask=0)


def _cuts(*cuts: int) -> tuple[int, ...]:
    """What `choose_tiling` takes: a product that is hardly cut is made exact."""
    return tuple(cut if cut >= LEAST_CUT else 0 for cut in cuts)


def _cut_of(program: Sequence[Correlation], index: int) -> int:
    entry = program[index]
    assert isinstance(entry, WeightScale)
    return entry.cut


def _mask_of(program: Sequence[Correlation], index: int) -> int:
    entry = program[index]
    assert isinstance(entry, WeightProduct)
    return entry.mask


def _riding(program: Sequence[Correlation]) -> dict[int, tuple[int, ...]]:
    """Scalings of a mask that also enters a product with a weight, by the index of the first such product."""
    first: dict[tuple[int, int], int] = {}
    for index, entry in enumerate(program):
        if isinstance(entry, WeightProduct):
            first.setdefault((entry.mask, entry.width), index)
    riding: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for index, entry in enumerate(program):
        if isinstance(entry, WeightScale) and (host := first.get((entry.mask, entry.width))) is not None:
            riding[host] += (index,)
    return riding


def _free(program: Sequence[Correlation], index: int, width: int, met: set[int]) -> bool:
    """Whether no product has defined or used a mask before, and it has this very width."""
    mask = program[index]
    if index in met or not isinstance(mask, AnyMask):
        return False
    met.add(index)
    return mask.ring == Ring(width)


def packing_of(program: Sequence[Correlation]) -> Packing:
    """Whether packed responses, and turned uploads, save more than the keys for them take."""
    return _packing(tuple(program))[0]


def key_limbs(program: Sequence[Correlation]) -> int:
    """Primes that these keys are needed for."""
    return _packing(tuple(program))[1]


@lru_cache(maxsize=4)
def _packing(program: tuple[Correlation, ...]) -> tuple[Packing, int]:
    def cost(packing: Packing) -> tuple[float, Packing, int]:
        tilings = [(p.batch, p.tiling) for p in _matrix_products(program, packing, MOST_LIMBS)]
        limbs = max((tiling.key_limbs for _, tiling in tilings), default=0)
        return packing.bytes_for(limbs) + sum(batch * tiling.cost for batch, tiling in tilings), packing, limbs

    _, packing, limbs = min(cost(packing) for packing in Packing)
    return packing, limbs
