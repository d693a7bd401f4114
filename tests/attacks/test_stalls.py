"""A server that stops answering, in whatever phase of a query: its client gives up after its own timeout."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from comet_mpc.errors import CometError, PeerTimeout
from comet_mpc.models.served import ServedModel
from comet_mpc.net.sockets import listen
from comet_mpc.offline.sources import PAIR
from comet_mpc.service.client import Client
from support.certificates import Identities
from support.clients import LocalClient, local_service
from support.faulty_channel import IMPATIENT
from support.shared_transfers import share_base_transfers
from support.two_parties import outcome
from support.waiting import PATIENCE

TEXT = "the film is good"
TIMEOUT = PATIENCE + 7.0
"""Of a client that stalls are tried on: so many seconds as nobody else waits."""


@contextlib.contextmanager
def full_queue() -> Iterator[int]:
    """A port at which nobody accepts, and nobody can even begin to connect."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """Connections are made, and nobody shakes hands."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@contextlib.contextmanager
def silent_server(identities: Identities) -> Iterator[int]:
    """Shakes hands, and does not greet."""
    with listen("127.0.0.1", 0, identities["server"].server_context(require_client=True)) as listener:
        held = []
        thread = threading.Thread(target=lambda: held.append(outcome(lambda: listener.accept(PATIENCE))), daemon=True)
        thread.start()
        yield listener.address[1]
        thread.join(PATIENCE)


@pytest.mark.parametrize(("phase", "why"), [
    ("connect", "did not answer within 0.3 s"),
    ("handshake", "TLS handshake did not finish within 0.3 s"),
    ("greeting", "header bytes"),
])  # fmt: skip
def test_a_server_that_stalls_before_it_has_said_anything(
    identities: Identities, tmp_path: Path, phase: str, why: str
) -> None:
    ports: dict[str, Callable[[], contextlib.AbstractContextManager[int]]] = {
        "connect": full_queue,
        "handshake": silent_port,
        "greeting": lambda: silent_server(identities),
    }
    with ports[phase]() as port:
        client = Client(f"127.0.0.1:{port}", identity=identities["client"], cache=tmp_path, timeout=IMPATIENT)
        with pytest.raises(PeerTimeout, match=why):
            client.connect()
        client.close()


@pytest.mark.slow
def test_a_server_that_stalls_in_any_later_phase(
    identities: Identities, tiny_model: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the server is silent until its client gives up, which does not wait for the whole timeout here."""
    share_base_transfers(monkeypatch)
    service = local_service(tiny_model, PAIR, identities["server"], tmp_path / "state")

    def ask(cache: str, at: int = -1, connection: int = 0) -> tuple[object, LocalClient]:
        client = LocalClient(
            service, identities["client"], tmp_path / cache, fault="stall", side="server", at=at, connection=connection,
            hurried=at >= 0, timeout=TIMEOUT,
        )  # fmt: skip
        return client.try_to_classify(TEXT), client

    answered, client = ask("whole")
    assert not isinstance(answered, CometError)
    asked, prepared = (channel.messages for channel in client.far)  # at last each waits for a request that never comes
    places = {
        "welcome": (1, 0),
        "download of the package": (3, 0),
        "waiting for a place to prepare": (3, 1),
        "preparation": (prepared // 2, 1),
        "the end of the preparation": (prepared - 2, 1),
        "the beginning of the run": (5, 0),
        "rounds": (asked // 2, 0),
        "the last round": (asked - 2, 0),
    }
    asked_again = {phase: ask(phase.replace(" ", "-"), *place) for phase, place in places.items()}
    ends = {phase: end for phase, (end, _) in asked_again.items()}
    assert {phase: type(end) for phase, end in ends.items()} == dict.fromkeys(places, PeerTimeout), ends
    for phase, (_, connection) in places.items():
        (waited,) = {*asked_again[phase][1].near[connection].patience}
        assert waited == TIMEOUT, phase
    assert "workers may all be busy" in str(ends["waiting for a place to prepare"])
