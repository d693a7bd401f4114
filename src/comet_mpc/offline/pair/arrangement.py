"""How two parties put a program's correlations together to prepare them: the same for the plan and for the parties."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product as cartesian
from typing import Any, TypeVar

from comet_mpc.engine.correlations import (
    BitProducts,
    Correlation,
    MatrixProduct,
    Monomials,
    SquareSums,
    WeightProduct,
    WeightScale,
)
from comet_mpc.errors import ShapeError
from comet_mpc.offline.rlwe.packing import PackingKeys
from comet_mpc.offline.rlwe.scheme import DEGREE
from comet_mpc.offline.rlwe.slots import SlotPlan, choose_plan
from comet_mpc.offline.rlwe.tiling import choose_tiling

__all__ = [
    "WEIGHT_BITS",
    "Powers",
    "crossed",
    "grouped",
    "matrix_shapes",
    "monomial_plan",
    "packing_pays",
    "scale_plan",
    "square_plan",
    "terms_per_sum",
]

WEIGHT_BITS = 24
"""Public bound of the server's weights: |w| <= 2^23 in fixed point. The modulus of their products is chosen for it."""

BATCH = 1 << 19
"""Elements of small tensors that are prepared together."""

Kind = TypeVar("Kind", bound=Correlation)
Powers = tuple[int, ...]


def _common(correlation: Correlation) -> Any:
    """What correlations of a kind must have in common to be prepared together."""
    match correlation:
        case BitProducts(width=width) | WeightScale(width=width):
            return width
        case Monomials(terms=terms):
            return terms
        case SquareSums(columns=columns, width=width):
            return columns, width
    raise ShapeError(f"{type(correlation).__name__} is prepared alone")


def grouped(program: Sequence[Correlation], kind: type[Kind]) -> Iterator[tuple[Any, list[tuple[int, Kind]]]]:
    """Correlations of a kind, with their places, by what they have in common; in batches of bounded size."""
    groups: dict[Any, list[tuple[int, Kind]]] = defaultdict(list)
    for index, correlation in enumerate(program):
        if isinstance(correlation, kind):
            groups[_common(correlation)].append((index, correlation))
    for name, members in groups.items():
        batch: list[tuple[int, Kind]] = []
        for member in members:
            if batch and sum(entry.facts.elements for _, entry in [*batch, member]) > BATCH:
                yield name, batch
                batch = []
            batch.append(member)
        yield name, batch


def matrix_shapes(program: Sequence[Correlation]) -> Iterator[tuple[int, tuple[int, int, int, int, int]]]:
    """Homomorphic matrix products: how many, and rows, inputs, outputs, width, bits of the server's factor."""
    for correlation in program:
        match correlation:
            case WeightProduct(rows=rows, inputs=inputs, outputs=outputs, width=width):
                yield 1, (rows, inputs, outputs, width, WEIGHT_BITS)
            case MatrixProduct(batch=batch, m=m, k=k, n=n, width=width):
                yield batch, (m, k, n, width, width)
                yield batch, (n, k, m, width, width)


def packing_pays(program: Sequence[Correlation]) -> bool:
    """Whether packed responses save more bytes than the keys for them take."""
    saved = 0
    for batch, shape in matrix_shapes(program):
        plain, packed = (choose_tiling(*shape, packed=packed) for packed in (False, True))
        saved += batch * (plain.upload_bytes + plain.response_bytes - packed.upload_bytes - packed.response_bytes)
    return saved > PackingKeys.SIZE


def crossed(powers: Sequence[Powers]) -> tuple[list[Powers], list[tuple[int, ...]]]:
    """The client's factors that the monomials need, and for each monomial the places of those that occur in it."""
    uploads: list[Powers] = []
    sums = []
    for term in powers:
        places = []
        for exponents in cartesian(*(range(power + 1) for power in term)):
            if any(exponents) and exponents != tuple(term):
                if exponents not in uploads:
                    uploads.append(exponents)
                places.append(uploads.index(exponents))
        sums.append(tuple(places))
    return uploads, sums


def square_plan(terms: int, width: int) -> SlotPlan:
    return choose_plan(terms, (tuple(range(terms)),), width, width)


def monomial_plan(powers: Sequence[Powers], width: int) -> SlotPlan | None:
    """None if nothing is crossed: every monomial is a mask itself."""
    uploads, sums = crossed(powers)
    mixed = tuple(entry for entry in sums if entry)
    return choose_plan(len(uploads), mixed, width, width) if mixed else None


def scale_plan(width: int) -> SlotPlan:
    return choose_plan(1, ((0,),), width, WEIGHT_BITS)


def terms_per_sum(rows: int, columns: int, width: int) -> int:
    """How many columns are added up under encryption: uploads stay as many, responses become fewer."""

    def cost(terms: int) -> float:
        plan = square_plan(terms, width)
        blocks = -(-rows * -(-columns // terms) // DEGREE)
        return blocks * (plan.upload_bytes + plan.response_bytes)

    return min({min(columns, count) for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)}, key=cost)
