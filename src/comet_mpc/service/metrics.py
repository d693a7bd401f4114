"""What a server counts."""

from __future__ import annotations

from comet_mpc.net.metrics import Counters

__all__ = ["server_counters"]

_COUNTERS = {
    "queries_total": "Runs of a program that were completed.",
    "texts_total": "Texts in them.",
    "online_bytes_total": "Bytes sent and received in the online phase, frame headers included.",
    "online_seconds_total": "Seconds spent in the online phase.",
    "rounds_total": "Rounds of the online phase.",
    "offline_bytes_total": "Bytes of preparing randomness: corrections from the dealer, or both ways with clients.",
    "offline_seconds_total": "Seconds spent on that.",
    "bundles_prepared_total": "Bundles of randomness prepared.",
    "setup_bytes_total": "Bytes of public packages and masked weights sent to clients.",
}


def server_counters(rows: int = 1) -> Counters:
    """A row for each of its processes."""
    return Counters(_COUNTERS, rows)
