"""Which model a client has met at which address: pinned at the first meeting, and refused if it is another one later.

    <cache>/known/<digest of address and name>.json

The fingerprint is the SHA-256 of the package that the client was given, so it is the client's own: no server states it.
A file appears whole or not at all, the first of several clients that meet a model at once writes it, and a file that
cannot be read is an error. So a crash leaves the client with what it knew, or with nothing known yet.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from comet_mpc.errors import ConfigurationError, ModelChanged
from comet_mpc.files import atomic_write
from comet_mpc.models.served import package_parts


class KnownModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """server: its address, and the model's name if one was asked for. parts: digests, to say what has changed."""

    server: str
    fingerprint: str
    parts: dict[str, str]

    @staticmethod
    def of(server: str, package: bytes) -> KnownModel:
        return KnownModel(server, hashlib.sha256(package).hexdigest(), package_parts(package))

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
