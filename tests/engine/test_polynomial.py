"""Polynomials: what is written is what is evaluated, and coefficients never vanish silently."""

from __future__ import annotations

import math
from itertools import product as cartesian

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comet_mpc.engine.polynomial import Polynomial, needed_monomials, variables
from comet_mpc.errors import ScaleError

T, Y = variables("t y")


def at(polynomial: Polynomial, **values: float) -> float:
    return sum(c * math.prod(values[name] ** power for name, power in key) for key, c in polynomial.terms.items())


integers = st.integers(-9, 9)


@given(integers, integers, integers, integers)
def test_algebra_on_polynomials_is_algebra_on_their_values(t: int, y: int, a: int, b: int) -> None:
    p, q = a * T + Y**2 - 3, T * Y - b
    p_value, q_value = a * t + y**2 - 3, t * y - b
    assert at(p, t=t, y=y) == p_value
    assert at(p + q, t=t, y=y) == p_value + q_value
    assert at(p - q, t=t, y=y) == p_value - q_value
    assert at(p * q, t=t, y=y) == p_value * q_value
    assert at(2 - p, t=t, y=y) == 2 - p_value
    assert at(-p, t=t, y=y) == -p_value
    assert at(q**3, t=t, y=y) == q_value**3


def test_terms_that_cancel_are_gone() -> None:
    assert (T - T).terms == {}
    assert (T * Y - Y * T + 1.0).names == ()
    assert (T**0).terms == {(): 1.0}


def test_names_are_in_alphabetical_order_however_they_are_written() -> None:
    assert (Y + T).names == (Y * T).names == ("t", "y")


@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 9), st.integers(-9, -1))
def test_quantised_coefficients_scale_every_term_to_the_same_fraction(ft: int, fy: int, a: int, b: int) -> None:
    fraction = ft + 3 * fy + 4
    quantised = {e: k for k, e in (a * Y + b / 16 * T * Y**3).quantised({"t": ft, "y": fy}, fraction)}
    assert quantised == {(0, 1): a * 2 ** (fraction - fy), (1, 3): b}


def test_quantised_coefficients_are_rounded_to_nearest() -> None:
    ((integer, exponents),) = (T * (1.0 / 3.0)).quantised({"t": 4}, 12)
    assert (integer, exponents) == (85, (1,))


def test_a_coefficient_that_would_vanish_is_an_error() -> None:
    with pytest.raises(ScaleError, match=r"t\^1·y\^3 vanishes"):
        (Y - 0.125 * T * Y**3).quantised({"t": 8, "y": 8}, 33)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4))
def test_needed_monomials_are_all_those_below_a_term_but_one(exponents: list[tuple[int, ...]]) -> None:
    expected = [
        below
        for below in cartesian(range(4), range(4))
        if any(below) and any(all(b <= e for b, e in zip(below, term, strict=True)) for term in exponents)
    ]
    assert needed_monomials(exponents) == sorted(expected)


def test_a_cubic_step_needs_seven_mask_monomials() -> None:
    terms = (1.5 * Y - 0.5 * T * Y**3).quantised({"t": 8, "y": 8}, 40)
    assert needed_monomials([e for _, e in terms]) == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
