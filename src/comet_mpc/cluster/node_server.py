"""The process that serves on one node of a cluster: `python -m comet_mpc.cluster.node_server`, started by its `host`.

It reads an order as one JSON object from standard input, says in one line where it listens, and is an ordinary server
from then on. It knows nothing of Ray: a server forks, and a process of Ray has threads. It ends with its host.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from comet_mpc.errors import CometError
from comet_mpc.logs import log_as_json
from comet_mpc.net.reception import ReceptionLimits
from comet_mpc.net.sockets import Address
from comet_mpc.service.hosting.blueprint import Blueprint
from comet_mpc.service.hosting.lifeline import end_with_parent

_LOOPBACK = "127.0.0.1"


class Order(msgspec.Struct, frozen=True):
    blueprint: Blueprint
    address: str
    """Of this node, for the relay."""
    state: str
    host: int
    """The process that it ends with."""


class Started(msgspec.Struct, frozen=True):
    address: Address = ("", 0)
    metrics: Address = ("", 0)
    error: str = ""
    """Why it does not serve."""


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    end_with_parent(order.host)
    log_as_json()
    # all connections come from the relay's address, which looks after strangers itself
    usual = ReceptionLimits()
    handshakes = ReceptionLimits(per_address=usual.handshakes)
    try:
        server = order.blueprint.build((order.address, 0), Path(order.state), (_LOOPBACK, 0), handshakes)
    except CometError as error:
        _say(Started(error=str(error)))
        raise SystemExit(1) from error
    metrics = server.metrics_address
    assert metrics is not None
    server.serve_forever(lambda: _say(Started(server.address, metrics)))


def _say(what: Started) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
