"""Whatever a peer, a line or a stranger does to one inference: a typed error, no partial result, no mask used twice.

Every message of one inference, from the greeting to the result, is cut off, held back, and sent with a wrong length,
by either side. Both sides run in this process over a memory channel; strangers meet a real server over TLS.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from comet_mpc.engine.share import CLIENT
from comet_mpc.errors import (
    CometError,
    ConfigurationError,
    NotAuthenticated,
    PeerClosed,
    PeerError,
    PeerTimeout,
    ProtocolMismatch,
    RandomnessSpent,
    ShapeError,
)
from comet_mpc.models.served import ServedModel
from comet_mpc.net.channel import Channel, greet, memory_pair
from comet_mpc.net.identity import TlsIdentity, issue, make_test_set
from comet_mpc.net.sockets import TcpChannel, connect
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.bundles import Dealing, mask_weight
from comet_mpc.offline.source import Order, Source, Supplier
from comet_mpc.offline.sources import DEALER, DealerSource
from comet_mpc.offline.store import BundleStore, new_bundle_id
from comet_mpc.service.bundle_pool import BundlePool
from comet_mpc.service.client import Client
from comet_mpc.service.conversation import Conversation
from comet_mpc.service.deployment import Deployment, ServiceLimits, _secret
from comet_mpc.service.messages import Accepted, Prepare, Ready, Run, Welcome, expect, introduce, say
from comet_mpc.service.prediction import Prediction
from comet_mpc.service.programs import Programs
from support.dealer_service import dealer_process
from support.faulty_channel import IMPATIENT, Fault, FaultyChannel
from support.server_process import ServerProcess, server_process
from support.toy_model import make_checkpoint, twin_logits

Side = Literal["client", "server"]
Outcome = list[Prediction] | CometError

TEXT = "the film is good"
PATIENT = 20.0
TINY: dict[str, Any] = {"layers": 1, "hidden": 8, "heads": 1, "intermediate": 8, "positions": 16, "steps": 2}


class RecordingService(Deployment):
    """Notes which bundles were consumed."""

    def __init__(self, model: ServedModel, identity: TlsIdentity, state: Path, stall: float) -> None:
        super().__init__(model, DealerSource(("127.0.0.1", 1)), identity, state, ServiceLimits(stall_seconds=stall))
        self.consumed: list[str] = []
        self._dealt: tuple[bytes, bytes, bytes] | None = None
        take = self.store.take

        def recorded(bundle_id: str, digest: str, correlations: Any) -> Bundle:
            bundle = take(bundle_id, digest, correlations)
            self.consumed.append(bundle_id)
            return bundle

        self.store.take = recorded  # type: ignore[method-assign]

    def deal(self, order: Order, client: BundleStore | None = None) -> None:
        """What a dealer would do, under fresh names: one part goes into this store, the other into the client's.

        The masks are always the same, to save time; what is checked here is that no name is used twice.
        """
        plan, name = order.plan, order.bundle_id
        if self._dealt is None:
            dealing = Dealing(plan.correlations, self.key)
            self._dealt = dealing.client_seed, dealing.server_seed, b"".join(dealing.corrections())
        client_seed, server_seed, corrections = self._dealt
        with self.store.add(name, plan.digest, server_seed) as writer:
            writer.write(corrections)
        if client is not None:
            client.add(name, plan.digest, client_seed).commit()


class LocalSupplier(Supplier):
    """Bundles without a dealer's process, one after the other."""

    def __init__(self, service: RecordingService) -> None:
        self._service = service

    def prepare(self, order: Order, store: BundleStore) -> None:
        self._service.deal(order, store)


class LocalClient(Client):
    """Talks to conversations in this process. The fault is in its first connection."""

    def __init__(
        self, service: RecordingService, identity: TlsIdentity, cache: Path, timeout: float, fault: Fault | None = None,
        side: Side = "client", at: int = -1,
    ) -> None:  # fmt: skip
        super().__init__("127.0.0.1:1", identity=identity, cache=cache, ready=0, timeout=timeout)
        self._service = service
        self._connection.reach = self._reach  # type: ignore[method-assign]
        self._fault = (fault, at)
        self._side = side
        self.ends: list[FaultyChannel] = []
        self._threads: list[threading.Thread] = []

    def _reach(self) -> Channel:
        none: tuple[Fault | None, int] = (None, -1)
        first = not self.ends
        mine, theirs = memory_pair(self._connection.timeout)
        near = FaultyChannel(mine, "server", *(self._fault if first and self._side == "client" else none))
        far = FaultyChannel(theirs, None, *(self._fault if first and self._side == "server" else none))
        self.ends.append(near)
        thread = threading.Thread(target=Conversation(self._service, far, require_client=False).serve, daemon=True)
        thread.start()
        self._threads.append(thread)
        return near

    def _set_up(self, channel: Channel, source: Source, welcome: Welcome) -> None:
        super()._set_up(channel, source, welcome)
        assert self._pool is not None
        self._pool._supplier = LocalSupplier(self._service)

    def adopt(self, other: LocalClient, service: RecordingService) -> None:
        """The model as the other client has set it up, with a store of its own."""
        assert other._model is not None
        weights = dict(other._model.weights)
        if service is not other._service:  # another secret, other masks
            for name, weight in other._model.weights.items():
                if weight.masked is not None:
                    weights[name] = dataclasses.replace(weight, masked=mask_weight(service.key, service.weights[name]))
        store = BundleStore(self._cache / "bundles", CLIENT, DEALER)
        self._model = dataclasses.replace(other._model, weights=weights, store=store)
        self._pool = BundlePool(self._model, 0, LocalSupplier(service))
        self._connection._welcome = service.welcome
        self._connection._fingerprint = service.welcome.fingerprint

    def attempt(self) -> Outcome:
        """One classification; afterwards both sides have come to an end."""
        try:
            result: Outcome = self.classify([TEXT])
        except CometError as error:
            result = error
        self.close()
        for thread in self._threads:
            thread.join(PATIENT)
            assert not thread.is_alive()
        return result


@dataclass(frozen=True)
class Inference:
    identity: TlsIdentity
    model: ServedModel
    directory: Path
    service: RecordingService
    clean: LocalClient
    cold_messages: int
    """From a cold start to the result."""
    expected: np.ndarray[Any, np.dtype[np.float64]]
    counter: Iterator[int]

    @property
    def rounds(self) -> int:
        return self.service.programs.plan(1, 16).rounds

    def errors(self) -> float:
        """What the server has noticed of its peers so far."""
        names = ("PeerClosed", "PeerError", "PeerTimeout", "WrongSize")
        return sum(self.service.counters.total(name) for name in names)

    def attempt(
        self, service: RecordingService | None = None, timeout: float = PATIENT, *, cold: bool = False, **fault: Any
    ) -> Outcome:
        """A classification with a fault: an error or, after another attempt with other randomness, the whole result."""
        service = service or self.service
        cache = self.directory / f"cache-{next(self.counter)}"
        client = LocalClient(service, self.identity, cache, timeout, **fault)
        if not cold:
            client.adopt(self.clean, service)
        result = client.attempt()
        if not isinstance(result, CometError):
            assert np.max(np.abs(np.array(result[0].logits) - self.expected)) < 0.02
        for store in (cache / "bundles", *cache.glob("*/bundles")):
            assert not list(store.glob("*.bundle"))  # whatever was named to the server is gone here
        consumed = list(service.consumed)  # before looking: others consume meanwhile
        assert len(set(consumed)) == len(consumed)
        assert not {path.stem for path in service.store.directory.glob("*.bundle")} & set(consumed)
        return result

    def faults(self, side: Side) -> Iterator[dict[str, Any]]:
        """Every message of a cold start, then those of a run with the model set up."""
        for at in range(self.cold_messages - self.rounds):
            yield {"cold": True, "at": at, "side": side}
        for at in range(_BEFORE_ROUNDS + self.rounds):
            yield {"at": at, "side": side}


_BEFORE_ROUNDS = 4  # greeting, Welcome, Run, Ready


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory) -> Inference:
    directory = tmp_path_factory.mktemp("faults")
    identity = make_test_set(directory / "keys")["client"]
    model = ServedModel.load(make_checkpoint(directory / "model", **TINY, row_steps=6))
    service = RecordingService(model, identity, directory / "state", PATIENT)
    clean = LocalClient(service, identity, directory / "cache", PATIENT)
    assert not isinstance(clean.attempt(), CometError)
    messages = clean.ends[0].messages
    expected = twin_logits(model, model.encode([TEXT]))[0]
    return Inference(identity, model, directory, service, clean, messages, expected, itertools.count())


SIDES: tuple[Side, Side] = ("client", "server")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fault", ["cut", "length", "garbage"])
def test_a_fault_in_any_message_ends_in_an_error_or_a_new_attempt(
    inference: Inference, fault: Fault, side: Side
) -> None:
    for where in inference.faults(side):
        errors, consumed = inference.errors(), len(inference.service.consumed)
        patience = 1.0 if fault == "garbage" and "cold" in where else PATIENT  # a download may wait for what is missing
        result = inference.attempt(timeout=patience, fault=fault, **where)
        midway = "cold" not in where and where["at"] >= _BEFORE_ROUNDS
        last = where["at"] == _BEFORE_ROUNDS + inference.rounds - 1
        if isinstance(result, CometError):
            assert isinstance(result, PeerError), where
        assert isinstance(result, CometError) or not midway or last, where  # nobody takes a broken round for a result
        if midway:
            assert len(inference.service.consumed) == consumed + 1, where  # spent at the server too
            if side == "client" and not last:  # then the server is the one that can act
                assert inference.errors() > errors, where
    assert not isinstance(inference.attempt(), CometError)


@pytest.mark.parametrize("side", SIDES)
def test_a_stall_at_any_message_costs_a_timeout_and_nothing_else(inference: Inference, side: Side) -> None:
    state = inference.directory / f"impatient-{side}"
    impatient = RecordingService(inference.model, inference.identity, state, IMPATIENT)

    def attempt(where: dict[str, Any]) -> Outcome:
        if side == "client":
            return inference.attempt(impatient, fault="stall", **where)
        return inference.attempt(timeout=IMPATIENT, fault="stall", **where)

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(attempt, inference.faults(side)))
    failed = [result for result in results if isinstance(result, CometError)]
    assert len(failed) > inference.rounds / 2
    assert all(isinstance(error, PeerError | RandomnessSpent) for error in failed)
    if side == "client":
        assert impatient.counters.total("PeerTimeout") > inference.rounds / 4
    else:
        assert sum(isinstance(error, PeerTimeout) for error in failed) > inference.rounds / 4
    assert not isinstance(inference.attempt(), CometError)


def test_a_bundle_serves_one_run_even_if_it_is_named_twice(inference: Inference) -> None:
    service = inference.service
    plan = service.programs.plan(1, 16)
    name = new_bundle_id()
    service.deal(Order(name, 1, 16, plan))
    for expected in (Ready, RandomnessSpent):
        mine, theirs = memory_pair(PATIENT)
        thread = threading.Thread(target=Conversation(service, theirs, require_client=False).serve, daemon=True)
        thread.start()
        with mine:
            introduce(mine, "client")
            expect(mine, Welcome)
            say(mine, Run(name, 1, 16, plan.digest))
            if expected is Ready:
                expect(mine, Ready)
            else:
                with pytest.raises(RandomnessSpent):
                    expect(mine, Ready)
        thread.join(PATIENT)


def test_an_answer_out_of_range_is_no_result(inference: Inference) -> None:
    """A server that sends noise instead of its share of the result."""

    class Liar(LocalClient):
        def _reach(self) -> Channel:
            channel = super()._reach()
            assert isinstance(channel, FaultyChannel)
            transfer = channel._transfer

            def lie(outgoing: Any, sizes: Any, deadline: float) -> memoryview:
                data = transfer(outgoing, sizes, deadline)
                return (
                    memoryview(bytearray(b"\x55" * len(data))) if channel.messages == inference.cold_messages else data
                )

            channel._transfer = lie  # type: ignore[method-assign]
            return channel

    result = Liar(inference.service, inference.identity, inference.directory / "liar", PATIENT).attempt()
    assert isinstance(result, PeerError)
    assert "outside the model's range" in str(result)


def test_a_download_that_trickles_is_ended_although_it_never_stalls(inference: Inference) -> None:
    """A reader of 64 kB at a time: progress all the while, and too slow for the piece."""
    near, far = socket.socketpair()
    conversation = Conversation(inference.service, TcpChannel(near, PATIENT), require_client=False)
    conversation._limits = ServiceLimits(stall_seconds=0.3, slowest=1e8)
    with far, ThreadPoolExecutor(1) as pool:
        start = time.monotonic()
        sending = pool.submit(conversation._send, [memoryview(bytes(1 << 26))])
        while not sending.done():
            far.recv(1 << 16)
            time.sleep(0.05)
            assert time.monotonic() - start < PATIENT
            if time.monotonic() > conversation.deadline:  # as the watch of every worker does
                conversation.channel.close()
        with pytest.raises(PeerClosed):
            sending.result()


def test_a_secret_half_made_by_a_crash_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / f".weights.secret.{os.getpid()}").write_bytes(b"half")
    made = _secret(tmp_path / "state")
    assert len(made) == 32
    assert _secret(tmp_path / "state") == made


# Strangers, over TLS --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    keys: Path
    programs: Programs
    server: ServerProcess

    def identity(self, name: str) -> TlsIdentity:
        return TlsIdentity(self.keys / f"{name}.pem", self.keys / f"{name}.key", self.keys / "authority.pem")

    def dial(self, name: str = "client") -> Channel:
        return connect("127.0.0.1", self.server.port, self.identity(name).client_context(), PATIENT)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("strangers")
    make_test_set(directory / "keys")
    checkpoint = make_checkpoint(directory / "model", **TINY, row_steps=6)
    programs = Programs(ServedModel.load(checkpoint), DEALER)
    limits = {"stall_seconds": 2.0, "batch": 2}
    with (
        dealer_process(directory / "keys") as (_, address),
        server_process(directory / "keys", checkpoint, address[1], directory / "state", limits=limits, workers=2) as s,
    ):
        yield Served(directory / "keys", programs, s)


@pytest.fixture
def still_serving(served: Served, tmp_path: Path) -> Iterator[None]:
    yield
    with Client(served.server.address, keys=served.keys, cache=tmp_path, ready=0, timeout=PATIENT) as client:
        assert len(client.classify([TEXT])) == 1


def test_handshakes_that_never_end_hold_up_a_client_for_seconds_only(served: Served, tmp_path: Path) -> None:
    """One for every worker; each is given up after 5 s."""
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(socket.create_connection(("127.0.0.1", served.server.port)))
        start = time.monotonic()
        with Client(served.server.address, keys=served.keys, cache=tmp_path, ready=0, timeout=PATIENT) as client:
            assert len(client.classify([TEXT])) == 1
        assert time.monotonic() - start < PATIENT


@pytest.mark.usefixtures("still_serving")
def test_a_stranger_speaks_something_else(served: Served) -> None:
    for data in (b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 64, b""):
        with socket.create_connection(("127.0.0.1", served.server.port), timeout=PATIENT) as stranger:
            stranger.sendall(data)
    with served.dial() as channel:
        channel.send(b"not a greeting")
        channel.receive(1 << 16)  # the server's own greeting, which it has sent already
        with pytest.raises(PeerError):
            channel.receive(1 << 16)
    with served.dial() as channel:
        introduce(channel, "client")
        expect(channel, Welcome)
        channel.send(b'{"type":"Run","bundle_id":"../../etc","batch":1,"bucket":16,"digest":""}')
        with pytest.raises(PeerError, match="no message"):
            expect(channel, Ready)


@pytest.mark.usefixtures("still_serving")
def test_another_version_or_source_is_named_on_both_sides(served: Served) -> None:
    with served.dial() as channel:
        theirs = greet(channel, {"role": "client", "version": "0.0.0", "source of randomness": "dealer", "model": ""})
        assert theirs["role"] == "server"
        with pytest.raises(PeerError):
            expect(channel, Welcome)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        found = [event for event in served.server.events() if event.get("error") == "ProtocolMismatch"]
        if found:
            break
        time.sleep(0.05)
    assert "disagree on version" in found[0]["reason"]


@pytest.mark.usefixtures("still_serving")
def test_wrong_certificates(served: Served, tmp_path: Path) -> None:
    with served.dial("dealer") as channel:
        introduce(channel, "client")
        with pytest.raises(NotAuthenticated, match="dealer"):
            expect(channel, Welcome)
    make_test_set(tmp_path / "foreign")
    foreign = TlsIdentity(
        tmp_path / "foreign" / "client.pem", tmp_path / "foreign" / "client.key", served.keys / "authority.pem"
    )
    with pytest.raises((NotAuthenticated, PeerClosed)):
        Client(served.server.address, identity=foreign, cache=tmp_path).connect()
    with pytest.raises(NotAuthenticated):
        Client(served.server.address, keys=tmp_path / "foreign", cache=tmp_path).connect()
    issue(served.keys, "impostor", "dealer", ("127.0.0.1",))
    context = served.identity("impostor").server_context(False)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pose() -> None:
            connection, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                while secured.recv(1):
                    pass

        thread = threading.Thread(target=pose, daemon=True)
        thread.start()
        with pytest.raises(NotAuthenticated, match="not a server"):
            Client(f"127.0.0.1:{listener.getsockname()[1]}", keys=served.keys, cache=tmp_path).connect()
        thread.join(5)


@pytest.mark.usefixtures("still_serving")
def test_requests_that_cannot_be_granted_are_refused_and_the_client_may_go_on(served: Served) -> None:
    plan = served.programs.plan(1, 16)
    name = new_bundle_id()
    with served.dial() as channel:
        introduce(channel, "client")
        expect(channel, Welcome)
        for request, error in (
            (Prepare(name, 3, 16, plan.digest), ShapeError),
            (Prepare(name, 1, 12, plan.digest), ShapeError),
            (Prepare(name, 1, 16, "0" * 64), ProtocolMismatch),
            (Prepare(name, 2, 16, plan.digest), ProtocolMismatch),
        ):
            say(channel, request)
            with pytest.raises(error):
                expect(channel, Accepted)
        say(channel, Run(name, 1, 16, plan.digest))
        with pytest.raises(RandomnessSpent):
            expect(channel, Ready)


def test_a_client_that_is_set_up_wrongly_says_so(served: Served, tmp_path: Path) -> None:
    for address in ("localhost", "localhost:http", ":7001", "localhost:99999"):
        with pytest.raises(ConfigurationError, match="HOST:PORT"):
            Client(address, keys=served.keys)
    with pytest.raises(ConfigurationError, match="is missing"):
        Client("localhost:1", keys=tmp_path)
    with pytest.raises(ConfigurationError, match="either keys"):
        Client("localhost:1")
