"""What a client downloads once per model, kept on disk and checked, and which model it has met at which server.

    <cache>/<fingerprint, shortened>-<the server's state, shortened>/
        package     the public package
        weights     D = W - B of all weights, one after the other; if the source of randomness asks for them
        bundles/    the client's prepared randomness (`store.BundleStore`)
        plans-*/    the plans that this client has made (`kept_plans.KeptPlans`)
        server      the address at which that server was reached last: it may be one of several machines
    <cache>/known/  which model was met at which address, and under which name: pinned at the first meeting

A file is written beside, checked against the digest that the server told over TLS, and moved into place; on every
start it is read and checked again. The digest of the package is the model's fingerprint. A server with another model
or another secret gets a directory of its own; of one model, what is the same everywhere is downloaded once.

A pin is the client's own: no server states the digest of what the client was given. It appears whole or not at all, the
first of several clients that meet a model at once writes it, and one that cannot be read is an error. So a crash leaves
a client with what it knew, or with nothing known yet.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from comet_mpc.engine import Weight
from comet_mpc.engine.costs import Network
from comet_mpc.engine.share import CLIENT
from comet_mpc.errors import CometError, ConfigurationError, ModelChanged, PeerError, ProtocolMismatch, UnsafeTokenizer
from comet_mpc.files import atomic_write
from comet_mpc.models.public import PublicModel
from comet_mpc.models.tokenizers.texts import TextTokenizer
from comet_mpc.models.writing.packages import Model, answering, parts, unpack, writing
from comet_mpc.net.channel import Channel
from comet_mpc.offline.source import Progress, Source
from comet_mpc.offline.store import BundleStore
from comet_mpc.service.messages import GetPackage, GetWeights, Welcome, receive_blob, say
from comet_mpc.service.programs import Programs

if TYPE_CHECKING:
    from comet_mpc.models.writing.model import WritingModel

_READ = 1 << 22
_DIGITS = 32
_SERVER = "server"
_LARGEST_PACKAGE = 1 << 32


def default_cache() -> Path:
    """$XDG_CACHE_HOME/comet, or ~/.cache/comet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "comet"


@dataclass(frozen=True, eq=False)
class ClientModel:
    """A model as one client has it."""

    given: Model
    source: Source
    programs: Programs
    weights: dict[str, Weight]
    """Public parts of all weights; masked, where the source asks for that."""
    store: BundleStore

    @property
    def public(self) -> PublicModel:
        return answering(self.given)

    @property
    def writer(self) -> WritingModel:
        return writing(self.given)


class KnownModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """server: its address, and the model's name if one was asked for. parts: digests, to say what has changed."""

    server: str
    fingerprint: str
    parts: dict[str, str]

    @staticmethod
    def of(server: str, package: bytes) -> KnownModel:
        return KnownModel(server, hashlib.sha256(package).hexdigest(), parts(package))

    def check(self, met: KnownModel) -> None:
        """Raises `ModelChanged` if another model is met under the same name."""
        if met.fingerprint == self.fingerprint:
            return
        names = [*self.parts, *(name for name in met.parts if name not in self.parts)]
        changed = [name for name in names if self.parts.get(name) != met.parts.get(name)]
        raise ModelChanged(self.server, got=met.fingerprint, expected=self.fingerprint, changed=changed)


class KnownModels:
    """What a client knows, in its cache."""

    def __init__(self, cache: Path) -> None:
        self._directory = cache / "known"

    def _path(self, server: str) -> Path:
        return self._directory / f"{hashlib.sha256(server.encode()).hexdigest()[:32]}.json"

    def find(self, server: str) -> KnownModel | None:
        path = self._path(server)
        try:
            known = msgspec.json.decode(path.read_bytes(), type=KnownModel)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeError) as error:
            raise ConfigurationError(
                f"{path} cannot be read, and it says which model {server} had before: restore it, or remove it and "
                "check the fingerprint of the model with its operator"
            ) from error
        if known.server != server:
            raise ConfigurationError(f"{path} is about another server than {server}: remove it")
        return known

    def keep(self, met: KnownModel, *, instead: bool = False) -> None:
        """Pins a model, unless one is pinned, which must be the same. instead: in place of what was known."""
        with atomic_write(self._path(met.server), mode=0o600, durable=True, once=not instead) as file:
            file.write(msgspec.json.encode(met))
        known = self.find(met.server)
        if known is not None:
            known.check(met)


def obtain_model(
    channel: Channel,
    source: Source,
    welcome: Welcome,
    cache: Path,
    told: Progress | None = None,
    *,
    server: str = "",
    check: Callable[[bytes], None] = lambda package: None,
    tokenizer: TextTokenizer | None = None,
) -> ClientModel:
    """The model that the server has, from the cache or by download. What comes is checked before it is used.

    told: bytes so far of each download, and of how many
    server: how this client calls it, for `state_in_use`
    check: is given the package as it came, and raises if this client does not take it
    tokenizer: the client's own, in place of the server's
    """
    if welcome.package_bytes > _LARGEST_PACKAGE:
        raise PeerError(f"a public package of {welcome.package_bytes} bytes exceeds what this client accepts")
    directory = cache / f"{welcome.fingerprint[:_DIGITS]}-{welcome.state[:_DIGITS]}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot use {cache} as the cache: {error.strerror}") from error
    package, weights = directory / "package", directory / "weights"
    _obtain(package, welcome.package_bytes, welcome.fingerprint, channel, lambda: say(channel, GetPackage()), told)
    received = package.read_bytes()
    try:
        check(received)
        model = unpack(received, network=Network.parse(welcome.network), tokenizer=tokenizer)
        programs = Programs(model, source, directory)
        public = programs.weights()
    except (PeerError, UnsafeTokenizer):
        raise
    except CometError as error:
        raise PeerError(f"the server's public package cannot be used: {error}") from error
    except Exception as error:  # the configuration of a peer: whatever it breaks, it is the peer's fault
        raise PeerError(f"the server's public package cannot be used: {type(error).__name__}") from error
    store = BundleStore(directory / "bundles", CLIENT, source)
    with atomic_write(directory / _SERVER, mode=0o600) as file:
        file.write(server.encode())
    if not source.masks_weights:
        return ClientModel(model, source, programs, model.weights(), store)
    expected = 8 * sum(math.prod(weight.shape) for weight in public)
    size, digest = welcome.weights or (0, "")
    if size != expected:
        raise ProtocolMismatch("the bytes of masked weights", got=size, expected=expected)
    _obtain(weights, expected, digest, channel, lambda: say(channel, GetWeights()), told)
    return ClientModel(model, source, programs, model.weights() | _masked(weights, public), store)


def state_in_use(cache: Path, server: str, fingerprint: str = "") -> str:
    """The state, shortened, of the server's machine with which this client has something prepared; empty if none has.

    Of several, the one that answered last.
    """
    found: list[tuple[float, str]] = []
    for path in cache.glob(f"{fingerprint[:_DIGITS]}*-*/{_SERVER}"):
        with contextlib.suppress(OSError):
            if path.read_text() == server and any((path.parent / "bundles").glob("*.bundle")):
                found.append((path.stat().st_mtime, path.parent.name.rpartition("-")[2]))
    return max(found)[1] if found else ""


def _masked(path: Path, public: tuple[Weight, ...]) -> dict[str, Weight]:
    """The masked weights, mapped into memory: pages are read when they are needed."""
    words = np.memmap(path, np.uint64, "r")
    weights, offset = {}, 0
    for weight in public:
        count = math.prod(weight.shape)
        masked = words[offset : offset + count].reshape(weight.shape)
        weights[weight.name] = Weight(weight.name, weight.shape, weight.fraction, weight.gain, masked=masked)
        offset += count
    return weights


def _intact(path: Path, size: int, digest: str) -> bool:
    hasher = hashlib.sha256()
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != size:
                return False
            while piece := file.read(_READ):
                hasher.update(piece)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    return hasher.hexdigest() == digest


def _obtain(
    path: Path, size: int, digest: str, channel: Channel, ask: Callable[[], None], told: Progress | None
) -> None:
    """Downloads a file unless it is there, whole. Several clients may do so at once; each moves a whole file."""
    if _intact(path, size, digest):
        return
    for other in path.parent.parent.glob(f"{path.parent.name[:_DIGITS]}-*/{path.name}"):
        if _intact(other, size, digest):
            with contextlib.suppress(OSError):
                os.link(other, path)
                return
    with atomic_write(path, mode=0o600, durable=True) as file:
        ask()
        receive_blob(channel, size, digest, file, told)
