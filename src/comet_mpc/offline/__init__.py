"""Correlated randomness: kept in a store, made by a dealer or by the two parties themselves."""

from comet_mpc.offline import kinds as kinds  # what can be prepared, whichever module is imported
from comet_mpc.offline.bundle import Bundle, OpenBundle
from comet_mpc.offline.source import Order, Provider, Source, Supplier
from comet_mpc.offline.sources import DEALER, PAIR, SOURCES, DealerSource, PairSource, find_source
from comet_mpc.offline.store import BundleStore, new_bundle_id

__all__ = [
    "DEALER",
    "PAIR",
    "SOURCES",
    "Bundle",
    "BundleStore",
    "DealerSource",
    "OpenBundle",
    "Order",
    "PairSource",
    "Provider",
    "Source",
    "Supplier",
    "find_source",
    "new_bundle_id",
]
