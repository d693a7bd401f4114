"""A dealer to test against: in a thread with short limits, or as a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from comet_mpc.engine.correlations import BitProducts, Correlation
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.errors import CometError
from comet_mpc.net.channel import Channel
from comet_mpc.net.identity import Role, TlsIdentity
from comet_mpc.net.sockets import TlsChannel, connect
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.admission import ProgramLimits
from comet_mpc.offline.dealer.fetch import fetch_to_memory
from comet_mpc.offline.dealer.server import Dealer, DealerLimits
from comet_mpc.offline.store import new_bundle_id

Identities = dict[Role, TlsIdentity]
Address = tuple[str, int]
A = TypeVar("A")
B = TypeVar("B")

KEY = bytes(range(16))
SMALL: tuple[Correlation, ...] = (BitProducts(40, 64),)

IMPATIENT = DealerLimits(
    bundles=4,
    program=ProgramLimits(program_bytes=1 << 16, correction_bytes=1 << 28, held_words=1 << 20),
    ask_seconds=1.0,
    partner_seconds=1.5,
    stall_seconds=0.8,
    deal_seconds=20.0,
    heartbeat_seconds=0.1,
)

_PROCESS = """
import sys
from pathlib import Path
from comet_mpc.offline.dealer.server import run_dealer
from comet_mpc.net.identity import TlsIdentity
keys = Path(sys.argv[1])
identity = TlsIdentity(keys / "dealer.pem", keys / "dealer.key", keys / "authority.pem")
run_dealer("127.0.0.1", 0, identity, started=lambda address: print(address[1], flush=True))
"""


def both(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Runs the two sides at once; an error of either is raised here."""
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(first), pool.submit(second)
        return one.result(), other.result()


def outcome(action: Callable[[], object]) -> object:
    """What the action returns, or the error it raises."""
    try:
        return action()
    except CometError as error:
        return error


@contextlib.contextmanager
def running_dealer(identities: Identities, limits: DealerLimits = IMPATIENT) -> Iterator[Dealer]:
    with Dealer("127.0.0.1", 0, identities["dealer"], limits) as dealer:
        thread = threading.Thread(target=dealer.serve_forever, daemon=True)
        thread.start()
        try:
            yield dealer
        finally:
            dealer.close()
            thread.join(20)
            assert not thread.is_alive()


@contextlib.contextmanager
def dealer_process(keys: Path) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    process = subprocess.Popen([sys.executable, "-c", _PROCESS, str(keys)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, ("127.0.0.1", int(process.stdout.readline()))
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()


def dial(address: Address, identity: TlsIdentity, timeout: float = 20.0) -> Channel:
    return connect(*address, identity.client_context(), timeout)


def send_raw(channel: Channel, data: bytes) -> None:
    """Bytes that are no frame, over TLS."""
    assert isinstance(channel, TlsChannel)
    channel._tls.seal(bytearray(data))
    channel._socket.setblocking(True)
    channel._socket.sendall(channel._tls.collect())


def fetch(
    address: Address,
    identities: Identities,
    party: int,
    bundle_id: str,
    program: tuple[Correlation, ...] = SMALL,
) -> Bundle:
    channel = dial(address, identities["server" if party == SERVER else "client"])
    return fetch_to_memory(channel, party, bundle_id, program, key=KEY if party == SERVER else None)


def fetch_both(
    address: Address,
    identities: Identities,
    program: tuple[Correlation, ...] = SMALL,
    bundle_id: str | None = None,
) -> tuple[Bundle, Bundle]:
    name = bundle_id or new_bundle_id()
    return both(
        lambda: fetch(address, identities, CLIENT, name, program),
        lambda: fetch(address, identities, SERVER, name, program),
    )
