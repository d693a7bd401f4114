"""One model made ready to be served: what all conversations of a server share."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from comet_mpc.engine.plan import Plan
from comet_mpc.engine.seeds import derive_seed
from comet_mpc.engine.share import SERVER
from comet_mpc.errors import ConfigurationError, ProtocolMismatch, ShapeError
from comet_mpc.files import atomic_write
from comet_mpc.models.served import ServedModel
from comet_mpc.models.writing.model import WritingModel
from comet_mpc.net.identity import TlsIdentity
from comet_mpc.net.metrics import Counters
from comet_mpc.offline.dealer.bundles import weight_key, weights_digest
from comet_mpc.offline.shelf import Shelf, forget_unused
from comet_mpc.offline.source import PreparationLimits, ServerDesk, Source
from comet_mpc.offline.store import BundleStore
from comet_mpc.service.messages import MOST_KEPT, Begin, Prepare, Run, Welcome
from comet_mpc.service.programs import Programs
from comet_mpc.service.quota import Quota

_log = logging.getLogger(__name__)

Served = ServedModel | WritingModel

_SECRET_BYTES = 32
_DAY = 86_400.0
_COUNTERS = {
    "queries_total": "Runs of a program that were completed.",
    "texts_total": "Texts in them.",
    "online_bytes_total": "Bytes sent and received in the online phase, frame headers included.",
    "online_seconds_total": "Seconds spent in the online phase.",
    "rounds_total": "Rounds of the online phase.",
    "offline_bytes_total": "Bytes of preparing randomness: corrections from the dealer, or both ways with clients.",
    "offline_seconds_total": "Seconds spent on that.",
    "bundles_prepared_total": "Bundles of randomness prepared.",
    "written_total": "Runs of conversations with a model that writes.",
    "bundles_evicted_total": "Bundles that were dropped to make room for others.",
    "plans_total": "Sizes of batch and bucket that were planned. Each is kept in the state, so once is enough.",
    "setup_bytes_total": "Bytes of public packages and masked weights sent to clients.",
}
_PHASES = {
    "handshake": "From the connection to the end of the TLS handshake.",
    "entry": "Waiting for a process, from the handshake on.",
    "wait_run": "Waiting for a slot for a query.",
    "wait_prepare": "Waiting for a slot for a preparation.",
    "wait_download": "Waiting for a slot for a download.",
    "plan": "Planning a size of batch and bucket that nobody has asked for before.",
    "download": "Sending the public package or the masked weights.",
    "prepare": "Preparing randomness: one request, for one bundle or several.",
    "run": "A query, from its slot to the last byte of the answer.",
}
"""What the histograms time."""
_STATES = (
    *(f"waiting {what}" for what in ("connection", "run", "prepare", "download")),
    *(f"working {what}" for what in ("run", "prepare", "download")),
    "clients",
)
"""What the front desk measures."""


@dataclass(frozen=True, kw_only=True)
class ServiceLimits(PreparationLimits):
    """What a server does for one client, and how long it waits for it."""

    batch: int = 8
    """Texts in one run of the program."""
    ready: int = 4
    """Bundles that a client is told it may keep ready per program."""
    queries_per_day: int = 0
    """Texts that are classified for one client's certificate in a day (UTC); 0: as many as it asks for."""
    tokens_per_day: int = 0
    """Hidden states that are told to one client's certificate in a day (UTC), by a model that writes; 0: no limit."""
    queries_in: str = ""
    """Directory in which those are counted; several servers may share one. Empty: `queries` in the server's state."""
    store_bytes: int = 1 << 34
    """Of prepared randomness on disk; beyond that the oldest of whoever has the most is dropped."""
    client_bytes: int = 1 << 32
    """Of them, for one client's certificate; beyond that its own oldest is dropped."""
    client_bundles: int = 128
    """Queries that are prepared for one client's certificate, of all sizes together; as above."""
    unused_days: float = 30.0
    """After so long without use, the prepared randomness of a model that is served no more is removed."""
    idle_seconds: float = 60.0
    query_seconds: float = 600.0
    setup_seconds: float = 3600.0
    slowest: float = 64e3
    """Bytes a second of a download, on top of `stall_seconds` for every tensor; a slower client is cut off."""


def server_counters(rows: int = 1) -> Counters:
    """A row for each of its processes."""
    return Counters(_COUNTERS, rows, phases=_PHASES, states=_STATES)


class Deployment:
    """Made once, before workers are forked.

    source: where the randomness comes from. A dealer's says where the dealer is
    """

    def __init__(
        self,
        model: Served,
        source: Source,
        identity: TlsIdentity,
        state: Path,
        limits: ServiceLimits | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.limits = limits or ServiceLimits()
        self.counters = counters or server_counters()
        self.source = source
        self.model = replace(model, folded={}) if isinstance(model, ServedModel) else model  # without real numbers
        self.programs = Programs(self.model, source, Path(state), self._planned)
        self.weights = self.model.weights()
        self.package = self.model.package()
        # bound to the very numbers that are masked: another way to fold or round the same checkpoint gets other masks
        secret, numbers = _secret(Path(state)), weights_digest(self.weights)
        self.key = weight_key(secret, numbers)
        masked = [weight.name for weight in self.programs.weights()]
        self.provider = source.provider(ServerDesk(self.weights, self.key, masked, identity, Path(state), self.limits))
        name = hashlib.sha256(derive_seed(secret, "state", f"{source.name} {numbers}")).hexdigest()
        self.welcome = Welcome(
            fingerprint=self.model.fingerprint,
            package_bytes=len(self.package),
            network=str(model.network),
            weights=_size_and_digest(self.provider.masked_weights()),
            state=name,
            dealer=source.third_party,
            largest_batch=self.limits.batch,
            ready=self.limits.ready,
            kept=min(self.limits.client_bundles, MOST_KEPT),
            kept_bytes=self._largest_share,
        )
        self.quota = Quota(Path(self.limits.queries_in or Path(state) / "queries"), self.limits.queries_per_day)
        counts = Path(self.limits.queries_in or state) / "tokens"
        self.tokens = Quota(counts, self.limits.tokens_per_day, tokens=True)
        # Randomness for other weights, or other masks of them, is of no use, so each of them has a store of its own.
        shelf = Shelf(self.limits.store_bytes, self._largest_share, self.limits.client_bundles)
        self.store = BundleStore(Path(state) / f"bundles-{name[:32]}", SERVER, source, shelf, self._evicted)
        self._owners_key = derive_seed(secret, "owners", "")
        for removed in forget_unused(Path(state), "bundles-*", self.limits.unused_days * _DAY):
            _log.info("removed randomness that was not used for long", extra={"fields": {"directory": removed.name}})

    @property
    def _largest_share(self) -> int:
        return min(self.limits.client_bytes, self.limits.store_bytes)

    def pseudonym(self, owner: bytes) -> str:
        """What an owner of bundles is called where clients' names are not told. The log has both.

        It takes this server's secret to tell whose it is: the SHA-256 of a name can be guessed.
        """
        return hmac.digest(self._owners_key, owner, "sha256").hex()[:8]

    def _evicted(self, count: int) -> None:
        self.counters.add(bundles_evicted_total=count)

    def _planned(self, batch: int, bucket: int) -> None:
        self.counters.add(plans_total=1)
        _log.info("planned a program", extra={"fields": {"batch": batch, "bucket": bucket}})

    @property
    def encoder(self) -> ServedModel:
        if not isinstance(self.model, ServedModel):
            raise ConfigurationError("this model writes: ask it to generate")
        return self.model

    @property
    def writer(self) -> WritingModel:
        if not isinstance(self.model, WritingModel):
            raise ConfigurationError("this model does not write: ask it about texts")
        return self.model

    def plan(self, message: Prepare | Run | Begin, slot: AbstractContextManager[None]) -> Plan:
        """The program that a client names, which must be the one that it has planned itself.

        slot: in which it is planned, if nobody has done so before
        """
        if message.batch > self.limits.batch:
            raise ShapeError(f"a batch of {message.batch} texts: this server takes {self.limits.batch} at a time")
        plan = self.programs.known(message.batch, message.bucket)
        if plan is None:
            with slot, self.counters.timed("plan"):
                plan = self.programs.plan(message.batch, message.bucket)
        if plan.digest != message.digest:
            raise ProtocolMismatch("the parameters of the program", got=message.digest, expected=plan.digest)
        return plan

    def check_room(self, plan: Plan, count: int) -> None:
        """Refuses bundles that no dropping of others would make room for, and more than are prepared together."""
        most = min(self.source.together(plan.correlations), self.limits.client_bundles)
        if count > most:
            raise ConfigurationError(f"cannot prepare {count} bundles at once: the limit for this size is {most}")
        needed = count * self.source.stored_bytes(SERVER, plan.correlations)
        self.store.check_disk(needed)
        if needed > self._largest_share:
            raise ConfigurationError(
                f"a bundle of this size takes {needed} bytes, this server keeps {self._largest_share} for a client: "
                "send fewer texts at a time, or ask the operator for more room"
            )


def _size_and_digest(pieces: Iterator[memoryview] | None) -> tuple[int, str] | None:
    if pieces is None:
        return None
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += piece.nbytes
    return size, digest.hexdigest()


def _secret(state: Path) -> bytes:
    """The secret of the weight masks, made on first use. Whoever reads it and a client's download has the model."""
    path = state / "weights.secret"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            with atomic_write(path, mode=0o600, durable=True, once=True) as file:
                file.write(secrets.token_bytes(_SECRET_BYTES))
        found = path.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigurationError(f"{path} holds a secret: it must belong to this user alone (chmod 600)")
        secret = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot use {state} for the server's state: {error.strerror}") from error
    if len(secret) != _SECRET_BYTES:
        raise ConfigurationError(f"{path} has {len(secret)} bytes, expected {_SECRET_BYTES}: remove it to make another")
    return secret
