"""The kinds of correlated randomness a program asks for, as plain descriptions.

A plan is a list of these. A correlation is known by its index in that list; one that builds on a mask names the
mask's index. Descriptions hold shapes and widths only, never a value, and travel as JSON to whoever prepares them.

In every kind "a" is a mask: a uniform element of a ring for every element of a tensor, shared as
a = a_client + a_server, each part expanded from that party's own seed. The ring is Z_2^width or, where a kind has a
modulus that is not 0, that of the odd modulus. What is not uniform by itself (a product of masks) is shared too: the
client's part comes from its seed, and the server's part is the *correction*, sent once, `correction_bytes` long.

A kind says all that can be said without knowing who prepares it: its size, the masks it builds on, its corrections,
what it costs to use, and whether its parts fit together. Who prepares it, and how, is a line in `offline.kinds`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, Union

import msgspec
import numpy as np

from comet_mpc.engine.ring import MOST_BITS, WORD, Ring
from comet_mpc.engine.share import CLIENT, SERVER, Words, word_bytes
from comet_mpc.engine.tables import MOST_INDEX_BITS, POINT_ROWS, PointShape
from comet_mpc.errors import ConfigurationError, ShapeError

# What a description from outside may say. Decoding enforces it, so nobody computes with numbers beyond reason.
Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=32)]
Width = Annotated[int, msgspec.Meta(ge=1, le=WORD)]
Modulus = Annotated[int, msgspec.Meta(ge=0, le=(1 << MOST_BITS) - 1)]
Power = Annotated[int, msgspec.Meta(ge=0, le=64)]
Cut = Annotated[int, msgspec.Meta(ge=0, le=WORD)]
"""Bits that a product is truncated by later: it may be off by half a unit of what is left. 0: it is exact."""
Index = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]

# Seconds on one core of about 3 GHz with AVX2 (`research/benchmarks/kernels.py` prints this machine's rates).
_OPENED_WORD = 12e-9  # expand, mask, pack, send, receive, unpack, add
_MONOMIAL = 6e-9  # of an element: expand or unpack, multiply, add
_BIT = 6e-9
_CELL = 6e-9  # of a point function: expand, convert, multiply with a line, add
_PRODUCT = 1.0 / 6e9
_WEIGHT_PRODUCT = 1.0 / 9e9


class Reference(NamedTuple):
    """A mask that a correlation builds on."""

    mask: int
    kind: type[AnyMask]
    elements: int | None = None
    """Its size; None if the mask is broadcast."""


class Facts(NamedTuple):
    """A correlation in numbers."""

    elements: int
    seconds: float
    """The server's computing with it online, roughly."""
    corrections: tuple[tuple[int, Ring], ...] = ()
    """The arrays of its correction, in order: (elements, their ring)."""
    references: tuple[Reference, ...] = ()
    party_words: int = 0
    """Words that a party holds while it uses it, roughly; 0 if they are few."""


class Correlation(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """What every kind says of itself."""

    index_fields: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that hold indices of other correlations."""

    @property
    def facts(self) -> Facts:
        raise NotImplementedError

    @property
    def common_bytes(self) -> int:
        """Bytes that both parties receive, the same: what a key has beside its secret part."""
        return 0

    @property
    def correction_bytes(self) -> int:
        """Bytes that the server receives, the common ones among them."""
        return sum(ring.wire_bytes(count) for count, ring in self.facts.corrections) + self.common_bytes

    def layout(self, party: int) -> list[tuple[int, int]]:
        """The arrays that a party draws, masks aside: (elements, bytes of a word), or (bytes, 0) for packed bytes."""
        return [(count, word_bytes(ring.width)) for count, ring in self.facts.corrections]

    def moved(self, by: int) -> Self:
        """The same, in a program that is so many correlations further on."""
        values = {name: getattr(self, name) for name in self.index_fields}
        changed = {
            name: tuple(index + by for index in value) if isinstance(value, tuple) else value + by
            for name, value in values.items()
        }
        return msgspec.structs.replace(self, **changed) if changed and by else self

    def check(self, masks: Sequence[AnyMask]) -> None:
        """Raises ShapeError if its parts do not fit together. masks: those it refers to."""
        for reference, mask in zip(self.facts.references, masks, strict=True):
            if reference.elements not in (None, mask.facts.elements):
                raise ShapeError(f"mask {reference.mask} has {mask.facts.elements} elements, not {reference.elements}")
        for _, ring in self.facts.corrections:
            if ring.modulus and any(mask.ring != ring for mask in masks):
                raise ShapeError("masks of another ring than an odd one do not make products in it")


class AnyMask(Correlation, frozen=True):
    """A tensor of uniform words in Z_2^width."""

    shape: Shape
    width: Width

    @property
    def ring(self) -> Ring:
        return Ring(self.width)

    @property
    def facts(self) -> Facts:
        count = math.prod(self.shape)
        return Facts(count, count * _OPENED_WORD, party_words=4 * count)

    def held_by(self, party: int) -> bool:
        """Whether a party has a part of it."""
        return True

    @property
    def words_of_element(self) -> int:
        """Words of a stream that an element takes (`from_seed`)."""
        return self.ring.seed_words

    def from_seed(self, words: Words) -> Words:
        """A party's part from uniform words."""
        return self.ring.from_seed(words)


class Mask(AnyMask, frozen=True):
    """A uniform mask a for an opening, in Z_2^width or in the ring of an odd modulus.

    shift > 0: the mask of an opening that truncates by `shift` bits on the way (`requests.TruncateOpen`). Its
    monomials are those of u = (a mod 2^(width-1)) >> shift and of the top bit of a, in Z_2^out_width.
    """

    shift: int = 0
    out_width: Width = 64
    modulus: Modulus = 0

    @property
    def ring(self) -> Ring:
        return Ring(self.width, self.modulus)

    def check(self, masks: Sequence[AnyMask]) -> None:
        if not 0 <= self.shift <= (self.width - 2 if not self.ring.modulus else 0):
            raise ShapeError(f"a mask of {self.width} bits cannot be shifted by {self.shift}")


class PartyBits(Mask, frozen=True):
    """Uniform bits that one party knows, as elements of an odd ring in which they are multiplied with masks."""

    owner: Annotated[int, msgspec.Meta(ge=CLIENT, le=SERVER)] = CLIENT

    @property
    def words_of_element(self) -> int:
        return 1

    def from_seed(self, words: Words) -> Words:
        return words & np.uint64(1)

    def held_by(self, party: int) -> bool:
        return party == self.owner


class ClientMask(AnyMask, frozen=True):
    """A mask that the client alone knows, for a tensor given to the server."""

    def held_by(self, party: int) -> bool:
        return party == CLIENT


class BitProducts(Correlation, frozen=True):
    """Bits b_client, b_server, one known to each party, and shares of their products mod 2^width, or mod modulus."""

    count: Size
    width: Width
    modulus: Modulus = 0

    @property
    def facts(self) -> Facts:
        return Facts(self.count, self.count * _BIT, ((self.count, Ring(self.width, self.modulus)),))

    def layout(self, party: int) -> list[tuple[int, int]]:
        return [(-(-self.count // 8), 0), *super().layout(party)]


class MonomialTerm(msgspec.Struct, frozen=True, array_like=True):
    """Π u_i^powers[i] · top_i^carries[i], shared mod 2^width, or in the odd ring of all terms."""

    powers: tuple[Power, ...]
    carries: tuple[Power, ...]
    width: Width


class Monomials(Correlation, frozen=True):
    """Monomials of masks, element by element, the masks broadcast to a common shape."""

    index_fields: ClassVar[tuple[str, ...]] = ("masks",)

    masks: tuple[Index, ...]
    shape: Shape
    terms: tuple[MonomialTerm, ...]
    modulus: Modulus = 0

    @property
    def facts(self) -> Facts:
        count = math.prod(self.shape)
        return Facts(
            count,
            count * len(self.terms) * _MONOMIAL,
            tuple((count, Ring(term.width, self.modulus)) for term in self.terms),
            tuple(Reference(index, Mask) for index in self.masks),
            party_words=count * (len(self.terms) + 2),
        )

    def check(self, masks: Sequence[AnyMask]) -> None:
        super().check(masks)
        if not self.terms:
            raise ShapeError("there are no monomials")
        if np.broadcast_shapes(*(mask.shape for mask in masks)) != self.shape:
            raise ShapeError(f"the masks do not broadcast to the shape {self.shape}")
        for term in self.terms:
            if not len(term.powers) == len(term.carries) == len(masks):
                raise ShapeError("a monomial does not have one power and one carry for each mask")


class SquareSums(Correlation, frozen=True):
    """Σ a² along the last axis of a mask of shape (rows, columns)."""

    index_fields: ClassVar[tuple[str, ...]] = ("mask",)

    mask: Index
    rows: Size
    columns: Size
    width: Width
    modulus: Modulus = 0

    @property
    def facts(self) -> Facts:
        count, ring = self.rows * self.columns, Ring(self.width, self.modulus)
        return Facts(count, count * _MONOMIAL, ((self.rows, ring),), (Reference(self.mask, Mask, count),))


class MatrixProduct(Correlation, frozen=True, omit_defaults=True):
    """A·B for two masks, batched: (batch, m, k)·(batch, k, n), or (batch, n, k) if transposed.

    causal: of A only what is not above the diagonal counts
    """

    index_fields: ClassVar[tuple[str, ...]] = ("left", "right")

    left: Index
    right: Index
    batch: Size
    m: Size
    k: Size
    n: Size
    transposed: bool
    width: Width
    cut: Cut = 0
    causal: bool = False

    def check(self, masks: Sequence[AnyMask]) -> None:
        super().check(masks)
        if self.causal and (self.transposed or self.m != self.k):
            raise ShapeError(
                f"a causal product has a square left matrix, not one of {self.m} rows and {self.k} columns"
            )

    @property
    def facts(self) -> Facts:
        batch, m, k, n = self.batch, self.m, self.k, self.n
        return Facts(
            batch * m * k * n,
            2 * batch * m * k * n * _PRODUCT,
            ((batch * m * n, Ring(self.width)),),
            (Reference(self.left, Mask, batch * m * k), Reference(self.right, Mask, batch * k * n)),
        )


class WeightCorrelation(Correlation, frozen=True):
    """A product of a client's mask, of so many rows, with the mask of the server's weight of that name."""

    index_fields: ClassVar[tuple[str, ...]] = ("mask",)

    mask: Index
    weight: str
    rows: Size


class WeightProduct(WeightCorrelation, frozen=True, omit_defaults=True):
    """a·Bᵀ for a client's mask a of (rows, inputs) and the mask B of the server's weight, (outputs, inputs)."""

    inputs: Size
    outputs: Size
    width: Width
    cut: Cut = 0

    @property
    def facts(self) -> Facts:
        rows, inputs, outputs = self.rows, self.inputs, self.outputs
        return Facts(
            rows * inputs * outputs,
            rows * inputs * outputs * _WEIGHT_PRODUCT,
            ((rows * outputs, Ring(self.width)),),
            (Reference(self.mask, ClientMask, rows * inputs),),
            party_words=3 * rows * outputs,
        )


class WeightScale(WeightCorrelation, frozen=True, omit_defaults=True):
    """a ⊙ b for a client's mask a of (rows, size) and the mask b of a vector of the server's, (size,)."""

    size: Size
    width: Width
    cut: Cut = 0

    @property
    def facts(self) -> Facts:
        count = self.rows * self.size
        reference = Reference(self.mask, ClientMask, count)
        return Facts(count, count * _MONOMIAL, ((count, Ring(self.width)),), (reference,))


class PointFunctions(Correlation, frozen=True, omit_defaults=True):
    """Masks a in Z_2^width and keys of point functions, for lines of public tables at secret places (`ops.table_line`).

    The place of a row is bits cut … cut+index_bits-1 of factor·a. The payload is (1, a), or (1, u, 2^step·top) if the
    opening truncates by shift > 0 bits, u and top being those of such a mask (`Mask`) and step = width - 1 - shift; in
    Z_2^out_width, or mod an odd modulus of as many bits. A party's root is its own, the corrections are common
    (native/points/tree.hpp).
    """

    count: Size
    index_bits: Annotated[int, msgspec.Meta(ge=1, le=MOST_INDEX_BITS)]
    factor: Annotated[int, msgspec.Meta(ge=1, le=1 << 8)]
    cut: Power
    width: Width
    shift: Power
    out_width: Width
    modulus: Modulus = 0

    @property
    def ring(self) -> Ring:
        """Of the payloads."""
        return Ring(self.out_width, self.modulus)

    @property
    def shape(self) -> PointShape:
        return PointShape(self.index_bits, 3 if self.shift else 2, self.ring)

    @property
    def whole(self) -> bool:
        """Whether the place is the top of the mask itself."""
        return self.factor == 1 and not self.shift and self.width == self.cut + self.index_bits

    @property
    def facts(self) -> Facts:
        cells = self.count << self.index_bits
        return Facts(cells, cells * _CELL, party_words=self.count * self.shape.key_words)

    def chunks(self) -> Iterator[int]:
        """Rows whose corrections stand together, one chunk after the other."""
        for start in range(0, self.count, POINT_ROWS):
            yield min(POINT_ROWS, self.count - start)

    @property
    def common_bytes(self) -> int:
        ring, shape = self.ring, self.shape
        return sum(16 * rows * shape.levels + ring.wire_bytes(rows * shape.leaf_words) for rows in self.chunks())

    def layout(self, party: int) -> list[tuple[int, int]]:
        """Masks, the root, the corrections of all levels, the last ones."""
        levels, last = 2 * self.count * self.shape.levels, self.count * self.shape.leaf_words
        return [(self.count, word_bytes(self.width)), (2, 8), (levels, 8), (last, word_bytes(self.out_width))]

    def check(self, masks: Sequence[AnyMask]) -> None:
        if self.cut + self.index_bits > self.width:
            raise ShapeError(f"a mask of {self.width} bits has no index of {self.index_bits} from bit {self.cut} on")
        narrow = not self.shift and (self.modulus or self.out_width > self.width) and not self.whole
        if self.shift > self.width - 2 or (self.shift and self.modulus) or narrow:
            raise ShapeError(f"a mask of {self.width} bits does not serve lines in a ring of {self.ring} bits")


_KINDS: list[type[Correlation]] = []


def register_kind(kind: type[Correlation]) -> None:
    """Adds a kind to those that are read. `offline.kinds` registers them, with whoever prepares them."""
    if any(other.__name__ == kind.__name__ for other in _KINDS):
        raise ConfigurationError(f"there is a kind of randomness called {kind.__name__} already")
    _KINDS.append(kind)


def any_kind() -> Any:
    """The registered kinds as one type, for strict decoding: whatever else comes is refused."""
    return Union[tuple(_KINDS)]  # noqa: UP007


def repeated(correlations: Sequence[Correlation], count: int) -> tuple[Correlation, ...]:
    """A program so many times, one after the other."""
    size = len(correlations)
    return tuple(correlation.moved(copy * size) for copy in range(count) for correlation in correlations)


def encode_correlations(correlations: Iterable[Correlation]) -> bytes:
    return msgspec.json.encode(list(correlations))


def decode_correlations(data: bytes) -> list[Correlation]:
    """Strict: an unknown kind, field or type, or a number out of range, is a msgspec.ValidationError."""
    found: list[Correlation] = _decoder(any_kind()).decode(data)
    return found


@lru_cache(maxsize=1)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[kind])


def program_digest(correlations: Iterable[Correlation]) -> str:
    """Names a program by all that it asks for. Parties and dealer compare it before anything is used."""
    return hashlib.sha256(encode_correlations(correlations)).hexdigest()
