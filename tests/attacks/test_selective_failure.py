"""A server that spoils an answer must not see whether the client noticed.

Whether spoilt logits are within their range depends on the text. A client that hung up, or asked for less afterwards,
would tell one bit of it. So its messages are compared: after a good answer, and after an impossible one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from comet_mpc.errors import PeerError
from comet_mpc.models.served import ServedModel
from comet_mpc.net.channel import FRAME_HEADER, Channel
from support.certificates import Identities
from support.clients import LocalClient, RecordingService, out_of_range, pool_of
from support.faulty_channel import FaultyChannel
from support.recording import Recording
from support.two_parties import outcome
from support.waiting import eventually

TEXTS = ["the film is good", "the film is bad", "good"]


class Recorded(Recording):
    """The client's end: what the server sees of it. Answers are spoilt on their way, or not."""

    def __init__(self, inner: FaultyChannel, model: ServedModel, answer_bytes: int, spoilt: bool) -> None:
        super().__init__(inner)
        self._model, self._size, self._spoilt = model, answer_bytes, spoilt
        self.peer_role = "server"

    def _transfer(self, outgoing: list[memoryview] | None, sizes: range | None, deadline: float) -> memoryview:
        data = super()._transfer(outgoing, sizes, deadline)
        if self._spoilt and outgoing is None and len(data) == self._size:
            return out_of_range(data, self._model)
        return data


class Watched(LocalClient):
    """Notes every connection that it makes."""

    def __init__(self, service: RecordingService, identities: Identities, cache: Path, *, spoilt: bool) -> None:
        super().__init__(service, identities["client"], cache)
        self._batch = 1
        self._spoilt = spoilt
        self.lines: list[Recorded] = []

    def _reach(self) -> Channel:
        channel = super()._reach()
        assert isinstance(channel, FaultyChannel)
        plan = self._service.programs.plan(1, 16)
        self.lines.append(
            Recorded(channel, self._service.encoder, plan.schedule[-1].from_server - FRAME_HEADER, self._spoilt)
        )
        return self.lines[-1]

    def shapes(self) -> list[list[tuple[str, int]]]:
        """What the server sees, connection by connection: kinds of messages and their sizes."""
        return [[(_kind(frame), len(frame)) for frame in line.sent] for line in self.lines]


def _kind(frame: bytes) -> str:
    try:
        return str(msgspec.json.decode(frame).get("type"))
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError):
        return "a round"


@pytest.fixture
def service(tmp_path: Path, identities: Identities, tiny_model: ServedModel) -> RecordingService:
    return RecordingService(tiny_model, identities["server"], tmp_path / "state")


@pytest.fixture
def clients(tmp_path: Path, service: RecordingService, identities: Identities) -> Iterator[list[Watched]]:
    found = [Watched(service, identities, tmp_path / f"{spoilt}", spoilt=spoilt) for spoilt in (False, True)]
    yield found
    for client in found:
        client.close()


def test_a_spoilt_answer_changes_no_message_of_the_client(clients: list[Watched]) -> None:
    """Neither in that run nor in those of the same call that follow, and the connection stays."""
    good, bad = clients
    assert len(good.classify(TEXTS)) == len(TEXTS)
    with pytest.raises(PeerError, match="outside the model's range"):
        bad.classify(TEXTS)
    assert good.shapes() == bad.shapes()
    assert len(good.lines) == 1
    assert not any(line.closed for client in clients for line in client.lines)
    runs = [kind for kind, _ in bad.shapes()[0] if kind == "Run"]
    assert len(runs) == len(TEXTS)
    for client in clients:
        client._spoilt = client.lines[0]._spoilt = False
        assert len(client.classify(TEXTS[:1])) == 1
    assert good.shapes() == bad.shapes(), "the next query goes over the same connection"


def test_randomness_is_replenished_after_a_spoilt_answer_too(clients: list[Watched]) -> None:
    asked: list[list[tuple[int, int]]] = []
    for client in clients:
        client.connect()
        pool = pool_of(client)
        asked.append([])
        pool.replenish = lambda batch, bucket, log=asked[-1]: log.append((batch, bucket))  # type: ignore[method-assign, misc]
        assert isinstance(outcome(partial(client.classify, TEXTS)), PeerError) == client._spoilt
    assert asked[0] == asked[1] == [(1, 16)] * len(TEXTS)


def test_the_servers_view_of_a_spoilt_answer_is_a_served_query(
    clients: list[Watched], service: RecordingService
) -> None:
    for number, client in enumerate(clients, start=1):
        assert isinstance(outcome(partial(client.classify, TEXTS)), PeerError) == client._spoilt
        eventually(lambda: service.counters.total("queries_total") == number * len(TEXTS))  # noqa: B023
    assert service.counters.active == 2
    assert service.counters.total("PeerClosed") == 0
