"""Sums of products in an odd ring Z_T, element by element: what the client knows times what the server knows.

T is a product of primes that are 1 mod 2^14, so that 8,192 elements of Z_T sit in the slots of one polynomial, and a
product of polynomials is the products of their slots. Nothing wraps around that should not: the shares of a product's
ciphertext (`scheme`) are shares in Z_T already.

The first uploads of a job may *define* the client's factors (`defined`): uniform masks for log2(q/T) bits an element.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from comet_mpc.engine.ring import Ring, slot_primes
from comet_mpc.engine.seeds import SEED_BYTES, expand
from comet_mpc.engine.share import Words
from comet_mpc.errors import WrongSize
from comet_mpc.offline.rlwe.defined import BESIDE, pack_rest, unpack_rest, until_even
from comet_mpc.offline.rlwe.products import Homomorphic, Job
from comet_mpc.offline.rlwe.public_key import respond
from comet_mpc.offline.rlwe.scheme import DEGREE, Bytes, Residues, Scheme, public_polynomial, unpack
from comet_mpc.offline.rlwe.slots import PrimeModulus, split

_ALL = np.arange(DEGREE, dtype=np.uint32)

Term = tuple[int, int]
"""One product of a sum: the client's factor by its place among the uploads, the server's by its place among its own."""


@dataclass(frozen=True)
class OddPlan:
    """The sums of products that a job makes of 8,192 elements, and what it sends."""

    ring: Ring
    defined: int
    """The first so many uploads define the client's factors, the others encrypt what it has."""
    uploads: int
    sums: tuple[tuple[Term, ...], ...]

    @cached_property
    def modulus(self) -> PrimeModulus:
        return PrimeModulus(slot_primes(self.ring.modulus), max(len(terms) for terms in self.sums))

    @property
    def scheme(self) -> Scheme:
        return self.modulus.scheme

    @property
    def upload_bytes(self) -> int:
        chosen = self.uploads - self.defined
        return SEED_BYTES + self.defined * self.scheme.rest_bytes + chosen * self.scheme.upload_bytes

    @property
    def response_bytes(self) -> int:
        return len(self.sums) * self.scheme.response_bytes


@lru_cache(maxsize=1024)
def odd_plan(ring: Ring, defined: int, uploads: int, sums: tuple[tuple[Term, ...], ...]) -> OddPlan:
    """A plan; equal ones are one object, so that tables are made once."""
    return OddPlan(ring, defined, uploads, sums)


class OddJob(Job):
    """One upload and its answer, for up to 8,192 elements of everything."""

    def __init__(self, plan: OddPlan) -> None:
        self.plan = plan
        self.upload_bytes, self.response_bytes = plan.upload_bytes, plan.response_bytes
        self.sums = np.empty((0, DEGREE), np.uint64)
        """This party's shares afterwards, slot by slot. Until then they take no memory: many jobs wait at once."""

    @abstractmethod
    def chosen(self, defined: list[Words]) -> list[Words]:
        """Client: its other factors, slot by slot, once it knows those that its ciphertexts define."""

    @abstractmethod
    def factors(self) -> list[Words]:
        """Server: its factors, slot by slot."""

    def upload(self, engine: Homomorphic) -> list[Bytes | bytes]:
        plan = self.plan

        def defined() -> tuple[bytes, bytes, list[tuple[Words, Bytes]]]:
            sent = self.drawn_seed()
            seed = engine.public_seed(sent)
            return sent, seed, engine.parallel(lambda index: _define(engine, plan, seed, index), range(plan.defined))

        sent, seed, made = until_even(defined)
        others = self.chosen([words for words, _ in made])

        def encrypted(place: int) -> Bytes:
            scaled = plan.modulus.scale(_residues(others[place], plan.modulus.primes))
            return engine.secret.encrypt(plan.scheme, scaled, seed, plan.defined + place)

        return [sent, *(rest for _, rest in made), *engine.parallel(encrypted, range(len(others)))]

    def answer(self, engine: Homomorphic, data: memoryview) -> list[Bytes]:
        plan, modulus = self.plan, self.plan.modulus
        uploads = read_slots(plan, *engine.read_seed(data))
        own = engine.parallel(lambda words: modulus.transform(_residues(words, modulus.primes)), self.factors())

        self.sums = np.empty((len(plan.sums), DEGREE), np.uint64)

        def one(place: int) -> Bytes:
            left, right = zip(*((uploads[i], own[k]) for i, k in plan.sums[place]), strict=True)
            sent, kept = respond(plan.scheme, modulus.multiply(left, right), engine.public, _ALL, engine.stream)
            self._keep(place, modulus.round(kept))
            return sent

        return engine.parallel(one, range(len(plan.sums)))

    def finish(self, engine: Homomorphic, data: memoryview) -> None:
        responses = np.frombuffer(data, np.uint8).reshape(len(self.plan.sums), -1)
        self.sums = np.empty((len(responses), DEGREE), np.uint64)

        def one(place: int) -> None:
            phases = engine.secret.phase(self.plan.scheme, responses[place], _ALL)
            self._keep(place, self.plan.modulus.round(phases))

        engine.parallel(one, range(len(responses)))

    def _keep(self, place: int, slots: Residues) -> None:
        self.sums[place], _ = split(self.plan.modulus.primes, np.ascontiguousarray(slots).reshape(-1))


def _residues(words: Words, primes: tuple[int, ...]) -> Residues:
    """8,192 elements modulo every prime."""
    return np.concatenate([(words % np.uint64(prime)).astype(np.uint32) for prime in primes])


def _public(plan: OddPlan, seed: bytes, index: int) -> Residues:
    """u of a ciphertext that defines its message: coefficients from the public seed, [prime][8192]."""
    ring = plan.ring
    return _residues(ring.from_seed(expand(seed, BESIDE + index, ring.seed_words * DEGREE)), plan.modulus.primes)


def _define(engine: Homomorphic, plan: OddPlan, seed: bytes, index: int) -> tuple[Words, Bytes]:
    """8,192 uniform elements that ciphertext `index` defines, and what is sent of it: see `defined`."""
    scheme, modulus = plan.scheme, plan.modulus
    w, fractions = engine.secret.blind(scheme, seed, index)
    nearest = modulus.nearest(fractions)
    primes = np.repeat(np.array(modulus.primes, np.uint32), DEGREE)
    message = (_public(plan, seed, index) + primes - nearest) % primes
    words, _ = split(modulus.primes, modulus.slots(message))
    return words, pack_rest(scheme, w, modulus.scale_coefficients(nearest))


def read_slots(plan: OddPlan, seed: bytes, data: memoryview) -> list[Residues]:
    """Ciphertexts (2, limbs, 8192): first those that define their messages."""
    if len(data) != (expected := plan.upload_bytes - SEED_BYTES):
        raise WrongSize(got=len(data), expected=expected)
    packed, start = np.frombuffer(data, np.uint8), 0
    scheme, uploads = plan.scheme, []
    for index in range(plan.uploads):
        if index < plan.defined:
            rest = packed[start : (start := start + scheme.rest_bytes)]
            c0 = unpack_rest(scheme, rest, plan.modulus.scale_coefficients(_public(plan, seed, index)))
        else:
            c0 = unpack(packed[start : (start := start + scheme.upload_bytes)], scheme.primes)
        both = np.concatenate([c0, public_polynomial(seed, index, scheme.primes)])
        uploads.append(both.reshape(2, scheme.limbs, DEGREE))
    return uploads
