"""Correlated randomness: kept in a store, made by a dealer or by the two parties themselves.

bundle   one party's part for one run, and what a program draws from
store    bundles on disk, consumed before they are used
source   the interface of a source of randomness
sources  those that there are: `dealer` and `pair`
dealer   randomness from a third party
pair     randomness from the two parties, by `ot` (oblivious transfer) and `rlwe` (homomorphic encryption)
"""

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
