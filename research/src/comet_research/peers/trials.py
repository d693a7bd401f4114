"""How often CrypTen gives wrong results inside the ranges that it is told: with Comet's functions, and with its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from comet_mpc.progress import Tick, silent
from comet_research.peers import crypten_trials
from comet_research.peers.compare import run_crypten
from comet_research.peers.crypten_trials import TRIALS, expected_wraps

_SEED = 1


class TrialRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One function on many random values inside its range, between two processes."""

    record: str = "trial"
    function: str
    variant: str
    """own, or certified: the plug-in's."""
    values: int
    off: int
    """Results that are off by more than 0.05, or 5 % of what is meant where that is above 1."""
    wrapped: int
    """Of these, off by more than 1000: a truncation wrapped around."""
    misread: int
    """Values that CrypTen's own decoding gives off by 1: negative ones just above a whole one."""
    worst_else: float
    """The largest error of the others."""
    expected: float | None
    """Wraps that CrypTen's truncation makes on average; None: not worked out."""


def run_trials(
    count: int,
    place: Path,
    known: Iterable[TrialRecord] = (),
    progress: Tick = silent,
) -> Iterator[TrialRecord]:
    """Every function that is not known yet, as it comes."""
    done = {(record.function, record.variant) for record in known}
    variants = {name: ("own",) if name == "product" else ("certified", "own") for name in TRIALS}
    wanted = [(name, variant) for name in TRIALS for variant in variants[name] if (name, variant) not in done]
    for place_in_line, (function, variant) in enumerate(wanted):
        progress(place_in_line, len(wanted), f"{function}, {variant}")
        found = run_crypten(crypten_trials.__name__, [function, str(count), str(_SEED), variant], place)[0]
        expected = expected_wraps(found["values"]) if function == "product" else None
        about = {"function": function, "variant": variant, "expected": expected}
        yield msgspec.convert({**about, **found}, TrialRecord)
