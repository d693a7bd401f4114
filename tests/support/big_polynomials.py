"""Polynomials modulo X^8192 + 1 in Python's own integers: an independent reference for the lattice arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from comet_mpc import _native
from comet_mpc.offline.rlwe.scheme import DEGREE, PRIMES, Scheme, SecretKey, basis

__all__ = ["coefficients", "lift", "negacyclic", "noise", "secret_of", "times"]


def _join(values: Sequence[int], size: int) -> int:
    return int.from_bytes(b"".join(value.to_bytes(size, "little") for value in values), "little")


def negacyclic(x: Sequence[int], y: Sequence[int]) -> list[int]:
    """x·y mod X^8192 + 1 over the integers: one big product, its coefficients far enough apart (Kronecker)."""
    shift = max(abs(value) for value in x)
    left = [value + shift for value in x]  # not negative; the shift is taken off again below
    positive, negative = [max(value, 0) for value in y], [max(-value, 0) for value in y]
    size = (max(left).bit_length() + max(abs(value) for value in y).bit_length() + 14 + 7) // 8 + 1
    sums = []
    for right in (positive, negative):
        product = (_join(left, size) * _join(right, size)).to_bytes(2 * DEGREE * size + size, "little")
        parts = [int.from_bytes(product[i * size : (i + 1) * size], "little") for i in range(2 * DEGREE)]
        sums.append([parts[i] - parts[i + DEGREE] for i in range(DEGREE)])
    ones, total = [], -sum(y)  # (Σ X^i)·y: coefficient k is Σ_{j<=k} y_j - Σ_{j>k} y_j
    for value in y:
        total += 2 * value
        ones.append(total)
    return [a - b - shift * one for a, b, one in zip(*sums, ones, strict=True)]


def lift(residues: npt.NDArray[np.uint32], primes: Sequence[int]) -> list[int]:
    """The integers below Π primes with these residues, [prime][count]."""
    modulus = math.prod(primes)
    totals = [0] * (residues.size // len(primes))
    for row, prime in zip(residues.reshape(len(primes), -1), primes, strict=True):
        factor = modulus // prime * pow(modulus // prime, -1, prime)
        totals = [total + int(value) * factor for total, value in zip(totals, row, strict=True)]
    return [total % modulus for total in totals]


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
