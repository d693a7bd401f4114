"""The dealer as a service: who gets what, once, and how much memory that takes."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from comet_mpc.engine import Session, Weight
from comet_mpc.engine.correlations import BitProducts, Correlation, Mask, Monomials, MonomialTerm
from comet_mpc.engine.party import PartySession
from comet_mpc.engine.plan import plan_program
from comet_mpc.engine.polynomial import Polynomial
from comet_mpc.engine.share import CLIENT, SERVER, Share, Words, decode
from comet_mpc.engine.twin import run_twin
from comet_mpc.errors import (
    ConfigurationError,
    NotAuthenticated,
    PeerClosed,
    PeerTimeout,
    ProtocolMismatch,
    RandomnessSpent,
)
from comet_mpc.net.channel import Channel, memory_pair
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import Dealing
from comet_mpc.offline.dealer.fetch import FRAME_BYTES, PARTY_ROLES, Ask, Received, Seed, Wait, fetch_bundle
from comet_mpc.offline.dealer.meeting import Meeting, Meetings
from comet_mpc.offline.source import Order, Progress
from comet_mpc.offline.sources import DEALER
from comet_mpc.offline.store import BundleStore, new_bundle_id
from support.certificates import Identities
from support.dealer_service import (
    KEY,
    LIMITS,
    LONELY,
    SMALL,
    dial,
    fetch,
    fetch_both,
    fetched,
    hasty,
    running_dealer,
    waiting_parties,
)
from support.processes import dealer_process
from support.two_parties import both, masked, opened, outcome
from support.waiting import PATIENCE, eventually

ALONE = replace(LIMITS, partner_seconds=LONELY)
"""Limits of a dealer to whom only one party comes."""

# A program with a bit of everything.

FRACTION = 12
_generator = np.random.default_rng(7)
TEXT = _generator.uniform(-1, 1, (6, 8))
MODEL = Weight.encode("layer.weight", _generator.uniform(-0.2, 0.2, (8, 8)), FRACTION)


def everything(session: Session, weight: Weight) -> tuple[Share, Words | None]:
    """h·p(x)ᵀ + Σh² with h = p(x)·Wᵀ and p(x) = x - x³/3, all of it squared; the client learns the result."""
    x = session.private(CLIENT, TEXT.shape, FRACTION, 1.0, TEXT)
    v = Polynomial({(("v", 1),): 1.0})
    bent = session.evaluate(v - v * v * v * (1 / 3), {"v": session.open(x)}, fraction=48, bound=1.0)
    bent = session.truncate_to(bent, FRACTION)
    hidden = session.truncate_to(session.linear(session.give(bent), weight), FRACTION)
    left, right = session.open(hidden, bent)
    result = session.matmul(left, right, transposed=True) + session.square_sum(left)
    result = session.truncate_to(result, FRACTION)
    again = session.truncate_open(result.lift(FRACTION + 4), 4)
    result = session.truncate_to(session.product(again, again), FRACTION)
    return result, session.reveal(result)


def run_program(party: int, bundle: Bundle, channels: tuple[object, object]) -> Words | None:
    weights = {"w": MODEL} if party == SERVER else masked({"w": MODEL}, KEY)
    source = opened(bundle, {MODEL.name: weights["w"]})
    source.compute_ahead()
    channel = channels[party]
    session = PartySession(party, channel, source)  # type: ignore[arg-type]
    _, revealed = everything(session, weights["w"])
    assert source.remaining == 0
    return revealed


def test_a_dealer_in_its_own_process_serves_a_whole_run(keys: Path, identities: Identities, tmp_path: Path) -> None:
    plan = plan_program(lambda session: everything(session, MODEL.public()))
    _, expected = run_twin(lambda session: everything(session, MODEL))
    stores = [BundleStore(tmp_path / str(party), party, DEALER) for party in (CLIENT, SERVER)]
    name = new_bundle_id()

    def prepare(party: int, address: tuple[str, int]) -> Bundle:
        store = stores[party]
        fetch_bundle(
            dial(address, identities["server" if party == SERVER else "client"]),
            party,
            name,
            plan.correlations,
            lambda seed: store.add(name, plan.digest, seed),
            key=KEY if party == SERVER else None,
        )
        assert store.list(plan.digest) == (name,)
        store.verify(name)
        return store.take(name, plan.digest, plan.correlations)

    with dealer_process(keys) as (_, address):
        client, server = both(lambda: prepare(CLIENT, address), lambda: prepare(SERVER, address))
    channels = memory_pair()
    result, nothing = both(lambda: run_program(CLIENT, client, channels), lambda: run_program(SERVER, server, channels))
    assert nothing is None
    assert result is not None
    assert expected is not None
    # Units in the last place by which a party and the twin can differ: 1.5 per truncation, carried through.
    # |p(x)| <= 2/3, so |h| <= 2/3·gain, and the sum of 8 products of these is below 1.
    bent = 1.5
    hidden = MODEL.gain * bent + 1.5
    total = 8 * 2 / 3 * (hidden + MODEL.gain * bent) + 2 * 8 * 2 / 3 * MODEL.gain * hidden + 1.5
    error = np.abs(decode(result, FRACTION) - decode(expected, FRACTION)) * 2.0**FRACTION
    assert np.max(error) <= 2 * total + 3
    assert np.max(np.abs(decode(expected, FRACTION))) * 2.0**FRACTION > 1000


# The contract.


def test_the_two_parts_belong_together(identities: Identities) -> None:
    with running_dealer(identities) as dealer:
        client, server = fetch_both(dealer.address, identities)
    dealing = Dealing(SMALL, KEY, (client.seed, server.seed))
    corrections = b"".join(dealing.corrections())
    assert server.stored is not None
    assert server.stored.read(len(corrections) + 1) == corrections
    assert client.stored is not None
    assert client.stored.read(1) == b""
    assert client.seed != server.seed


def test_every_bundle_has_fresh_seeds(identities: Identities) -> None:
    with running_dealer(identities) as dealer:
        pairs = [fetch_both(dealer.address, identities) for _ in range(3)]
    assert len({bundle.seed for pair in pairs for bundle in pair}) == 6


def test_a_bundle_is_dealt_once(identities: Identities) -> None:
    name = new_bundle_id()
    with running_dealer(identities) as dealer:
        fetch_both(dealer.address, identities, bundle_id=name)
        for party in (CLIENT, SERVER):
            with pytest.raises(RandomnessSpent, match="another id"):
                fetch(dealer.address, identities, party, name)


def test_a_second_client_cannot_join_a_bundle(identities: Identities) -> None:
    name = new_bundle_id()
    with running_dealer(identities, ALONE) as dealer:
        found = both(*[lambda: outcome(lambda: fetch(dealer.address, identities, CLIENT, name))] * 2)
    assert {type(each) for each in found} == {RandomnessSpent, PeerTimeout}


def test_parties_of_different_programs_are_both_told(identities: Identities) -> None:
    other: tuple[Correlation, ...] = (BitProducts(41, 64),)
    name = new_bundle_id()
    with running_dealer(identities) as dealer:
        client, server = both(
            lambda: outcome(lambda: fetch(dealer.address, identities, CLIENT, name, SMALL)),
            lambda: outcome(lambda: fetch(dealer.address, identities, SERVER, name, other)),
        )
    assert isinstance(client, ProtocolMismatch)
    assert isinstance(server, ProtocolMismatch)
    assert (client.got, client.expected) == (server.expected, server.got)


@pytest.mark.parametrize("party", [CLIENT, SERVER])
def test_a_party_whose_peer_never_comes_is_told_and_the_id_is_spent(identities: Identities, party: int) -> None:
    name = new_bundle_id()
    with running_dealer(identities, ALONE) as dealer:
        with pytest.raises(PeerTimeout, match="nothing was dealt"):
            fetch(dealer.address, identities, party, name)
        with pytest.raises(RandomnessSpent):
            fetch(dealer.address, identities, 1 - party, name)


def test_the_memory_of_spent_ids_is_bounded() -> None:
    meetings = Meetings(remembered=3)
    names = [new_bundle_id() for _ in range(5)]
    for name in names:
        with meetings.joined("client", name, "digest"):
            assert name in meetings
    assert len(meetings._spent) == len(meetings._order) == 3
    with pytest.raises(RandomnessSpent), meetings.joined("server", names[-1], "digest"):
        pass


def test_a_peer_without_a_dealers_certificate_is_not_trusted(identities: Identities) -> None:
    impostor = {**identities, "dealer": identities["server"]}
    with running_dealer(impostor) as dealer, pytest.raises(NotAuthenticated, match="not a dealer"):
        fetch(dealer.address, identities, CLIENT, new_bundle_id())
    with pytest.raises(NotAuthenticated, match="not a dealer"):
        fetched(memory_pair()[0], CLIENT, new_bundle_id())


def test_only_the_server_has_a_weight_key() -> None:
    for party, key in ((CLIENT, KEY), (SERVER, None), (SERVER, b"short")):
        with pytest.raises(ConfigurationError, match="weight key"):
            fetched(memory_pair()[0], party, new_bundle_id(), key=key)


def test_a_part_is_kept_only_when_the_other_party_has_its_own(identities: Identities, tmp_path: Path) -> None:
    """The client's disk fails after the server has received everything: neither keeps anything."""
    name = new_bundle_id()
    stores = [BundleStore(tmp_path / str(party), party, DEALER) for party in (CLIENT, SERVER)]

    def full(seed: bytes) -> object:
        raise ConfigurationError("no space left")

    def sink(party: int) -> Callable[[bytes], object]:
        return full if party == CLIENT else lambda seed: stores[party].add(name, "0" * 64, seed)

    def ask(party: int) -> object:
        channel = dial(dealer.address, identities["server" if party == SERVER else "client"])
        key = KEY if party == SERVER else None
        return outcome(lambda: fetch_bundle(channel, party, name, SMALL, sink(party), key=key))  # type: ignore[arg-type]

    with running_dealer(identities) as dealer:
        client, server = both(lambda: ask(CLIENT), lambda: ask(SERVER))
    assert isinstance(client, ConfigurationError)
    assert isinstance(server, PeerClosed)
    assert "another id" in str(server)
    assert all(not any(store.directory.iterdir()) for store in stores)


def test_a_client_that_confirms_after_the_server_was_given_up_is_not_told_that_both_have_it(
    identities: Identities,
) -> None:
    near, far = memory_pair(PATIENCE)
    meeting = Meeting()
    for role in PARTY_ROLES:
        meeting.join(role, "digest")
    meeting.advance(dealing=Dealing((), bytes(16)))

    def confirm_late() -> None:
        near.receive(FRAME_BYTES)  # the seed
        meeting.fail("client", PeerClosed("the server did not go through with it"))
        near.send(msgspec.json.encode(Received()))

    with running_dealer(identities) as dealer, pytest.raises(PeerClosed, match="did not go through"):
        both(lambda: dealer._serve_client(far, meeting), confirm_late)


def test_many_pairs_at_once(identities: Identities) -> None:
    with running_dealer(identities) as dealer:
        pairs = both(*[lambda: [fetch_both(dealer.address, identities) for _ in range(4)]] * 2)
    assert len({bundle.seed for pair in pairs[0] + pairs[1] for bundle in pair}) == 16


def test_messages_and_logs_show_no_secret(identities: Identities, caplog: pytest.LogCaptureFixture) -> None:
    secret = b"sixteen secrets!"
    for message in (Ask("0" * 32, "1" * 64, 3, secret), Seed(secret, 0)):
        assert "secret" not in repr(message)
        assert "c2l4dGVlb" not in repr(message)
    caplog.set_level(logging.DEBUG)
    with running_dealer(identities) as dealer:
        client, server = fetch_both(dealer.address, identities)
    with running_dealer(identities, ALONE) as dealer:
        outcome(lambda: fetch(dealer.address, identities, CLIENT, "f" * 32))
    logged = caplog.text + str([getattr(record, "fields", {}) for record in caplog.records])
    assert "'party': 'client'" in logged
    for value in (client.seed, server.seed, KEY):
        assert value.hex() not in logged
        assert repr(value) not in logged


def test_closing_ends_waiting_parties(identities: Identities) -> None:
    with running_dealer(identities) as dealer:

        def close() -> None:
            eventually(lambda: waiting_parties(dealer))
            dealer.close()

        found, _ = both(lambda: outcome(lambda: fetch(dealer.address, identities, CLIENT, new_bundle_id())), close)
    assert isinstance(found, PeerClosed)


class _Hashing:
    """A sink that keeps a hash and a length only."""

    def __init__(self, seed: bytes) -> None:
        self.seed = seed
        self.hash = hashlib.sha256()
        self.length = 0

    def write(self, data: bytearray, /) -> None:
        self.hash.update(data)
        self.length += len(data)

    def seal(self) -> None: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...


class _Waiting(_Hashing):
    """One that takes nothing more until the client has heard how far the dealer is."""

    def __init__(self, seed: bytes, heard: threading.Event) -> None:
        super().__init__(seed)
        self._heard = heard

    def write(self, data: bytearray, /) -> None:
        assert self._heard.wait(PATIENCE)
        super().write(data)


def test_a_client_that_waits_hears_how_far_the_dealer_is(identities: Identities) -> None:
    program: tuple[Correlation, ...] = (BitProducts(2_000_000, 64),)
    name, heard, told = new_bundle_id(), threading.Event(), list[int]()

    def waiting(sign: Wait) -> None:
        told.append(sign.dealt)
        if sign.dealt:
            heard.set()

    def run(party: int) -> None:
        channel = dial(dealer.address, identities["server" if party == SERVER else "client"])
        key = KEY if party == SERVER else None
        fetch_bundle(channel, party, name, program, lambda seed: _Waiting(seed, heard), key=key, waiting=waiting)

    with running_dealer(identities, LIMITS) as dealer:
        both(lambda: run(CLIENT), lambda: run(SERVER))
    assert told == sorted(told)
    assert 0 < told[-1] <= program[0].correction_bytes


class _Desk:
    """A client's, whose connection to the server ends while it waits at the dealer."""

    timeout = PATIENCE
    progress: Progress | None = None

    def __init__(self, dealer: tuple[str, int], identity: TlsIdentity) -> None:
        self.third_party, self._identity = dealer, identity
        self.looked = 0

    def ask(self, order: Order, channel: Channel | None = None) -> Callable[[], bool]:
        return self._ended

    def _ended(self) -> bool:
        self.looked += 1
        return self.looked != 3  # one that looks well again does not count

    def connect(self) -> Channel:
        raise AssertionError("nobody asks for one")

    def dial(self, address: tuple[str, int]) -> Channel:
        return dial(address, self._identity)


def test_a_client_does_not_wait_at_the_dealer_for_a_server_that_is_gone(identities: Identities, tmp_path: Path) -> None:
    plan = plan_program(lambda session: session.open(session.private(CLIENT, (4,), 12, 1.0)))
    store = BundleStore(tmp_path, CLIENT, DEALER)
    with running_dealer(identities, replace(LIMITS, partner_seconds=3600.0)) as dealer:
        desk = _Desk(dealer.address, identities["client"])
        with pytest.raises(PeerClosed, match="did not go to the dealer"):
            DEALER.supplier(desk).prepare(Order(new_bundle_id(), 1, 16, plan), store)
        eventually(lambda: waiting_parties(dealer) == 0, "the dealer still waits for the server")
    assert desk.looked == 8  # five in a row
    assert store.list(plan.digest) == ()


def test_refusals_are_counted_by_reason_and_looking_in_is_none(identities: Identities) -> None:
    with running_dealer(identities) as dealer:
        eventually(lambda: dealer.counters.heartbeat(0))
        dial(dealer.address, identities["server"]).close()  # as a server does to see whether its dealer is there
        fetch_both(dealer.address, identities)
        name = new_bundle_id()
        with hasty(dealer, partner_seconds=LONELY):
            for _ in range(2):
                outcome(lambda: fetch(dealer.address, identities, CLIENT, name))
        outcome(lambda: fetched(dial(dealer.address, identities["dealer"]), CLIENT, new_bundle_id()))
        eventually(lambda: dealer.counters.refusals("role"))
        counted = {
            line.split('"')[1]: int(line.split()[1])
            for line in dealer.counters.text().splitlines()
            if line.startswith("comet_refusals_total") and not line.endswith(" 0")
        }
        assert dealer.counters.total("bundles_dealt_total") == 1
    assert counted == {"gone": 1, "randomness": 1, "role": 1}


def test_a_dealer_without_room_says_so(identities: Identities) -> None:
    with running_dealer(identities, replace(LIMITS, bundles=1)) as dealer:
        assert list(dealer.troubles()) == []

        def look() -> list[str]:
            eventually(lambda: waiting_parties(dealer))
            found = list(dealer.troubles())
            dealer.close()
            return found

        _, troubles = both(lambda: outcome(lambda: fetch(dealer.address, identities, CLIENT, new_bundle_id())), look)
    assert troubles == ["1 bundles are under way, as many as there may be"]


def _peak(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.service
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_the_dealer_never_holds_more_than_a_piece(keys: Path, identities: Identities) -> None:
    """60 MB of corrections, fewer than 32 MB of growth; what arrives is what a dealing makes."""
    count = 1_500_000
    program: tuple[Correlation, ...] = (
        Mask((count,), 64),
        Monomials((0,), (count,), tuple(MonomialTerm((power,), (0,), 64) for power in (2, 3, 4))),
        BitProducts(3_000_000, 64),
    )
    size = sum(entry.correction_bytes for entry in program)
    assert size == 60_000_000
    name = new_bundle_id()
    sinks: dict[int, _Hashing] = {}

    def run(party: int, address: tuple[str, int]) -> None:
        def sink(seed: bytes) -> _Hashing:
            return sinks.setdefault(party, _Hashing(seed))

        channel = dial(address, identities["server" if party == SERVER else "client"])
        fetch_bundle(channel, party, name, program, sink, key=KEY if party == SERVER else None)

    with dealer_process(keys) as (process, address):
        before = _peak(process.pid)
        both(lambda: run(CLIENT, address), lambda: run(SERVER, address))
        growth = _peak(process.pid) - before
    assert sinks[SERVER].length == size
    assert growth < 32_000_000
    expected = hashlib.sha256()
    for chunk in Dealing(program, KEY, (sinks[CLIENT].seed, sinks[SERVER].seed)).corrections():
        expected.update(chunk)
    assert sinks[SERVER].hash.digest() == expected.digest()
