"""Polynomials modulo X^8192 + 1 in Python's own integers: an independent reference for the lattice arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from comet_mpc import _native
from comet_mpc.offline.rlwe.scheme import DEGREE, PRIMES, Scheme, SecretKey, basis

__all__ = ["coefficients", "lift", "negacyclic", "noise", "secret_of", "times"]


_DIGIT = 12
"""Bits. A product of two rows of such digits is below 2^37, some of them added below 2^42: exact in a double's FFT."""


def _digits(values: Sequence[int]) -> npt.NDArray[np.int64]:
    """[digit][place] of numbers of either sign, the lowest digits first."""
    rest = np.array(values, object)
    signs = np.where(rest < 0, -1, 1)
    rest, rows = abs(rest), list[npt.NDArray[np.int64]]()
    while not rows or rest.any():
        rows.append((rest & (2**_DIGIT - 1)).astype(np.int64) * signs)
        rest = rest >> _DIGIT
    return np.array(rows, np.int64)


def negacyclic(x: Sequence[int], y: Sequence[int]) -> list[int]:
    """x·y mod X^8192 + 1 over the integers: by digits, whose products a Fourier transform finds exactly."""
    left, right = (np.fft.rfft(_digits(each), 2 * DEGREE) for each in (x, y))
    total = np.zeros(DEGREE, object)
    for place in range(len(left) + len(right) - 1):
        pairs = [(i, place - i) for i in range(len(left)) if 0 <= place - i < len(right)]
        found = np.fft.irfft(np.sum([left[i] * right[j] for i, j in pairs], axis=0), 2 * DEGREE)
        assert np.abs(found - np.rint(found)).max() < 0.1
        whole = np.rint(found).astype(np.int64)
        total += (whole[:DEGREE] - whole[DEGREE:]).astype(object) << (_DIGIT * place)
    return list(total)


def lift(residues: npt.NDArray[np.uint32], primes: Sequence[int]) -> list[int]:
    """The integers below Π primes with these residues, [prime][count]."""
    modulus = math.prod(primes)
    totals = np.zeros(residues.size // len(primes), object)
    for row, prime in zip(residues.reshape(len(primes), -1), primes, strict=True):
        totals += row.astype(object) * (modulus // prime * pow(modulus // prime, -1, prime))
    return list(totals % modulus)


def coefficients(transformed: npt.NDArray[np.uint32], primes: tuple[int, ...]) -> list[int]:
    """Of a transformed polynomial [prime][8192], below Π primes."""
    out = np.empty(len(primes) * DEGREE, np.uint32)
    _native.lattice_backward(basis(primes), np.ascontiguousarray(transformed).reshape(-1), out, "")
    return lift(out, primes)


def times(transformed: npt.NDArray[np.uint32], small: Sequence[int], primes: tuple[int, ...]) -> list[int]:
    """A transformed polynomial times one of small coefficients, in order. By transforms, so it is quick."""
    out, moduli = np.empty(len(primes) * DEGREE, np.uint32), np.array(primes, np.int64)[:, None]
    residues = np.mod(np.array(small, np.int64), moduli).astype(np.uint32)
    _native.lattice_forward(basis(primes), residues.reshape(-1), out, "")
    product = transformed.reshape(len(primes), -1).astype(np.uint64) * out.reshape(len(primes), -1)
    return coefficients((product % moduli.astype(np.uint64)).astype(np.uint32), primes)


def secret_of(key: SecretKey) -> list[int]:
    """The ternary polynomial behind a key."""
    prime = PRIMES[0]
    mont = coefficients(key._secret[:DEGREE], (prime,))
    values = [value * pow(2**32, -1, prime) % prime for value in mont]
    return [value - prime if value > prime // 2 else value for value in values]


def noise(ciphertext: npt.NDArray[np.uint32], secret: list[int], scheme: Scheme, message: list[int]) -> list[int]:
    """c0 + c1·s - round(q·m/2^w) mod q, centred, for a message given times q/2^w."""
    q = math.prod(scheme.primes)
    c0, c1 = (coefficients(component, scheme.primes) for component in ciphertext)
    product = negacyclic(c1, secret)
    rest = [(a + b - m) % q for a, b, m in zip(c0, product, message, strict=True)]
    return [value - q if value > q // 2 else value for value in rest]
