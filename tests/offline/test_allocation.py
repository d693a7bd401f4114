"""What was freed goes back to the operating system, also from between what stays."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from comet_mpc.engine.correlations import BitProducts, Mask
from comet_mpc.net.channel import memory_pair
from comet_mpc.offline.allocation import give_back
from comet_mpc.offline.pair import prepare
from comet_mpc.offline.pair.prepare import prepare_bundle
from comet_mpc.offline.pair.stages import arranged
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


def test_a_preparation_gives_back_before_every_stage_and_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(prepare, "give_back", lambda: calls.append(None))
    program = [Mask((4,), 40, 0, 40), BitProducts(8, 20), BitProducts(8, 30)]
    as_parties(lambda channel, party: prepare_bundle(channel, party, program), memory_pair())
    assert len(calls) == 2 * (len(arranged(program)) + 1)
