"""Polynomials in named variables, written as they stand in the paper: `a * Y - b * T * Y**3`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product as cartesian

from comet_mpc.errors import ScaleError

Exponents = tuple[int, ...]


@dataclass(frozen=True)
class Polynomial:
    """A real polynomial: {((name, power), …): coefficient}, names in alphabetical order."""

    terms: Mapping[tuple[tuple[str, int], ...], float]

    @staticmethod
    def of(value: Polynomial | float) -> Polynomial:
        return value if isinstance(value, Polynomial) else Polynomial({(): float(value)})

    def __add__(self, other: Polynomial | float) -> Polynomial:
        total = dict(self.terms)
        for key, coefficient in Polynomial.of(other).terms.items():
            total[key] = total.get(key, 0.0) + coefficient
        return Polynomial({key: value for key, value in total.items() if value})

    def __mul__(self, other: Polynomial | float) -> Polynomial:
        if not isinstance(other, Polynomial):
            return Polynomial({key: value * other for key, value in self.terms.items() if value * other})
        total: dict[tuple[tuple[str, int], ...], float] = {}
        for (left, a), (right, b) in cartesian(self.terms.items(), other.terms.items()):
            powers = dict(left)
            for name, power in right:
                powers[name] = powers.get(name, 0) + power
            key = tuple(sorted(powers.items()))
            total[key] = total.get(key, 0.0) + a * b
        return Polynomial({key: value for key, value in total.items() if value})

    def __neg__(self) -> Polynomial:
        return self * -1.0

    def __sub__(self, other: Polynomial | float) -> Polynomial:
        return self + -Polynomial.of(other)

    def __pow__(self, power: int) -> Polynomial:
        total = Polynomial.of(1.0) if power == 0 else self
        for _ in range(power - 1):
            total = total * self
        return total

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: float) -> Polynomial:
        return -self + other

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({name for key in self.terms for name, _ in key}))

    def quantised(self, fractions: Mapping[str, float], fraction: float) -> list[tuple[int, Exponents]]:
        """Ring coefficients [(k, exponents)], so that Σ k·Π v^e has `fraction` bits when v has fractions[v].

        k = round(c·2^(fraction - Σ e·fractions[v])). A coefficient that would vanish is an error: it means
        that the result has too few fraction bits for the polynomial.
        """
        names = self.names
        quantised = []
        for key, coefficient in self.terms.items():
            powers = dict(key)
            spare = fraction - sum(power * fractions[name] for name, power in key)
            integer = round(coefficient * 2.0**spare)
            if integer == 0:
                monomial = "·".join(f"{name}^{power}" for name, power in key) or "1"
                raise ScaleError(
                    f"the coefficient {coefficient:g} of {monomial} vanishes: {fraction} fraction bits of the result "
                    f"leave {spare} for it; give the result more bits or the variables fewer"
                )
            quantised.append((integer, tuple(powers.get(name, 0) for name in names)))
        return quantised


def variables(names: str) -> tuple[Polynomial, ...]:
    """`T, Y = variables("t y")`."""
    return tuple(Polynomial({((name, 1),): 1.0}) for name in names.split())


def needed_monomials(exponents: Iterable[Exponents]) -> list[Exponents]:
    """Every monomial of the masks (but 1) that occurs when v = P + m is put into terms of these exponents."""
    found = {below for term in exponents for below in cartesian(*(range(power + 1) for power in term))}
    return sorted(monomial for monomial in found if any(monomial))
