"""How a dealer prepares the kinds of randomness that this package describes (`engine.correlations`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from comet_mpc.engine import kernels
from comet_mpc.engine.correlations import (
    AnyMask,
    BitProducts,
    Mask,
    MatrixProduct,
    Monomials,
    SquareSums,
    WeightCorrelation,
    WeightProduct,
    WeightScale,
)
from comet_mpc.engine.share import SERVER, Words
from comet_mpc.errors import ForeignRandomness
from comet_mpc.offline.dealer.preparer import (
    CHUNK,
    DealerPreparer,
    DealerView,
    Kind,
    PartyView,
    mask_words,
    stream_of,
    weight_mask,
)
from comet_mpc.threads import in_order


class DealtMasks(DealerPreparer[AnyMask]):
    """Each party's part is in its seed."""

    def words(self, view: PartyView, index: int, entry: AnyMask) -> tuple[Words, ...]:
        held = entry.held_by(view.party)
        return (mask_words(view.streams, index, entry, entry.facts.elements),) if held else ()


class DealtBits(DealerPreparer[BitProducts]):
    def values(self, view: DealerView, index: int, entry: BitProducts, array: int) -> Iterator[Words]:
        for start in range(0, entry.count, CHUNK):
            length = min(CHUNK, entry.count - start)
            client, server = (own.bits(stream_of(index, 0), length, start) for own in (view.client, view.server))
            both = np.unpackbits(client & server, count=length, bitorder="little")
            yield both.astype(np.uint64)

    def words(self, view: PartyView, index: int, entry: BitProducts) -> tuple[Words, ...]:
        bits = view.streams.bits(stream_of(index, 0), entry.count)
        return (bits, *view.shares(index, entry))  # type: ignore[arg-type]


class DealtMonomials(DealerPreparer[Monomials]):
    def values(self, view: DealerView, index: int, entry: Monomials, array: int) -> Iterator[Words]:
        term, count, ring = entry.terms[array], entry.facts.elements, view.described(entry.masks[0]).ring
        small = {  # masks that are broadcast are few words: hold them whole, spread a chunk at a time
            mask: np.broadcast_to(view.mask(mask, 0, math.prod(own)).reshape(own), entry.shape)
            for mask in entry.masks
            if (own := view.described(mask).shape) != entry.shape
        }
        for start in range(0, count, CHUNK):
            stop = min(count, start + CHUNK)
            value = np.ones(stop - start, np.uint64)
            for mask, power, carry in zip(entry.masks, term.powers, term.carries, strict=True):
                a = small[mask].flat[start:stop] if mask in small else view.mask(mask, start, stop)
                for factor in _factors(view.described(mask), a, power, carry):
                    value = ring.multiply(value, factor)
            yield value

    def held_words(self, entry: Monomials, masks: Sequence[AnyMask]) -> int:
        return sum(mask.facts.elements for mask in masks if mask.shape != entry.shape)


def _factors(mask: AnyMask, a: Words, power: int, carry: int) -> Iterator[Words]:
    """u as often as the power says, and the top bit of a if it is carried."""
    assert isinstance(mask, Mask)
    u = a
    if mask.shift:
        low = a & np.uint64(2 ** (mask.width - 1) - 1)
        u = low >> np.uint64(mask.shift)
    if carry:
        yield (a >> np.uint64(mask.width - 1)) & np.uint64(1)
    for _ in range(power):
        yield u


class DealtSquareSums(DealerPreparer[SquareSums]):
    def values(self, view: DealerView, index: int, entry: SquareSums, array: int) -> Iterator[Words]:
        columns, ring = entry.columns, view.described(entry.mask).ring
        step = max(1, CHUNK // columns)
        for start in range(0, entry.rows, step):
            stop = min(entry.rows, start + step)
            a = view.mask(entry.mask, start * columns, stop * columns).reshape(-1, columns)
            yield ring.sum(ring.multiply(a, a), 1)

    def held_words(self, entry: SquareSums, masks: Sequence[AnyMask]) -> int:
        return entry.columns


class DealtMatrixProducts(DealerPreparer[MatrixProduct]):
    def values(self, view: DealerView, index: int, entry: MatrixProduct, array: int) -> Iterator[Words]:
        m, k, n, transposed = entry.m, entry.k, entry.n, entry.transposed
        step = max(1, CHUNK // max(k, n))
        for b in range(entry.batch):
            y = view.mask(entry.right, b * k * n, (b + 1) * k * n).reshape((n, k) if transposed else (k, n))
            for start in range(0, m, step):
                stop = min(m, start + step)
                x = view.mask(entry.left, (b * m + start) * k, (b * m + stop) * k).reshape(-1, k)
                if entry.causal:
                    x = np.tril(x, start)
                yield kernels.matmul(x, y, transpose_right=transposed).reshape(-1)

    def held_words(self, entry: MatrixProduct, masks: Sequence[AnyMask]) -> int:
        return entry.k * entry.n


class _DealtWithWeights(DealerPreparer[Kind]):
    """The client's share of a·Wᵀ = a·Bᵀ + a·Dᵀ: its share of the first, and the second, which it can compute."""

    ahead = True

    def _known(self, view: PartyView, entry: WeightCorrelation) -> tuple[Words, Words]:
        """a and D = W - B, which the client knows."""
        weight = view.weights.get(entry.weight)
        if weight is None or weight.masked is None:
            raise ForeignRandomness(f"the masked weight {entry.weight} is missing: set up the model first")
        inputs = weight.shape[-1]
        a = view.streams.words(stream_of(entry.mask, 0), entry.rows * inputs)
        return a.reshape(entry.rows, inputs), weight.masked


class DealtWeightProducts(_DealtWithWeights[WeightProduct]):
    def values(self, view: DealerView, index: int, entry: WeightProduct, array: int) -> Iterator[Words]:
        rows, inputs, outputs = entry.rows, entry.inputs, entry.outputs
        a = view.mask(entry.mask, 0, rows * inputs).reshape(rows, inputs)
        longest = max(inputs, rows)
        step = max(1, CHUNK // longest)

        def some_outputs(start: int) -> Words:
            count = min(outputs - start, step)
            block = weight_mask(view.key, entry.weight, count * inputs, start * inputs)
            return kernels.matmul(block.reshape(-1, inputs), a, transpose_right=True).reshape(-1)

        yield from in_order(some_outputs, range(0, outputs, step), None if longest <= CHUNK else 1)

    def held_words(self, entry: WeightProduct, masks: Sequence[AnyMask]) -> int:
        return entry.rows * entry.inputs + max(entry.rows, entry.inputs)

    def words(self, view: PartyView, index: int, entry: WeightProduct) -> tuple[Words, ...]:
        if view.party == SERVER:
            return view.shares(index, entry)
        a, masked = self._known(view, entry)
        (own,) = view.shares(index, entry)
        return (own.reshape(entry.outputs, entry.rows).T + kernels.matmul(a, masked, transpose_right=True),)


class DealtWeightScales(_DealtWithWeights[WeightScale]):
    def values(self, view: DealerView, index: int, entry: WeightScale, array: int) -> Iterator[Words]:
        size, vector = entry.size, weight_mask(view.key, entry.weight, entry.size)
        step = max(1, CHUNK // size)
        for start in range(0, entry.rows, step):
            stop = min(entry.rows, start + step)
            yield (view.mask(entry.mask, start * size, stop * size).reshape(-1, size) * vector).reshape(-1)

    def held_words(self, entry: WeightScale, masks: Sequence[AnyMask]) -> int:
        return entry.size

    def words(self, view: PartyView, index: int, entry: WeightScale) -> tuple[Words, ...]:
        if view.party == SERVER:
            return view.shares(index, entry)
        a, masked = self._known(view, entry)
        (own,) = view.shares(index, entry)
        return (own.reshape(a.shape) + a * masked,)
