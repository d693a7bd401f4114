"""Base transfers that are made once for many preparations: on a fault sweep they would be most of the work."""

from __future__ import annotations

import copy
import functools

import pytest

from comet_mpc.net.channel import FRAME_HEADER, Channel
from comet_mpc.offline.ot.base import TREE_BYTES
from comet_mpc.offline.ot.extension import Transfers, set_up_traffic, set_up_transfers
from support.faulty_channel import FaultyChannel
from support.two_parties import as_parties

__all__ = ["share_base_transfers"]

_FIRST = set_up_traffic().sent - TREE_BYTES - 2 * FRAME_HEADER


@functools.cache
def _made() -> tuple[Transfers, Transfers]:
    return as_parties(set_up_transfers)


def _shared(channel: Channel, party: int) -> Transfers:
    """Messages of the same sizes as always. Where a fault strikes in one of them, or beside, nothing is shared."""
    assert isinstance(channel, FaultyChannel)
    if channel.at in range(channel.messages - 1, channel.messages + 3):
        return set_up_transfers(channel, party)
    channel.exchange([bytes(_FIRST)], _FIRST)
    channel.exchange([bytes(TREE_BYTES)], TREE_BYTES)
    return copy.deepcopy(_made()[party])


def share_base_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For preparations over faulty channels, in this process."""
    _made()  # now, not by two parties at once who would get two different ones
    monkeypatch.setattr("comet_mpc.offline.pair.prepare.set_up_transfers", _shared)
