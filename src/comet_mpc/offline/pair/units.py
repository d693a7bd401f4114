"""How a program's products of masks in odd rings are put together: which correlations share uploads, in what order.

Correlations of like shape are prepared together, so that small tensors share ciphertexts. The order follows from the
program alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from comet_mpc.engine.correlations import Correlation, Mask, Monomials, PartyBits, SquareSums
from comet_mpc.engine.ring import Ring
from comet_mpc.offline.pair.crossed import crossed
from comet_mpc.offline.pair.elements import Flat, FlatMember, Unit, Wide, WideMember, unit_power
from comet_mpc.offline.pair.stages import PairPreparer, Stage, Unprepared


class PairOddProducts(PairPreparer):
    """Of monomials and sums of squares those in odd rings."""

    order = 30

    def stages(self, unprepared: Unprepared) -> Iterator[Stage]:
        return iter(units(unprepared.program))


def units(program: Sequence[Correlation]) -> list[Unit]:
    """All products of masks in odd rings, in the order in which they are prepared: masks are defined, then used."""
    wide, rest = _wide(program)
    waiting: list[Unit] = [*wide, *_flat(program, rest, {mask for unit in wide for mask in unit.free_masks})]
    due = {mask for unit in waiting for mask in unit.free_masks}
    ordered: list[Unit] = []
    while waiting:
        ready = [unit for unit in waiting if not unit.used & due]
        ordered += _batched(ready)
        due -= {mask for unit in ready for mask in unit.free_masks}
        waiting = [unit for unit in waiting if unit not in ready]
    return ordered


def _mask(program: Sequence[Correlation], place: int) -> Mask:
    mask = program[place]
    assert isinstance(mask, Mask)
    return mask


def _wide(program: Sequence[Correlation]) -> tuple[list[Wide], list[tuple[int, Monomials]]]:
    """Units of one member each; and the monomials that are in none of them."""
    squares: dict[int, int] = {}
    products: dict[int, list[tuple[int, int]]] = defaultdict(list)
    rest = []
    for place, entry in enumerate(program):
        if isinstance(entry, SquareSums) and entry.modulus:
            squares[entry.mask] = place
        elif isinstance(entry, Monomials) and entry.modulus:
            if (sides := _by_rows(program, entry)) is not None:
                products[sides[0]].append((place, sides[1]))
            else:
                rest.append((place, entry))
    found = []
    for mask in sorted({*squares, *products}):
        described, beside = _mask(program, mask), tuple(products.get(mask, ()))
        rows, columns = math.prod(described.shape[:-1]), described.shape[-1]
        member = WideMember(mask, rows, squares.get(mask), beside)
        found.append(Wide(described.ring, columns, mask in squares, len(beside), (member,)))
    return found, rest


def _by_rows(program: Sequence[Correlation], entry: Monomials) -> tuple[int, int] | None:
    """(the mask of many columns, the one of a single column) of a product along rows; None if it is something else."""
    if len(entry.masks) != 2 or [term.powers for term in entry.terms] != [(1, 1)]:
        return None
    shapes = [_mask(program, mask).shape for mask in entry.masks]
    for wide in (0, 1):
        if shapes[wide] == entry.shape and shapes[1 - wide] == (*entry.shape[:-1], 1) and entry.shape[-1] > 1:
            return entry.masks[wide], entry.masks[1 - wide]
    return None


def _flat(program: Sequence[Correlation], entries: list[tuple[int, Monomials]], defined: set[int]) -> list[Flat]:
    """Units of one member each. Powers of one mask go along with the first monomials of it and others."""
    alone = [(place, entry) for place, entry in entries if len(entry.masks) == 1]
    hosts = []
    for place, entry in entries:
        if len(entry.masks) > 1:
            riding = [each for each in alone if each[1].masks[0] in entry.masks and each[1].shape == entry.shape]
            alone = [each for each in alone if each not in riding]
            hosts.append([(place, entry), *riding])
    found, met = [], set(defined)
    for together in [*hosts, *([each] for each in alone)]:
        entry = together[0][1]
        terms = [
            tuple(term.powers[each.masks.index(mask)] if mask in each.masks else 0 for mask in entry.masks)
            for _, each in together
            for term in each.terms
        ]
        described = [_mask(program, mask) for mask in entry.masks]
        owners = tuple(mask.owner if isinstance(mask, PartyBits) else None for mask in described)
        needed = crossed(terms, owners)[0]
        defines = tuple(
            mask not in met
            and owners[i] is None
            and unit_power(i, len(entry.masks)) in needed
            and described[i].shape == entry.shape
            for i, mask in enumerate(entry.masks)
        )
        met |= {mask for mask, here in zip(entry.masks, defines, strict=True) if here}
        member = FlatMember(entry.masks, entry.shape, tuple(each for each, _ in together))
        parts = tuple(len(each.terms) for _, each in together)
        ring = Ring(entry.terms[0].width, entry.modulus)
        found.append(Flat(ring, tuple(terms), parts, owners, defines, (member,)))
    return found


def _batched(found: Sequence[Unit]) -> Iterator[Unit]:
    """Units that differ in their members only, put together, up to a bounded size."""
    groups: dict[Unit, list[Unit]] = defaultdict(list)
    for unit in found:
        groups[unit.alone].append(unit)
    for alike, each in groups.items():
        batch = alike
        for unit in each:
            if batch.members and batch.count + unit.count > unit.most:
                yield batch
                batch = alike
            batch = replace(batch, members=(*batch.members, *unit.members))  # type: ignore[arg-type]
        yield batch
