"""Whose a bundle is: what one client has prepared, no other can run, and nobody's failure removes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import ConfigurationError, ForeignRandomness, PeerError, RandomnessError, RandomnessSpent
from comet_mpc.models.served import ServedModel
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.offline.dealer.fetch import fetch_bundle
from comet_mpc.offline.header import HEADER_BYTES
from comet_mpc.offline.pair.commit import prepare_stored
from comet_mpc.offline.pair.prepare import Preparer
from comet_mpc.offline.source import Order
from comet_mpc.offline.sources import DEALER, PAIR, PairSource
from comet_mpc.offline.store import BundleStore, new_bundle_id
from comet_mpc.service.deployment import Deployment, ServiceLimits
from comet_mpc.service.messages import Accepted, Prepare, Ready, Run, Welcome, expect, introduce, say
from comet_mpc.service.programs import Programs
from support.certificates import Identities
from support.clients import LocalClient, NamedChannel, RecordingService, begin_conversation, local_service
from support.faulty_channel import FaultyChannel
from support.waiting import PATIENCE


@contextlib.contextmanager
def line_of(service: Deployment, name: str) -> Iterator[Channel]:
    """A connection of the client with this name, greeted."""
    mine, theirs = memory_pair(PATIENCE)
    thread = begin_conversation(service, NamedChannel(theirs, name))
    with mine:
        introduce(mine, "client")
        expect(mine, Welcome)
        yield mine
    thread.join(PATIENCE)


@pytest.fixture
def service(tmp_path: Path, identities: Identities, tiny_model: ServedModel) -> RecordingService:
    return RecordingService(tiny_model, identities["server"], tmp_path / "state")


def stored(service: RecordingService, owner: str) -> tuple[str, str]:
    """A bundle that was prepared with this client: its id, and its program's digest."""
    plan = service.programs.plan(1, 16)
    name = new_bundle_id()
    service.deal(Order(name, 1, 16, plan, owner))
    return name, plan.digest


def test_a_bundle_of_one_client_cannot_be_run_by_another(service: RecordingService) -> None:
    name, digest = stored(service, "alice")
    with line_of(service, "mallory") as line:
        answers = []
        for asked in (name, new_bundle_id()):
            say(line, Run(asked, 1, 16, digest))
            with pytest.raises(RandomnessSpent) as refused:
                expect(line, Ready)
            answers.append(str(refused.value).replace(asked, ""))
        assert answers[0] == answers[1], "whether there is such a bundle is not told"
    assert not service.consumed
    with line_of(service, "alice") as line:
        say(line, Run(name, 1, 16, digest))
        expect(line, Ready)
    assert service.consumed == [name]


def test_asking_for_a_large_bundle_and_hanging_up_drops_nobody_elses(
    tmp_path: Path, identities: Identities, tiny_model: ServedModel
) -> None:
    """Room is made when a bundle is there, not when it is asked for: a client that leaves has taken none."""
    plan = Programs(tiny_model, PairSource()).plan(1, 16)
    room = ServiceLimits(store_bytes=2 * PairSource().stored_bytes(SERVER, plan.correlations))
    service = Deployment(tiny_model, PairSource(), identities["server"], tmp_path / "state", room)
    names = [new_bundle_id() for _ in range(2)]
    for name in names:
        with service.store.add(name, plan.digest, bytes(16), owner="alice") as writer:
            writer.write(bytes(PairSource().stored_bytes(SERVER, plan.correlations) - 200))
    for _ in range(3):
        with line_of(service, "mallory") as line:
            say(line, Prepare(new_bundle_id(), 1, 16, plan.digest))
            expect(line, Accepted)
    assert set(service.store.list(plan.digest)) == set(names)
    with service.store.add(new_bundle_id(), plan.digest, bytes(16), owner="bob") as writer:  # the control: room is made
        writer.write(bytes(PairSource().stored_bytes(SERVER, plan.correlations)))
    assert service.store.count() < 3


def test_a_bundle_that_can_never_fit_is_refused_at_once(
    tmp_path: Path, identities: Identities, tiny_model: ServedModel
) -> None:
    plan = Programs(tiny_model, PairSource()).plan(8, 16)
    room = ServiceLimits(store_bytes=PairSource().stored_bytes(SERVER, plan.correlations) - 1)
    service = Deployment(tiny_model, PairSource(), identities["server"], tmp_path / "state", room)
    with line_of(service, "mallory") as line:
        say(line, Prepare(new_bundle_id(), 8, 16, plan.digest))
        with pytest.raises(ConfigurationError, match="fewer texts"):
            expect(line, Accepted)
        one = Programs(tiny_model, PairSource()).plan(1, 16)
        say(line, Prepare(new_bundle_id(), 1, 16, one.digest))
        expect(line, Accepted)


@pytest.mark.parametrize("limits", [{"client_bundles": 2}, {"client_bytes": 2}])
def test_a_client_is_told_before_it_prepares_more_than_the_server_keeps(
    tmp_path: Path, identities: Identities, tiny_model: ServedModel, limits: dict[str, int]
) -> None:
    one = HEADER_BYTES + PairSource().stored_bytes(SERVER, Programs(tiny_model, PairSource()).plan(1, 16).correlations)
    given: dict[str, Any] = {name: count * (one if name == "client_bytes" else 1) for name, count in limits.items()}
    room = ServiceLimits(**given)
    service = Deployment(tiny_model, PairSource(), identities["server"], tmp_path / "state", room)
    with LocalClient(service, identities["client"], tmp_path / "cache") as client:
        client.check_room({(1, 16): 2})
        with pytest.raises(ConfigurationError, match=r"cannot prepare 3 queries .*keeps at most .* prepared queries"):
            client.prepare(3)
        with pytest.raises(ConfigurationError, match="keeps at most"):
            client.check_room({(1, 16): 2, (2, 16): 1})
        assert client.fitting({(1, 16): 3, (2, 16): 1}) == {(1, 16): 2}  # as many as are kept, the first ones
        assert client.fitting({(1, 16): 1}) == {(1, 16): 1}
    assert service.store.count() == 0


def test_a_stranger_does_not_learn_for_which_program_a_bundle_is(service: RecordingService) -> None:
    name, _ = stored(service, "alice")
    other = service.programs.plan(2, 16)
    with pytest.raises(RandomnessSpent):
        service.store.take(name, other.digest, other.correlations, owner="mallory")
    with pytest.raises(ForeignRandomness):
        service.store.take(name, other.digest, other.correlations, owner="alice")
    assert service.store.count() == 1


def test_a_bundle_is_never_replaced_by_another_of_its_id(service: RecordingService) -> None:
    """Also if the other one was begun before: of two writers, the first to commit wins."""
    name, plan = new_bundle_id(), service.programs.plan(1, 16)
    late = service.store.add(name, plan.digest, bytes(16), owner="mallory")
    late.write(bytes(plan.correction_bytes))
    service.deal(Order(name, 1, 16, plan, "alice"))
    before = (service.store.directory / f"{name}.bundle").read_bytes()
    with pytest.raises(RandomnessError, match="already"):
        late.commit()
    late.discard()
    assert (service.store.directory / f"{name}.bundle").read_bytes() == before
    assert [path.name for path in service.store.directory.iterdir()] == [f"{name}.bundle"]


def test_a_race_for_an_id_that_is_lost_at_the_last_moment_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BundleStore(tmp_path / "bundles", SERVER, DEALER)
    name, digest = new_bundle_id(), "ab" * 32
    with store.add(name, digest, b"first" + bytes(11), owner="alice"):
        pass
    second = store.add(name, digest, bytes(16), owner="mallory")
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as it looked a moment before
    with pytest.raises(RandomnessError, match="already"):
        second.commit()
    second.discard()
    second.retract()
    assert store.take(name, digest, (), owner="alice").seed.startswith(b"first")


# A preparation that fails ---------------------------------------------------------------------------------------


def test_a_preparation_that_fails_leaves_a_bundle_of_the_same_id_alone(
    tmp_path: Path, identities: Identities, tiny_model: ServedModel
) -> None:
    """Mallory asks for one under the id of Alice's, and hangs up once it is accepted. So does Alice, by mistake."""
    service = local_service(tiny_model, PairSource(), identities["server"], tmp_path / "state")
    name, plan = new_bundle_id(), service.programs.plan(1, 16)
    with service.store.add(name, plan.digest, bytes(16), owner="alice"):
        pass
    for client in ("mallory", "alice"):
        with line_of(service, client) as line:
            say(line, Prepare(name, 1, 16, plan.digest))
            expect(line, Accepted)
        assert service.counters.total("PeerClosed") > 0
        assert service.store.count() == 1, client
    service.store.verify(name)


def test_the_same_at_the_client_and_with_a_dealer(tmp_path: Path, tiny_model: ServedModel) -> None:
    plan = tiny_model.plan(1, 16, DEALER)
    store = BundleStore(tmp_path / "bundles", CLIENT, DEALER)
    name = new_bundle_id()
    with store.add(name, plan.digest, bytes(16)):
        pass
    mine, theirs = memory_pair(PATIENCE)
    theirs.close()
    preparer = Preparer(mine, CLIENT, tiny_model.plan(1, 16, PAIR).correlations)
    with pytest.raises(PeerError):
        prepare_stored(preparer, [name], plan, store)
    assert store.count() == 1
    mine, theirs = memory_pair(PATIENCE)
    theirs.close()
    with pytest.raises(PeerError):
        fetch_bundle(
            FaultyChannel(mine, role="dealer"), CLIENT, name, plan.correlations, partial(store.add, name, plan.digest)
        )
    assert store.count() == 1
    store.verify(name)


def test_what_a_failed_preparation_has_committed_itself_is_taken_back(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "bundles", CLIENT, DEALER)
    with store.add(new_bundle_id(), "ab" * 32, bytes(16)) as writer:
        writer.commit()
        writer.retract()
    assert store.count() == 0
