"""The kinds of correlated randomness a program asks for, as plain descriptions.

A plan is a list of these. A correlation is known by its place in that list; one that builds on a mask names the
mask's place. Descriptions hold shapes and widths only, never a value, and travel as JSON to whoever prepares them.

In every kind "a" is a mask: a uniform word for every element, shared as a = a_client + a_server mod 2^width,
each part expanded from that party's own seed. What is not uniform by itself (a product of masks) is shared too: the
client's part comes from its seed, and the server's part is the *correction*, sent once, `correction_bytes` long.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import msgspec

from comet_mpc.engine.share import word_bytes

__all__ = [
    "BitProducts",
    "ClientMask",
    "Correlation",
    "Mask",
    "MatrixProduct",
    "MonomialTerm",
    "Monomials",
    "SquareSums",
    "TableTransfers",
    "WeightProduct",
    "WeightScale",
    "correction_bytes",
    "correction_widths",
    "decode_correlations",
    "encode_correlations",
    "program_digest",
]


class Mask(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A uniform mask a for an opening, in Z_2^width.

    shift > 0: the mask of an opening that truncates by `shift` bits on the way (`session.TruncateOpen`). Its
    monomials are those of u = (a mod 2^(width-1)) >> shift and of the top bit of a, in Z_2^out_width.
    """

    shape: tuple[int, ...]
    width: int
    shift: int = 0
    out_width: int = 64


class ClientMask(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A mask that the client alone knows, for a tensor given to the server."""

    shape: tuple[int, ...]
    width: int


class BitProducts(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Bits b_client, b_server, one known to each party, and shares of their products mod 2^width."""

    count: int
    width: int


class MonomialTerm(msgspec.Struct, frozen=True, array_like=True):
    """Π u_i^powers[i] · top_i^carries[i], shared mod 2^width."""

    powers: tuple[int, ...]
    carries: tuple[int, ...]
    width: int


class Monomials(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Monomials of masks, element by element, the masks broadcast to a common shape."""

    masks: tuple[int, ...]
    shape: tuple[int, ...]
    terms: tuple[MonomialTerm, ...]


class SquareSums(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Σ a² along the last axis of a mask of shape (rows, columns)."""

    mask: int
    rows: int
    columns: int
    width: int


class MatrixProduct(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A·B for two masks, batched: (batch, m, k)·(batch, k, n), or (batch, n, k) if transposed."""

    left: int
    right: int
    batch: int
    m: int
    k: int
    n: int
    transposed: bool
    width: int


class WeightProduct(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """a·Bᵀ for a client's mask a of (rows, inputs) and the mask B of the server's weight, (outputs, inputs)."""

    mask: int
    weight: str
    rows: int
    inputs: int
    outputs: int
    width: int


class WeightScale(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """a ⊙ b for a client's mask a of (rows, size) and the mask b of a vector of the server's, (size,)."""

    mask: int
    weight: str
    rows: int
    size: int
    width: int


class TableTransfers(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """1-of-M transfers of random words, for look-ups in tables of `entries` places and columns of `sizes` bytes.

    For each of `count` tables and each column the client knows a word at every place, the server the word at one
    uniform place and no other, less a word of the client's that becomes its share of what is looked up.
    """

    count: int
    entries: int
    sizes: tuple[int, ...]


Correlation = (
    Mask
    | ClientMask
    | BitProducts
    | Monomials
    | SquareSums
    | MatrixProduct
    | WeightProduct
    | WeightScale
    | TableTransfers
)


def correction_widths(correlation: Correlation) -> list[tuple[int, int]]:
    """The arrays of a correlation's correction, in order: (elements, ring width)."""
    match correlation:
        case Mask() | ClientMask():
            return []
        case BitProducts(count=count, width=width):
            return [(count, width)]
        case Monomials(shape=shape, terms=terms):
            return [(math.prod(shape), term.width) for term in terms]
        case SquareSums(rows=rows, width=width):
            return [(rows, width)]
        case MatrixProduct(batch=batch, m=m, n=n, width=width):
            return [(batch * m * n, width)]
        case WeightProduct(rows=rows, outputs=outputs, width=width):
            return [(rows * outputs, width)]
        case WeightScale(rows=rows, size=size, width=width):
            return [(rows * size, width)]
        case TableTransfers(count=count, sizes=sizes):
            return [(count, 8 * size) for size in sizes]


def correction_bytes(correlation: Correlation) -> int:
    """Bytes that the server receives for one correlation."""
    return sum(count * word_bytes(width) for count, width in correction_widths(correlation))


def encode_correlations(correlations: Iterable[Correlation]) -> bytes:
    return msgspec.json.encode(list(correlations))


def decode_correlations(data: bytes) -> list[Correlation]:
    """Strict: an unknown kind, field or type is a msgspec.ValidationError."""
    return msgspec.json.decode(data, type=list[Correlation])


def program_digest(correlations: Iterable[Correlation]) -> str:
    """Names a program by all that it asks for. Parties and dealer compare it before anything is used."""
    return hashlib.sha256(encode_correlations(correlations)).hexdigest()
