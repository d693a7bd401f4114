"""The sources of randomness there are, by name: one is loaded when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comet_mpc.errors import ConfigurationError, did_you_mean
from comet_mpc.offline.registry import Registry
from comet_mpc.offline.source import Source

if TYPE_CHECKING:
    from comet_mpc.offline.dealer.source import DealerSource as DealerSource
    from comet_mpc.offline.pair.source import PairSource as PairSource

    DEALER: DealerSource
    PAIR: PairSource

_NAMES = {"pair": "pair.source.PairSource", "dealer": "dealer.source.DealerSource"}
SOURCES: Registry[str, Source] = Registry(_NAMES)


def find_source(name: str) -> Source:
    """The source called so."""
    try:
        return SOURCES[name]
    except KeyError:
        near = did_you_mean(name, SOURCES) or f": choose {' or '.join(SOURCES)}"
        raise ConfigurationError(f"unknown source of randomness {name!r}{near}") from None


if not TYPE_CHECKING:  # the sources as PAIR and DEALER, and their classes

    def __getattr__(name: str) -> object:
        for source, path in _NAMES.items():
            if name == source.upper():
                return SOURCES[source]
            if path.endswith(f".{name}"):
                return type(SOURCES[source])
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
