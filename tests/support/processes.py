"""Servers and dealers to test against, as processes of their own, and all that belongs to one on loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from comet_mpc.models.served import ServedModel
from comet_mpc.net.channel import Channel
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.sockets import TlsChannel, connect
from comet_mpc.net.tls import RECORD, Tls
from comet_mpc.offline.sources import DEALER, PAIR
from comet_mpc.service.client import Client
from comet_mpc.service.messages import Welcome, expect, introduce
from comet_mpc.service.programs import Programs
from support.toy_model import twin_logits
from support.waiting import PATIENCE, eventually

__all__ = [
    "TWIN_BOUND",
    "PendingHandshake",
    "ServerProcess",
    "World",
    "dealer_process",
    "running_world",
    "send_raw",
    "server_process",
]

TWIN_BOUND = 0.02 + 2.0**-7
"""Logits of the protocol and of its twin: rounding of 7 row steps, carried through two layers; and in the end the
protocol is off by less than 1.5 units of 2^-8, the twin by at most half a unit."""

_DEALER = """
import json, sys
from comet_mpc.net import live
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.offline.dealer.process import run_dealer
from comet_mpc.logs import log_as_json
options = json.loads(sys.argv[1])
live._LOOK_SECONDS = options["look_seconds"]
log_as_json()
identity = TlsIdentity.find(options["keys"], "dealer")
run_dealer("127.0.0.1", 0, identity, started=lambda address, _: print(address[1], flush=True))
"""

_SERVER = """
import json, sys
from comet_mpc.net import live
from comet_mpc.net.reception import ReceptionLimits
from pathlib import Path
from comet_mpc.models.writing.any_model import load_model
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.offline.sources import DealerSource, PairSource
from comet_mpc.service.deployment import ServiceLimits
from comet_mpc.logs import log_as_json
from comet_mpc.service.hosting.server import Server
options = json.loads(sys.argv[1])
live._LOOK_SECONDS = options.pop("look_seconds", live._LOOK_SECONDS)
limits = ServiceLimits(**options.pop("limits"))
dealer = options.pop("dealer")
handshakes = ReceptionLimits(**options.pop("handshakes", {}))
log_as_json()
server = Server(
    load_model(Path(options.pop("model"))), ("127.0.0.1", options.pop("port")),
    PairSource() if dealer is None else DealerSource(("127.0.0.1", dealer)),
    TlsIdentity.find(options.pop("keys"), "server"), Path(options.pop("state")),
    metrics=("127.0.0.1", 0), limits=limits, handshakes=handshakes, **options,
)
server.serve_forever(lambda: print(server.address[1], server.metrics_address[1], flush=True))
"""


@contextlib.contextmanager
def _process(program: str, argument: str, **pipes: Any) -> Iterator[subprocess.Popen[str]]:
    """A Python process that is ended, in an orderly way if it can be."""
    process = subprocess.Popen([sys.executable, "-c", program, argument], stdout=subprocess.PIPE, text=True, **pipes)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@contextlib.contextmanager
def dealer_process(keys: Path, *, look_seconds: float = 1.0) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """A dealer with its usual limits, and where it listens. look_seconds: how often it looks at its certificates."""
    with _process(_DEALER, json.dumps({"keys": str(keys), "look_seconds": look_seconds})) as process:
        assert process.stdout is not None
        yield process, ("127.0.0.1", int(process.stdout.readline()))


class ServerProcess:
    """The process, where it listens, and its log."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert process.stdout is not None
        ports = process.stdout.readline().split()
        if not ports:
            process.wait(PATIENCE)
            self._reader.join(PATIENCE)
            raise AssertionError("the server did not start: " + "".join(self.log)[-2000:])
        self.address = f"127.0.0.1:{ports[0]}"
        self.port = int(ports[0])
        self.metrics = f"http://127.0.0.1:{ports[1]}/metrics"

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def end(self) -> None:
        """In an orderly way if it can be; the log is whole then."""
        self.process.terminate()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    def events(self) -> list[dict[str, Any]]:
        """Every line of the log is a JSON object."""
        return [json.loads(line) for line in list(self.log)]

    def logged(self, text: str, **fields: object) -> dict[str, Any]:
        """The first event with that text and these fields, as soon as there is one."""

        def found() -> dict[str, Any] | None:
            fitting = (event for event in self.events() if text in event["event"])
            return next((event for event in fitting if fields.items() <= event.items()), None)

        event = eventually(found, f"the server never said {text!r} {fields}")
        assert event is not None
        return event


@contextlib.contextmanager
def server_process(
    keys: Path,
    model: Path,
    dealer: int | None,
    state: Path,
    *,
    port: int = 0,
    limits: dict[str, Any] | None = None,
    **more: Any,
) -> Iterator[ServerProcess]:
    """A server that prepares its randomness with its clients, unless it has a dealer (at that port)."""
    options = {"keys": str(keys), "model": str(model), "dealer": dealer, "state": str(state), "port": port}
    argument = json.dumps({**options, "limits": limits or {}, **more})
    with _process(_SERVER, argument, stderr=subprocess.PIPE) as process:
        server = ServerProcess(process)
        try:
            yield server
        finally:
            server.end()


@dataclass(frozen=True)
class World:
    """A server with its model, its dealer if it has one, and what clients need."""

    keys: Path
    checkpoint: Path
    model: ServedModel
    programs: Programs
    state: Path
    dealer: int | None
    server: ServerProcess

    def client(self, cache: Path, server: ServerProcess | None = None, **options: Any) -> Client:
        """One that prepares nothing ahead, unless told otherwise."""
        address = (server or self.server).address
        return Client(address, **{"keys": self.keys, "cache": cache, "ready": 0, **options})

    def dial(self, server: ServerProcess | None = None, name: str = "client") -> Channel:
        context = TlsIdentity.find(self.keys, name).client_context()
        return connect("127.0.0.1", (server or self.server).port, context, PATIENCE)

    def welcomed(self, server: ServerProcess | None = None, name: str = "client") -> Channel:
        """A connection after the greeting, for requests that no client would make."""
        channel = self.dial(server, name)
        introduce(channel, "client")
        expect(channel, Welcome)
        return channel

    @contextlib.contextmanager
    def another_server(self, state: Path, **options: Any) -> Iterator[ServerProcess]:
        """One more server of the same model, with the same dealer."""
        with server_process(self.keys, self.checkpoint, self.dealer, state, **options) as server:
            yield server

    def right(self, logits: tuple[float, ...], text: str | tuple[str, str]) -> bool:
        """Whether these are the logits that the protocol's twin has."""
        expected = twin_logits(self.model, self.model.encode([text]))[0]
        return bool(np.max(np.abs(np.array(logits) - expected)) < TWIN_BOUND)


@contextlib.contextmanager
def running_world(
    keys: Path, checkpoint: Path, state: Path, *, with_dealer: bool, limits: dict[str, Any], **more: Any
) -> Iterator[World]:
    model = ServedModel.load(checkpoint)
    with contextlib.ExitStack() as stack:
        looks = {"look_seconds": more["look_seconds"]} if "look_seconds" in more else {}
        dealer = stack.enter_context(dealer_process(keys, **looks))[1][1] if with_dealer else None
        server = stack.enter_context(server_process(keys, checkpoint, dealer, state, limits=limits, **more))
        yield World(keys, checkpoint, model, Programs(model, DEALER if with_dealer else PAIR), state, dealer, server)


class PendingHandshake:
    """A connection whose handshake the client has not finished: the certificate and its proof are still here."""

    def __init__(self, address: tuple[str, int], identity: TlsIdentity) -> None:
        self._socket = socket.create_connection(address, PATIENCE)
        self._tls = Tls(identity.client_context(), address[0])
        while True:
            try:
                self._tls.session.do_handshake()
                return
            except ssl.SSLWantReadError:
                self._socket.sendall(self._tls.collect())
                self._tls.feed(self._socket.recv(RECORD))

    def finish(self) -> TlsChannel:
        self._socket.sendall(self._tls.collect())
        return TlsChannel(self._socket, self._tls, PATIENCE)


def send_raw(channel: Channel, data: bytes) -> None:
    """Bytes that are no frame, over TLS."""
    assert isinstance(channel, TlsChannel)
    channel.tls.seal(bytearray(data))
    channel._socket.setblocking(True)
    channel._socket.sendall(channel.tls.collect())
