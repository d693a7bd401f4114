"""Responses of few useful coefficients each, packed into one: fewer bytes for more of the server's time.

native/rlwe/packing.hpp has the formulas. The client's keys let the server change what is encrypted under s(X^g) back to
s: for every automorphism g and every prime q_i of q an encryption of p·s(X^g) mod q_i (and of 0 modulo the others)
under the modulus q·p, with a special prime p; log2(q·p) <= 210 as for everything else, and q has no more primes than
what is packed or turned with these keys. That encryptions of functions
of s under s itself tell nothing is an assumption (circular security), made by every scheme with such keys.

Noise: a change of keys adds Σ_i (c1 mod q_i)·e_i/p, centred, and a rounding: variance L·N·(21/2)/12 + N/18 + 1 with L
primes in q. A merge adds up at most four of what its two ciphertexts had, from places that have nothing to do with each
other. So 2^l ciphertexts end up with at most 4^l times as much.

That is far less than a product has, so packing needs fewer primes than products do: `packed_scheme` says how many. The
others are divided out first, which scales the products' noise down with the modulus and adds a rounding to every
ciphertext, variance N/18 + 1/6. With 4·v + V for the noise of a merge, 4^l·V covers that too: the changes of keys alone
make up a third of it.

*Turning uploads instead.* Half of all merges are in the first level, a quarter in the second. But s(Σ x_i·y_i) is
Σ s(x_i)·s(y_i), and there are far fewer uploads than products: the server turns every upload x_i in the 2^a ways of the
first a levels, changes the keys of these, and multiplies them by what the weights become (native/rlwe/products.hpp).
l - a levels of merges remain for one 2^a-th of the products. The division by 2^l mod q comes first, on the uploads. The
client has a key for every way, so that all of them share the digits of the upload, and each is one change of keys.
Noise: a change of keys now comes before a product, so it is multiplied by plaintexts. The merges that are left take the
noise of the turn S of an upload along as they take any polynomial: they keep what is wanted of it, 2^(l-a) times, and
all else cancels. So what reaches an output is 2^(l-a) times a coefficient of noise·s_S(w_S), where
w_S = Σ_m s_S^-1(X^(m·d))·y_m, d = 2^(l-a), is made of the 2^a outputs that are together by then. The sets S take X^d to
X^d·z^h, z = X^(2N/2^a), with another h = 0 … 2^a-1 each, and powers of z are signed shifts, z^(2^(a-1)) = -1. So the
w_S are a Fourier transform of the X^(m·d)·y_m, and Parseval says Σ_S ‖w_S‖² = 2^a·Σ_m ‖y_m‖² <= 4^a·norm², *whatever
the weights are*. Changes of keys thus add at most 4^(l-a)·4^a·V·norm² = 4^l·V·norm² (`turning_noise`).

Where that is too much for the modulus, uploads are first multiplied by one more prime of q, which they are taken modulo
from then on: changes of keys add as much as ever to numbers that are 2^30 times larger, and that prime is divided out
before merges. What is sent stays as it was.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from comet_mpc import _native
from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.errors import ShapeError
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    ERROR_VARIANCE,
    LANES,
    PRIMES,
    Residues,
    Scheme,
    SecretKey,
    basis,
    by_rows,
    choose_scheme,
    read_uploads,
)

MAX_LEVELS = 7
_MAX_TURNS = 4
_Some: TypeAlias = tuple[int, int, int]
MOST_LIMBS = len(PRIMES) - 1
"""Primes of q that keys can be made for."""
_SPECIAL = PRIMES[-1]
_LEVELS = [1 + ((DEGREE >> (MAX_LEVELS - 1)) << level) for level in range(MAX_LEVELS)]
"""The automorphisms X -> X^step of all levels."""
_SETS = [
    math.prod(itertools.compress(_LEVELS, (chosen >> j & 1 for j in range(_MAX_TURNS)))) % (2 * DEGREE)
    for chosen in range(1, 1 << _MAX_TURNS)
]
"""Those of all sets of the first few levels."""


class _KeyScheme(Scheme):
    """Of keys: its last prime is the special one."""

    @property
    def primes(self) -> tuple[int, ...]:
        return (*PRIMES[: self.limbs - 1], _SPECIAL)


def _key_scheme(limbs: int) -> Scheme:
    return _KeyScheme(limbs + 1, 0)


def packing_noise(limbs: int, levels: int) -> float:
    """Variance of what packing adds to every output."""
    return float(4**levels * _change_noise(limbs)) if levels else 0.0


def _change_noise(limbs: int) -> float:
    """Variance of what one change of keys adds."""
    return limbs * DEGREE * ERROR_VARIANCE / 12 + DEGREE / 18 + 1


def turning_noise(limbs: int, levels: int, norm: float) -> float:
    """Variance of what turning adds to every output of products with plaintexts of length `norm`, at most."""
    return float(_change_noise(limbs) * norm**2 * 4**levels)


def most_turns(levels: int) -> int:
    """How many of the levels can be done on uploads, with keys for that: those for sets of the first four of seven."""
    return max(0, levels - (MAX_LEVELS - _MAX_TURNS))


def packed_scheme(scheme: Scheme, norm: float, levels: int, variance: float = 0.0) -> Scheme:
    """The fewest primes that responses of this scheme can be packed with; plaintexts are of length `norm`.

    variance: of noise that products have on top.
    """
    for limbs in range(1, scheme.limbs):
        fewer = Scheme(limbs, scheme.plain_bits, scheme.cut)
        scale = 2.0 ** (fewer.log_q - scheme.log_q)
        on_top = packing_noise(limbs, levels) + scale**2 * variance
        if choose_scheme(scheme.plain_bits, scale * norm, on_top, scheme.cut).limbs <= limbs:
            return fewer
    return scheme


class Packing(IntEnum):
    """What the server has keys for; each has those of the ones before it."""

    NONE = 0
    MERGES = 1
    TURNS = 2

    @property
    def steps(self) -> list[int]:
        """The automorphisms X -> X^step that have keys."""
        more = [step for step in _SETS if step not in _LEVELS]
        return [*(_LEVELS if self >= Packing.MERGES else []), *(more if self >= Packing.TURNS else [])]

    @property
    def key_bytes(self) -> int:
        """What the client sends, once, for all primes: nothing, 9 MB or 23 MB."""
        return self.bytes_for(MOST_LIMBS)

    def bytes_for(self, limbs: int) -> int:
        """The same for so many primes of q: with 3, nothing, 3 MB or 7 MB."""
        return SEED_BYTES + len(self.steps) * limbs * _key_scheme(limbs).upload_bytes if self.steps else 0


def _sharing_keys(count: int) -> Iterator[tuple[int, int]]:
    """Where 4, 2 or 1 of so many uploads begin that share the loads of keys, and how many these are."""
    first = 0
    while first < count:
        some = next(size for size in (4, 2, 1) if size <= count - first)
        yield first, some
        first += some


def packing_keys(secret: SecretKey, packing: Packing, seed: bytes, limbs: int = MOST_LIMBS) -> list[bytes]:
    """What the client sends, beside the seed. limbs: primes of q"""
    index, sent, scheme = 0, [], _key_scheme(limbs)
    for step in packing.steps:
        turned = secret.turned(step).astype(np.int64)
        for digit in range(limbs):
            scaled = np.zeros((limbs + 1, DEGREE), np.uint32)
            scaled[digit] = np.mod(turned * _SPECIAL, PRIMES[digit])
            sent.append(secret.encrypt(scheme, scaled.reshape(-1), seed, index).tobytes())
            index += 1
    return sent


class PackingKeys:
    """The server's side."""

    def __init__(self, seed: bytes, data: bytes | memoryview, packing: Packing, limbs: int = MOST_LIMBS) -> None:
        self._limbs, scheme = limbs, _key_scheme(limbs)
        uploads = read_uploads([scheme] * (len(packing.steps) * limbs), seed, data)
        for both in uploads:
            for component in both:
                flat = component.reshape(-1)
                _native.lattice_to_montgomery(basis(scheme.primes), flat, flat)
        keys = {step: np.stack(uploads[k * limbs : (k + 1) * limbs]) for k, step in enumerate(packing.steps)}
        self._keys = np.stack([by_rows(keys[step]).reshape(-1) for step in _LEVELS])
        if packing < Packing.TURNS:
            return
        self._turning = np.empty((len(_SETS), self._keys.shape[1]), np.uint32)
        places = np.empty(DEGREE, np.uint32)
        for key, step in zip(self._turning, _SETS, strict=True):  # from s to s(X^(1/step)): turning comes after it
            _native.lattice_turned_places(pow(step, -1, 2 * DEGREE), places)
            key[:] = by_rows(keys[step][..., places]).reshape(-1)

    def turn(
        self,
        scheme: Scheme,
        wider: Scheme,
        uploads: Sequence[Sequence[Residues]],
        levels: int,
        turns: int,
        *,
        parallel: Callable[[Callable[[_Some], None], Sequence[_Some]], Iterable[None]] = map,
        isa: str = "",
    ) -> Residues:
        """Ciphertexts (r)(i)(2, limbs, 8192), turned in all ways of the first levels: (r, limbs, ways, i, 1025·16).

        Divided by 2^levels, and multiplied by the primes that `wider` has beyond `scheme`. The last row is not used.
        """
        if turns > most_turns(levels):
            raise ShapeError(f"there are no keys to turn uploads in {turns} of {levels} levels")
        self._check(wider)
        inputs, ways = len(uploads[0]), 1 << turns
        size = (DEGREE // LANES + 1) * 2 * LANES
        out = np.empty((len(uploads), wider.limbs, ways, inputs, size), np.uint32)
        keys = self._turning.reshape(-1)

        def some(place: tuple[int, int, int]) -> None:
            r, first, count = place
            _native.lattice_turn_all(
                basis(scheme.primes),
                basis(wider.primes),
                _SPECIAL,
                [upload.reshape(-1) for upload in uploads[r][first : first + count]],
                levels,
                turns,
                keys,
                self._limbs,
                1 << (MAX_LEVELS - levels),
                out[r].reshape(-1),
                first * size,
                size,
                ways * inputs * size,
                inputs * size,
                isa,
            )

        places = [(r, first, count) for r in range(len(uploads)) for first, count in _sharing_keys(inputs)]
        list(parallel(some, places))
        return out

    def pack(self, scheme: Scheme, packed: Scheme, ciphertexts: Residues, levels: int, isa: str = "") -> Residues:
        """One ciphertext of `packed` from up to 2^levels of `scheme` (count, 2, limbs, 8192), which are destroyed.

        Coefficient k·2^levels of ciphertext i, times 2^levels mod q, becomes coefficient k·2^levels + i.
        """
        self._check(packed)
        out = np.empty(2 * packed.limbs * DEGREE, np.uint32)
        _native.lattice_pack(
            basis(scheme.primes),
            basis(packed.primes),
            _SPECIAL,
            ciphertexts.reshape(-1),
            levels,
            self._keys[MAX_LEVELS - levels :].reshape(-1),
            self._limbs,
            out,
            isa,
        )
        return out

    def _check(self, scheme: Scheme) -> None:
        if scheme.limbs > self._limbs:
            raise ShapeError(f"keys were made for {self._limbs} primes, not for {scheme.limbs}")


def multiply_turned(
    scheme: Scheme,
    left: Residues,
    right: NDArray[np.int64],
    levels: int,
    *,
    plain_limbs: int,
    isa: str = "",
) -> Residues:
    """Products of turned ciphertexts with polynomials, in which the first merges of packing are done already.

    native/rlwe/products.hpp has the formula.
    left: (r, limbs, 2^turns, i, …) of `PackingKeys.turn`; right: (o, i, live). The result is
    (r, o', 2, limbs, 8192), o' <= 2^(levels - turns). plain_limbs: primes that ciphertexts had before they were turned.
    """
    row_blocks, _, ways, inputs, _ = left.shape
    outputs, same, live = right.shape
    turns = ways.bit_length() - 1
    if same != inputs or live & (live - 1) or not max(4, outputs) <= 2**levels <= live <= DEGREE // 16 or turns > 4:
        raise ShapeError(f"cannot multiply ciphertexts {left.shape} by polynomials {right.shape}")
    out = np.empty((row_blocks, min(outputs, 2 ** (levels - turns)), 2, scheme.limbs, DEGREE), np.uint32)
    _native.lattice_multiply_turned(
        basis(scheme.primes),
        left.reshape(-1),
        np.ascontiguousarray(right).reshape(-1),
        row_blocks,
        inputs,
        outputs,
        live,
        levels,
        turns,
        plain_limbs,
        out.reshape(-1),
        isa,
    )
    return out
