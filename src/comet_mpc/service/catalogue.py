"""The models of one server: each under its name, and the version before of those that were replaced while it ran.

A client names a model, or takes the first. A client that was set up names its fingerprint as well: it stays with that
version while the server has it. So a new version of a model disturbs nobody: what was begun with the old one, and what
was prepared for it, is finished with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from comet_mpc.errors import ConfigurationError, ProtocolMismatch
from comet_mpc.service.deployment import Deployment

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is not a valid model name: use letters, digits, '.', '-' and '_'")
    return name


class Catalogue:
    """models: by name, the first one for clients that name none. before: versions that were replaced, by name."""

    def __init__(self, models: Mapping[str, Deployment], before: Mapping[str, Deployment] | None = None) -> None:
        if not models:
            raise ConfigurationError("a server needs at least one model")
        self.models, self.before = dict(models), dict(before or {})
        self.first = next(iter(self.models.values()))
        self.source, self.limits, self.counters = self.first.source, self.first.limits, self.first.counters

    @property
    def greeted(self) -> str:
        """The fingerprint that every client is told before it has said what it wants: with several models, none."""
        return "" if len(self.models) + len(self.before) > 1 else self.first.model.fingerprint

    def choose(self, name: str, fingerprint: str) -> Deployment:
        """What a client asks for. Both may be empty."""
        if name and name not in self.models:
            raise ConfigurationError(
                f"this server has no model called {name[:64]!r}: it has {', '.join(sorted(self.models))}"
            )
        if not fingerprint:
            return self.models[name] if name else self.first
        kept = [*self.models.items(), *self.before.items()]
        fitting = [one for called, one in kept if one.model.fingerprint == fingerprint and name in ("", called)]
        if not fitting:
            known = (self.models[name] if name else self.first).model.fingerprint
            raise ProtocolMismatch("model", got=fingerprint[:64], expected=known)
        return fitting[0]

    def replaced(self, models: Mapping[str, Deployment]) -> Catalogue:
        """With other models. Those that were served until now are kept once more."""
        new = {one.model.fingerprint for one in models.values()}
        before = {name: one for name, one in self.models.items() if one.model.fingerprint not in new}
        return Catalogue(models, before)

    def all(self) -> list[Deployment]:
        return [*self.models.values(), *self.before.values()]
