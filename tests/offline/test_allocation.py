"""What was freed goes back to the operating system, also from between what stays."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from comet_mpc.engine.correlations import Mask, Monomials, MonomialTerm
from comet_mpc.engine.ring import odd_ring
from comet_mpc.offline.allocation import give_back
from comet_mpc.offline.pair import prepare
from comet_mpc.offline.pair.prepare import prepare_bundle
from comet_mpc.offline.rlwe import products
from support.two_parties import as_parties


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_pages_between_what_stays_are_given_back() -> None:
    give_back()
    count, size = 2000, 1 << 16
    arrays = [np.ones(size, np.uint8) for _ in range(count)]
    full = resident()
    del arrays[::2]
    give_back()
    assert full - resident() > count * size // 4


def test_a_preparation_gives_back_after_every_answer_and_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[None] = []
    ends: list[None] = []
    monkeypatch.setattr(products, "give_back", lambda: answers.append(None))
    monkeypatch.setattr(prepare, "give_back", lambda: ends.append(None))
    ring = odd_ring(2.0**30)
    square = Monomials((0,), (4,), (MonomialTerm((2,), (0,), ring.width),), ring.modulus)
    program = [Mask((4,), ring.width, 0, ring.width, ring.modulus), square]
    as_parties(lambda channel, party: prepare_bundle(channel, party, program))
    assert (len(answers), len(ends)) == (1, 2)
