"""Sums of products, element by element: what the client knows times what the server knows, shared mod 2^width.

Numbers sit in the 8,192 slots of a polynomial modulo T, a product of primes that are 1 mod 2^14, so that a product of
polynomials is the products of their slots. For integers |x| <= 2^(a-1), |y| <= 2^(b-1) and k terms, |Σ x·y| is at most
O = k·2^(a+b-2), and V = O + Σ x·y is an integer from 0 to 2·O < P/2, where P, the product of one or more such T,
exceeds 4·O. The parties hold v_client + v_server = V mod P (`scheme`; the server adds O to its share), and

    V = v_client + v_server - w·P,   w = [2·v_client >= P] or [2·v_server >= P],

since both are below P/2 if their sum is V, and one is not if it is V + P. With u_c, u_s for the two bits,
w = u_c + u_s - u_c·u_s takes one product of a bit of the client's with a word of the server's
(`ot.extension.bit_times_word_steps`). That step is exact, always.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from comet_mpc import _native
from comet_mpc.engine.ring import slot_prime
from comet_mpc.engine.seeds import SEED_BYTES
from comet_mpc.engine.share import CLIENT, Words
from comet_mpc.errors import RangeError, ShapeError
from comet_mpc.offline.ot.extension import Transfers, bit_times_word_sizes, bit_times_word_steps
from comet_mpc.offline.rlwe.products import Homomorphic, Job, run_sizes
from comet_mpc.offline.rlwe.public_key import respond
from comet_mpc.offline.rlwe.scheme import (
    DEGREE,
    Bytes,
    Fractions,
    Residues,
    Scheme,
    basis,
    choose_scheme,
    noise_variance,
    read_uploads,
)
from comet_mpc.offline.rlwe.tiling import Integers
from comet_mpc.offline.streaming import Sizes, Steps, carry_out

Sum = tuple[int, ...]
"""A sum of products: the client's factor of each term, by its place among the uploads."""


@dataclass(frozen=True)
class PrimeModulus:
    """T = Π primes and the scheme for sums of so many products modulo it."""

    primes: tuple[int, ...]
    terms: int

    @cached_property
    def basis(self) -> _native.Basis:
        return basis(self.primes)

    @cached_property
    def scheme(self) -> Scheme:
        value = math.prod(self.primes)
        norm = math.sqrt(DEGREE * self.terms) * value / 2
        return choose_scheme(math.log2(value), norm).shortened(noise_variance(norm), norm)

    def encode(self, residues: Residues) -> Residues:
        """The polynomial whose slots hold these residues, [prime][8192]."""
        out = np.empty_like(residues)
        _native.lattice_backward(self.basis, residues, out, "")
        return out

    def scale(self, residues: Residues) -> Residues:
        """round(q·m/T) of the polynomial with these slots."""
        return self.scale_coefficients(self.encode(residues))

    def scale_coefficients(self, residues: Residues) -> Residues:
        """round(q·m/T) of the polynomial with these coefficients, [prime][8192]."""
        out = np.empty(self.scheme.limbs * DEGREE, np.uint32)
        _native.lattice_scale_odd(basis(self.scheme.primes), self.basis, residues, out)
        return out

    def transform(self, residues: Residues) -> Residues:
        """A plaintext factor with these slots, ready for `multiply`."""
        out = np.empty(self.scheme.limbs * DEGREE, np.uint32)
        _native.lattice_transform_plain(basis(self.scheme.primes), self.basis, self.encode(residues), out, "")
        return out

    def multiply(self, left: Sequence[Residues], right: Sequence[Residues]) -> Residues:
        """Σ_k left[k]·right[k]: ciphertexts (2, limbs, 8192) times plaintexts from `transform`."""
        if len(left) != len(right) or not 1 <= len(left) <= self.terms:
            raise ShapeError(f"cannot multiply {len(left)} ciphertexts by {len(right)} plaintexts")
        out = np.empty(2 * self.scheme.limbs * DEGREE, np.uint32)
        flat = [x.reshape(-1) for x in left]
        _native.lattice_multiply_plain(basis(self.scheme.primes), flat, list(right), out, "")
        return out

    def round(self, fractions: Fractions) -> Residues:
        """A party's share, slots (primes, 8192), from its part of a product."""
        return self.slots(self.nearest(fractions)).reshape(-1, DEGREE)

    def nearest(self, fractions: Fractions) -> Residues:
        """Coefficients round(f·T) mod T, [prime][8192], of fractions f of q."""
        out = np.empty(len(self.primes) * DEGREE, np.uint32)
        _native.lattice_round_odd(self.basis, fractions, out)
        return out

    def slots(self, coefficients: Residues) -> Residues:
        """What the slots of a polynomial hold, [prime][8192]."""
        out = np.empty_like(coefficients)
        _native.lattice_forward(self.basis, coefficients, out, "")
        return out


def split(primes: tuple[int, ...], residues: Residues) -> tuple[Words, NDArray[np.uint8]]:
    """v mod 2^64 and whether 2v >= P = Π primes, for v below P given by its residues [prime][count]. Exact."""
    count = residues.size // len(primes)
    words, upper = np.empty(count, np.uint64), np.empty(count, np.uint8)
    _native.lattice_split(basis(primes), residues, words, upper)
    return words, upper


def _primes_from(start: float) -> Iterator[int]:
    candidate = slot_prime(max(2 << 14, int(start)))
    while candidate:
        yield candidate
        candidate = slot_prime(candidate + 1)


def _window(bound: int, count: int) -> tuple[int, ...] | None:
    """The first `count` neighbouring primes whose product exceeds the bound."""
    size = 2.0 ** (math.log2(bound) / count)
    window: list[int] = []
    for prime in _primes_from(0.8 * size):
        window = [*window, prime][-count:]
        if len(window) == count and math.prod(window) > bound:
            return tuple(window)
    return None


@dataclass(frozen=True)
class SlotPlan:
    """Modulus, encryption and sizes of sums of products."""

    moduli: tuple[PrimeModulus, ...]
    uploads: int
    sums: tuple[Sum, ...]
    offset: int

    @property
    def primes(self) -> tuple[int, ...]:
        return tuple(prime for modulus in self.moduli for prime in modulus.primes)

    @property
    def upload_bytes(self) -> int:
        """Of 8,192 elements."""
        return SEED_BYTES + self.uploads * sum(modulus.scheme.upload_bytes for modulus in self.moduli)

    @property
    def response_bytes(self) -> int:
        return len(self.sums) * sum(modulus.scheme.response_bytes for modulus in self.moduli)


@lru_cache(maxsize=256)
def choose_plan(uploads: int, sums: tuple[Sum, ...], client_bits: int, server_bits: int) -> SlotPlan:
    """The cheapest moduli for integers |x| <= 2^(client_bits-1) times |y| <= 2^(server_bits-1)."""
    if not sums or any(not 0 <= place < uploads for entry in sums for place in entry) or not all(sums):
        raise ShapeError(f"sums of products of {uploads} uploads cannot be {sums}")
    terms = max(len(entry) for entry in sums)
    offset = terms << (client_bits + server_bits - 2)
    best: SlotPlan | None = None
    for groups in range(1, 5):
        for each in range(1, 4):
            primes = _window(4 * offset, groups * each)
            if primes is None:
                continue
            plan = SlotPlan(tuple(PrimeModulus(primes[i::groups], terms) for i in range(groups)), uploads, sums, offset)
            try:
                cost = plan.upload_bytes + plan.response_bytes
            except RangeError:
                continue
            if best is None or cost < best.upload_bytes + best.response_bytes:
                best = plan
    if best is None:
        raise RangeError(f"no moduli for products of {client_bits} and {server_bits} bits")
    return best


def _residues(values: Integers, primes: tuple[int, ...]) -> Residues:
    """Integers, padded with zeros to 8,192, modulo every prime."""
    out = np.zeros((len(primes), DEGREE), np.uint32)
    for row, prime in zip(out, primes, strict=True):
        row[: values.size] = np.mod(values, prime)
    return out.reshape(-1)


class SlotJob(Job):
    """The sums of products of up to 8,192 elements, shared mod P."""

    def __init__(
        self,
        plan: SlotPlan,
        count: int,
        *,
        left: Sequence[Integers] | None = None,
        right: Sequence[Sequence[Integers]] | None = None,
    ) -> None:
        self.plan, self.count = plan, count
        self.upload_bytes, self.response_bytes = plan.upload_bytes, plan.response_bytes
        self._left, self._right = left, right
        self.words = np.empty((len(plan.sums), count), np.uint64)
        self.upper = np.empty((len(plan.sums), count), np.uint8)

    def upload(self, engine: Homomorphic) -> list[Bytes | bytes]:
        assert self._left is not None
        sent, moduli, left = self.drawn_seed(), self.plan.moduli, self._left
        seed = engine.public_seed(sent)

        def one(index: int) -> Bytes:
            modulus = moduli[index % len(moduli)]
            scaled = modulus.scale(_residues(left[index // len(moduli)], modulus.primes))
            return engine.secret.encrypt(modulus.scheme, scaled, seed, index)

        self._left = None
        return [sent, *engine.parallel(one, range(self.plan.uploads * len(moduli)))]

    def answer(self, engine: Homomorphic, data: memoryview) -> list[Bytes]:
        assert self._right is not None
        plan, right = self.plan, self._right
        schemes = [modulus.scheme for modulus in plan.moduli] * plan.uploads
        uploads = read_uploads(schemes, *engine.read_seed(data))

        def one(place: int) -> list[Bytes]:
            parts, shares = [], []
            for group, modulus in enumerate(plan.moduli):
                left = [uploads[upload * len(plan.moduli) + group] for upload in plan.sums[place]]
                factors = [modulus.transform(_residues(values, modulus.primes)) for values in right[place]]
                sent, kept = respond(
                    modulus.scheme, modulus.multiply(left, factors), engine.public, _ALL, engine.stream
                )
                parts.append(sent)
                shares.append(modulus.round(kept))
            primes = np.array(plan.primes, np.uint32)[:, None]
            offset = np.array([plan.offset % prime for prime in plan.primes], np.uint32)[:, None]
            self._keep(place, (np.concatenate(shares) + offset) % primes)
            return parts

        answers = engine.parallel(one, range(len(plan.sums)))
        self._right = None
        return [part for parts in answers for part in parts]

    def _keep(self, place: int, residues: Residues) -> None:
        cut = np.ascontiguousarray(residues[:, : self.count]).reshape(-1)
        self.words[place], self.upper[place] = split(self.plan.primes, cut)

    def finish(self, engine: Homomorphic, data: memoryview) -> None:
        received, start = np.frombuffer(data, np.uint8), 0
        for place in range(len(self.plan.sums)):
            parts = []
            for modulus in self.plan.moduli:
                part = received[start : (start := start + modulus.scheme.response_bytes)]
                parts.append(modulus.round(engine.secret.phase(modulus.scheme, part, _ALL)))
            self._keep(place, np.concatenate(parts))


_ALL = np.arange(DEGREE, dtype=np.uint32)


def slot_sums(
    engine: Homomorphic,
    transfers: Transfers,
    plan: SlotPlan,
    count: int,
    width: int,
    *,
    left: Sequence[Integers] | None = None,
    right: Sequence[Sequence[Integers]] | None = None,
) -> Words:
    """`slot_sum_steps`, and nothing else meanwhile. Rounds: 4, unless it exceeds the window of `streaming`."""
    steps = slot_sum_steps(engine, transfers, plan, count, width, left=left, right=right)
    return carry_out(engine.channel, engine.party, steps)


def slot_sum_steps(
    engine: Homomorphic,
    transfers: Transfers,
    plan: SlotPlan,
    count: int,
    width: int,
    *,
    left: Sequence[Integers] | None = None,
    right: Sequence[Sequence[Integers]] | None = None,
) -> Steps[Words]:
    """Shares mod 2^width of every sum of the plan, (sums, count).

    left   client: its factors, one vector of `count` integers for every upload
    right  server: for every sum its factors, in the order of the sum's terms
    Steps: the ciphertexts, and then the bits, which follow from them. Reveals nothing.
    """
    if engine.party == CLIENT:
        if left is None or len(left) != plan.uploads or any(x.shape != (count,) for x in left):
            raise ShapeError(f"the client's factors are not {plan.uploads} vectors of {count}")
    elif right is None or [len(entry) for entry in right] != [len(entry) for entry in plan.sums]:
        raise ShapeError("the server's factors do not fit the sums")
    jobs = []
    for start in range(0, count, DEGREE):
        cut = slice(start, min(count, start + DEGREE))
        jobs.append(
            SlotJob(
                plan,
                cut.stop - cut.start,
                left=None if left is None else [x[cut] for x in left],
                right=None if right is None else [[y[cut] for y in entry] for entry in right],
            )
        )
    yield engine.requests(jobs)
    words = np.concatenate([job.words for job in jobs], axis=1)
    upper = np.concatenate([job.upper for job in jobs], axis=1)
    return (yield from _to_ring(transfers, plan, words, upper, width))


def slot_sum_sizes(plan: SlotPlan, count: int, width: int) -> list[list[Sizes]]:
    """Of its requests: ciphertexts, and the products of a bit and a word after them."""
    uploads = run_sizes([(plan.upload_bytes, plan.response_bytes)] * -(-count // DEGREE))
    return [uploads, bit_times_word_sizes(CLIENT, count * len(plan.sums), width)]


def _to_ring(transfers: Transfers, plan: SlotPlan, words: Words, upper: NDArray[np.uint8], width: int) -> Steps[Words]:
    """From shares mod P to shares mod 2^width: v - u·P + [u_client·u_server·P], and the server takes off the offset."""
    wrap = np.uint64(math.prod(plan.primes) % 2**64)
    lifted = upper.astype(np.uint64) * wrap
    if transfers.party == CLIENT:
        bits = np.packbits(upper.reshape(-1), bitorder="little")
        both = yield from bit_times_word_steps(transfers, upper.size, width, bits=bits)
    else:
        both = yield from bit_times_word_steps(transfers, upper.size, width, words=lifted.reshape(-1))
        words = words - np.uint64(plan.offset % 2**64)
    return words - lifted + both.reshape(words.shape)
