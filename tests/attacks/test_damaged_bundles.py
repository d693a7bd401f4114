"""Bundles that are damaged on the server's disk: no answer is wrong, and the query goes on with another bundle."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from comet_mpc.engine.share import SERVER
from comet_mpc.errors import CometError, PeerGaveUp
from comet_mpc.models.served import ServedModel
from comet_mpc.offline.header import HEADER_BYTES
from comet_mpc.offline.source import Order
from comet_mpc.offline.store import BundleStore
from comet_mpc.service.prediction import Prediction
from support.certificates import Identities
from support.clients import LocalClient, RecordingService
from support.toy_model import twin_logits

TEXT = "the film is good"
Damage = Callable[[bytearray], None]


class DamagedService(RecordingService):
    """Something happens to its part of the next bundles, on its disk."""

    damage: Damage
    damaged = 0

    def deal(self, order: Order, client: BundleStore | None = None) -> None:
        super().deal(order, client)
        if self.damaged:
            self.damaged -= 1
            path = self.store.directory / f"{order.bundle_id}.bundle"
            data = bytearray(path.read_bytes())
            self.damage(data)
            path.write_bytes(data)


class Victim:
    """A service, and clients that ask it while bundles are damaged."""

    def __init__(self, model: ServedModel, identities: Identities, directory: Path) -> None:
        self.service = DamagedService(model, identities["client"], directory / "state")
        self.expected = twin_logits(model, model.encode([TEXT]))[0]
        self._identity, self._directory, self._number = identities["client"], directory, itertools.count()
        self._clean = LocalClient(self.service, self._identity, directory / "cache")
        assert not isinstance(self._clean.try_to_classify(TEXT), CometError)

    @property
    def size(self) -> int:
        """Of the server's file."""
        plan = self.service.programs.plan(1, 16)
        return HEADER_BYTES + self.service.source.stored_bytes(SERVER, plan.correlations)

    def attempt(self, damage: Damage, bundles: int = 1) -> list[Prediction] | CometError:
        self.service.damage, self.service.damaged = damage, bundles
        client = LocalClient(self.service, self._identity, self._directory / f"cache-{next(self._number)}")
        client.adopt(self._clean, self.service)
        result = client.try_to_classify(TEXT)
        assert self.service.damaged == 0
        return result


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory, identities: Identities, tiny_model: ServedModel) -> Victim:
    return Victim(tiny_model, identities, tmp_path_factory.mktemp("damage"))


def flip(place: int, bit: int) -> Damage:
    def damage(data: bytearray) -> None:
        data[place] ^= 1 << bit

    return damage


def zero(start: int) -> Damage:
    def damage(data: bytearray) -> None:
        data[start : start + 512] = bytes(len(data[start : start + 512]))

    return damage


def cut(length: int) -> Damage:
    def damage(data: bytearray) -> None:
        del data[length:]

    return damage


@pytest.mark.slow
def test_a_damaged_bundle_never_gives_a_wrong_answer_and_another_one_is_taken(victim: Victim) -> None:
    """Flipped bits, zeroed blocks and lost ends, anywhere in the file."""
    generator, size = np.random.default_rng(13), victim.size
    places = [0, 8, 9, 40, HEADER_BYTES - 1, HEADER_BYTES, size - 9, size - 2, size - 1]
    places += map(int, generator.integers(0, size - 1, 15))
    damages = [flip(place, int(generator.integers(8))) for place in places]
    damages += [zero(int(start)) for start in generator.integers(0, size - 513, 5)]
    damages += [cut(length) for length in (0, 10, HEADER_BYTES, size - 1)]
    before, kept = victim.service.counters.total("RandomnessDamaged"), victim.service.store.count()
    for number, damage in enumerate(damages):
        result = victim.attempt(damage)
        assert not isinstance(result, CometError), (number, result)
        assert np.max(np.abs(np.array(result[0].logits) - victim.expected)) < 0.02, number
        assert victim.service.store.count() == kept, number  # a damaged one does not stay behind
    assert victim.service.counters.total("RandomnessDamaged") == before + len(damages)


@pytest.mark.slow
def test_a_server_whose_bundles_are_all_damaged_is_given_up(victim: Victim) -> None:
    assert isinstance(victim.attempt(flip(-1, 7), bundles=17), PeerGaveUp)
