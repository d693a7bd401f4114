"""What of a monomial of shared masks is a product of the two parties: Π (a_c + a_s)^p by the binomial theorem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product as cartesian

from comet_mpc.engine.share import CLIENT

Powers = tuple[int, ...]


def crossed(
    powers: Sequence[Powers], owners: Sequence[int | None] | None = None
) -> tuple[tuple[Powers, ...], tuple[tuple[int, ...], ...]]:
    """The client's factors that the monomials need, and for each monomial the places of those that occur in it.

    owners: for each mask the party that knows it, if one does
    """
    return _crossed(tuple(powers), tuple(owners or ()))


@lru_cache(maxsize=1024)  # a program asks for few different ones, and a plan compares many programs
def _crossed(
    powers: tuple[Powers, ...], owners: tuple[int | None, ...]
) -> tuple[tuple[Powers, ...], tuple[tuple[int, ...], ...]]:
    uploads: list[Powers] = []
    sums = []
    for term in powers:
        places = []
        for exponents in cartesian(*map(_taken, term, owners or [None] * len(term))):
            if any(exponents) and exponents != tuple(term):
                if exponents not in uploads:
                    uploads.append(exponents)
                places.append(uploads.index(exponents))
        sums.append(tuple(places))
    return tuple(uploads), tuple(sums)


def _taken(power: int, owner: int | None) -> Sequence[int]:
    """Which powers of a mask the client's part may have."""
    if owner is None:
        return range(power + 1)
    return (power if owner == CLIENT else 0,)


def server_factor(term: Powers, client: Powers) -> tuple[int, Powers]:
    """Π C(p, j) and the powers p - j: what the server multiplies the client's a_c^j by."""
    factor = math.prod(math.comb(power, taken) for power, taken in zip(term, client, strict=True))
    return factor, tuple(power - taken for power, taken in zip(term, client, strict=True))
