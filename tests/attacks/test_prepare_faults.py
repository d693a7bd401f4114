"""A fault in any message of preparing a bundle, by any of the three: an error, or a bundle that both parties have.

Dealer, server's side and client's side are the real ones over TLS; one of their channels has the fault. Whatever
happens, a party keeps all of its part or nothing, two kept parts belong together, and the dealer deals to the next.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from comet_mpc.engine.correlations import Correlation, program_digest
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import CometError, PeerError, RandomnessError
from comet_mpc.models.served import ServedModel
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.net.identity import make_test_set
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import Dealing
from comet_mpc.offline.dealer.fetch import fetch_bundle
from comet_mpc.offline.dealer.server import Dealer, DealerLimits
from comet_mpc.offline.sources import DEALER, DealerSource, PairSource
from comet_mpc.offline.store import BundleStore, new_bundle_id
from comet_mpc.service.client import Client
from comet_mpc.service.conversation import Conversation
from comet_mpc.service.deployment import Deployment, ServiceLimits
from support.dealer_service import IMPATIENT as SHORT
from support.dealer_service import KEY, SMALL, Identities, both, dial, fetch_both, outcome
from support.faulty_channel import IMPATIENT, Fault, FaultyChannel
from support.toy_model import make_checkpoint

Who = Literal["party", "dealer"]

FAULTS: tuple[Fault, ...] = ("cut", "length", "garbage", "stall")


def limits(fault: Fault | None) -> DealerLimits:
    """No signs of life within a test, so that messages have fixed numbers; impatient where a stall is to be noticed."""
    seconds = IMPATIENT if fault == "stall" else 2.0
    return replace(SHORT, ask_seconds=10.0, partner_seconds=seconds, stall_seconds=seconds, heartbeat_seconds=20.0)


MESSAGES = {CLIENT: 5, SERVER: 8}
"""Greeting, Ask, (Proceed, the program,) Seed, (corrections,) Received, Done."""


class FaultyDealer(Dealer):
    """Its channels to one role have a fault."""

    def __init__(
        self, identities: Identities, limits: DealerLimits, role: str | None = None, fault: Fault | None = None,
        at: int = -1,
    ) -> None:  # fmt: skip
        super().__init__("127.0.0.1", 0, identities["dealer"], limits)
        self._faulty = role, fault, at

    def _attend(self, channel: Channel) -> None:
        role, fault, at = self._faulty
        if channel.peer_role == role:
            self._faulty = None, None, -1  # the next one is served well
            channel = FaultyChannel(channel, role, fault, at)
        super()._attend(channel)


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    return make_test_set(tmp_path_factory.mktemp("keys"))


def prepare(
    identities: Identities, directory: Path, who: Who, faulty: int, fault: Fault | None, at: int
) -> tuple[list[object], list[int]]:
    """Both parties fetch one bundle into their stores. Returns how that ended, and the messages of each."""
    role: Literal["client", "server"] = "server" if faulty == SERVER else "client"
    digest, name = program_digest(SMALL), new_bundle_id()
    stores = [BundleStore(directory / f"{party}", party, DEALER) for party in (CLIENT, SERVER)]
    channels: dict[int, FaultyChannel] = {}
    at_dealer: tuple[str, Fault | None, int] = (role, fault, at) if who == "dealer" else ("", None, -1)
    with FaultyDealer(identities, limits(fault), *at_dealer) as dealer:
        thread = threading.Thread(target=dealer.serve_forever, daemon=True)
        thread.start()

        def party(number: int) -> object:
            own = identities["server" if number == SERVER else "client"]
            strike: tuple[Fault | None, int] = (fault, at) if who == "party" and number == faulty else (None, -1)
            inner = dial(dealer.address, own, IMPATIENT if who == "dealer" and fault == "stall" else 10.0)
            channels[number] = FaultyChannel(inner, "dealer", *strike)
            sink = stores[number]
            fetch_bundle(
                channels[number], number, name, SMALL, lambda seed: sink.add(name, digest, seed),
                key=KEY if number == SERVER else None,
            )  # fmt: skip
            return "kept"

        ended = both(lambda: outcome(lambda: party(CLIENT)), lambda: outcome(lambda: party(SERVER)))
        for store, end in zip(stores, ended, strict=True):
            assert store.list(digest) == ((name,) if end == "kept" else ())
            assert not list(store.directory.glob(".*"))
        if ended == ("kept", "kept"):
            client, server = (store.take(name, digest, SMALL) for store in stores)
            assert together(client, server)
        # The next ones are served; an impatient dealer may need another go on a busy machine.
        again = (outcome(lambda: fetch_both(dealer.address, identities)) for _ in range(5))
        assert any(not isinstance(end, CometError) for end in again)
        dealer.close()
        thread.join(20)
    return list(ended), [channels[number].messages for number in (CLIENT, SERVER)]


def together(client: Bundle, server: Bundle, program: Sequence[Correlation] = SMALL, key: bytes = KEY) -> bool:
    """Whether the server's corrections are those for the two seeds."""
    assert server.stored is not None
    expected = b"".join(Dealing(program, key, (client.seed, server.seed)).corrections())
    return server.stored.read(len(expected) + 1) == expected


def test_the_messages_of_a_preparation_are_counted_right(identities: Identities, tmp_path: Path) -> None:
    ended, messages = prepare(identities, tmp_path, "party", CLIENT, None, -1)
    assert ended == ["kept", "kept"]
    assert messages == [MESSAGES[CLIENT], MESSAGES[SERVER]]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_a_party_and_the_dealer(identities: Identities, tmp_path: Path, fault: Fault) -> None:
    cases = [
        (who, party, at) for who in ("party", "dealer") for party in (CLIENT, SERVER) for at in range(MESSAGES[party])
    ]

    def attempt(case: tuple[int, tuple[Any, int, int]]) -> tuple[bool, list[object]]:
        place, (who, party, at) = case
        ended, _ = prepare(identities, tmp_path / str(place), who, party, fault, at)
        return at >= MESSAGES[party] - 2, ended

    with ThreadPoolExecutor(8) as pool:
        for late, ended in pool.map(attempt, enumerate(cases)):
            errors = [end for end in ended if end != "kept"]
            assert all(isinstance(error, PeerError | RandomnessError) for error in errors), ended
            # Only after a party has confirmed may the other one have a bundle alone; no server runs with that.
            assert len(errors) == 2 or late or not errors, ended
            assert errors or fault in ("length", "garbage", "stall"), ended


# Between client and server -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    tiny: dict[str, Any] = {"layers": 1, "hidden": 8, "heads": 1, "intermediate": 8, "positions": 16, "steps": 2}
    return ServedModel.load(make_checkpoint(tmp_path_factory.mktemp("model"), **tiny, row_steps=6))


class NearClient(Client):
    """Talks to conversations in this process; the fault is in the connection on which it asks for bundles."""

    def __init__(
        self, service: Deployment, identities: Identities, cache: Path, fault: Fault | None, side: str, at: int
    ) -> None:
        timeout = IMPATIENT if fault == "stall" and side == "server" else 20.0
        super().__init__("127.0.0.1:1", identity=identities["client"], cache=cache, ready=0, timeout=timeout)
        self._service = service
        self._connection.reach = self._reach  # type: ignore[method-assign]
        self._strike: dict[str, tuple[Fault | None, int]] = {side: (fault, at)}
        self.messages: list[FaultyChannel] = []
        self.threads: list[threading.Thread] = []

    def _reach(self) -> Channel:
        mine, theirs = memory_pair(self._connection.timeout)
        asks = self._service.source.has_third_party or bool(self.messages)
        strike = self._strike if asks else {}
        near = FaultyChannel(mine, "server", *strike.pop("client", (None, -1)))
        far = FaultyChannel(theirs, None, *strike.pop("server", (None, -1)))
        thread = threading.Thread(target=Conversation(self._service, far, require_client=False).serve, daemon=True)
        thread.start()
        self.messages.append(near)
        self.threads.append(thread)
        return near


def prepared(client: NearClient) -> object:
    """What came of one preparation; afterwards both sides have come to an end."""

    def fetch() -> str:
        client.connect()
        assert client._pool is not None
        return client._pool.prepare(1, 16)

    end = outcome(fetch)
    client.close()
    for conversation in client.threads:
        conversation.join(20)
        assert not conversation.is_alive()
    return end


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_client_and_server_while_preparing(
    identities: Identities, model: ServedModel, tmp_path: Path, fault: Fault
) -> None:
    with FaultyDealer(identities, limits(None)) as dealer:
        thread = threading.Thread(target=dealer.serve_forever, daemon=True)
        thread.start()
        allowed = ServiceLimits(stall_seconds=IMPATIENT if fault == "stall" else 20.0, fetches=3)
        service = Deployment(model, DealerSource(dealer.address), identities["server"], tmp_path / "state", allowed)
        plan = service.programs.plan(1, 16)

        def attempt(fault: Fault | None, side: str, at: int) -> tuple[object, int]:
            client = NearClient(service, identities, tmp_path / "cache", fault, side, at)
            end = prepared(client)
            until = time.monotonic() + 20
            while service.provider._places._value != allowed.fetches:  # type: ignore[attr-defined]  # every preparation ends and gives its place back
                assert time.monotonic() < until
                time.sleep(0.01)
            assert client._model is not None or isinstance(end, CometError)
            if client._model is not None:
                mine = client._model.store.list(plan.digest)
                assert mine == (() if isinstance(end, CometError) else (end,))
                for name in mine:
                    stores = client._model.store, service.store
                    near, far = (store.take(name, plan.digest, plan.correlations) for store in stores)
                    assert together(near, far, plan.correlations, service.key)
            return end, client.messages[0].messages

        def served() -> int:
            """Messages of a good preparation. An impatient service may need another go on a busy machine."""
            return next(messages for end, messages in (attempt(None, "", -1) for _ in range(5)) if isinstance(end, str))

        served()  # sets the model up
        messages = served()
        assert messages == 4  # greeting, Welcome, Prepare, Accepted
        ends = [attempt(fault, side, at)[0] for side, at in itertools.product(("client", "server"), range(messages))]
        failed = [end for end in ends if isinstance(end, CometError)]
        assert all(isinstance(error, PeerError | RandomnessError) for error in failed)
        assert failed
        assert served() == messages
        dealer.close()
        thread.join(20)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_client_and_server_who_prepare_without_a_dealer(
    identities: Identities, model: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """In the messages before a preparation, at its beginning, halfway, and when both commit."""
    patience = 2.0 if fault == "stall" else 20.0
    monkeypatch.setattr("comet_mpc.offline.pair.source._STALL_SECONDS", patience)
    monkeypatch.setattr("support.faulty_channel.IMPATIENT", patience / 2)  # a stall takes 2.5 times that
    allowed = ServiceLimits(stall_seconds=patience, step_seconds=patience, preparations=1)
    service = Deployment(model, PairSource(), identities["server"], tmp_path / "state", allowed)
    plan = service.programs.plan(1, 16)

    def attempt(fault: Fault | None = None, side: str = "", at: int = -1) -> tuple[object, list[FaultyChannel]]:
        client = NearClient(service, identities, tmp_path / "cache", fault, side, at)
        end = prepared(client)
        with service.provider._place():  # type: ignore[attr-defined] # the only one was given back
            pass
        assert client._model is not None
        stores = client._model.store, service.store
        mine, theirs = (store.list(plan.digest) for store in stores)
        assert mine == (() if isinstance(end, CometError) else (end,))
        assert set(mine) <= set(theirs)
        for store, names in zip(stores, (mine, theirs), strict=True):
            assert not list(store.directory.glob(".*"))
            for name in names:
                store.discard(name)
        return end, client.messages

    def served() -> int:
        """Messages of a good preparation. An impatient service may need another go on a busy machine."""
        return next(line.messages for end, (_, line) in (attempt() for _ in range(5)) if isinstance(end, str))

    messages = served()
    places = (
        [3, messages // 2, messages - 1] if fault == "stall" else [*range(5), messages // 2, messages - 2, messages - 1]
    )
    ends = [attempt(fault, side, at)[0] for side, at in itertools.product(("client", "server"), places)]
    failed = [end for end in ends if isinstance(end, CometError)]
    assert all(isinstance(error, PeerError | RandomnessError) for error in failed), failed
    assert len(failed) >= len(places)
    assert served() == messages  # the next client
