"""Arithmetic in Z_2^64 on arrays of shares: the typed front of the C++ kernels.

Every kernel is single-threaded, releases the interpreter lock and gives the same bits on every instruction
set. `isa` names one of `isa_names()`; by default the best one that this machine has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product as cartesian
from math import comb, prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from comet_mpc import _native
from comet_mpc.errors import ConfigurationError, ShapeError

Words: TypeAlias = NDArray[np.uint64]
Bytes: TypeAlias = NDArray[np.uint8]
Exponents: TypeAlias = tuple[int, ...]

MAX_EXPONENT = 8

_ISA_NAMES = tuple(_native.isa_names())


def isa_names() -> list[str]:
    """Instruction sets this machine can run, best last."""
    return list(_ISA_NAMES)


def matmul(x: Words, y: Words, *, transpose_right: bool = False, width: int = 64, isa: str | None = None) -> Words:
    """x·y mod 2^width for x of shape [..., m, k] and y of shape [..., k, n], with equal leading dimensions.

    With `transpose_right` y has shape [..., n, k] and the result is x·yᵀ. A width of at most 32 is more than
    twice as fast. Bits of the result above `width` are zero; bits of x and y above it do not matter.
    """
    _require("x", x, np.uint64)
    _require("y", y, np.uint64)
    _require_width(width, at_least=1)
    if x.ndim < 2 or y.ndim != x.ndim or x.shape[:-2] != y.shape[:-2]:
        raise ShapeError(f"matmul: got {x.shape} and {y.shape}, expected [..., m, k] and [..., k, n]")
    m, k = x.shape[-2:]
    inner, n = y.shape[-2:] if not transpose_right else (y.shape[-1], y.shape[-2])
    if inner != k:
        raise ShapeError(f"matmul: inner dimensions differ, got {k} and {inner}")
    batch = prod(x.shape[:-2])
    out = np.empty((*x.shape[:-2], m, n), np.uint64)
    _native.matmul(_flat(x), _flat(y), out.reshape(-1), batch, m, k, n, transpose_right, width, _isa(isa))
    return out


def matmul_int32(x: Words, w: NDArray[np.int32], *, width: int = 64, isa: str | None = None) -> Words:
    """x·wᵀ mod 2^width for x of shape [m, k] and *signed* w of shape [n, k]; otherwise like `matmul`."""
    _require("x", x, np.uint64)
    _require("w", w, np.int32)
    _require_width(width, at_least=1)
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1]:
        raise ShapeError(f"matmul_int32: got {x.shape} and {w.shape}, expected [m, k] and [n, k]")
    (m, k), n = x.shape, w.shape[0]
    out = np.empty((m, n), np.uint64)
    _native.matmul_int32(_flat(x), _flat(w), out.reshape(-1), m, k, n, width, _isa(isa))
    return out


def evaluate(
    terms: Iterable[tuple[int, Exponents]],
    opened: Sequence[Words],
    monomials: Mapping[Exponents, Words],
    leader: bool,
    *,
    modulus: int = 0,
    isa: str | None = None,
) -> Words:
    """A share of p(v) = Σ_K coef_K · Π v_i^K_i at v_i = P_i + m_i, for public P_i and shares of m^E.

    All of it mod 2^64, or modulo an odd `modulus`, where all arrays hold residues:

        out = Σ_E [m^E] · Σ_{K >= E} coef_K · Π C(K_i, E_i) · P_i^(K_i - E_i),

    where the term E = 0 is added by the leader only. `terms` holds the pairs (coef_K, K), any integers and
    exponents up to 8; `opened` the P_i; `monomials` the shares by E (those not needed may be
    missing). All arrays have one shape, the result's.
    """
    if not opened:
        raise ShapeError("evaluate: got no opened values, expected one array per variable")
    shape = opened[0].shape
    for i, array in enumerate(opened):
        _require(f"opened[{i}]", array, np.uint64, shape)
    ring = modulus or 2**64
    plan = _plan(tuple((coef, tuple(exponents)) for coef, exponents in terms), len(opened), bool(leader), ring)
    shares = []
    for exponents in plan.monomials:
        if exponents not in monomials:
            raise ShapeError(f"evaluate: the share of the mask monomial with exponents {exponents} is missing")
        _require(f"monomials[{exponents}]", monomials[exponents], np.uint64, shape)
        shares.append(_flat(monomials[exponents]))
    out, publics = np.empty(shape, np.uint64), [_flat(array) for array in opened]
    if modulus:
        _native.odd_evaluate(modulus, (plan.products, plan.rows), publics, shares, out.reshape(-1))
    else:
        _native.evaluate((plan.products, plan.rows), publics, shares, out.reshape(-1), _isa(isa))
    return out


def truncate_mask(x: Words, bits: Bytes, width: int, leader: bool, *, isa: str | None = None) -> Bytes:
    """Packed n_i xor b_i, the one message of a truncation, for a share x of z mod 2^width.

    n_i = 1 - topbit(z'), z' = x + (2^(width-2) - 1)·[leader] mod 2^width. `bits` holds b_i, one uniform bit per
    element, packed like np.packbits(bitorder="little"). Padding bits of the result are zero. Bits of x above
    `width` do not matter. With uniform b_i the message reveals nothing.
    """
    _require("x", x, np.uint64)
    _require_width(width, at_least=2)
    _require_packed("bits", bits, x.size)
    out = np.empty((x.size + 7) // 8, np.uint8)
    _native.truncate_mask(_flat(x), _flat(bits), out, width, bool(leader), _isa(isa))
    return out


def truncate_finish(
    x: Words,
    bits: Bytes,
    mine: Bytes,
    theirs: Bytes,
    product: Words,
    width: int,
    shift: int,
    leader: bool,
    *,
    isa: str | None = None,
) -> Words:
    """A share mod 2^64 of z / 2^shift, rounded up or down at random and without bias; of z itself if shift = 0.

    x, bits, width and leader are those given to `truncate_mask`, `mine` what it returned, `theirs` what the
    peer sent, `product` a share mod 2^64 of b_0·b_1. With s_k = 1 - 2·e_k for the masked bits e_k,

        [n_0·n_1] = s_0·s_1·product + (leader: e_0·e_1 + e_1·s_0·b; follower: e_0·s_1·b),
        out = (z' >> shift) + [n_0·n_1]·2^(width-shift)
              + (leader: 1 - 2^(width-shift) - 2^(width-2-shift)).

    The result is floor(z / 2^shift) or one more; on uniform shares its mean is z / 2^shift.
    Domain: |z| < 2^(width-2), 0 <= shift <= width - 2. Outside, the result is silently wrong.
    """
    _require("x", x, np.uint64)
    _require("product", product, np.uint64, x.shape)
    _require_width(width, at_least=2)
    if not 0 <= shift <= width - 2:
        raise ShapeError(f"shift: got {shift}, expected 0..{width - 2} at width {width}")
    for name, packed in (("bits", bits), ("mine", mine), ("theirs", theirs)):
        _require_packed(name, packed, x.size)
    out = np.empty(x.shape, np.uint64)
    _native.truncate_finish(
        _flat(x),
        _flat(bits),
        _flat(mine),
        _flat(theirs),
        _flat(product),
        out.reshape(-1),
        width,
        shift,
        bool(leader),
        _isa(isa),
    )
    return out


def pack_words(x: Words, size: int, *, isa: str | None = None) -> Bytes:
    """The low `size` bytes (1..8) of each word of x, little endian, without gaps."""
    _require("x", x, np.uint64)
    _require_size(size)
    out = np.empty(x.size * size, np.uint8)
    _native.pack_words(_flat(x), out, size, _isa(isa))
    return out


def unpack_words(
    data: bytes | bytearray | memoryview | Bytes, size: int, count: int, *, isa: str | None = None
) -> Words:
    """`count` words of `size` bytes (1..8) each, zero-extended: the inverse of `pack_words`."""
    _require_size(size)
    packed = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    _require("data", packed, np.uint8)
    if count < 0 or packed.size != size * count:
        raise ShapeError(f"unpack_words: got {packed.size} bytes, expected {count} words of {size}")
    out = np.empty(count, np.uint64)
    _native.unpack_words(_flat(packed), out, size, _isa(isa))
    return out


class _Plan(NamedTuple):
    """What `evaluate` hands to C++, see native/ring/polynomial.hpp."""

    monomials: tuple[Exponents, ...]
    products: tuple[tuple[int, int], ...]
    rows: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]


@lru_cache(maxsize=1024)
def _plan(terms: tuple[tuple[int, Exponents], ...], variables: int, leader: bool, ring: int) -> _Plan:
    # coefficient[E][D]: what multiplies [m^E]·P^D.
    coefficient: dict[Exponents, dict[Exponents, int]] = {}
    for coef, K in terms:
        if len(K) != variables or not all(0 <= e <= MAX_EXPONENT for e in K):
            raise ShapeError(f"evaluate: got exponents {K}, expected {variables} of 0..{MAX_EXPONENT}")
        for E in cartesian(*(range(e + 1) for e in K)):
            D = tuple(k - e for k, e in zip(K, E, strict=True))
            row = coefficient.setdefault(E, {})
            row[D] = (row.get(D, 0) + coef * prod(map(comb, K, E))) % ring
    one = (0,) * variables
    if not leader:
        coefficient.pop(one, None)
    coefficient = {E: {D: c for D, c in row.items() if c} for E, row in sorted(coefficient.items())}
    coefficient = {E: row for E, row in coefficient.items() if row}

    wanted = {D for row in coefficient.values() for D in row if D != one}
    place: dict[Exponents, int] = {one: 0}
    products: list[tuple[int, int]] = []

    def add(D: Exponents) -> None:
        if D in place:
            return
        steps = [(i, (*D[:i], D[i] - 1, *D[i + 1 :])) for i in range(variables) if D[i]]
        # A product that is wanted anyway costs nothing more.
        variable, previous = next((step for step in steps if step[1] in place or step[1] in wanted), steps[-1])
        add(previous)
        products.append((place[previous], variable))
        place[D] = len(products)

    for D in sorted(wanted, key=sum):
        add(D)
    monomials = tuple(E for E in coefficient if E != one)
    rows = tuple(
        (
            monomials.index(E) if E != one else -1,
            row.get(one, 0),
            tuple((c, place[D] - 1) for D, c in row.items() if D != one),
        )
        for E, row in coefficient.items()
    )
    return _Plan(monomials, tuple(products), rows)


def _isa(name: str | None) -> str:
    if name is None:
        return ""
    if name not in _ISA_NAMES:
        raise ConfigurationError(f"isa: got {name!r}, expected one of {', '.join(_ISA_NAMES)}")
    return name


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).reshape(-1)


def _require(name: str, array: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...] | None = None) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        got = getattr(array, "dtype", type(array).__name__)
        raise ShapeError(f"{name}: got {got}, expected an array of {np.dtype(dtype)}")
    if shape is not None and array.shape != shape:
        raise ShapeError(f"{name}: got shape {array.shape}, expected {shape}")


def _require_packed(name: str, packed: Bytes, count: int) -> None:
    _require(name, packed, np.uint8, ((count + 7) // 8,))


def _require_width(width: int, *, at_least: int) -> None:
    if not at_least <= width <= 64:
        raise ShapeError(f"width: got {width}, expected {at_least}..64")


def _require_size(size: int) -> None:
    if not 1 <= size <= 8:
        raise ShapeError(f"size: got {size} bytes a word, expected 1..8")
