"""What tests of protocols share: secrets, strategies, and how far two parties may be from the plaintext twin.

Truncation gives one of the two neighbours of z/2^d (and z/2^d itself where that is an integer), the twin the nearer
one. So a truncated value differs from the twin's by at most one unit in the last place, and whatever is computed from
truncated values by at most what those units can do to it (`spread`). Where nothing is truncated, the two are equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import assume, settings
from hypothesis import strategies as st

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.polynomial import Polynomial, variables
from comet_mpc.engine.share import CLIENT, SERVER, WORD, Share, Words
from support.two_parties import Program, TwoPartyRun, run_two_parties, together, twin_value

Integers = npt.NDArray[np.int64]

X, Y, Z = variables("x y z")
NAMES = ("x", "y", "z")
FEW = settings(max_examples=60)


def spread(polynomial: Polynomial, bounds: Mapping[str, float], units: Mapping[str, float]) -> float:
    """How much a polynomial can change when every |v| <= bounds[v] is off by at most units[v].

    |Π (v + e)^k - Π v^k| <= Π (b + u)^k - Π b^k, term by term.
    """
    total = 0.0
    for key, coefficient in polynomial.terms.items():
        above = math.prod((bounds[name] + units.get(name, 0.0)) ** power for name, power in key)
        total += abs(coefficient) * (above - math.prod(bounds[name] ** power for name, power in key))
    return total


def reach(polynomial: Polynomial, bounds: Mapping[str, float]) -> float:
    """The largest |value| for |v| <= bounds[v]."""
    return sum(abs(c) * math.prod(bounds[n] ** p for n, p in key) for key, c in polynomial.terms.items())


def secret(session: Session, units: Integers, fraction: int, width: int = WORD) -> Share:
    """units·2^-fraction, of which each party holds a part."""
    rng = np.random.default_rng(units.size)
    largest = int(np.max(np.abs(units), initial=1))
    client = rng.integers(-largest, largest + 1, units.shape)
    parts = [(CLIENT, client, largest), (SERVER, units - client, 2 * largest)]
    halves = [
        session.private(owner, units.shape, fraction, bound * 2.0**-fraction, part * 2.0**-fraction, width)
        for owner, part, bound in parts
    ]
    return (halves[0] + halves[1]).bounded(largest * 2.0**-fraction)


def uniform(session: Session, x: Share) -> Share:
    """The same value in shares that are uniform, as they are in the middle of a program."""
    return session.evaluate(X, {"x": session.open(x)}, bound=x.bound)


def integers(words: Words, width: int) -> Integers:
    return (words << np.uint64(WORD - width)).view(np.int64) >> np.int64(WORD - width)


def whole(run: TwoPartyRun[Share]) -> Integers:
    """The integer behind the two parties' shares."""
    assert run.client.values is not None
    assert run.server.values is not None
    return integers(run.client.values + run.server.values, run.client.width)


def units_of(seed: int, shape: Sequence[int], largest: int) -> Integers:
    return np.random.default_rng(seed).integers(-largest, largest + 1, tuple(shape))


def both_ways(program: Program[Share], weights: Mapping[str, Weight] | None = None) -> list[TwoPartyRun[Share]]:
    return [run_two_parties(program, weights, fused=fused) for fused in (True, False)]


def assert_equal_to_twin(program: Program[Share], weights: Mapping[str, Weight] | None = None) -> None:
    expected = twin_value(program, weights)
    for run in both_ways(program, weights):
        assert np.array_equal(together(run), expected)


seeds = st.integers(0, 2**32)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@st.composite
def polynomials(draw: st.DrawFn, names: Sequence[str], degree: int) -> Polynomial:
    terms: dict[tuple[tuple[str, int], ...], float] = {}
    for _ in range(draw(st.integers(1, 4))):
        powers = [draw(st.integers(0, degree)) for _ in names]
        key = tuple((name, power) for name, power in zip(names, powers, strict=True) if power)
        terms[key] = float(draw(st.sampled_from([-3, -2, -1, 1, 2, 5])))
    assume(any(terms))
    return Polynomial(terms)
