"""The sources of randomness there are, by name."""

from __future__ import annotations

from comet_mpc.errors import ConfigurationError, did_you_mean
from comet_mpc.offline.dealer.source import DealerSource as DealerSource
from comet_mpc.offline.pair.source import PairSource as PairSource
from comet_mpc.offline.source import Source

DEALER, PAIR = DealerSource(), PairSource()
SOURCES: dict[str, Source] = {source.name: source for source in (PAIR, DEALER)}


def find_source(name: str) -> Source:
    """The source called so."""
    try:
        return SOURCES[name]
    except KeyError:
        near = did_you_mean(name, SOURCES) or f": choose {' or '.join(SOURCES)}"
        raise ConfigurationError(f"unknown source of randomness {name!r}{near}") from None
