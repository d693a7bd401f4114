"""Whatever a peer, a line or a stranger does to one inference: a typed error, no partial result, no mask used twice.

Messages of one inference, from the greeting to the result, are cut off, held back, and sent with a wrong length, by
either side. Both sides run in this process over a memory channel; strangers meet a real server over TLS.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

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
from comet_mpc.net.authority import issue, make_test_set
from comet_mpc.net.channel import Channel, greet, memory_pair
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import TcpChannel
from comet_mpc.offline.source import MOST_TOGETHER, Order
from comet_mpc.offline.store import new_bundle_id
from comet_mpc.service.catalogue import Catalogue
from comet_mpc.service.client import Client
from comet_mpc.service.conversation import Conversation
from comet_mpc.service.deployment import ServiceLimits, _secret
from comet_mpc.service.messages import (
    Accepted,
    GetPackage,
    Prepare,
    Ready,
    Run,
    Welcome,
    expect,
    from_client,
    introduce,
    say,
)
from comet_mpc.service.prediction import Prediction
from support.certificates import Identities
from support.clients import EnoughSlots, LocalClient, RecordingService, Side, begin_conversation, out_of_range
from support.faulty_channel import IMPATIENT, Fault, FaultyChannel, hung_up
from support.processes import TWIN_BOUND, World, running_world
from support.toy_model import twin_logits
from support.two_parties import both
from support.waiting import PATIENCE, Clock, eventually

Outcome = list[Prediction] | CometError

TEXT = "the film is good"


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
        self, service: RecordingService | None = None, timeout: float = PATIENCE, *, cold: bool = False, **fault: Any
    ) -> Outcome:
        """A classification with a fault: an error or, after another attempt with other randomness, the whole result."""
        service = service or self.service
        cache = self.directory / f"cache-{next(self.counter)}"
        client = LocalClient(service, self.identity, cache, timeout=timeout, **fault)
        if not cold:
            client.adopt(self.clean, service)
        result = client.try_to_classify(TEXT)
        if not isinstance(result, CometError):
            assert np.max(np.abs(np.array(result[0].logits) - self.expected)) < TWIN_BOUND
        for store in (cache / "bundles", *cache.glob("*/bundles")):
            assert not list(store.glob("*.bundle"))  # whatever was named to the server is gone here
        consumed = list(service.consumed)  # before looking: others consume meanwhile
        assert len(set(consumed)) == len(consumed)
        assert not {path.stem for path in service.store.directory.glob("*.bundle")} & set(consumed)
        return result

    def faults(self, side: Side, first: int = 0) -> Iterator[dict[str, Any]]:
        """Every message of a cold start, then those of a run with the model set up: of its rounds the first and the
        last ones, and between them every fifth from `first` on."""
        for at in range(self.cold_messages - self.rounds):
            yield {"cold": True, "at": at, "side": side}
        end = _BEFORE_ROUNDS + self.rounds
        for at in range(end):
            if at < _BEFORE_ROUNDS + 2 or at >= end - 2 or at % 5 == first % 5:
                yield {"at": at, "side": side}


_BEFORE_ROUNDS = 4  # greeting, Welcome, Run, Ready
FAULTS: tuple[Fault, ...] = ("cut", "length", "garbage")


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory, identities: Identities, tiny_model: ServedModel) -> Inference:
    directory, identity = tmp_path_factory.mktemp("faults"), identities["client"]
    service = RecordingService(tiny_model, identity, directory / "state")
    clean = LocalClient(service, identity, directory / "cache")
    assert not isinstance(clean.try_to_classify(TEXT), CometError)
    messages = clean.near[0].messages
    expected = twin_logits(tiny_model, tiny_model.encode([TEXT]))[0]
    return Inference(identity, tiny_model, directory, service, clean, messages, expected, itertools.count())


SIDES: tuple[Side, Side] = ("client", "server")


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_message_ends_in_an_error_or_a_new_attempt(inference: Inference, fault: Fault, side: Side) -> None:
    for where in inference.faults(side, FAULTS.index(fault) + SIDES.index(side)):
        errors, consumed = inference.errors(), len(inference.service.consumed)
        waits = fault == "garbage" and "cold" in where  # a download may wait for what is missing
        patience = IMPATIENT if waits else PATIENCE
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


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_a_stall_at_a_message_costs_a_timeout_and_nothing_else(inference: Inference, side: Side) -> None:
    timeouts = inference.service.counters.total("PeerTimeout")

    def attempt(where: dict[str, Any]) -> Outcome:
        return inference.attempt(fault="stall", hurried=True, **where)

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(attempt, inference.faults(side, SIDES.index(side))))
    failed = [result for result in results if isinstance(result, CometError)]
    assert len(failed) > inference.rounds / 8
    assert all(isinstance(error, PeerError | RandomnessSpent) for error in failed)
    if side == "client":
        assert inference.service.counters.total("PeerTimeout") - timeouts > inference.rounds / 16
    else:
        assert sum(isinstance(error, PeerTimeout) for error in failed) > inference.rounds / 16
    assert not isinstance(inference.attempt(), CometError)


def test_a_bundle_serves_one_run_even_if_it_is_named_twice(inference: Inference) -> None:
    service = inference.service
    plan = service.programs.plan(1, 16)
    name = new_bundle_id()
    service.deal(Order(name, 1, 16, plan))
    for expected in (Ready, RandomnessSpent):
        mine, theirs = memory_pair(PATIENCE)
        thread = begin_conversation(service, theirs)
        with mine:
            introduce(mine, "client")
            expect(mine, Welcome)
            say(mine, Run(name, 1, 16, plan.digest))
            if expected is Ready:
                expect(mine, Ready)
            else:
                with pytest.raises(RandomnessSpent):
                    expect(mine, Ready)
        thread.join(PATIENCE)


def test_an_answer_out_of_range_is_no_result(inference: Inference) -> None:
    """A server that sends something else than its share of the result."""

    class Liar(LocalClient):
        def _reach(self) -> Channel:
            channel = super()._reach()
            assert isinstance(channel, FaultyChannel)
            transfer = channel._transfer

            def lie(outgoing: Any, sizes: Any, deadline: float) -> memoryview:
                data = transfer(outgoing, sizes, deadline)
                return out_of_range(data, inference.model) if channel.messages == inference.cold_messages else data

            channel._transfer = lie  # type: ignore[method-assign]
            return channel

    result = Liar(inference.service, inference.identity, inference.directory / "liar").try_to_classify(TEXT)
    assert isinstance(result, PeerError)
    assert "outside the model's range" in str(result)


def test_requests_that_are_no_steps_do_not_keep_a_text(inference: Inference, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that holds a text is not ended to make room for others: steps are counted."""
    clock, held = Clock(), []
    monkeypatch.setattr(sys.modules[Conversation.__module__], "time", clock)
    near, far = memory_pair(PATIENCE)
    conversation = Conversation(Catalogue({"model": inference.service}), near, EnoughSlots(), require_client=False)
    conversation._limits = ServiceLimits(idle_seconds=60.0)
    conversation._writing, conversation._went_on = object(), clock.monotonic()  # type: ignore[assignment]
    for _ in range(3):
        clock.now += 40.0
        say(far, GetPackage())
        conversation._next()
        held.append(conversation._writing is not None)
    assert held == [True, False, False]


def test_a_download_that_trickles_is_ended_although_it_never_stalls(
    inference: Inference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of 64 kB at a time: progress all the while, and too slow for the piece."""
    clock = Clock()
    monkeypatch.setattr(sys.modules[Conversation.__module__], "time", clock)
    near, far = socket.socketpair()
    offer = Catalogue({"model": inference.service})
    conversation = Conversation(offer, TcpChannel(near, PATIENCE), EnoughSlots(), require_client=False)
    conversation._limits = ServiceLimits(stall_seconds=0.3, slowest=1e8)
    size = 1 << 26

    def send() -> None:
        with pytest.raises(PeerClosed):
            conversation._send([memoryview(bytes(size))])

    def read() -> int:
        """As slowly as that; and the watch of every worker looks at the deadline."""
        taken = 0
        while data := far.recv(1 << 16):
            taken += len(data)
            clock.now += 0.05
            if clock.now > conversation.deadline:
                conversation.channel.close()
        return taken

    with far:
        _, taken = both(send, read)
    assert taken < size / 2


def test_a_secret_half_made_by_a_crash_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / f".weights.secret.{os.getpid()}").write_bytes(b"half")
    made = _secret(tmp_path / "state")
    assert len(made) == 32
    assert _secret(tmp_path / "state") == made


# Strangers, over TLS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, keys: Path, tiny_checkpoint: Path) -> Iterator[World]:
    state, limits = tmp_path_factory.mktemp("strangers"), {"stall_seconds": PATIENCE, "batch": 2}
    with running_world(
        keys, tiny_checkpoint, state, with_dealer=True, limits=limits, workers=2, handshakes={"seconds": 3.0}
    ) as running:
        yield running


@pytest.fixture
def still_serving(world: World, tmp_path: Path) -> Iterator[None]:
    yield
    with world.client(tmp_path) as client:
        assert len(client.classify([TEXT])) == 1


@pytest.mark.service
def test_handshakes_that_never_end_hold_up_a_client_for_a_while_only(world: World, tmp_path: Path) -> None:
    """One for every worker. The server gives them up, and then there is a worker for the client."""
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", world.server.port))) for _ in range(2)]
        with world.client(tmp_path) as client:
            assert len(client.classify([TEXT])) == 1
        assert all(eventually(partial(hung_up, line)) for line in strangers)


@pytest.mark.service
@pytest.mark.usefixtures("still_serving")
def test_a_stranger_speaks_something_else(world: World) -> None:
    for data in (b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 64, b""):
        with socket.create_connection(("127.0.0.1", world.server.port)) as stranger:
            stranger.sendall(data)
    with world.dial() as channel:
        channel.send(b"not a greeting")
        channel.receive(1 << 16)  # the server's own greeting, which it has sent already
        with pytest.raises(PeerError):
            channel.receive(1 << 16)
    with world.welcomed() as channel:
        channel.send(b'{"type":"Run","bundle_id":"../../etc","batch":1,"bucket":16,"digest":""}')
        with pytest.raises(PeerError, match="not a message"):
            expect(channel, Ready)


@pytest.mark.service
@pytest.mark.usefixtures("still_serving")
def test_another_version_or_source_is_named_on_both_sides(world: World) -> None:
    with world.dial() as channel:
        theirs = greet(channel, {"role": "client", "version": "0.0.0", "source of randomness": "dealer", "model": ""})
        assert theirs["role"] == "server"
        with pytest.raises(PeerError):
            expect(channel, Welcome)
    found = world.server.logged("", error="ProtocolMismatch")
    assert "disagree on version" in found["reason"]


@pytest.mark.service
@pytest.mark.usefixtures("still_serving")
def test_wrong_certificates(world: World, tmp_path: Path) -> None:
    with world.dial(name="dealer") as channel:
        introduce(channel, "client")
        with pytest.raises(NotAuthenticated, match="dealer"):
            expect(channel, Welcome)
    strangers = make_test_set(tmp_path / "foreign")
    foreign = replace(strangers["client"], authority=world.keys / "authority.pem")
    with pytest.raises((NotAuthenticated, PeerClosed)):
        world.client(tmp_path, keys=None, identity=foreign).connect()
    with pytest.raises(NotAuthenticated):
        world.client(tmp_path, keys=tmp_path / "foreign").connect()
    issuing = shutil.copytree(world.keys, tmp_path / "issuing")
    context = issue(issuing, "impostor", "dealer", ("127.0.0.1",)).server_context(False)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pose() -> None:
            connection, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                while secured.recv(1):
                    pass

        thread = threading.Thread(target=pose, daemon=True)
        thread.start()
        with pytest.raises(NotAuthenticated, match="not a server"):
            Client(f"127.0.0.1:{listener.getsockname()[1]}", keys=world.keys, cache=tmp_path).connect()
        thread.join(PATIENCE)


@pytest.mark.service
@pytest.mark.usefixtures("still_serving")
def test_requests_that_cannot_be_granted_are_refused_and_the_client_may_go_on(world: World) -> None:
    plan = world.programs.plan(1, 16)
    name = new_bundle_id()
    with world.welcomed() as channel:
        for request, error in (
            (Prepare(name, 3, 16, plan.digest), ShapeError),
            (Prepare(name, 1, 12, plan.digest), ShapeError),
            (Prepare(name, 1, 16, "0" * 64), ProtocolMismatch),
            (Prepare(name, 2, 16, plan.digest), ProtocolMismatch),
            (Prepare(name, 1, 16, plan.digest, MOST_TOGETHER), ConfigurationError),  # a dealer deals one at a time
        ):
            say(channel, request)
            with pytest.raises(error):
                expect(channel, Accepted)
        say(channel, Run(name, 1, 16, plan.digest))
        with pytest.raises(RandomnessSpent):
            expect(channel, Ready)


@pytest.mark.service
def test_a_client_that_is_set_up_wrongly_says_so(world: World, tmp_path: Path) -> None:
    for address in ("localhost", "localhost:http", ":7001", "localhost:99999"):
        with pytest.raises(ConfigurationError, match="HOST:PORT"):
            Client(address, keys=world.keys)
    with pytest.raises(ConfigurationError, match="is missing"):
        Client("localhost:1", keys=tmp_path)
    with pytest.raises(ConfigurationError, match="either keys"):
        Client("localhost:1")


@pytest.mark.parametrize("count", [0, -1, MOST_TOGETHER + 1, 2**70, 1.5, True, "2", None, [2]])
def test_a_number_of_bundles_that_makes_no_sense_is_no_message(count: object) -> None:
    fields = msgspec.json.decode(msgspec.json.encode(Prepare(new_bundle_id(), 1, 16, "0" * 64, 2)))
    assert from_client(msgspec.json.encode({**fields, "count": 2})) == from_client(msgspec.json.encode(fields))
    with pytest.raises(PeerError, match="not a message"):
        from_client(msgspec.json.encode({**fields, "count": count}))


NESTED = b'{"nested":' + b"[" * 4000


def test_json_that_is_nested_too_deeply_is_no_message() -> None:
    with pytest.raises(PeerError, match="not a message"):
        from_client(NESTED)
    here, there = memory_pair(PATIENCE)
    there.send(NESTED)
    with pytest.raises(PeerError, match="something other than Ready"):
        expect(here, Ready)
