"""How two parties put a program's correlations together to prepare them: the same for the plan and for the parties."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from comet_mpc.engine.correlations import (
    AnyMask,
    BitProducts,
    Correlation,
    MatrixProduct,
    Monomials,
    SquareSums,
    WeightProduct,
    WeightScale,
)
from comet_mpc.engine.ring import Ring
from comet_mpc.errors import ShapeError
from comet_mpc.offline.pair.crossed import Powers, crossed
from comet_mpc.offline.pair.units import defined_masks
from comet_mpc.offline.rlwe.packing import Packing
from comet_mpc.offline.rlwe.products import check_bits, check_lengths
from comet_mpc.offline.rlwe.scheme import DEGREE
from comet_mpc.offline.rlwe.slots import SlotPlan, choose_plan
from comet_mpc.offline.rlwe.tiling import Integers, Tiling, choose_tiling

WEIGHT_BITS = 24
"""Public bound of the server's weights: |w| <= 2^23 in fixed point. The modulus of their products is chosen for it."""
WEIGHT_LENGTH = 2.0 ** (WEIGHT_BITS - 1)
"""Of a whole row of a weight: Σ w² is at most the square of this."""

BATCH = 1 << 19
"""Elements of small tensors that are prepared together."""

Kind = TypeVar("Kind", bound=Correlation)


def _common(correlation: Correlation) -> Any:
    """What correlations of a kind must have in common to be prepared together."""
    match correlation:
        case BitProducts(width=width, modulus=modulus):
            return width, modulus
        case WeightScale(width=width):
            return width
        case Monomials(terms=terms):
            return terms
        case SquareSums(columns=columns, width=width):
            return columns, width
    raise ShapeError(f"{type(correlation).__name__} is prepared alone")


def grouped(program: Sequence[Correlation | None], kind: type[Kind]) -> Iterator[tuple[Any, list[tuple[int, Kind]]]]:
    """Correlations of a kind, with their places, by what they have in common; in batches of bounded size.

    Products in odd rings are not among them: see `elements`.
    """
    groups: dict[Any, list[tuple[int, Kind]]] = defaultdict(list)
    for index, correlation in enumerate(program):
        odd = isinstance(correlation, Monomials | SquareSums) and correlation.modulus
        if isinstance(correlation, kind) and not odd:
            groups[_common(correlation)].append((index, correlation))
    for name, members in groups.items():
        batch: list[tuple[int, Kind]] = []
        elements = 0
        for member in members:
            size = member[1].facts.elements
            if batch and elements + size > BATCH:
                yield name, batch
                batch, elements = [], 0
            batch.append(member)
            elements += size
        yield name, batch


@dataclass(frozen=True)
class Products:
    """Homomorphic matrix products of a mask of the client's, uploaded once; the same for every member of a batch."""

    places: tuple[int, ...]
    """Of the correlations that they are for. Several have rows of one weight's product each, one below the other."""
    masks: tuple[int, ...]
    batch: int
    tiling: Tiling
    width: int
    free: bool
    """Whether the ciphertexts may define the masks."""
    scales: tuple[tuple[int, ...], ...] = ()
    """Places of the correlations that scale the same masks, of each place."""


def matrix_products(program: Sequence[Correlation], copies: int = 1) -> list[Products]:
    """All of them, in the order in which they are prepared. The first that a mask enters may define it.

    copies: how many times the program holds the same one (`repeated`)
    """
    return list(_arranged(tuple(program), copies))


@lru_cache(maxsize=4)
def _arranged(program: tuple[Correlation, ...], copies: int) -> tuple[Products, ...]:
    """Planning, preparing and storing a bundle ask for the same."""
    return tuple(_matrix_products(program, packing_of(program[: len(program) // copies])))


def _matrix_products(program: Sequence[Correlation], packing: Packing) -> Iterator[Products]:
    riding = _riding(program) if packing else {}
    met: set[int] = set()
    done: set[int] = set()
    alike: dict[WeightProduct, list[int]] = defaultdict(list)
    for place, entry in enumerate(program):
        if isinstance(entry, WeightProduct):
            alike[_nowhere(entry)].append(place)
    for place, entry in enumerate(program):
        match entry:
            case WeightProduct(rows=rows, inputs=inputs, outputs=outputs, width=width) if place not in done:
                fitting = max(1, BATCH // (rows * inputs))
                masked: dict[int, int] = {}  # each mask once
                for other in alike[_nowhere(entry)]:
                    if other not in done and len(masked) < fitting:
                        masked.setdefault(_mask_of(program, other), other)
                masks, places, scales = tuple(masked), tuple(masked.values()), riding.get(place, ())
                done |= {*places}
                free = [_free(program, mask, width, met) for mask in masks]
                tiling = choose_tiling(
                    *(rows * len(places), inputs, outputs, width, WEIGHT_BITS, packing),
                    length=WEIGHT_LENGTH,
                    diagonals=len(scales),
                    free=all(free),
                )
                every = tuple(riding.get(other, ()) for other in places)
                yield Products(places, masks, 1, tiling, width, all(free), every)
            case MatrixProduct(left=left, right=right, batch=batch, m=m, k=k, n=n, width=width):
                for mask, shape in ((left, (m, k, n)), (right, (n, k, m))):
                    free_one = _free(program, mask, width, met)
                    length = math.sqrt(k * 4.0**width / 12)  # the server's factor is a mask: uniform
                    tiling = choose_tiling(*(*shape, width, width, packing), length=length, free=free_one)
                    yield Products((place,), (mask,), batch, tiling, width, free_one)


def _nowhere(entry: WeightProduct) -> WeightProduct:
    """What products that can be prepared together have in common."""
    return msgspec.structs.replace(entry, mask=0)


def _mask_of(program: Sequence[Correlation], place: int) -> int:
    entry = program[place]
    assert isinstance(entry, WeightProduct)
    return entry.mask


def _riding(program: Sequence[Correlation]) -> dict[int, tuple[int, ...]]:
    """Scalings of a mask that also enters a product with a weight, by the place of the first such product."""
    first: dict[tuple[int, int], int] = {}
    for place, entry in enumerate(program):
        if isinstance(entry, WeightProduct):
            first.setdefault((entry.mask, entry.width), place)
    riding: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for place, entry in enumerate(program):
        if isinstance(entry, WeightScale) and (host := first.get((entry.mask, entry.width))) is not None:
            riding[host] += (place,)
    return riding


def _free(program: Sequence[Correlation], place: int, width: int, met: set[int]) -> bool:
    """Whether no product has defined or used a mask before, and it has this very width."""
    mask = program[place]
    if place in met or not isinstance(mask, AnyMask):
        return False
    met.add(place)
    return mask.ring == Ring(width)


def scales_alone(program: Sequence[Correlation], copies: int = 1) -> list[Correlation | None]:
    """The program's scalings that no matrix product takes along, at their places."""
    taken = {place for products in matrix_products(program, copies) for places in products.scales for place in places}
    return [entry if isinstance(entry, WeightScale) and i not in taken else None for i, entry in enumerate(program)]


def masks_by_ciphertext(program: Sequence[Correlation]) -> frozenset[int]:
    """Places of the masks whose words at the client may be what its ciphertexts say; it stores them in its bundle."""
    by_matrices = {mask for products in matrix_products(program) if products.free for mask in products.masks}
    return defined_masks(program) | by_matrices


def packing_of(program: Sequence[Correlation]) -> Packing:
    """Whether packed responses, and turned uploads, save more than the keys for them take."""
    return _packing(tuple(program))


@lru_cache(maxsize=4)
def _packing(program: tuple[Correlation, ...]) -> Packing:
    def cost(packing: Packing) -> float:
        return packing.key_bytes + sum(p.batch * p.tiling.cost for p in _matrix_products(program, packing))

    return min(Packing, key=cost)


def square_plan(terms: int, width: int) -> SlotPlan:
    return choose_plan(terms, (tuple(range(terms)),), width, width)


def monomial_plan(powers: Sequence[Powers], width: int) -> SlotPlan | None:
    """None if nothing is crossed: every monomial is a mask itself."""
    uploads, sums = crossed(powers)
    mixed = tuple(entry for entry in sums if entry)
    return choose_plan(len(uploads), mixed, width, width) if mixed else None


def check_weight(values: Integers) -> None:
    """Refuses a weight of the server's, (outputs, inputs) or a vector, beyond the public bounds."""
    check_bits(values, WEIGHT_BITS)
    if values.ndim > 1:
        check_lengths(values, WEIGHT_LENGTH)


def scale_plan(width: int) -> SlotPlan:
    return choose_plan(1, ((0,),), width, WEIGHT_BITS)


def terms_per_sum(rows: int, columns: int, width: int) -> int:
    """How many columns are added up under encryption: uploads stay as many, responses become fewer."""

    def cost(terms: int) -> float:
        plan = square_plan(terms, width)
        blocks = -(-rows * -(-columns // terms) // DEGREE)
        return blocks * (plan.upload_bytes + plan.response_bytes)

    return min({min(columns, count) for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)}, key=cost)
