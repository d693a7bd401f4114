"""Correlated randomness made by a third party: what the dealer computes and what the parties make of it.

The dealer draws two fresh seeds for every bundle. Each party expands its own masks from its seed. For products of
masks the client's share comes from its seed too, and the server gets the difference (the correction), so the
client's bundle is 16 bytes and the server's 16 bytes and a stream. Corrections are uniform to the server: each is
a value minus a fresh expansion of a seed that it does not know.

The dealer never sees an input, an opened value or a weight. It knows every mask, so it must not collude with
either party: with the client it could compute W, with the server x.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from comet_mpc.engine import Weight, kernels, tables
from comet_mpc.engine.correlations import (
    AnyMask,
    BitProducts,
    Correlation,
    Mask,
    MatrixProduct,
    Monomials,
    MonomialTerm,
    SquareSums,
    TableTransfers,
    WeightCorrelation,
    WeightProduct,
    WeightScale,
)
from comet_mpc.engine.ring import Ring
from comet_mpc.engine.seeds import Streams, derive_seed, expand, new_seed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.errors import ForeignRandomness
from comet_mpc.offline.bundle import Bundle, OpenBundle, read_exactly
from comet_mpc.threads import in_order

CHUNK = 1 << 16
"""Elements that the dealer holds of any one array at a time; with weights' masks, a few times that for every core."""


def _stream(index: int, array: int) -> int:
    """Array 0 of a correlation is its mask or bits; 1, 2, … are the client's shares of products."""
    return index << 16 | array


def _elements(streams: Streams, ring: Ring, stream: int, count: int, offset: int = 0) -> Words:
    """Uniform elements offset … offset+count-1 of a ring."""
    return ring.from_seed(streams.words(stream, count * ring.seed_words, offset * ring.seed_words))


def _mask_words(streams: Streams, index: int, mask: AnyMask, count: int, offset: int = 0) -> Words:
    """A party's part of elements offset … offset+count-1 of a mask."""
    size = mask.words_of_element
    return mask.from_seed(streams.words(_stream(index, 0), count * size, offset * size))


def _pads(
    streams: Streams, index: int, column: int, sizes: Sequence[int], start: int, stop: int
) -> npt.NDArray[np.uint8]:
    """Entries start … stop-1 of a column of the client's random tables; start is a multiple of 8."""
    size = sizes[column]
    stream = _stream(index, 1 + len(sizes) + column)
    words = streams.words(stream, -(-(stop - start) * size // 8), start * size // 8)
    return words.view(np.uint8)[: (stop - start) * size]


def _places(streams: Streams, index: int, count: int, entries: int, offset: int = 0) -> Words:
    """Which entry of each of the client's random tables the server knows."""
    return streams.words(_stream(index, 0), count, offset) & np.uint64(entries - 1)


def weights_digest(weights: Mapping[str, Weight]) -> str:
    """Names the fixed-point numbers that are masked, of all weights together."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        weight = weights[name]
        digest.update(f"{name}{weight.shape}{weight.fraction}".encode())
        digest.update(np.ascontiguousarray(weight.fixed(), "<i4").data)
    return digest.hexdigest()


def weight_key(secret: bytes, digest: str) -> bytes:
    """The key of all weight masks of one model. `digest` is that of the masked numbers: if any changes, all masks do.

    Masking two versions of a weight with one mask would give a client their difference.
    """
    return derive_seed(secret, "weights", digest)


def _weight_mask(key: bytes, name: str, count: int, offset: int = 0) -> Words:
    return expand(derive_seed(key, "weight", name), 0, count, offset)


def mask_weight(key: bytes, weight: Weight) -> Words:
    """D = W - B, which the client downloads once per model. Uniform to it: it does not know the key."""
    words = weight.fixed().astype(np.int64).view(np.uint64)
    return words - _weight_mask(key, weight.name, words.size).reshape(words.shape)


class DealtRandomness(OpenBundle):
    """One party's randomness from a dealer's bundle."""

    def __init__(self, bundle: Bundle, weights: Mapping[str, Weight] | None = None, *, fused: bool = True) -> None:
        """weights: of the model, masked at the client. fused: off in tests of programs that were planned so."""
        super().__init__(bundle)
        self.fused = fused
        self._streams = Streams(bundle.seed)
        self._weights = dict(weights or {})
        self._ahead: dict[int, Words] = {}
        if self.party == SERVER and bundle.stored is None:
            raise ForeignRandomness("the server's bundle has no corrections")

    def compute_ahead(self) -> None:
        """The client's products with masked weights: most of its work, and it needs no input."""
        if self.party == CLIENT:
            entries = [(i, c) for i, c in enumerate(self._order.correlations) if isinstance(c, WeightCorrelation)]
            shares = in_order(lambda entry: self._weight_share(*entry, Streams(self.bundle.seed)), entries)
            self._ahead = {index: share for (index, _), share in zip(entries, shares, strict=True)}

    def _words(self, index: int, correlation: Correlation) -> tuple[Words, ...]:
        match correlation:
            case AnyMask(facts=facts):
                held = correlation.held_by(self.party)
                return (_mask_words(self._streams, index, correlation, facts.elements),) if held else ()
            case BitProducts(count=count):
                bits = self._streams.bits(_stream(index, 0), count)
                return (bits, *self._shares(index, correlation))  # type: ignore[arg-type]
            case WeightCorrelation() if self.party == CLIENT:
                words = self._ahead.pop(index, None)
                return (self._weight_share(index, correlation, self._streams) if words is None else words,)
            case TableTransfers(count=count, entries=entries, sizes=sizes):
                shares = self._shares(index, correlation)
                if self.party == SERVER:
                    return (_places(self._streams, index, count, entries), *shares)
                pads = [_pads(self._streams, index, column, sizes, 0, count * entries) for column in range(len(sizes))]
                return (*shares, *pads)  # type: ignore[arg-type]
        return self._shares(index, correlation)

    def _shares(self, index: int, correlation: Correlation, streams: Streams | None = None) -> tuple[Words, ...]:
        arrays = []
        for array, (count, ring) in enumerate(correlation.facts.corrections, start=1):
            if self.party == CLIENT:
                arrays.append(_elements(streams or self._streams, ring, _stream(index, array), count))
            else:
                assert self.bundle.stored is not None
                arrays.append(ring.unpack(read_exactly(self.bundle.stored, ring.wire_bytes(count)), count))
        return tuple(arrays)

    def _weight_share(self, index: int, correlation: WeightCorrelation, streams: Streams) -> Words:
        """The client's share of a·Wᵀ = a·Bᵀ + a·Dᵀ: its share of the first, and the second, which it can compute.

        streams: of the bundle's seed, this thread's own
        """
        weight = self._weights.get(correlation.weight)
        if weight is None or weight.masked is None:
            raise ForeignRandomness(f"the masked weight {correlation.weight} is missing: set up the model first")
        (own,) = self._shares(index, correlation, streams)
        inputs = weight.shape[-1]
        a = streams.words(_stream(correlation.mask, 0), correlation.rows * inputs)
        a = a.reshape(correlation.rows, inputs)
        if isinstance(correlation, WeightProduct):
            product = kernels.matmul(a, weight.masked, transpose_right=True)
            return own.reshape(correlation.outputs, correlation.rows).T + product
        return own.reshape(a.shape) + a * weight.masked


def _in_eights(chunks: Iterator[Words]) -> Iterator[Words]:
    """The same words in chunks of multiples of eight, but for the last: whole bytes, however wide a word is."""
    left = np.empty(0, np.uint64)
    for chunk in chunks:
        whole = np.concatenate([left, chunk]) if left.size else chunk
        cut = whole.size // 8 * 8
        left = whole[cut:]
        if cut:
            yield whole[:cut]
    if left.size:
        yield left


class Dealing:
    """One bundle in the dealer's hands: fresh seeds, and the stream of corrections for the server."""

    def __init__(
        self, correlations: Sequence[Correlation], key: bytes, seeds: tuple[bytes, bytes] | None = None
    ) -> None:
        """key: of the weight masks (from the server). seeds: only tests pass them.

        A program from outside goes through `admission.admit_program` first.
        """
        self.correlations = tuple(correlations)
        self.client_seed, self.server_seed = seeds or (new_seed(), new_seed())
        self._client, self._server = Streams(self.client_seed), Streams(self.server_seed)
        self._key = key

    @property
    def correction_bytes(self) -> int:
        return sum(correlation.correction_bytes for correlation in self.correlations)

    def corrections(self) -> Iterator[memoryview]:
        """The server's stream, a chunk at a time."""
        for index, correlation in enumerate(self.correlations):
            for array, (_, ring) in enumerate(correlation.facts.corrections, start=1):
                place = 0
                for value in _in_eights(self._values(index, correlation, array - 1)):
                    yield ring.pack(self._hidden(value, ring, _stream(index, array), place)).data
                    place += value.size

    def _hidden(self, value: Words, ring: Ring, stream: int, place: int) -> Words:
        """A product less the client's share of it."""
        return ring.subtract(value, _elements(self._client, ring, stream, value.size, place))

    def _mask(self, index: int, start: int, stop: int) -> Words:
        """Elements start … stop-1 of a mask, both parties' parts added."""
        mask, parties = self._described(index), ((CLIENT, self._client), (SERVER, self._server))
        own = [_mask_words(s, index, mask, stop - start, start) for party, s in parties if mask.held_by(party)]
        return mask.ring.add(own[0], own[1]) if len(own) == 2 else own[0]

    def _values(self, index: int, correlation: Correlation, array: int) -> Iterator[Words]:
        """The products themselves, chunk by chunk, in the order of the array."""
        match correlation:
            case BitProducts(count=count):
                for start in range(0, count, CHUNK):
                    length = min(CHUNK, count - start)
                    client, server = (
                        own.bits(_stream(index, 0), length, start) for own in (self._client, self._server)
                    )
                    both = np.unpackbits(client & server, count=length, bitorder="little")
                    yield both.astype(np.uint64)
            case Monomials(terms=terms):
                yield from self._monomial(correlation, terms[array])
            case SquareSums(mask=mask, rows=rows, columns=columns):
                step, ring = max(1, CHUNK // columns), self._described(mask).ring
                for start in range(0, rows, step):
                    stop = min(rows, start + step)
                    a = self._mask(mask, start * columns, stop * columns).reshape(-1, columns)
                    yield ring.sum(ring.multiply(a, a), 1)
            case MatrixProduct(left=left, right=right, batch=batch, m=m, k=k, n=n, transposed=transposed):
                step = max(1, CHUNK // max(k, n))
                for b in range(batch):
                    y = self._mask(right, b * k * n, (b + 1) * k * n).reshape((n, k) if transposed else (k, n))
                    for start in range(0, m, step):
                        stop = min(m, start + step)
                        x = self._mask(left, (b * m + start) * k, (b * m + stop) * k).reshape(-1, k)
                        yield kernels.matmul(x, y, transpose_right=transposed).reshape(-1)
            case WeightProduct(mask=mask, weight=weight, rows=rows, inputs=inputs, outputs=outputs):
                a = self._mask(mask, 0, rows * inputs).reshape(rows, inputs)
                longest = max(inputs, rows)
                step = max(1, CHUNK // longest)

                def some_outputs(start: int) -> Words:
                    count = min(outputs - start, step)
                    block = _weight_mask(self._key, weight, count * inputs, start * inputs)
                    return kernels.matmul(block.reshape(-1, inputs), a, transpose_right=True).reshape(-1)

                yield from in_order(some_outputs, range(0, outputs, step), None if longest <= CHUNK else 1)
            case WeightScale(mask=mask, weight=weight, rows=rows, size=size):
                vector = _weight_mask(self._key, weight, size)
                step = max(1, CHUNK // size)
                for start in range(0, rows, step):
                    stop = min(rows, start + step)
                    yield (self._mask(mask, start * size, stop * size).reshape(-1, size) * vector).reshape(-1)
            case TableTransfers(count=count, entries=entries, sizes=sizes):
                step = max(8, CHUNK // entries)
                for start in range(0, count, step):
                    stop = min(count, start + step)
                    pads = _pads(self._client, index, array, sizes, start * entries, stop * entries)
                    places = _places(self._server, index, stop - start, entries, start)
                    yield tables.pick(pads, places, sizes[array])
            case _:
                raise ForeignRandomness(f"a dealer does not know how to prepare {type(correlation).__name__}")

    def _monomial(self, entry: Monomials, term: MonomialTerm) -> Iterator[Words]:
        count, ring = entry.facts.elements, self._described(entry.masks[0]).ring
        small = {  # masks that are broadcast are few words: hold them whole, spread a chunk at a time
            mask: np.broadcast_to(self._mask(mask, 0, math.prod(own)).reshape(own), entry.shape)
            for mask in entry.masks
            if (own := self._described(mask).shape) != entry.shape
        }
        for start in range(0, count, CHUNK):
            stop = min(count, start + CHUNK)
            value = np.ones(stop - start, np.uint64)
            for mask, power, carry in zip(entry.masks, term.powers, term.carries, strict=True):
                a = small[mask].flat[start:stop] if mask in small else self._mask(mask, start, stop)
                for factor in self._factors(mask, a, power, carry):
                    value = ring.multiply(value, factor)
            yield value

    def _described(self, mask: int) -> AnyMask:
        described = self.correlations[mask]
        assert isinstance(described, AnyMask)
        return described

    def _factors(self, mask: int, a: Words, power: int, carry: int) -> Iterator[Words]:
        described = self._described(mask)
        assert isinstance(described, Mask)
        u = a
        if described.shift:
            low = a & np.uint64(2 ** (described.width - 1) - 1)
            u = low >> np.uint64(described.shift)
        if carry:
            yield (a >> np.uint64(described.width - 1)) & np.uint64(1)
        for _ in range(power):
            yield u
