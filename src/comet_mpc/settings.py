"""Settings of the command line in a TOML file, so that a long command is written once.

    keys = "/etc/comet/keys"          # for every command that has this option

    [serve]                           # for one command: its options, and its arguments by their names
    model = "/var/lib/comet/model"
    listen = "0.0.0.0:7001"

What the command line says goes first, then environment variables (`COMET_SERVE_LISTEN`), then this file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from comet_mpc.errors import ConfigurationError, did_you_mean

SHARED = ("keys", "cache", "source", "dealer", "server", "timeout")
"""What may stand above all sections."""


class Settings:
    """What a file says. Every name in it must be one that its command knows: a misspelt one is an error."""

    def __init__(self, path: Path | None = None, commands: Collection[str] = ()) -> None:
        """path: None takes the user's own file, if there is one."""
        self.path = path or _own()
        self._content: dict[str, Any] = {}
        if path is None and not self.path.exists():
            return
        try:
            self._content = tomllib.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"cannot read the settings in {self.path}: {error}") from error
        for name, value in self._content.items():
            known = commands if isinstance(value, dict) else SHARED
            if name not in known:
                raise ConfigurationError(f"{self.path}: {_unknown(name, value, known)}")

    def of(self, command: str, names: Mapping[str, str]) -> dict[str, Any]:
        """The settings of one command. names: of its options and arguments as they are written, and as it knows them.

        A section of a section stays one, for a command that has commands of its own.
        """
        found = {names[name]: value for name, value in self._content.items() if name in names and name in SHARED}
        for name, value in self._content.get(command, {}).items():
            written = name.replace("-", "_")
            if isinstance(value, dict):
                found[name] = value
            elif written in names:
                found[names[written]] = value
            else:
                near = did_you_mean(written, names) or f". Its settings: {', '.join(names)}"
                raise ConfigurationError(f"{self.path}: [{command}] has no setting {name!r}{near}")
        return found


def _unknown(name: str, value: object, known: Collection[str]) -> str:
    if isinstance(value, dict):
        near = did_you_mean(name, known) or f". The sections: {', '.join(known)}"
        return f"[{name}] is not a command{near}"
    near = did_you_mean(name, known) or f". Settings outside a section: {', '.join(known)}"
    return f"unknown setting {name!r}{near}"


def _own() -> Path:
    """$XDG_CONFIG_HOME/comet/comet.toml, or ~/.config/comet/comet.toml."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "comet" / "comet.toml"
