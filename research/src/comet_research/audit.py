"""What the audit of `comet audit` says of what this package adds: look-ups, and the paper's flooded shares.

Look-ups must tell nothing, and broken ones must be caught. Flooded shares must be caught as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from comet_mpc.engine import Session, Weight, kernels, ops
from comet_mpc.engine.correlations import Correlation
from comet_mpc.engine.ops import Request
from comet_mpc.engine.ops.operation import Drawn, Packed
from comet_mpc.engine.share import CLIENT, SERVER, Words
from comet_mpc.local.audit import online
from comet_mpc.local.audit.controls import Control
from comet_mpc.local.audit.online import Secrets, Watching
from comet_mpc.local.audit.report import Finding, findings
from comet_research.functions.flooding import Flooding, flooded_guess_not_private
from comet_research.look_up import Choose, Column, Fetch, Table, TableTransfers, look_up, tables
from comet_research.look_up.operation import Chosen

TABLE = Table((Column(tuple(range(0, 160, 10)), 8), Column(tuple(range(0, -32, -2)), 24)))
CAUGHT: dict[str, dict[Control, tuple[str, ...]]] = {
    "dealer": {
        "same seed": ("Open", "Choose", "Fetch", "products, TableTransfers"),
        "old mask": ("Open", "Choose", "Fetch"),
        "no mask": ("Fetch, own",),
    },
    "pair": {"old mask": ("Open", "Choose", "Fetch")},
}
"""By source and control, the messages of a look-up at which it must be caught."""


def look_ups(session: Session, _: Mapping[str, Weight], secrets: Secrets) -> object:
    """Two look-ups at the same kind of index, the client's and the server's: so that a mask could be used twice."""
    x, y = (np.full((4, 8), (0.25, -0.75)[which]) for which in secrets)
    first = session.private(CLIENT, x.shape, 12, 1.0, x)
    second = session.private(SERVER, y.shape, 12, 1.0, y)
    session.open(*look_up(session, first.digit_sum(2, 3), TABLE))
    return session.open(*look_up(session, second.digit_sum(2, 3), TABLE))


def flooded(session: Session, _: Mapping[str, Weight], secrets: Secrets) -> object:
    """The paper's first guess of the server's value, 1 or 3."""
    x = session.private(SERVER, (32,), 16, 8.0, np.full(32, (1.0, 3.0)[secrets[SERVER]]))
    return flooded_guess_not_private(session, x, Flooding())


class WatchingLookUps(Watching):
    """Writes down what a party receives in a look-up, and what the dealer sends for it."""

    _transfers: tuple[int, TableTransfers]

    def _received(self, request: Request[Any], drawn: Drawn | None, data: Packed) -> None:
        match request, drawn:
            case Choose(share=share), Drawn(index=index):
                words, seed = share.ring.unpack(data, share.count), self._expansion(index, share.count)
                self._note_masked("Choose", words, share.ring.size, data.size, np.uint64(0) - share.flat(), seed)
            case Fetch(chosen=chosen), None:
                self._fetched(chosen, data)
            case _:
                super()._received(request, drawn, data)

    def _fetched(self, chosen: Chosen, data: Packed) -> None:
        (index, transfers), (place, *known) = self._transfers, chosen.drawn
        entries, sizes, at = chosen.table.entries, chosen.table.sizes, 0
        for column, (size, pad) in enumerate(zip(sizes, known, strict=True)):
            length = place.size * entries * size
            words = kernels.unpack_words(data[at : at + length], size, place.size * entries)
            at += length
            pads = kernels.unpack_words(self._pads(index, column, transfers), size, words.size)
            self._note_masked("Fetch", words, 256**size, length, np.zeros_like(words), pads)
            if not self._dealt:
                continue
            own = words.reshape(-1, entries)[np.arange(place.size), place]
            self._note("Fetch, own", own, 256**size, 0, known=pad, place=place, share=chosen.share.flat())

    def _draw(self, correlation: Correlation) -> Drawn:
        drawn = super()._draw(correlation)
        if isinstance(correlation, TableTransfers):
            self._transfers = drawn.index, correlation
        return drawn

    def _held_besides(self, drawn: Drawn, correlation: Correlation, array: int, seed: Words) -> dict[str, Words]:
        if not isinstance(correlation, TableTransfers):
            return {}
        pads = self._pads(drawn.index, array - 1, correlation)
        return {"pads": tables.pick(pads, drawn.arrays[0], correlation.sizes[array - 1]) - seed}

    def _pads(self, index: int, column: int, transfers: TableTransfers) -> Packed:
        """What the client's pads would be, had it the same seed."""
        length = transfers.count * transfers.entries * transfers.sizes[column]
        words = self._expansion(index, -(-length // 8), 1 + len(transfers.sizes) + column)
        return words.view(np.uint8)[:length]


class _WatchingLeaks(Watching):
    """Takes what is revealed for a message, not for a result."""

    def _received(self, request: Request[Any], drawn: Drawn | None, data: Packed) -> None:
        if isinstance(request, ops.Reveal):
            share = request.share
            words = share.ring.unpack(data, share.count)
            self._note("Reveal", words, share.ring.size, data.size, share=share.flat())
        else:
            super()._received(request, drawn, data)

    def _add_result(self, result: Words) -> None:
        """There is none."""


def audit_look_ups(source: str, runs: int, control: Control = "") -> list[Finding]:
    """What the audit finds in look-ups, or in broken ones."""
    recorded = online.record(source, runs, control, program=look_ups, watching=WatchingLookUps)
    return findings(recorded, source, control, caught=CAUGHT)


def audit_flooded(runs: int) -> list[Finding]:
    """What it finds in flooded shares."""
    return findings(online.record("dealer", runs, program=flooded, watching=_WatchingLeaks), "dealer")
