"""A fault in any message of preparing a bundle, by any of the three: an error, or a bundle that both parties have.

Dealer, server's side and client's side are the real ones over TLS; one of their channels has the fault. Whatever
happens, a party keeps all of its part or nothing, two kept parts belong together, and the dealer deals to the next.
"""

from __future__ import annotations

import itertools
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
from comet_mpc.net.channel import Channel
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import Dealing
from comet_mpc.offline.dealer.fetch import fetch_bundle
from comet_mpc.offline.dealer.server import DealerLimits
from comet_mpc.offline.sources import DEALER, PAIR, DealerSource
from comet_mpc.offline.store import BundleStore, new_bundle_id
from support.certificates import Identities
from support.clients import LocalClient, Side, local_service, places_in_use
from support.dealer_service import KEY, LIMITS, SMALL, PatientDealer, dial, fetch_both, running
from support.faulty_channel import IMPATIENT, Fault, FaultyChannel
from support.shared_transfers import share_base_transfers
from support.two_parties import both, outcome
from support.waiting import PATIENCE, eventually

Who = Literal["party", "dealer"]

FAULTS: tuple[Fault, ...] = ("cut", "length", "garbage", "stall")
SIDES: tuple[Side, Side] = ("client", "server")


def limits(fault: Fault | None) -> DealerLimits:
    """No signs of life, so that messages have fixed numbers; impatient while there is a fault, which all may notice."""
    seconds = {None: PATIENCE, "stall": IMPATIENT}.get(fault, 1.0)
    return replace(LIMITS, partner_seconds=seconds, stall_seconds=seconds, heartbeat_seconds=PATIENCE)


MESSAGES = {CLIENT: 5, SERVER: 8}
"""Greeting, Ask, (Proceed, the program,) Seed, (corrections,) Received, Done."""


class FaultyDealer(PatientDealer):
    """Its channels to one role have a fault."""

    def __init__(
        self, identities: Identities, limits: DealerLimits, role: str | None = None, fault: Fault | None = None,
        at: int = -1,
    ) -> None:  # fmt: skip
        super().__init__("127.0.0.1", 0, identities["dealer"], limits)
        self._faulty = role, fault, at

    def _serve(self, channel: Channel) -> None:
        role, fault, at = self._faulty
        if channel.peer_role == role:
            self._faulty = None, None, -1  # the next one is served well
            channel = FaultyChannel(channel, fault, at)
        super()._serve(channel)


def prepare(
    identities: Identities, directory: Path, who: Who, faulty: int, fault: Fault | None, at: int
) -> tuple[list[object], list[int]]:
    """Both parties fetch one bundle into their stores. Returns how that ended, and the messages of each."""
    role: Literal["client", "server"] = "server" if faulty == SERVER else "client"
    digest, name = program_digest(SMALL), new_bundle_id()
    stores = [BundleStore(directory / f"{party}", party, DEALER) for party in (CLIENT, SERVER)]
    channels: dict[int, FaultyChannel] = {}
    at_dealer: tuple[str, Fault | None, int] = (role, fault, at) if who == "dealer" else ("", None, -1)
    with running(FaultyDealer(identities, limits(fault), *at_dealer)) as dealer:

        def party(number: int) -> object:
            own = identities["server" if number == SERVER else "client"]
            strike: tuple[Fault | None, int] = (fault, at) if who == "party" and number == faulty else (None, -1)
            inner = dial(dealer.address, own, IMPATIENT if who == "dealer" and fault == "stall" else PATIENCE)
            channels[number] = FaultyChannel(inner, *strike)
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
        dealer.limits = limits(None)
        fetch_both(dealer.address, identities)  # the next ones are served
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_client_and_server_while_preparing(
    identities: Identities, tiny_model: ServedModel, tmp_path: Path, fault: Fault
) -> None:
    with running(FaultyDealer(identities, limits(None))) as dealer:
        service = local_service(
            tiny_model, DealerSource(dealer.address), identities["server"], tmp_path / "state", stall_seconds=PATIENCE
        )
        plan = service.programs.plan(1, 16)

        def attempt(fault: Fault | None = None, side: Side = "client", at: int = -1) -> tuple[str | CometError, int]:
            dealer.limits = limits(fault)
            client = LocalClient(
                service, identities["client"], tmp_path / "cache", fault=fault, side=side, at=at,
                hurried=fault == "stall",
            )  # fmt: skip
            end = client.try_to_prepare()
            eventually(lambda: places_in_use(service) == 0, "a preparation did not give its place back")
            assert client.store is not None or isinstance(end, CometError)
            if client.store is not None:
                mine = client.store.list(plan.digest)
                assert mine == (() if isinstance(end, CometError) else (end,))
                for name in mine:
                    near, far = (
                        store.take(name, plan.digest, plan.correlations) for store in (client.store, service.store)
                    )
                    assert together(near, far, plan.correlations, service.key)
            return end, client.near[0].messages

        def served() -> int:
            """Messages of a good preparation."""
            end, messages = attempt()
            assert isinstance(end, str)
            return messages

        served()  # sets the model up
        messages = served()
        assert messages == 4  # greeting, Welcome, Prepare, Accepted
        ends = [attempt(fault, side, at)[0] for side, at in itertools.product(SIDES, range(messages))]
        failed = [end for end in ends if isinstance(end, CometError)]
        assert all(isinstance(error, PeerError | RandomnessError) for error in failed)
        assert failed
        assert served() == messages


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_between_client_and_server_who_prepare_without_a_dealer(
    identities: Identities, tiny_model: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """In the messages before a preparation, at its beginning, halfway, and when both commit."""
    step = 2 * PATIENCE
    share_base_transfers(monkeypatch)
    service = local_service(
        tiny_model, PAIR, identities["server"], tmp_path / "state", stall_seconds=PATIENCE, step_seconds=step
    )
    plan = service.programs.plan(1, 16)

    def attempt(fault: Fault | None = None, side: Side = "client", at: int = -1) -> tuple[str | CometError, int]:
        client = LocalClient(
            service, identities["client"], tmp_path / "cache", fault=fault, side=side, at=at, connection=1,
            hurried=fault == "stall",
        )  # fmt: skip
        end = client.try_to_prepare()
        eventually(lambda: places_in_use(service) == 0, "a preparation did not give its place back")
        assert client.store is not None
        stores = client.store, service.store
        mine, theirs = (store.list(plan.digest) for store in stores)
        assert mine == (() if isinstance(end, CometError) else (end,))
        assert set(mine) <= set(theirs)
        for store, names in zip(stores, (mine, theirs), strict=True):
            assert not list(store.directory.glob(".*"))
            for name in names:
                store.discard(name)
        if fault == "stall" and at == messages // 2:  # a server waits for a step at most, a client as it was told
            other = (client.far if side == "client" else client.near)[1]
            assert set(other.patience) == {step if side == "client" else PATIENCE}
        return end, client.near[1].messages

    end, messages = attempt()
    assert isinstance(end, str)
    early = {"cut": (0, 2, 4, messages - 2), "length": (2,), "garbage": (4,), "stall": (3,)}[fault]
    places = [*early, messages // 2, messages - 1]
    ends = [attempt(fault, side, at)[0] for side, at in itertools.product(SIDES, places)]
    failed = [end for end in ends if isinstance(end, CometError)]
    assert all(isinstance(error, PeerError | RandomnessError) for error in failed), failed
    assert len(failed) >= len(places)
    assert attempt()[1] == messages  # the next client
