"""A dealer to test against, in a thread, patient unless a test says otherwise, and parties that fetch from it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from comet_mpc.engine.correlations import BitProducts, Correlation, program_digest
from comet_mpc.engine.share import CLIENT, SERVER
from comet_mpc.net.channel import Channel
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.reception import ReceptionLimits
from comet_mpc.net.sockets import connect
from comet_mpc.offline.bundle import Bundle
from comet_mpc.offline.dealer.admission import ProgramLimits
from comet_mpc.offline.dealer.fetch import fetch_bundle
from comet_mpc.offline.dealer.server import Dealer, DealerLimits
from comet_mpc.offline.sources import DEALER
from comet_mpc.offline.store import BundleStore, new_bundle_id
from support.certificates import Identities
from support.two_parties import both
from support.waiting import PATIENCE

Address = tuple[str, int]

KEY = bytes(range(16))
SMALL: tuple[Correlation, ...] = (BitProducts(40, 64),)

LIMITS = DealerLimits(
    bundles=4,
    handshakes=ReceptionLimits(seconds=PATIENCE),
    program=ProgramLimits(program_bytes=1 << 16, correction_bytes=1 << 28, held_words=1 << 20),
    ask_seconds=PATIENCE,
    partner_seconds=PATIENCE,
    stall_seconds=PATIENCE,
    deal_seconds=PATIENCE,
    heartbeat_seconds=0.1,
)
LONELY = 0.3
"""Seconds that a dealer waits for a party that a test never sends, or that has stopped."""


class PatientDealer(Dealer):
    """Its patience can change while it runs: conversations that begin later have the new one."""

    def _serve(self, channel: Channel) -> None:
        channel.timeout = self.limits.stall_seconds
        super()._serve(channel)


@contextlib.contextmanager
def hasty(dealer: Dealer, **seconds: float) -> Iterator[None]:
    """The dealer with less patience, for something that goes wrong in here."""
    usual = dealer.limits
    dealer.limits = replace(usual, **seconds)  # type: ignore[arg-type]
    try:
        yield
    finally:
        dealer.limits = usual


@contextlib.contextmanager
def running(made: Dealer) -> Iterator[Dealer]:
    """The dealer, serving in a thread; afterwards it has come to its end."""
    with made as dealer:
        thread = threading.Thread(target=dealer.serve_forever, daemon=True)
        thread.start()
        try:
            yield dealer
        finally:
            dealer.close()
            thread.join(PATIENCE)
            assert not thread.is_alive()


def running_dealer(identities: Identities, limits: DealerLimits = LIMITS) -> contextlib.AbstractContextManager[Dealer]:
    return running(PatientDealer("127.0.0.1", 0, identities["dealer"], limits))


def waiting_parties(dealer: Dealer) -> int:
    """Bundles that somebody has asked for and that are not done."""
    return len(dealer._meetings)


def given_up(dealer: Dealer, bundle_id: str) -> bool:
    """Whether a bundle that was asked for is done or void."""
    return bundle_id not in dealer._meetings


def dial(address: Address, identity: TlsIdentity, timeout: float = PATIENCE) -> Channel:
    return connect(*address, identity.client_context(), timeout)


def fetched(
    channel: Channel, party: int, bundle_id: str, program: tuple[Correlation, ...] = SMALL, *, key: bytes | None = None
) -> Bundle:
    """Fetched into a store and taken out of it, as a party does."""
    digest = program_digest(program)
    with TemporaryDirectory() as directory:
        store = BundleStore(Path(directory), party, DEALER)
        fetch_bundle(channel, party, bundle_id, program, partial(store.add, bundle_id, digest), key=key)
        return store.take(bundle_id, digest, program)


def fetch(
    address: Address,
    identities: Identities,
    party: int,
    bundle_id: str,
    program: tuple[Correlation, ...] = SMALL,
) -> Bundle:
    channel = dial(address, identities["server" if party == SERVER else "client"])
    return fetched(channel, party, bundle_id, program, key=KEY if party == SERVER else None)


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
