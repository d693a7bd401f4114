"""Low bits of what is sent for masks in odd rings are left out: as many as exact products have room for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from comet_mpc.engine.ring import ODD_MODULI, Ring
from comet_mpc.engine.share import Words
from comet_mpc.net.channel import Channel
from comet_mpc.offline.rlwe.odd_slots import OddJob, OddPlan
from comet_mpc.offline.rlwe.products import Homomorphic
from comet_mpc.offline.rlwe.scheme import DEGREE, FAILURE_BITS, Scheme, noise_variance
from comet_mpc.offline.rlwe.slots import PrimeModulus
from support.two_parties import as_parties

MODULI = pytest.mark.parametrize("modulus", ODD_MODULI)


def wrong(scheme: Scheme, norm: float) -> float:
    """The probability that a coefficient is wrong: by e, what was not sent among it, or by the rounding of C1."""
    lost = 4.0**scheme.dropped / 12 if scheme.dropped else 0.0
    noise = math.sqrt(noise_variance(norm) + lost * norm**2) * 2.0**-scheme.log_q
    rounding = math.sqrt(DEGREE * (2 / 3) / 12) * 2.0**-scheme.response_bits
    return float(math.sqrt(2 / math.pi) * (noise + rounding) * 2.0**scheme.plain_bits)


@MODULI
@pytest.mark.parametrize("terms", [1, 2, 24])
def test_what_is_not_sent_leaves_a_product_exact(modulus: int, terms: int) -> None:
    """And one bit more would be one too many."""
    scheme = PrimeModulus(ODD_MODULI[modulus], terms).scheme
    norm = math.sqrt(DEGREE * terms) * modulus / 2
    assert wrong(scheme, norm) <= 2.0 ** (1 - FAILURE_BITS)
    assert wrong(replace(scheme, dropped=scheme.dropped + 1), norm) > 2.0 ** (1 - FAILURE_BITS)
    assert scheme.rest_bytes == (scheme.rest_bits - scheme.dropped) * DEGREE // 8


def test_about_as_much_is_sent_of_every_mask_as_the_ring_and_its_safety_take() -> None:
    """However many primes the ciphertext's modulus has."""
    for modulus, primes in ODD_MODULI.items():
        scheme = PrimeModulus(primes, 1).scheme
        assert 3.5 < scheme.rest_bits - scheme.dropped - (math.log2(modulus) + FAILURE_BITS) < 5.5


class Products(OddJob):
    """The client's mask, which its ciphertext defines, times what the server knows."""

    def __init__(self, modulus: int, more: int) -> None:
        moduli = PrimeModulus(ODD_MODULI[modulus], 1)
        plan = OddPlan(Ring(modulus.bit_length(), modulus), 1, 1, (((0, 0),),))
        moduli.__dict__["scheme"] = replace(moduli.scheme, dropped=moduli.scheme.dropped + more)
        plan.__dict__["modulus"] = moduli
        super().__init__(plan)
        self.own = np.random.default_rng(5).integers(0, modulus, DEGREE, dtype=np.uint64)

    def chosen(self, defined: list[Words]) -> list[Words]:
        (self.own,) = defined
        return []

    def factors(self) -> list[Words]:
        return [self.own]


@MODULI
@pytest.mark.parametrize("more", [0, FAILURE_BITS + 3])
def test_products_of_short_uploads(modulus: int, more: int) -> None:
    """The control: with so many bits fewer as the safety has, they are wrong."""

    def party(channel: Channel, which: int) -> tuple[Words, Words]:
        job = Products(modulus, more)
        Homomorphic(channel, which, threads=1).run([job])
        return job.own, job.sums[0]

    (mine, share), (theirs, other) = as_parties(party)
    ring = Ring(modulus.bit_length(), modulus)
    right = ring.add(share, other) == ring.multiply(mine, theirs)
    assert right.all() if not more else not right.any()
